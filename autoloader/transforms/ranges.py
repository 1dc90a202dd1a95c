"""Sets of numbers of many episodes, as ranges: what ``keep`` leaves of t, compact and vectorised.

Theory of operation. All ranges lie in flat arrays, episode after episode, ascending and disjoint
within each. Shifted by episode · 2³² they are one ascending row of disjoint ranges, so that
intersecting two sets, and finding the k-th number of an episode, is a binary search over arrays.
An episode costs 8 bytes and a range 24, however long it is.

Not here: which numbers they are (``keep``, ``windows``), what a plan does with them
(``order.plan``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_SHIFT = 1 << 32


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """For each of E episodes a set of numbers in [0, 2³²), as R ranges in all.

    Attributes:
        first: [E + 1] int64; episode e has ranges first[e] … first[e + 1] − 1.
        start, stop: [R] int64; ascending, disjoint and not empty within an episode.
        before: [R + 1] int64, numbers in all ranges before each, derived.
    """

    first: Ints
    start: Ints
    stop: Ints
    before: Ints = field(init=False, repr=False)

    def __post_init__(self) -> None:
        before = np.zeros(len(self.start) + 1, dtype=np.int64)
        np.cumsum(self.stop - self.start, out=before[1:])
        object.__setattr__(self, "before", before)

    @classmethod
    def of(cls, episodes: int, episode: Ints, start: Ints, stop: Ints) -> Ranges:
        """From any ranges [R] of episodes: they are sorted, joined where they overlap or touch."""
        some = np.flatnonzero(stop > start)
        low = episode[some] * _SHIFT + start[some]
        order = np.argsort(low, kind="stable")
        low = low[order]
        high = np.maximum.accumulate((episode[some] * _SHIFT + stop[some])[order], dtype=np.int64)
        begins = np.ones(len(low), dtype=np.bool_)
        begins[1:] = low[1:] > high[:-1]
        at = np.flatnonzero(begins)
        ends = np.append(at[1:], len(low))[: len(at)] - 1
        return cls._of_row(episodes, low[at], high[ends])

    @classmethod
    def spans(cls, start: Ints, stop: Ints) -> Ranges:
        """One range for each of E episodes, which may be empty."""
        return cls.of(len(start), np.arange(len(start), dtype=np.int64), start, stop)

    @classmethod
    def _of_row(cls, episodes: int, low: Ints, high: Ints) -> Ranges:
        """From the shifted, ascending row of disjoint ranges."""
        episode = low // _SHIFT
        first = np.searchsorted(episode, np.arange(episodes + 1))
        return cls(first.astype(np.int64), low - episode * _SHIFT, high - episode * _SHIFT)

    @property
    def episodes(self) -> int:
        """E."""
        return len(self.first) - 1

    def episode(self) -> Ints:
        """[R] the episode of each range."""
        return np.repeat(np.arange(self.episodes, dtype=np.int64), np.diff(self.first))

    def counts(self) -> Ints:
        """[E] numbers of each episode."""
        return np.asarray(np.diff(self.before[self.first]))

    def both(self, other: Ranges) -> Ranges:
        """What is in this set and in ``other``, which has the same episodes."""
        shift, others = self.episode() * _SHIFT, other.episode() * _SHIFT
        low, high = self.start + shift, self.stop + shift
        other_low, other_high = other.start + others, other.stop + others
        begin = np.searchsorted(other_high, low, side="right")
        end = np.searchsorted(other_low, high, side="left")
        each = np.maximum(end - begin, 0)
        mine = np.repeat(np.arange(len(low)), each)
        theirs = np.arange(len(mine)) - np.repeat(np.cumsum(each) - each - begin, each)
        return self._of_row(
            self.episodes,
            np.maximum(low[mine], other_low[theirs]),
            np.minimum(high[mine], other_high[theirs]),
        )

    def strided(self, stride: int) -> Ranges:
        """Every t for which t · stride is in the set."""
        if stride == 1:
            return self
        start, stop = -(-self.start // stride), -(-self.stop // stride)
        return Ranges.of(self.episodes, self.episode(), start, stop)

    def take(self, episodes: Ints) -> Ranges:
        """The sets of some episodes [E'], which ascend."""
        each = np.diff(self.first)[episodes]
        at = np.arange(int(each.sum())) + np.repeat(
            self.first[episodes] - (np.cumsum(each) - each), each
        )
        first = np.concatenate([[0], np.cumsum(each)]).astype(np.int64)
        return Ranges(first, self.start[at], self.stop[at])

    def numbers(self, episode: int) -> Ints:
        """The numbers of one episode, ascending."""
        at = range(int(self.first[episode]), int(self.first[episode + 1]))
        parts = [np.arange(self.start[k], self.stop[k], dtype=np.int64) for k in at]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    def nth(self, episode: Ints, place: Ints) -> Ints:
        """The ``place``-th number [n] of each of some episodes [n], counted from 0."""
        wanted = self.before[self.first[episode]] + place
        at = np.searchsorted(self.before, wanted, side="right") - 1
        return np.asarray(self.start[at] + wanted - self.before[at])

    def place(self, episode: Ints, number: Ints) -> Ints:
        """Which of its episode's numbers [n] each is, the inverse of ``nth``; −1 where it is none.

        It searches within the episode's own ranges, by halves, all numbers at a time.
        """
        low, high = self.first[episode], self.first[episode + 1]
        none = low == high
        high = np.maximum(high, low + 1)
        last = max(len(self.start) - 1, 0)
        for _ in range(int((high - low).max(initial=1) - 1).bit_length()):
            middle = (low + high) // 2
            beyond = self.start[np.minimum(middle, last)] > number
            inner = high - low > 1
            high = np.where(inner & beyond, middle, high)
            low = np.where(inner & ~beyond, middle, low)
        if not len(self.start):
            return np.full(len(number), -1, dtype=np.int64)
        low = np.minimum(low, last)
        inside = ~none & (self.start[low] <= number) & (number < self.stop[low])
        found = self.before[low] - self.before[self.first[episode]] + number - self.start[low]
        return np.where(inside, found, -1)
