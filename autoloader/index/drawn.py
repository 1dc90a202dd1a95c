"""The t that ``per_episode: n`` draws, for samples of many episodes at once.

The same draws as ``sampling.record.draw_t`` makes one episode at a time; a property test holds
the two together.

Not here: which episode a position takes, and which of its draws (``plan``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoloader.index.table import DatasetTable
from autoloader.sampling.draws import MASK, PURPOSE_ORDER, fold, fold_array, splitmix64_array
from autoloader.sampling.windows import valid_range
from autoloader.spec import SampleSpec

# A draw hashes its whole episode; this many at a time bounds the memory it takes.
_EPISODES = 1024


class DrawnSamples:
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
        valid = np.asarray([_valid_t(table.sample) for table in tables], dtype=np.int64)
        self._first_t, self._lost_t = valid[:, 0], valid[:, 1]
        none = np.empty(0, dtype=np.int32)
        self._strided = np.concatenate([none, *(-(-t.steps // t.stride) for t in drawn)])
        self._slice_of = np.concatenate([none, *(t.slice_of for t in drawn)])
        self._record_of = np.concatenate([none, *(t.record_of for t in drawn)])

    def t(
        self,
        dataset: NDArray[np.int64],
        pass_: NDArray[np.int64],
        episode: NDArray[np.int64],
        place: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """The ``place``-th drawn t of each episode of a dataset in its pass, all [n]."""
        at = self._first_episode[dataset] + episode
        key = fold_array(self._keys[dataset], pass_, self._slice_of[at], self._record_of[at])
        first, valid = self._first_t[dataset], self._strided[at] - self._lost_t[dataset]
        t = np.empty(len(dataset), dtype=np.int64)
        for begin in range(0, len(t), _EPISODES):
            cut = slice(begin, begin + _EPISODES)
            t[cut] = _nth_drawn(key[cut], first[cut], valid[cut], place[cut])
        return t


def _valid_t(sample: SampleSpec) -> tuple[int, int]:
    """(the first valid t, how many fewer valid t than frames) of an episode that has any."""
    long = 1 << 40
    first, stop = valid_range(sample, long)
    return first, long - (stop - first)


def _nth_drawn(
    key: NDArray[np.uint64],
    first: NDArray[np.int64],
    valid: NDArray[np.int64],
    place: NDArray[np.int64],
) -> NDArray[np.int64]:
    """``draws.order(key, first, first + valid)[place]`` of each [n].

    Only hashes below a bound that the wanted one is below with all but certainty are sorted; an
    episode where it is not is sorted whole.
    """
    wanted = place + 1
    some = np.minimum((wanted + 4 * np.sqrt(wanted) + 8) / valid, 0.999)
    bound = np.where(some < 0.999, some * 2.0**64, 0).astype(np.uint64)
    bound[bound == 0] = np.uint64(MASK)
    row = np.repeat(np.arange(len(valid)), valid)
    t = np.arange(len(row)) - np.repeat(np.cumsum(valid) - valid - first, valid)
    hashes = splitmix64_array(t.astype(np.uint64) ^ np.repeat(key, valid))
    kept = hashes <= np.repeat(bound, valid)
    kept |= np.repeat(np.bincount(row[kept], minlength=len(valid)) <= place, valid)
    row, t, hashes = row[kept], t[kept], hashes[kept]
    counts = np.bincount(row, minlength=len(valid))
    order = np.lexsort((hashes, row))
    return np.asarray(t[order[np.cumsum(counts) - counts + place]])
