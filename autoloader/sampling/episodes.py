"""The samples of episodes: how many each has, and which t they are, for many episodes at once.

A sample of a dataset has a number in its pass. One array of running counts holds every episode of
every dataset. So a run of positions over hundreds of datasets finds its episodes in one search
(``EpisodeCounts``). It searches every 64th count first, which stay in the processor's cache, then
by halves within 64. It takes all numbers at a time, so that their cache misses overlap. Which t of
the episode it is follows from the windows alone, or from what ``keep`` leaves (``KeptT``), or from
the draws of ``per_episode: n`` (``DrawnT``).

One array of ranges holds every episode of the datasets with rules to ``keep``
(``samples.transforms.keep``). So the t of a run of samples is one binary search too. Datasets
without rules cost nothing there. The draws are those that ``index.records`` makes one
episode at a time; a property test holds the two together.

Not here: where episodes lie in the files (``index.dataset``), which t rules keep
(``samples.transforms.keep``), which sample a position names (``plan``, ``chains``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.host.frozen import frozen
from autoloader.samples.draws import (
    MASK,
    PURPOSE_ORDER,
    Ints,
    Keys,
    fold,
    fold_array,
    splitmix64_array,
    splitmix64_in_place,
    unmixed_array,
)
from autoloader.samples.transforms.keep import Ranges, samples_per_episode, valid_per_episode
from autoloader.samples.windows import valid_range
from autoloader.spec import SampleSpec

_COARSE = 64
_ROWS = 32
"""Episodes hashed together. A draw hashes its whole episode: this bounds the memory it takes."""


@frozen
class DatasetTable:
    """Facts of a dataset for the plan: its readable episodes, in the order of its files.

    Attributes:
        key: key of all draws of the dataset (``draws.dataset_key``).
        sample: the spec's rules of valid t, and of the number of them that a pass takes.
        stride: every ``stride``-th frame counts.
        steps: [E] frames of each episode, before the stride.
        slice_of: [E] the slice of each episode (its provenance's shard).
        record_of: [E] the record of each episode in its slice.
        kept: the valid t of each episode where rules leave some out (``keep``), else ``None``.
        drawn: [N] int32 which valid t, counted over all episodes, each sample of a pass is, where
            weights say; ``None``: each once.
        counts: [E] int32 samples of each episode in a pass, derived; with ``drawn`` its valid t.
    """

    key: int
    sample: SampleSpec
    stride: int
    steps: NDArray[np.int32]
    slice_of: NDArray[np.int32]
    record_of: NDArray[Any]
    kept: Ranges | None = field(default=None, repr=False)
    drawn: NDArray[np.int32] | None = field(default=None, repr=False)
    counts: NDArray[np.int32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        counts = samples_per_episode(self.sample, strided_steps(self.steps, self.stride), self.kept)
        if len(counts) > _COARSE and (counts == counts[0]).all():
            counts = np.broadcast_to(np.int32(counts[0]), counts.shape)  # needs no running counts
        counts = counts.astype(np.int32, copy=False)
        object.__setattr__(self, "counts", counts)

    @property
    def samples(self) -> int:
        """Samples of a pass."""
        if self.drawn is not None:
            return len(self.drawn)
        return int(self.counts.sum(dtype=np.int64))

    @property
    def valid(self) -> Ints:
        """[E] the valid t of each episode, drawn or not."""
        return valid_per_episode(self.sample, strided_steps(self.steps, self.stride), self.kept)

    @property
    def size(self) -> int:
        """Samples of a pass that takes every valid t."""
        return int(self.valid.sum())


def strided_steps(steps: NDArray[np.int32], stride: int) -> Ints:
    """[E] int64 steps of each episode after the stride; one number where all are one by form."""
    if steps.strides == (0,) and len(steps):
        return np.broadcast_to(np.int64(-(-int(steps[0]) // stride)), steps.shape)
    return np.asarray(-(-steps.astype(np.int64) // stride))


class EpisodeCounts:
    """Running counts over the episodes of all datasets.

    Args:
        counts: for each dataset the counts [E_d] of its episodes; a dataset that is not asked for
            may be empty.

    Attributes:
        totals: [D] int64, the sum of each dataset.
    """

    def __init__(self, counts: Sequence[NDArray[np.int32]]) -> None:
        # Where all episodes have as many, the episode follows from the number alone.
        even = [int(each[0]) if len(each) and each.strides == (0,) else 0 for each in counts]
        self._even = np.asarray(even, np.int64)
        totals = [each.sum(dtype=np.int64) for each in counts]
        counts = [each[:0] if same else each for each, same in zip(counts, even, strict=True)]
        ends = np.cumsum([len(each) for each in counts], dtype=np.int64)
        self._first_episode = ends - [len(each) for each in counts]
        self._before = np.zeros(int(ends[-1]) + 1, dtype=np.int64)
        for first, each in zip(self._first_episode.tolist(), counts, strict=True):
            running = self._before[first + 1 : first + 1 + len(each)]
            np.cumsum(each, out=running)
            running += self._before[first]
        self._first = self._before[self._first_episode]
        self._coarse = self._before[::_COARSE].copy()
        self.totals: Ints = np.asarray(totals, np.int64)

    def find(self, dataset: Ints, number: Ints) -> tuple[Ints, Ints]:
        """(episode of the dataset [n], number within the episode [n]) of thing ``number`` [n]."""
        place = self._first[dataset] + number
        episode = (np.searchsorted(self._coarse, place, side="right") - 1) * _COARSE
        last = len(self._before) - 1
        half = _COARSE // 2
        while half:
            further = np.minimum(episode + half, last)
            np.copyto(episode, further, where=self._before[further] <= place)
            half //= 2
        within = place - self._before[episode]
        episode -= self._first_episode[dataset]
        if len(at := np.flatnonzero(self._even[dataset])):
            episode[at], within[at] = np.divmod(number[at], self._even[dataset[at]])
        return episode, within

    def number_of(self, dataset: Ints, episode: Ints, within: Ints) -> Ints:
        """The number [n] of each episode's thing ``within`` [n]: the inverse of ``find``."""
        even = self._even[dataset]
        at = self._first_episode[dataset] + np.where(even, 0, episode)
        return np.where(even, episode * even, self._before[at] - self._first[dataset]) + within

    def of_episode(self, dataset: Ints, episode: Ints) -> Ints:
        """The count of each episode [n]."""
        even = self._even[dataset]
        at = self._first_episode[dataset] + np.where(even, -1, episode)
        return np.where(even, even, self._before[at + 1] - self._before[at])


class KeptT:
    """The kept t of every dataset that has rules.

    Args:
        tables: episode tables of all datasets.
    """

    def __init__(self, tables: Sequence[DatasetTable]) -> None:
        none = Ranges.spans(np.empty(0, np.int64), np.empty(0, np.int64))
        sets = [none if table.kept is None else table.kept for table in tables]
        lengths = [one.episodes for one in sets]
        self._has = np.asarray([table.kept is not None for table in tables], dtype=np.bool_)
        self._first_episode = np.cumsum(lengths, dtype=np.int64) - lengths
        before = np.cumsum([0, *(len(one.start) for one in sets)], dtype=np.int64)
        shifted = [
            one.first[:-1] + ranges for one, ranges in zip(sets, before.tolist(), strict=False)
        ]
        self._ranges = Ranges(
            np.concatenate([*shifted, before[-1:]]),
            np.concatenate([one.start for one in sets]),
            np.concatenate([one.stop for one in sets]),
        )

    def put(self, t: Ints, dataset: Ints, episode: Ints, place: Ints) -> None:
        """Set ``t`` [n], where its dataset has rules, to the ``place``-th kept of its episode."""
        at = np.flatnonzero(self._has[dataset])
        if len(at):
            row = self._first_episode[dataset[at]] + episode[at]
            t[at] = self._ranges.nth(row, place[at])

    def put_places(self, place: Ints, dataset: Ints, episode: Ints, t: Ints) -> None:
        """Set ``place`` [n], where its dataset has rules, to which kept t of its episode t is.

        Where t is left out it is set to −1.
        """
        at = np.flatnonzero(self._has[dataset])
        if len(at):
            row = self._first_episode[dataset[at]] + episode[at]
            place[at] = self._ranges.place(row, t[at])


class DrawnT:
    """The drawn t of every dataset whose ``per_episode`` is a number.

    Args:
        tables: all datasets; of the others nothing is kept.
    """

    def __init__(self, tables: Sequence[DatasetTable]) -> None:
        drawn = [table for table in tables if table.sample.per_episode != "all"]
        lengths = [len(t.steps) if t.sample.per_episode != "all" else 0 for t in tables]
        self._first_episode = np.cumsum(lengths, dtype=np.int64) - lengths
        keys = [fold(table.key, PURPOSE_ORDER) for table in tables]
        self._keys = np.asarray(keys, dtype=np.uint64)
        first = [valid_range(table.sample, 0)[0] for table in tables]
        self._first_t = np.asarray(first, dtype=np.int64)
        counts = [0 if (n := t.sample.per_episode) == "all" else n for t in tables]
        self._drawn = np.asarray(counts, dtype=np.int64)
        none = np.empty(0, dtype=np.int32)
        self._valid = np.concatenate([none, *(table.valid for table in drawn)])
        self._kept = KeptT(tables) if any(t.kept is not None for t in drawn) else None
        self._slice_of = np.concatenate([none, *(t.slice_of for t in drawn)])
        self._record_of = np.concatenate([none, *(t.record_of for t in drawn)])

    def t(self, dataset: Ints, pass_: Ints, episode: Ints, place: Ints) -> Ints:
        """The ``place``-th drawn t of each episode of a dataset in its pass, all [n]."""
        key = self._key(dataset, pass_, episode)
        chosen = np.empty(len(key), dtype=np.uint64)
        for rows, hashes in self._hashes(key, dataset, episode):
            nth = place[rows]
            if nth.any():
                hashes.sort(axis=1)
                chosen[rows] = hashes[np.arange(len(rows)), nth]
            else:
                chosen[rows] = hashes.min(axis=1)
        # From the hash that is wanted follows its t, since the hash is a bijection.
        return (unmixed_array(chosen) ^ key).astype(np.int64)

    def places(self, dataset: Ints, pass_: Ints, episode: Ints, t: Ints) -> Ints:
        """Number of each t among the drawn t of its episode and pass, all [n]; −1: not drawn."""
        key = self._key(dataset, pass_, episode)
        own = splitmix64_array(t.astype(np.uint64) ^ key)
        place = np.empty(len(key), dtype=np.int64)
        for rows, hashes in self._hashes(key, dataset, episode):
            place[rows] = (hashes < own[rows, None]).sum(axis=1)
        return np.where(place < self._drawn[dataset], place, -1)

    def _key(self, dataset: Ints, pass_: Ints, episode: Ints) -> Keys:
        at = self._first_episode[dataset] + episode
        return fold_array(self._keys[dataset], pass_, self._slice_of[at], self._record_of[at])

    def _hashes(self, key: Keys, dataset: Ints, episode: Ints) -> Iterator[tuple[Ints, Keys]]:
        """Rows [m] of the n that are asked for, and the hashes of their valid t [m, width].

        Rows of like length are hashed together, a rectangle that stays in the processor's cache.
        Beyond an episode's last t the hash is the largest there is. The hashes are the caller's to
        write to until it asks for the next.
        """
        at = self._first_episode[dataset] + episode
        valid, first = self._valid[at].astype(np.int64), self._first_t[dataset]
        ranged = self._kept is None and not first.any()

        def every_t(rows: Ints, width: int) -> Ints:
            """The first ``width`` valid t of episodes [m]: [m, width], or one row for all."""
            within = np.arange(width)
            if ranged:
                return within
            t = first[rows, None] + within
            if self._kept is not None:
                # Beyond an episode's last it is that again; such places are passed over.
                own = np.minimum(within, valid[rows, None] - 1).ravel()
                of_dataset, of_episode = (np.repeat(x[rows], width) for x in (dataset, episode))
                self._kept.put(t.reshape(-1), of_dataset, of_episode, own)
            return t

        by_length = np.argsort(valid)
        buffers = np.empty((2, _ROWS * int(valid[by_length[-1]])), dtype=np.uint64)
        for begin in range(0, len(key), _ROWS):
            rows = by_length[begin : begin + _ROWS]
            own = valid[rows]
            low, high = int(own[0]), int(own[-1])
            shape = (len(rows), high)
            hashes, scratch = (each[: len(rows) * high].reshape(shape) for each in buffers)
            np.bitwise_xor(every_t(rows, high).view(np.uint64), key[rows, None], out=hashes)
            splitmix64_in_place(hashes, scratch)
            if low < high:
                beyond = np.arange(low, high) >= own[:, None]
                np.copyto(hashes[:, low:], np.uint64(MASK), where=beyond)
            yield rows, hashes


class DrawnByWeight:
    """The drawn samples of every dataset whose weights say how often each comes in a pass.

    Args:
        tables: all datasets; of the others nothing is kept.
    """

    def __init__(self, tables: Sequence[DatasetTable]) -> None:
        none = np.empty(0, np.int32)
        self._of = [none if table.drawn is None else table.drawn for table in tables]
        self._has = np.asarray([table.drawn is not None for table in tables], dtype=np.bool_)

    def put(self, stored: Ints, dataset: Ints) -> Ints:
        """Which of its dataset's valid t each of a pass's samples is, all [n]."""
        return self._each(stored, dataset, lambda drawn, own: drawn[own])

    def first(self, dataset: Ints, valid: Ints) -> Ints:
        """The first of a pass's samples that is each valid t, all [n]; −1: none is."""

        def find(drawn: NDArray[np.int32], own: Ints) -> Ints:
            at = np.minimum(np.searchsorted(drawn, own), len(drawn) - 1)
            return np.where(drawn[at] == own, at, -1)

        return self._each(valid, dataset, find)

    def _each(self, numbers: Ints, dataset: Ints, find: Callable[..., Any]) -> Ints:
        if not self._has[dataset].any():
            return numbers
        found = numbers.copy()
        for one in np.unique(dataset[self._has[dataset]]).tolist():
            own = dataset == one
            found[own] = find(self._of[one], numbers[own])
        return found
