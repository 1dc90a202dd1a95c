"""Ranks share one sequence: the same samples in the same order, however many they are."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlds_files import Written, write_pair
from streams import endless, every_strategy, spec_of

from autoloader import AutoLoader, PipelineSpec
from autoloader.decode.source import Spans
from autoloader.errors import SpecError, UsageError
from autoloader.pipeline.read.planned import PlannedSource

KNOBS = {"ring_slots": 4, "decode_threads": 1, "io_threads": 1, "read_ahead": 1}
Samples = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, ...]:
    """Two datasets of 21 and 12 samples."""
    return write_pair(tmp_path_factory.mktemp("pair"), a=[[3, 5, 1], [4, 2], [6]], b=[[7], [5]])


def loader(spec: PipelineSpec, rank: int, world_size: int, **own: Any) -> AutoLoader:
    arguments = {"isolation": "thread", "ram_floor": "64MiB", "knobs": KNOBS, "output": "numpy"}
    return AutoLoader(spec, rank=rank, world_size=world_size, **{**arguments, **own})


def rows(batch: dict[str, Any]) -> Samples:
    return [tuple(row) for row in batch["provenance"].tolist()]


def epoch_of(spec: PipelineSpec, world_size: int) -> list[list[Samples]]:
    """One epoch: by rank, each step's samples."""
    with ExitStack() as stack:
        every = [stack.enter_context(loader(spec, r, world_size)) for r in range(world_size)]
        lengths = {len(one) for one in every}
        found = [[rows(batch) for batch in one] for one in every]
    assert lengths == {len(steps) for steps in found}
    return found


def run_legs(
    spec: PipelineSpec, legs: list[tuple[int, int, int]]
) -> tuple[Samples, dict[str, Any] | None]:
    """The sequence over (world size, steps, the rank that saves) after one another."""
    state: str | None = None
    sequence: Samples = []
    for world_size, steps, saver in legs:
        with ExitStack() as stack:
            every = [stack.enter_context(loader(spec, r, world_size)) for r in range(world_size)]
            for one in every:
                if state is not None:
                    one.load_state_dict(json.loads(state))
            for _, *batches in zip(range(steps), *map(endless, every), strict=False):
                sequence += [row for batch in batches for row in rows(batch)]
            states = [one.state_dict() for one in every]
            for other in states[1:]:
                # What each has seen is its own; where the run is, is everybody's.
                own = {"taken": None, "checksum": None}
                assert {**other, **own} == {**states[0], **own}
            state = json.dumps(states[saver % world_size])
    return sequence, json.loads(state) if state else None


@every_strategy
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_sequence_over_resumes_at_one_then_four_then_two_ranks_is_the_untouched_one(
    pair: tuple[Written, ...], drop_last: bool, strategy: str
) -> None:
    batch = {"size": 3, "drop_last": drop_last}
    spec = spec_of(*pair, batch=batch, mixing={"strategy": strategy, "block_length": 2})
    found, _ = run_legs(spec, [(1, 5, 0), (4, 7, 2), (2, 9, 1)])
    untouched, _ = run_legs(spec, [(1, 70, 0)])
    assert len(found) > 100
    assert found == untouched[: len(found)]


@pytest.mark.parametrize(
    ("weights", "strategy"),
    [("natural", "python"), ("explicit", "python"), ("natural", "choose"), ("natural", "sample")],
)
@pytest.mark.parametrize("world_size", [2, 4])
def test_an_epoch_that_drops_nothing_is_complete_and_disjoint_over_ranks(
    pair: tuple[Written, ...], world_size: int, weights: str, strategy: str
) -> None:
    batch = {"size": 4, "drop_last": False}
    spec = spec_of(*pair, batch=batch, weights=weights, mixing={"strategy": strategy})
    found = epoch_of(spec, world_size)
    every = [row for steps in found for step in steps for row in step]
    assert len(every) == len(set(every)) == 33
    assert all(step for steps in found for step in steps)
    one = [row for step in epoch_of(spec, 1)[0] for row in step]
    dealt = [row for steps in zip(*found, strict=True) for step in steps for row in step]
    assert dealt == one


@settings(max_examples=12)
@given(
    st.integers(1, 5),
    st.booleans(),
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 6), st.integers(0, 2)), min_size=2, max_size=3
    ),
)
def test_any_world_sizes_and_save_points_give_the_one_sequence(
    pair: tuple[Written, ...], size: int, drop_last: bool, legs: list[tuple[int, int, int]]
) -> None:
    spec = spec_of(*pair, batch={"size": size, "drop_last": drop_last})
    found, state = run_legs(spec, legs)
    assert state is not None
    assert state["position"] == len(found)
    if found:
        untouched, _ = run_legs(spec, [(1, len(found) + 4, 0)])
        assert found == untouched[: len(found)]


def test_choose_gives_the_sequence_of_python_and_sample_another_one_of_the_same_samples(
    pair: tuple[Written, ...],
) -> None:
    found = {
        strategy: run_legs(
            spec_of(*pair, batch={"size": 3}, weights="natural", mixing={"strategy": strategy}),
            [(2, 11, 0)],
        )[0][:33]
        for strategy in ("python", "choose", "sample")
    }
    assert found["choose"] == found["python"] != found["sample"]
    assert sorted(found["sample"]) == sorted(found["python"])


def test_the_batch_size_may_change_with_the_world_size(pair: tuple[Written, ...]) -> None:
    whole, _ = run_legs(spec_of(*pair), [(1, 20, 0)])
    _, state = run_legs(spec_of(*pair, batch={"size": 5}), [(2, 3, 1)])
    with loader(spec_of(*pair, batch={"size": 2}), 0, 1) as resumed:
        resumed.load_state_dict(state or {})
        assert rows(next(iter(resumed))) == whole[30:32]


def test_retunes_in_the_middle_change_no_ranks_samples(pair: tuple[Written, ...]) -> None:
    spec = spec_of(*pair)
    wanted = epoch_of(spec, 2)
    for rank in (0, 1):
        with loader(spec, rank, 2) as one:
            found = []
            for step, batch in enumerate(one):
                found.append(rows(batch))
                one.retune(io_threads=1 + step % 3, read_ahead=1 + step % 2, decode_threads=2)
        assert found == wanted[rank]


def test_a_rank_reads_its_own_positions_and_no_others(
    pair: tuple[Written, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(*pair, batch={"size": 4})
    assigned: list[int] = []
    assign = PlannedSource.assign

    def noting(self: PlannedSource, spans: Spans) -> None:
        assigned.extend(position for span in spans for position in range(*span))
        assign(self, spans)

    monkeypatch.setattr(PlannedSource, "assign", noting)
    found = []
    for rank, world_size in ((0, 1), (0, 2), (1, 2)):
        assigned.clear()
        with loader(spec, rank, world_size) as one:
            batches = endless(one)
            while len(assigned) < 16:
                next(batches)
        found.append(assigned[:16])
    assert found[0] == list(range(16))
    assert found[1] == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27]
    assert found[2] == [at + 4 for at in found[1]]


def test_a_state_of_another_order_is_refused_with_each_difference(
    pair: tuple[Written, ...],
) -> None:
    with loader(spec_of(*pair), 0, 2) as one:
        state = one.state_dict()
    other = spec_of(*pair, seed=3, mixing={"block_length": 2})
    with (
        loader(other, 0, 2) as one,
        pytest.raises(UsageError, match=r"seed: saved 0, here 3; mixing.block_length: saved 1, h"),
    ):
        one.load_state_dict(state)
    with (
        loader(spec_of(pair[0], mixing={"epoch": "pass"}), 0, 2) as one,
        pytest.raises(UsageError, match=r"datasets.b: saved \{.*\}, here None"),
    ):
        one.load_state_dict(state)


def test_more_ranks_than_samples_of_an_epoch_are_refused(pair: tuple[Written, ...]) -> None:
    with pytest.raises(SpecError, match="an epoch has 33 samples, and there are 40 ranks"):
        loader(spec_of(*pair), 0, 40)


def test_the_environment_says_which_rank_a_loader_is(
    pair: tuple[Written, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with AutoLoader(
        spec_of(*pair), isolation="thread", ram_floor="64MiB", knobs=KNOBS, output="numpy"
    ) as one:
        assert (one.rank, one.world_size) == (1, 2)
        found = rows(next(iter(one)))
    assert found == epoch_of(spec_of(*pair), 1)[0][1]
