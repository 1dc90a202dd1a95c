"""The mixer: follows the schedule, owes what is not ready, repays first, and shares hold."""

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


NAMES = [str(number) for number in range(29)]
SEEDS = st.integers(0, 2**32)
WEIGHTS = st.lists(st.floats(0.05, 20), min_size=1, max_size=8)


@given(WEIGHTS, st.integers(1, 5), st.booleans())
def test_what_is_ready_comes_in_the_schedules_order(
    weights: list[float], block_length: int, owe: bool
):
    order = order_of(weights, block_length)
    mixer = Mixer(order, NAMES, owe=owe)
    assert [mixer.next(always) for _ in range(100)] == scheduled(order, 100)


@given(WEIGHTS, st.integers(1, 4), SEEDS)
def test_taken_and_owed_blocks_together_are_the_scheduled_ones(
    weights: list[float], block_length: int, seed: int
):
    rng = random.Random(seed)
    order = order_of(weights, block_length)
    mixer = Mixer(order, NAMES, owe=True)
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
            plan[int(owner)] -= size
        if place["left"]:
            plan[int(place["left"][0])] -= place["left"][1]
        assert taken == plan
        assert all(mixer.debt(d) <= MAX_DEBT for d in range(len(weights)))
        assert len(place["debts"]) <= MAX_DEBTS


@given(WEIGHTS, st.integers(1, 4), SEEDS, st.integers(0, 200))
def test_a_restored_mixer_goes_on_as_the_saved_one(
    weights: list[float], block_length: int, seed: int, moment: int
):
    rng = random.Random(seed)
    order = order_of(weights, block_length)
    mixer = Mixer(order, NAMES, owe=True)
    ups = [{d for d in range(len(weights)) if rng.random() < 0.4} for _ in range(300)]
    for up in ups[:moment]:
        mixer.next(lambda d, n, up=up: d in up)
    twin = Mixer(order, NAMES, owe=True)
    twin.restore(mixer.snapshot())
    for up in ups[moment:]:
        assert mixer.next(lambda d, n, up=up: d in up) == twin.next(lambda d, n, up=up: d in up)
    assert mixer.snapshot() == twin.snapshot()


@pytest.mark.parametrize(("seed", "slow_share"), [(0, 0.02), (3, 0.4)])
def test_shares_hold_over_2000_blocks_also_with_one_dataset_slowed_ten_times(
    seed: int, slow_share: float
):
    rng = random.Random(seed)
    weights = [rng.uniform(0.2, 4) for _ in range(28)]
    weights.append(slow_share / (1 - slow_share) * sum(weights))
    order = order_of(weights)
    shares = np.array(order.shares)
    mixer = Mixer(order, NAMES, owe=True)
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
def test_an_epoch_of_passes_is_exact_however_late_some_datasets_are(seed: int):
    mixer = Mixer(order_of([1, 1, 1], 2, passes=[7, 30, 12]), NAMES, owe=True)
    rng = random.Random(seed)
    for _ in range(3):
        taken = [0, 0, 0]
        while sum(taken) < 49:
            up = {d for d in range(3) if rng.random() < 0.3}
            dataset = mixer.next(lambda d, n, up=up: d in up)
            if dataset is not None:
                taken[dataset] += 1
        assert taken == [7, 30, 12]
