"""Ranks share one sequence: the same samples in the same order, however many they are."""

import json
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlds_files import Written, once, write_pair
from streams import endless, every_strategy, spec_of

from autoloader import AutoLoader, PipelineSpec

KNOBS = {"ring_slots": 4, "decode_threads": 1, "io_threads": 1, "read_ahead": 1}
Samples = list[tuple[int, ...]]


# Two datasets of 21 and 12 samples.
pair = once(lambda folder: write_pair(folder, a=[[3, 5, 1], [4, 2], [6]], b=[[7], [5]]))


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
):
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
):
    batch = {"size": 4, "drop_last": False}
    spec = spec_of(*pair, batch=batch, weights=weights, mixing={"strategy": strategy})
    found = epoch_of(spec, world_size)
    every = [row for steps in found for step in steps for row in step]
    assert len(every) == len(set(every)) == 33
    assert all(step for steps in found for step in steps)
    one = [row for step in epoch_of(spec, 1)[0] for row in step]
    dealt = [row for steps in zip(*found, strict=True) for step in steps for row in step]
    assert dealt == one


@settings(max_examples=6)
@given(
    st.integers(1, 5),
    st.booleans(),
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 6), st.integers(0, 2)), min_size=2, max_size=3
    ),
)
def test_any_world_sizes_and_save_points_give_the_one_sequence(
    pair: tuple[Written, ...], size: int, drop_last: bool, legs: list[tuple[int, int, int]]
):
    spec = spec_of(*pair, batch={"size": size, "drop_last": drop_last})
    found, state = run_legs(spec, legs)
    assert state["position"] == len(found)
    if found:
        untouched, _ = run_legs(spec, [(1, len(found) + 4, 0)])
        assert found == untouched[: len(found)]
