"""Other orders of samples: drawn where a user allows them, proposed where faster, never kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from doubles import ManualClock
from optuna.trial import FixedTrial

from autoloader.knobs import KnobLimits, Knobs
from autoloader.planning.order_notes import chain_saves
from autoloader.spec import PipelineSpec
from autoloader.tune.finals import Contender
from autoloader.tune.ledger import pick_finalists
from autoloader.tune.order import OrderChoice, propose
from autoloader.tune.order.choice import BLOCK, CHAIN
from autoloader.tune.progress import TrialProgress
from autoloader.tune.search_space import SearchSpace
from autoloader.tune.storage import sqlite_url
from autoloader.tune.study import StudyOptions, StudyResult, run_study
from autoloader.tune.trial import Measurer, Outcome, TrialResult, TrialWatch

LIMITS = KnobLimits(cpus=4, shards={"a": 8})
START = Knobs.build({"reader": "indexed", "decode_threads": 1, "queue_samples": 2})


def mixture(mixing: str = "{}", *, batch: int = 16, more: str = "", kept: bool = False) -> Any:
    """What ``OrderChoice`` asks of a mixture, with a spec that was read."""
    import yaml

    spec = PipelineSpec.from_mapping(
        yaml.safe_load(
            "datasets: [{name: a, path: a/1.0.0, images: {primary: image}}]\n"
            "cameras: {primary: {size: [8, 8]}}\nsample: {frame_offsets: [0, 4]}\n"
            f"batch: {{size: {batch}}}\nmixing: {mixing}\n{more}"
        )
    )
    dataset = SimpleNamespace(sample=spec.sample, keep="rules" if kept else None)
    return SimpleNamespace(spec=spec, datasets=[dataset])


def test_orders_are_those_that_the_spec_would_be_read_with() -> None:
    assert OrderChoice.of(mixture()) == OrderChoice(
        (1, False), blocks=(1, 2, 4, 8), chained=(2, 4, 8)
    )
    own = OrderChoice.of(mixture("{block_length: 6, chain: true}", batch=8))
    assert own == OrderChoice((6, True), blocks=(1, 2, 4, 6), chained=(2, 4, 6))
    lanes = OrderChoice.of(mixture("{locality: {lanes: 2}}"))
    assert lanes.chained == (), "batches of lanes would cut runs apart"
    assert OrderChoice.of(mixture(more="reader: stream")).chained == ()
    assert OrderChoice.of(mixture(kept=True)).chained == ()


def test_chains_save_decodes_where_the_spec_may_have_them() -> None:
    assert chain_saves(mixture()) == pytest.approx(1 - 5 / 8), "5 frames for 4 samples, not 8"
    assert chain_saves(mixture("{block_length: 4, chain: true}")) == 0.0
    assert chain_saves(mixture("{locality: {lanes: 2}}")) == 0.0
    assert chain_saves(mixture(more="reader: stream")) == chain_saves(mixture(kept=True)) == 0.0


@pytest.mark.parametrize(
    ("reader", "drawn", "found"),
    [
        ("indexed", {BLOCK: 1}, {}),
        ("indexed", {BLOCK: 8, CHAIN: True}, {"block_length": 8, "chain": True}),
        ("indexed", {BLOCK: 8, CHAIN: False}, {"block_length": 8, "chain": False}),
        ("stream", {BLOCK: 8}, {"block_length": 8, "chain": False}),
    ],
)
def test_chains_are_drawn_only_where_there_is_something_to_chain(
    reader: str, drawn: dict[str, Any], found: dict[str, Any]
) -> None:
    knobs = Knobs.build({"reader": reader}, base=START)
    setting = OrderChoice.of(mixture()).suggest(FixedTrial(drawn), knobs)
    assert setting.mixing == found
    assert setting.knobs.queue_samples == max(2, found.get("block_length", 1)), "holds a block"


def test_every_other_setting_has_the_spec_s_order_until_no_better_one_can_be_found() -> None:
    choice = OrderChoice.of(mixture())
    own, chained = {BLOCK: 1, CHAIN: False}, {"reader": "indexed", BLOCK: 4, CHAIN: True}
    fixed = [choice.fixed_point(drawn, own_decided=False) for drawn in range(5)]
    assert fixed == [own, chained, own, {}, own]
    assert [choice.fixed_point(n, own_decided=True) for n in (0, 2, 4)] == [chained, {}, {}]


class Machine:
    """Chained blocks are faster, more the longer they are."""

    def __init__(self, chained: float) -> None:
        self.clock = ManualClock()
        self.chained = chained
        self.orders: list[Mapping[str, Any]] = []

    def mixed(self, mixing: Mapping[str, Any]) -> Measurer:
        def measure(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
            block = mixing.get("block_length", 1)
            assert knobs.queue_samples >= block
            self.orders.append(mixing)
            self.clock.advance(10)
            rate = 100.0 + 20 * knobs.decode_threads + 0.1 * (len(self.orders) % 3)
            rate *= 1 + self.chained * (1 - 1 / block) * mixing.get("chain", False)
            if not watch(TrialProgress(160, rate), 10**10):
                return TrialResult(Outcome.PRUNED, duration_s=1, reason="slow")
            told = {"samples_per_s": rate, "distinct_episodes_per_batch": 16 / block}
            return TrialResult(
                Outcome.COMPLETE,
                duration_s=10,
                samples_per_s=rate,
                peak_rss_bytes=10**6,
                measurement=told,
            )

        return measure


def study(machine: Machine, tmp_path: Path, *, allowed: bool = True, trials: int = 16) -> Any:
    found: StudyResult = run_study(
        SearchSpace.around(START, LIMITS),
        lambda _: (),
        machine.mixed({}),
        StudyOptions(sqlite_url(tmp_path / "s.db"), "s", trials=trials, budget_s=1e4),
        clock=machine.clock,
        watcher=SimpleNamespace(
            trial_started=lambda *_: None,
            progressed=lambda *_: None,
            trial_ended=lambda *_: None,
            final_started=lambda *_: None,
            final_ended=lambda *_: None,
        ),
        orders=OrderChoice.of(mixture()) if allowed else None,
        measure_mixed=machine.mixed,
    )
    return found


def test_the_best_order_is_proposed_and_the_winner_has_the_spec_s_own(tmp_path: Path) -> None:
    machine = Machine(chained=0.8)
    found = study(machine, tmp_path)
    assert not found.verdict.winner.mixing
    assert not found.verdict.winner.is_start, "half of the trials searched the spec's order"
    proposal = propose(found.verdict.winner, found.verdict.others)
    assert proposal is not None
    assert proposal.faster
    assert proposal.mixing["chain"]
    assert proposal.spec_lines[0] == "mixing:"
    assert "  chain: true" in proposal.spec_lines
    mine, its = proposal.costs["distinct_episodes_per_batch"]
    assert mine == 16.0 > its
    lines = "\n".join(proposal.describe())
    assert "no profile keeps it" in lines
    assert proposal.as_dict()["spec"] == {"mixing": dict(proposal.mixing)}
    assert {True, False} == {"mixing.chain" in t.knobs for t in found.fates}


def test_a_slower_order_is_told_and_not_proposed(tmp_path: Path) -> None:
    winner = Contender(START, rounds={n: _rate(100.0 + n) for n in range(4)})
    wider = Knobs.build({"queue_samples": 4, "io_threads": 3}, base=START)
    slower = Contender(
        wider, rounds={n: _rate(90.0 - n) for n in range(4)}, mixing={"block_length": 4}
    )
    proposal = propose(winner, [slower])
    assert proposal is not None
    assert not proposal.faster
    assert set(proposal.changed) == {"io_threads"}, "an indexed reader uses no queue"
    assert "no other order of samples is faster" in proposal.describe()[0]
    assert propose(winner, []) is None


def test_the_knobs_of_another_order_meet_it_in_the_spec_s_own_order_too() -> None:
    """Else what they give would be taken for what the order gives."""
    stored = optuna.create_study(direction="maximize")
    chain = {"block_length": 4, "chain": True}
    for threads, mixing in ((1, {}), (2, {}), (3, {}), (4, chain)):
        knobs = Knobs.build({"decode_threads": threads}, base=START)
        attrs = {"knobs": knobs.flat(), "mixing": mixing}
        stored.add_trial(optuna.create_trial(value=100.0 * threads, user_attrs=attrs))
    space = SearchSpace.around(START, LIMITS)

    def finalists(own: int, others: int) -> list[tuple[int, bool]]:
        found = pick_finalists(stored.trials, space, own=own, others=others)
        return [(one.knobs.decode_threads, bool(one.mixing)) for one in found]

    assert finalists(2, 0) == [(3, False), (2, False)]
    assert finalists(2, 1) == [(3, False), (4, False), (4, True)]
    assert finalists(0, 1) == [(4, True)]


def test_orders_are_left_alone_where_nobody_allowed_them(tmp_path: Path) -> None:
    machine = Machine(chained=0.8)
    found = study(machine, tmp_path, allowed=False, trials=6)
    assert not any(machine.orders)
    assert found.verdict.others == ()


def _rate(rate: float) -> TrialResult:
    return TrialResult(Outcome.COMPLETE, samples_per_s=rate)
