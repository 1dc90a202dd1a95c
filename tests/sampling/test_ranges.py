"""Sets of t as ranges against Python's own sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoloader.samples.transforms.keep import Ranges

Pairs = list[tuple[int, int]]
EPISODES = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=5), min_size=1, max_size=6
)


def ranges_of(episodes: list[Pairs]) -> Ranges:
    rows = [(e, *pair) for e, pairs in enumerate(episodes) for pair in pairs]
    columns = np.asarray(rows, np.int64).reshape(-1, 3)
    return Ranges.of(len(episodes), columns[:, 0], columns[:, 1], columns[:, 2])


def sets_of(episodes: list[Pairs]) -> list[set[int]]:
    return [{n for start, stop in pairs for n in range(start, stop)} for pairs in episodes]


def listed(ranges: Ranges) -> list[list[int]]:
    return [ranges.numbers(e).tolist() for e in range(ranges.episodes)]


@given(EPISODES, st.integers(1, 4))
def test_ranges_hold_the_numbers_that_were_given_with_any_stride(
    episodes: list[Pairs], stride: int
):
    ranges, sets = ranges_of(episodes), sets_of(episodes)
    assert listed(ranges) == [sorted(one) for one in sets]
    assert ranges.counts().tolist() == [len(one) for one in sets]
    wanted = [[t for t in range(31) if t * stride in one] for one in sets]
    assert listed(ranges.strided(stride)) == wanted


@given(EPISODES, st.data())
def test_what_two_sets_share_is_what_is_in_both(episodes: list[Pairs], data: st.DataObject):
    size = len(episodes)
    pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=4)
    others = data.draw(st.lists(pairs, min_size=size, max_size=size))
    both = ranges_of(episodes).both(ranges_of(others))
    wanted = [a & b for a, b in zip(sets_of(episodes), sets_of(others), strict=True)]
    assert listed(both) == [sorted(one) for one in wanted]


@given(EPISODES)
def test_every_number_is_found_by_its_place(episodes: list[Pairs]):
    ranges = ranges_of(episodes)
    counts = ranges.counts()
    episode = np.repeat(np.arange(ranges.episodes), counts)
    place = np.concatenate([np.empty(0, np.int64), *(np.arange(n) for n in counts.tolist())])
    number = ranges.nth(episode, place)
    assert number.tolist() == [n for one in listed(ranges) for n in one]
    assert ranges.place(episode, number).tolist() == place.tolist()
    every = np.arange(ranges.episodes)
    assert (ranges.place(every, np.full(len(every), 31)) == -1).all()
