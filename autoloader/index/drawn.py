"""The t that ``per_episode: n`` draws, for samples of many episodes at once.

The same draws as ``sampling.record.draw_t`` makes one episode at a time; a property test holds
the two together.

Not here: which episode a position takes, and which of its draws (``plan``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoloader.index.kept import KeptSamples
from autoloader.index.table import DatasetTable
from autoloader.sampling.counts import samples_per_episode
from autoloader.sampling.draws import MASK, PURPOSE_ORDER, fold, fold_array, splitmix64_array
from autoloader.sampling.windows import valid_range

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
        first = [valid_range(table.sample, 0)[0] for table in tables]
        self._first_t = np.asarray(first, dtype=np.int64)
        none = np.empty(0, dtype=np.int32)
        self._valid = np.concatenate([none, *map(_valid_counts, drawn)])
        self._kept = KeptSamples(tables) if any(t.kept is not None for t in drawn) else None
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
        valid = self._valid[at].astype(np.int64)
        t = np.empty(len(dataset), dtype=np.int64)
        for begin in range(0, len(t), _EPISODES):
            cut = slice(begin, begin + _EPISODES)
            every = self._every_t(dataset[cut], episode[cut], valid[cut])
            t[cut] = _nth_drawn(key[cut], every, valid[cut], place[cut])
        return t

    def _every_t(
        self, dataset: NDArray[np.int64], episode: NDArray[np.int64], valid: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """All valid t of some episodes [n] in a row; ``valid`` [n] says how many each has."""
        within = np.arange(int(valid.sum())) - np.repeat(np.cumsum(valid) - valid, valid)
        t = within + np.repeat(self._first_t[dataset], valid)
        if self._kept is not None:
            self._kept.put(t, np.repeat(dataset, valid), np.repeat(episode, valid), within)
        return t


def _valid_counts(table: DatasetTable) -> NDArray[np.int64]:
    """[E] the valid t of each episode, drawn or not."""
    strided = -(-table.steps.astype(np.int64) // table.stride)
    every = table.sample.model_copy(update={"per_episode": "all"})
    return samples_per_episode(every, strided, table.kept)


def _nth_drawn(
    key: NDArray[np.uint64],
    t: NDArray[np.int64],
    valid: NDArray[np.int64],
    place: NDArray[np.int64],
) -> NDArray[np.int64]:
    """``draws.ordered(key, …)[place]`` of each [n], over its ``valid`` [n] numbers of ``t``.

    Only hashes below a bound that the wanted one is below with all but certainty are sorted; an
    episode where it is not is sorted whole.
    """
    wanted = place + 1
    some = np.minimum((wanted + 4 * np.sqrt(wanted) + 8) / valid, 0.999)
    bound = np.where(some < 0.999, some * 2.0**64, 0).astype(np.uint64)
    bound[bound == 0] = np.uint64(MASK)
    row = np.repeat(np.arange(len(valid)), valid)
    hashes = splitmix64_array(t.astype(np.uint64) ^ np.repeat(key, valid))
    kept = hashes <= np.repeat(bound, valid)
    kept |= np.repeat(np.bincount(row[kept], minlength=len(valid)) <= place, valid)
    row, t, hashes = row[kept], t[kept], hashes[kept]
    counts = np.bincount(row, minlength=len(valid))
    order = np.lexsort((hashes, row))
    return np.asarray(t[order[np.cumsum(counts) - counts + place]])
