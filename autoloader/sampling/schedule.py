"""The mixing schedule: which dataset gives block i, as a pure function of weights and phases.

Dataset d with share ``w`` and phase ``u`` in [0, 1) has its k-th block due at ``(k + u) / w``; the
schedule is all blocks in the order they are due (the stride scheduling of Waldspurger and Weihl,
MIT/LCS/TM-528, 1995, with fixed phases). By any due time v every dataset has had within one
block of ``v × w``, so shares are exact at any length, and any position is reached without
walking there: counts before v are arithmetic, and v lies within N blocks of the position.

Invariants:
    1. ``blocks(a, c)`` is ``blocks(a, b)`` followed by ``blocks(b, c)``.
    2. ``counts_before(i)`` counts the datasets of ``blocks(0, i)``.
    3. With ``finite``, dataset d appears exactly ``blocks_of[d]`` times.
    4. ``numbered`` numbers the blocks of a dataset 0, 1, … in the order they come.

Not here: debts of a dataset that was not ready (``runtime.mixer``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Schedule:
    """Blocks dealt to datasets by share.

    Args:
        shares: relative weight of each dataset, all above zero.
        phases: in [0, 1) for each; a keyed draw, so that heavy datasets do not all come first.
        finite: when given, how many blocks each dataset has; shares are then ignored.
    """

    def __init__(
        self,
        shares: Sequence[float],
        phases: Sequence[float],
        *,
        finite: Sequence[int] | None = None,
    ) -> None:
        counts = None if finite is None else np.asarray(finite, dtype=np.int64)
        weights = np.asarray(shares if counts is None else counts, dtype=np.float64)
        self._live = np.flatnonzero(weights > 0)
        self._weights = weights[self._live] / weights.sum()
        self._phases = np.asarray(phases, dtype=np.float64)[self._live]
        self._finite = None if counts is None else counts[self._live]
        self._datasets = len(weights)
        self.length: int | None = None if counts is None else int(counts.sum())

    def _due(self, k: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray((k + self._phases) / self._weights)

    def _counts_at(self, v: float) -> NDArray[np.int64]:
        """Blocks due before time v, per live dataset; exact with respect to ``_due``."""
        k = np.maximum(np.ceil(v * self._weights - self._phases), 0).astype(np.int64)
        k += self._due(k) < v
        k -= (k > 0) & (self._due(k - 1) >= v)
        return np.asarray(k if self._finite is None else np.minimum(k, self._finite))

    def _window(
        self, start: int, stop: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(datasets in order, number of each block in its dataset, counts before them).

        What comes back covers [start, stop); its first block is at the sum of the counts.
        """
        margin = 4 * math.isqrt(len(self._live)) + 4
        low, high = float(max(0, start - margin)), float(stop + margin)
        before, step = self._counts_at(low), margin
        while int(before.sum()) > start:
            low, step = max(0.0, low - step), 2 * step
            before = self._counts_at(low)
        after, step = self._counts_at(high), margin
        while int(after.sum()) < stop:
            high, step = high + step, 2 * step
            after = self._counts_at(high)
        each = after - before
        dataset = np.repeat(np.arange(len(each)), each)
        first = np.repeat(np.cumsum(each) - each, each)
        k = np.arange(len(dataset)) - first + np.repeat(before, each)
        due = (k + self._phases[dataset]) / self._weights[dataset]
        order = np.argsort(due, kind="stable")  # ties: by dataset, as they lie
        return dataset[order], k[order], before

    def numbered(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Dataset of each block in [start, stop), and which of that dataset's blocks it is."""
        if self.length is not None:
            stop = min(stop, self.length)
        if stop <= start:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        sequence, k, before = self._window(start, stop)
        first = int(before.sum())
        cut = slice(start - first, stop - first)
        return np.asarray(self._live[sequence[cut]], dtype=np.int64), k[cut]

    def blocks(self, start: int, stop: int) -> NDArray[np.int64]:
        """Dataset of each block in [start, stop), as [stop − start] int64."""
        return self.numbered(start, stop)[0]

    def counts_before(self, position: int) -> NDArray[np.int64]:
        """Blocks of each dataset before ``position``, as [datasets] int64."""
        if self.length is not None:
            position = min(position, self.length)
        counts = np.zeros(self._datasets, dtype=np.int64)
        if position > 0:
            sequence, _, before = self._window(position - 1, position)
            seen = sequence[: position - int(before.sum())]
            within = np.bincount(seen, minlength=len(self._live))
            counts[self._live] = before + within
        return counts
