"""The t that ``per_episode: n`` draws, for samples of many episodes at once.

The same draws as ``samples.record.draw_t`` makes one episode at a time; a property test holds
the two together.

Not here: which episode a position takes, and which of its draws (``plan``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from autoloader.order.kept import KeptSamples
from autoloader.order.table import DatasetTable
from autoloader.samples.counts import samples_per_episode
from autoloader.samples.draws import (
    MASK,
    PURPOSE_ORDER,
    fold,
    fold_array,
    splitmix64_in_place,
    unmixed_array,
)
from autoloader.samples.windows import valid_range

_ROWS = 32
"""Episodes hashed together. A draw hashes its whole episode: this bounds the memory it takes."""


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
        valid, first = self._valid[at].astype(np.int64), self._first_t[dataset]
        ranged = self._kept is None and not first.any()

        def every_t(rows: NDArray[np.int64], width: int) -> NDArray[np.int64]:
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

        return _nth_drawn(key, valid, place, every_t)


def _valid_counts(table: DatasetTable) -> NDArray[np.int64]:
    """[E] the valid t of each episode, drawn or not."""
    strided = -(-table.steps.astype(np.int64) // table.stride)
    every = table.sample.model_copy(update={"per_episode": "all"})
    return samples_per_episode(every, strided, table.kept)


def _nth_drawn(
    key: NDArray[np.uint64],
    valid: NDArray[np.int64],
    place: NDArray[np.int64],
    every_t: Callable[[NDArray[np.int64], int], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """``draws.ordered(key, …)[place]`` of each [n], over the ``valid`` [n] t that it has.

    Rows of like length are hashed together, a rectangle that stays in the processor's cache. From
    the hash that is wanted follows its t, since the hash is a bijection.
    """
    chosen = np.empty(len(key), dtype=np.uint64)
    by_length = np.argsort(valid)
    buffers = np.empty((2, _ROWS * int(valid[by_length[-1]])), dtype=np.uint64)
    for begin in range(0, len(key), _ROWS):
        rows = by_length[begin : begin + _ROWS]
        own, nth = valid[rows], place[rows]
        low, high = int(own[0]), int(own[-1])
        shape = (len(rows), high)
        hashes, scratch = (each[: len(rows) * high].reshape(shape) for each in buffers)
        np.bitwise_xor(every_t(rows, high).view(np.uint64), key[rows, None], out=hashes)
        splitmix64_in_place(hashes, scratch)
        if low < high:
            beyond = np.arange(low, high) >= own[:, None]
            np.copyto(hashes[:, low:], np.uint64(MASK), where=beyond)
        if nth.any():
            hashes.sort(axis=1)
            chosen[rows] = hashes[np.arange(len(rows)), nth]
        else:
            chosen[rows] = hashes.min(axis=1)
    return (unmixed_array(chosen) ^ key).astype(np.int64)
