"""One knob at several values: measured in turn, refused where illegal, told with intervals."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import pytest
from doubles import ManualClock
from rich.console import Console

from autoloader.errors import KnobError, UsageError
from autoloader.knobs import KnobLimits, Knobs
from autoloader.tune.ladder import LadderReport, climb, parse_ladders, rungs_of
from autoloader.tune.progress import TrialProgress
from autoloader.tune.report import LiveWatcher
from autoloader.tune.trial import Measurer, Outcome, TrialResult, TrialWatch

LIMITS = KnobLimits(cpus=4, shards={"a": 8})
BASE = Knobs.build({"decode_threads": 2})


def ladder(words: list[str], *, budget_s: float = 1000.0) -> tuple[LadderReport, list[Knobs]]:
    clock, asked = ManualClock(), []

    def measure(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        asked.append(knobs)
        clock.advance(10)
        watch(TrialProgress(10, 1.0), 10**9)
        if knobs.ring_slots == 16:
            return TrialResult(Outcome.INFEASIBLE, reason="headroom 1 GiB")
        wobble = 1 + 0.01 * (len(asked) % 3)
        return TrialResult(Outcome.COMPLETE, samples_per_s=100.0 * knobs.decode_threads * wobble)

    rungs = rungs_of(BASE, parse_ladders(words), LIMITS)
    watcher = LiveWatcher(Console(file=io.StringIO()), clock, budget_s)
    return climb(BASE, rungs, measure, clock=clock, budget_s=budget_s, watcher=watcher), asked


def test_each_rung_is_measured_in_turn_with_the_base_and_told_with_its_interval() -> None:
    report, asked = ladder(["decode_threads=1,4", "ring_slots=16"], budget_s=150)
    assert [knobs.decode_threads for knobs in asked[:7]] == [2, 1, 4, 2, 4, 1, 2]
    document = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    half, double, broken = document["rungs"]
    assert (half["knob"], half["value"]) == ("decode_threads", 1)
    assert half["ratio"] == pytest.approx(0.5, rel=0.05)
    assert double["interval"][0] < 2.0 < double["interval"][1] * 1.05
    assert double["rounds"] >= 3
    assert broken["samples_per_s"] is None
    assert broken["failed"] == "headroom 1 GiB"
    text = io.StringIO()
    report.show(Console(file=text, width=120))
    assert "decode_threads=4" in text.getvalue()
    assert "ring_slots=16: headroom 1 GiB" in text.getvalue()


def test_blocks_and_chains_of_the_spec_are_rungs_too_with_the_base_s_knobs() -> None:
    rungs = rungs_of(BASE, parse_ladders(["mixing.chain=1,8", "mixing.block_length=4"]), LIMITS)
    assert [rung.contender.mixing for rung in rungs] == [
        {"block_length": 1, "chain": False},
        {"block_length": 8, "chain": True},
        {"block_length": 4},
    ]
    asked: list[object] = []
    clock = ManualClock()

    def mixed(mixing: Mapping[str, object]) -> Measurer:
        def measure(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
            assert knobs == BASE
            asked.append(mixing)
            return TrialResult(Outcome.COMPLETE, samples_per_s=100.0 * mixing["block_length"])

        return measure

    report = climb(
        BASE,
        rungs,
        mixed({"block_length": 1}),
        clock=clock,
        budget_s=1,
        watcher=LiveWatcher(Console(file=io.StringIO()), clock, 1),
        measure_mixed=mixed,
    )
    assert {"block_length": 8, "chain": True} in asked
    assert [rung["ratio"] for rung in report.as_dict()["rungs"]] == pytest.approx([1, 8, 4])
    with pytest.raises(UsageError, match="no number of samples"):
        rungs_of(BASE, parse_ladders(["mixing.chain=true"]), LIMITS)


def test_a_spent_budget_still_gives_an_interval() -> None:
    report, _ = ladder(["decode_threads=4"], budget_s=1)
    assert report.as_dict()["rungs"][0]["rounds"] == 2
    assert report.as_dict()["rungs"][0]["interval"] is not None


@pytest.mark.parametrize("word", ["decode_threads", "=1,2", "decode_threads=", "decode_threads=,"])
def test_a_ladder_without_knob_or_values_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="names no knob with values"):
        parse_ladders([word])


@pytest.mark.parametrize("word", ["decode_threads=9", "decode_threads=x", "nothing=1"])
def test_a_value_that_may_not_run_is_refused_before_anything_is_measured(word: str) -> None:
    with pytest.raises(KnobError):
        ladder([word])
