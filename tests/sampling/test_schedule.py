"""The mixing schedule and the blocks it deals: exact at any length, from any position."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.sampling.mixture import BlockSequence, MixtureOrder
from autoloader.sampling.schedule import WINDOW, DrawnSchedule, Schedule

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


@given(schedules(), st.integers(0, 3000), st.integers(0, 200), st.integers(0, 200))
def test_the_schedule_is_one_sequence_whatever_piece_is_asked_for(
    schedule: Schedule, start: int, first: int, second: int
) -> None:
    whole = schedule.blocks(start, start + first + second).tolist()
    parts = schedule.blocks(start, start + first).tolist()
    parts += schedule.blocks(start + first, start + first + second).tolist()
    assert parts == whole


@pytest.mark.parametrize(
    ("weights", "phases"),
    [([1, 1, 8], [0.1, 0.7, 0.3]), ([5, 9], [0.1, 0.5]), ([3, 7, 11], [0.0, 0.2, 1 / 3])],
)
def test_blocks_that_are_due_at_the_same_moment_are_dealt_once_from_any_position(
    weights: list[float], phases: list[float]
) -> None:
    # Due times of these fall on whole numbers, where rounding decides.
    schedule = Schedule(weights, phases)
    whole = schedule.blocks(0, 3200).tolist()
    assert [schedule.blocks(at, at + 1)[0] for at in range(3200)] == whole
    counts = schedule.counts_before(3200)
    assert counts.tolist() == np.bincount(whole, minlength=len(weights)).tolist()


@given(schedules(), st.integers(0, 400))
def test_counts_before_a_position_count_the_blocks_before_it(
    schedule: Schedule, position: int
) -> None:
    before = schedule.blocks(0, position)
    counts = schedule.counts_before(position)
    assert counts.tolist() == np.bincount(before, minlength=len(counts)).tolist()


@given(WEIGHTS, st.data())
def test_every_dataset_is_within_one_block_of_its_share_up_to_what_the_position_is_off(
    weights: list[float], data: st.DataObject
) -> None:
    n = len(weights)
    phases = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=n, max_size=n))
    position = data.draw(st.integers(1, 50_000))
    counts = Schedule(weights, phases).counts_before(position)
    shares = np.array(weights) / sum(weights)
    assert counts.sum() == position
    # There is one due time v at which every dataset is within one block of v × share.
    low = ((counts - 1) / shares).max()
    high = ((counts + 1) / shares).min()
    assert low <= high * (1 + 1e-9)


@pytest.mark.parametrize("start", [0, WINDOW - 30, 7 * WINDOW])
def test_drawn_blocks_are_numbered_in_the_order_they_come_over_windows_too(start: int) -> None:
    schedule = DrawnSchedule([5, 3, 1], [0.2, 0.9, 0.4], key=11)
    dataset, number = schedule.numbered(start, start + 60)
    for each, before in enumerate(schedule.counts_before(start).tolist()):
        own = number[dataset == each]
        assert own.tolist() == list(range(before, before + len(own)))


def test_drawn_turns_look_drawn_and_their_shares_are_exact_at_the_end_of_a_window() -> None:
    schedule = DrawnSchedule([1, 2, 5], [0.1, 0.5, 0.9], key=3)
    due = Schedule([1, 2, 5], [0.1, 0.5, 0.9])
    blocks = schedule.blocks(0, 3 * WINDOW)
    assert schedule.counts_before(3 * WINDOW).tolist() == due.counts_before(3 * WINDOW).tolist()
    # Of independent draws the next is the same with p = Σ share²; the schedule alternates instead.
    same, expected = (blocks[1:] == blocks[:-1]).mean(), (1 + 4 + 25) / 64
    assert same == pytest.approx(expected, abs=4 * np.sqrt(0.25 / len(blocks)))
    # Shares of pieces scatter as drawn ones do.
    heavy = (blocks[: 16 * 1024].reshape(-1, 64) == 2).sum(axis=1)
    assert heavy.var() == pytest.approx(64 * 5 / 8 * 3 / 8, rel=0.4)
    other = DrawnSchedule([1, 2, 5], [0.1, 0.5, 0.9], key=4)
    assert (other.blocks(0, 99) != blocks[:99]).any()


@pytest.mark.parametrize("blocks", [2_000, 10_000])
def test_shares_of_29_datasets_are_exact_to_a_tenth_of_a_percentage_point(blocks: int) -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        weights = rng.uniform(0.1, 4.0, 29)
        counts = Schedule(weights, rng.uniform(0, 1, 29)).counts_before(blocks)
        assert np.abs(counts / blocks - weights / weights.sum()).max() <= 0.001


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any), st.data())
def test_a_finite_schedule_deals_every_block_exactly_once(
    finite: list[int], data: st.DataObject
) -> None:
    n = len(finite)
    phases = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=n, max_size=n))
    schedule = Schedule([1.0] * n, phases, finite=finite)
    assert schedule.length == sum(finite)
    dealt = schedule.blocks(0, 10**6)
    assert np.bincount(dealt, minlength=n).tolist() == finite


def test_heavy_datasets_do_not_all_come_first() -> None:
    schedule = Schedule([10, 1, 1, 1], [0.9, 0.1, 0.5, 0.7])
    assert schedule.blocks(0, 26).tolist().count(0) == pytest.approx(20, abs=1)
    assert 1 in schedule.blocks(0, 4)


def order(counts: list[int], block_length: int, *, passes: bool) -> MixtureOrder:
    shares = tuple(count / sum(counts) for count in counts)
    phases = tuple((i * 0.37) % 1 for i in range(len(counts)))
    return MixtureOrder(
        shares, phases, block_length, tuple(counts) if passes else None, sum(counts)
    )


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any), st.integers(1, 7))
def test_an_epoch_of_passes_deals_each_pass_exactly_and_then_again(
    counts: list[int], block_length: int
) -> None:
    sequence = BlockSequence(order(counts, block_length, passes=True))
    assert sequence.blocks_per_epoch is not None
    for epoch in range(2):
        dealt = [0] * len(counts)
        for j in range(sequence.blocks_per_epoch):
            dataset, samples = sequence.block(epoch * sequence.blocks_per_epoch + j)
            assert samples in (1, block_length)
            dealt[dataset] += samples
        assert dealt == counts


def test_an_endless_sequence_gives_whole_blocks_of_the_schedule() -> None:
    endless = order([5, 3], 4, passes=False)
    sequence = BlockSequence(endless)
    assert sequence.blocks_per_epoch is None
    wanted = Schedule(endless.shares, endless.phases).blocks(0, 3000).tolist()
    assert [sequence.block(j) for j in range(3000)] == [(dataset, 4) for dataset in wanted]
    assert sequence.block(5)[0] == wanted[5]  # and back again
