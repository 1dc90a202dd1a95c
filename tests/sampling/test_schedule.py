"""The mixing schedule and the blocks it deals: exact at any length, from any position."""

from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoloader.sampling.mixture import BlockSequence, MixtureOrder
from autoloader.sampling.schedule import DrawnSchedule, Schedule

WEIGHTS = st.lists(st.floats(0.001, 1000), min_size=1, max_size=30)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    # Small whole weights and round phases put many blocks at the same due time.
    weights = draw(WEIGHTS | st.lists(st.integers(1, 7).map(float), min_size=1, max_size=9))
    phase = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 0.5, 1 / 3, 0.2, 0.7])
    phases = draw(st.lists(phase, min_size=len(weights), max_size=len(weights)))
    drawn = draw(st.booleans())
    make = partial(DrawnSchedule, key=draw(st.integers(0, 2**64 - 1))) if drawn else Schedule
    if draw(st.booleans()):
        finite = draw(st.lists(st.integers(0, 40), min_size=len(weights), max_size=len(weights)))
        if sum(finite):
            return make(weights, phases, finite=finite)
    return make(weights, phases)


@given(schedules(), st.integers(0, 400))
def test_counts_before_a_position_count_the_blocks_before_it(schedule: Schedule, position: int):
    before = schedule.blocks(0, position)
    counts = schedule.counts_before(position)
    assert counts.tolist() == np.bincount(before, minlength=len(counts)).tolist()


@given(WEIGHTS, st.data())
def test_every_dataset_is_within_one_block_of_its_share_up_to_what_the_position_is_off(
    weights: list[float], data: st.DataObject
):
    n = len(weights)
    phases = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=n, max_size=n))
    position = data.draw(st.integers(1, 50_000))
    counts = Schedule(weights, phases).counts_before(position)
    shares = np.array(weights) / sum(weights)
    assert counts.sum() == position
    # There is one due time v at which every dataset is within one block of v × share.
    low = ((counts - 1) / shares).max()
    assert low <= ((counts + 1) / shares).min() * (1 + 1e-9)


def order(counts: list[int], block_length: int, *, passes: bool) -> MixtureOrder:
    shares = tuple(count / sum(counts) for count in counts)
    phases = tuple((i * 0.37) % 1 for i in range(len(counts)))
    return MixtureOrder(
        shares, phases, block_length, tuple(counts) if passes else None, sum(counts)
    )


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any), st.integers(1, 7))
def test_an_epoch_of_passes_deals_each_pass_exactly_and_then_again(
    counts: list[int], block_length: int
):
    sequence = BlockSequence(order(counts, block_length, passes=True))
    assert sequence.blocks_per_epoch is not None
    for epoch in range(2):
        dealt = [0] * len(counts)
        for j in range(sequence.blocks_per_epoch):
            dataset, samples = sequence.block(epoch * sequence.blocks_per_epoch + j)
            assert samples in (1, block_length)
            dealt[dataset] += samples
        assert dealt == counts
