"""Steps of one kind each: the schedule by itself."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoloader.sampling.kinds import KindSchedule, KindsOfSteps
from autoloader.sampling.steps import Deal

SHARES = (0.5, 0.1, 0.25, 0.15)
PHASES = (0.3, 0.8, 0.1, 0.6)
KINDS = (0, 0, 1, 1)

steps = st.builds(
    KindsOfSteps,
    st.just(KINDS),
    batch=st.integers(1, 5),
    world_size=st.integers(1, 3),
    drop_last=st.booleans(),
    epoch_samples=st.none() | st.integers(15, 70),
    in_epoch=st.integers(0, 14),
)


def boundaries(deal: Deal, until: int) -> list[tuple[int, int]]:
    found = [deal.step(0)]
    while found[-1][1] < until:
        found.append(deal.step(len(found)))
    return found


@given(steps, st.integers(0, 300), st.integers(1, 60), st.integers(1, 60))
def test_any_stretch_is_that_of_the_whole(own: KindsOfSteps, a: int, n: int, m: int):
    schedule = KindSchedule(SHARES, PHASES, own)
    whole = schedule.numbered(a, a + n + m)
    parts = zip(schedule.numbered(a, a + n), schedule.numbered(a + n, a + n + m), strict=True)
    for one, pair in zip(whole, parts, strict=True):
        assert one.tolist() == np.concatenate(pair).tolist()
    before = Counter(schedule.blocks(0, a).tolist())
    assert schedule.counts_before(a).tolist() == [before[k] for k in range(len(SHARES))]


@given(steps)
def test_steps_are_of_one_kind_and_shares_exact(own: KindsOfSteps):
    schedule = KindSchedule(SHARES, PHASES, own)
    every = boundaries(own.deal, 600)
    dataset, number = schedule.numbered(0, every[-1][1])
    seen: Counter[int] = Counter()
    for of, nth in zip(dataset.tolist(), number.tolist(), strict=True):
        assert nth == seen[of]
        seen[of] += 1
    turns: Counter[int] = Counter()
    for count, (begin, end) in enumerate(every, start=1):
        (kind,) = {KINDS[one] for one in dataset[begin:end].tolist()}
        turns[kind] += 1
        assert abs(turns[0] - 0.6 * count) <= 1
    for kind, members in ((0, (0, 1)), (1, (2, 3))):
        of_kind = sum(seen[one] for one in members)
        total = sum(SHARES[one] for one in members)
        for one in members:
            assert abs(seen[one] - of_kind * SHARES[one] / total) <= 1, kind


@given(steps)
def test_places_are_found_again(own: KindsOfSteps):
    schedule = KindSchedule(SHARES, PHASES, own)
    dataset, number = schedule.numbered(0, 400)
    found = schedule.places(dataset, number)
    if own.drop_last or own.batch == 1 or own.epoch_samples is None:
        assert found.tolist() == list(range(400))
    else:  # told as due: within a few steps of each epoch
        assert np.abs(found - np.arange(400)).max() <= 400


@given(steps, st.integers(1, 25))
def test_steps_go_on_from_any_step(own: KindsOfSteps, count: int):
    start, _ = own.deal.step(count)
    later = own.after(start).deal
    assert [own.deal.step(count + k) for k in range(12)] == [
        (begin + start, end + start) for begin, end in (later.step(k) for k in range(12))
    ]
