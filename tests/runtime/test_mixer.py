"""The mixer: follows the schedule, owes what is not ready, repays first, and shares hold."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.pipeline.read.mixer import MAX_DEBT, MAX_DEBTS, Mixer
from autoloader.sampling.mixture import BlockSequence, MixtureOrder


def order_of(
    weights: list[float], block_length: int = 1, passes: list[int] | None = None
) -> MixtureOrder:
    total = sum(weights)
    phases = tuple(
        float(p) for p in np.random.default_rng(len(weights)).uniform(0, 1, len(weights))
    )
    counts = None if passes is None else tuple(passes)
    return MixtureOrder(
        tuple(weight / total for weight in weights), phases, block_length, counts, None
    )


def always(dataset: int, samples: int) -> bool:
    return True


def scheduled(order: MixtureOrder, samples: int) -> list[int]:
    sequence = BlockSequence(order)
    found: list[int] = []
    j = 0
    while len(found) < samples:
        dataset, size = sequence.block(j)
        found += [dataset] * size
        j += 1
    return found[:samples]


SEEDS = st.integers(0, 2**32)
WEIGHTS = st.lists(st.floats(0.05, 20), min_size=1, max_size=8)


@given(WEIGHTS, st.integers(1, 5), st.booleans())
def test_what_is_ready_comes_in_the_schedules_order(
    weights: list[float], block_length: int, owe: bool
) -> None:
    order = order_of(weights, block_length)
    mixer = Mixer(order, owe=owe)
    assert [mixer.next(always) for _ in range(100)] == scheduled(order, 100)


@given(WEIGHTS, st.integers(1, 4), SEEDS)
def test_a_mixture_that_waits_keeps_strict_order_whatever_is_ready_when(
    weights: list[float], block_length: int, seed: int
) -> None:
    rng = random.Random(seed)
    order = order_of(weights, block_length)
    mixer = Mixer(order, owe=False)
    found: list[int] = []
    for _ in range(600):
        up = {d for d in range(len(weights)) if rng.random() < 0.5}
        dataset = mixer.next(lambda d, n, up=up: d in up)
        if dataset is None:
            assert mixer.waiting_for is not None
            assert mixer.waiting_for not in up
        else:
            found.append(dataset)
    assert found == scheduled(order, len(found))


@given(WEIGHTS, st.integers(1, 4), SEEDS)
def test_taken_and_owed_blocks_together_are_the_scheduled_ones(
    weights: list[float], block_length: int, seed: int
) -> None:
    rng = random.Random(seed)
    order = order_of(weights, block_length)
    mixer = Mixer(order, owe=True)
    taken = [0] * len(weights)
    dealt, walked = [0] * len(weights), 0
    sequence = BlockSequence(order)
    for _ in range(300):
        up = {d for d in range(len(weights)) if rng.random() < 0.4}
        dataset = mixer.next(lambda d, n, up=up: d in up)
        if dataset is not None:
            taken[dataset] += 1
        place = mixer.snapshot()
        while walked < place["next"]:
            owner, size = sequence.block(walked)
            dealt[owner] += size
            walked += 1
        plan = list(dealt)
        for owner, size in place["debts"]:
            plan[owner] -= size
        if place["left"]:
            plan[place["left"][0]] -= place["left"][1]
        assert taken == plan
        assert all(mixer.debt(d) <= MAX_DEBT for d in range(len(weights)))
        assert len(place["debts"]) <= MAX_DEBTS


@given(WEIGHTS, st.integers(1, 4), SEEDS, st.integers(0, 200))
def test_a_restored_mixer_goes_on_as_the_saved_one(
    weights: list[float], block_length: int, seed: int, moment: int
) -> None:
    rng = random.Random(seed)
    order = order_of(weights, block_length)
    mixer = Mixer(order, owe=True)
    ups = [{d for d in range(len(weights)) if rng.random() < 0.4} for _ in range(300)]
    for up in ups[:moment]:
        mixer.next(lambda d, n, up=up: d in up)
    twin = Mixer(order, owe=True)
    twin.restore(mixer.snapshot())
    for up in ups[moment:]:
        assert mixer.next(lambda d, n, up=up: d in up) == twin.next(lambda d, n, up=up: d in up)
    assert mixer.snapshot() == twin.snapshot()


def test_debts_are_repaid_before_anything_else_and_the_oldest_first() -> None:
    mixer = Mixer(order_of([1, 1, 1]), owe=True)
    for _ in range(10):
        assert mixer.next(lambda d, n: d == 0) == 0
    owed = [dataset for dataset, _ in mixer.snapshot()["debts"]]
    assert set(owed) == {1, 2}
    assert [mixer.next(always) for _ in owed] == owed
    assert mixer.snapshot()["debts"] == []


def test_a_block_waits_until_all_its_samples_are_ready() -> None:
    mixer = Mixer(order_of([1], 4), owe=False)
    assert mixer.next(lambda d, n: n <= 3) is None
    assert [mixer.next(lambda d, n: n <= 4 if n > 1 else True) for _ in range(4)] == [0] * 4


def test_a_dataset_that_gives_nothing_stops_the_mixture_after_sixteen_blocks() -> None:
    mixer = Mixer(order_of([1, 1]), owe=True)
    taken = 0
    while mixer.next(lambda d, n: d == 0) is not None:
        taken += 1
    assert mixer.waiting_for == 1
    assert mixer.debt(1) == MAX_DEBT
    assert abs(taken - MAX_DEBT) <= 1


@pytest.mark.parametrize(("seed", "slow_share"), list(enumerate([0.02, 0.05, 0.125, 0.4])))
def test_shares_hold_over_2000_blocks_also_with_one_dataset_slowed_ten_times(
    seed: int, slow_share: float
) -> None:
    rng = random.Random(seed)
    weights = [rng.uniform(0.2, 4) for _ in range(28)]
    weights.append(slow_share / (1 - slow_share) * sum(weights))
    order = order_of(weights)
    shares = np.array(order.shares)
    mixer = Mixer(order, owe=True)
    waiting = [8.0] * 29
    taken = np.zeros(29, dtype=int)
    worst = 0.0
    while taken.sum() < 12_000:
        dataset = mixer.next(lambda d, n: waiting[d] >= n)
        if dataset is not None:
            waiting[dataset] -= 1
            taken[dataset] += 1
            if taken.sum() >= 2000:
                worst = max(worst, float(np.abs(taken / taken.sum() - shares).max()))
        # Everybody produces three times what is wanted, in bursts; the last a tenth of that,
        # and slower than wanted for whole stretches.
        for d in range(29):
            rate = 3 * shares[d] * (0.1 if d == 28 else 1)
            if d == 28 and (taken.sum() // 500) % 2:
                rate = 0.0 if rng.random() < 0.9 else 8.0 * shares[d]
            waiting[d] = min(8.0, waiting[d] + rate * rng.choice([0, 2]))
    assert worst <= 0.01
    while mixer.snapshot()["debts"]:
        dataset = mixer.next(always)
        assert dataset is not None
        taken[dataset] += 1
    assert np.abs(taken / taken.sum() - shares).max() <= 0.001


@pytest.mark.parametrize("seed", range(5))
def test_an_epoch_of_passes_is_exact_however_late_some_datasets_are(seed: int) -> None:
    mixer = Mixer(order_of([1, 1, 1], 2, passes=[7, 30, 12]), owe=True)
    rng = random.Random(seed)
    for _ in range(3):
        taken = [0, 0, 0]
        while sum(taken) < 49:
            up = {d for d in range(3) if rng.random() < 0.3}
            dataset = mixer.next(lambda d, n, up=up: d in up)
            if dataset is not None:
                taken[dataset] += 1
        assert taken == [7, 30, 12]


def test_a_dropped_dataset_is_owed_nothing_and_passed_over() -> None:
    mixer = Mixer(order_of([1, 1, 1], 3), owe=True)
    for _ in range(7):
        mixer.next(lambda d, n: d != 1)
    mixer.drop(1)
    assert mixer.snapshot()["dropped"] == [1]
    assert 1 not in [dataset for dataset, _ in mixer.snapshot()["debts"]]
    found = [mixer.next(always) for _ in range(60)]
    assert set(found) == {0, 2}


def test_a_dataset_dropped_in_the_midst_of_its_block_gives_no_more_of_it() -> None:
    mixer = Mixer(order_of([1, 1], 4), owe=True)
    first = mixer.next(always)
    assert first is not None
    mixer.drop(first)
    assert {mixer.next(always) for _ in range(20)} == {1 - first}


@given(st.integers(0, 400), st.integers(1, 3), st.integers(1, 3), SEEDS)
def test_where_shares_change_what_is_taken_and_owed_is_what_was_scheduled(
    position: int, block_length: int, streams: int, seed: int
) -> None:
    order = order_of([3, 1, 1], block_length).changed(position, (0.0, 0.5, 0.5))
    rng = random.Random(seed)
    mixer = Mixer(order, owe=True, streams=streams)
    taken = [0, 0, 0]
    for _ in range(900):
        if rng.random() < 0.02:  # a resume
            snapshot = mixer.snapshot()
            mixer = Mixer(order, owe=True, streams=streams)
            mixer.restore(snapshot)
        dataset = mixer.next(lambda which, _: which == 1 or rng.random() < 0.7)
        if dataset is not None:
            taken[dataset] += 1
    place = mixer.snapshot()
    scheduled_ = [0, 0, 0]
    blocks = BlockSequence(order, streams)
    for j in range(place["next"]):
        dataset, size = blocks.block(j)
        scheduled_[dataset] += size
    for owed, size in [*place["debts"], *([place["left"]] if place["left"] else [])]:
        taken[owed] += size
    assert taken == scheduled_
    before = -(-order.changes[0].position // (block_length * streams)) if order.changes else 0
    late = [blocks.block(before + j)[0] for j in range(60)]
    assert late.count(0) == 0
    assert abs(late.count(1) - 30) <= 1
