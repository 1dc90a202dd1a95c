"""The mixing schedule: which dataset gives block i, as a pure function of weights and phases.

Dataset d with share ``w`` and phase ``u`` in [0, 1) has its k-th block due at ``(k + u) / w``. The
schedule is all blocks in the order they are due. This is stride scheduling with fixed phases
(Waldspurger and Weihl, MIT/LCS/TM-528, 1995). By any due time v every dataset has had within one
block of ``v × w``. So shares are exact at any length. Any position is reached without walking
there: counts before v are arithmetic, and v lies within N blocks of the position.

Invariants:
    1. ``blocks(a, c)`` is ``blocks(a, b)`` followed by ``blocks(b, c)``.
    2. ``counts_before(i)`` counts the datasets of ``blocks(0, i)``.
    3. With ``finite``, dataset d appears exactly ``blocks_of[d]`` times.
    4. ``numbered`` numbers the blocks of a dataset 0, 1, … in the order they come.
    5. ``places`` is the inverse of ``numbered``.

``DrawnSchedule`` deals the same blocks in an order drawn by keyed hashes, window by window. Shares
are exact at the end of every window, and any position is still reached without walking there.
There ``places`` says where a block is due, which lies in the window that it comes in.

Legs of an order whose shares change during the run: one schedule for each stretch of positions.

    position   base            change                      ┌ over
    shares      │ first shares  │ set while running …      │
    curriculum  │ p0 │ p1 │ p2 │ … │ p63                   │ the last shares, without end

A leg begins at a block's first sample. The samples that every dataset has given by then are counted
once. So any position is still reached without walking there, and the way back is one search over
the legs.

Shares that are set while running begin a schedule of their own: from there on every dataset is
within one block of its share. A curriculum moves the shares in ``PIECES`` equal pieces, each with
those of its middle. There what a dataset was ahead or behind at the end of a piece is carried into
the next one. It is counted in whole numbers, so that nothing drifts: at any block of the curriculum
every dataset is within one block of the sum of its shares so far.

Invariants:
    1. The legs begin at ``base``, and each one where that before it ends; the last has no end.
    2. The same arguments give the same legs: what was set before ``base`` is not asked for.

Cost: a schedule for each leg, 65 with a curriculum, is made once for a plan. A run of positions
needs one or two of them. The way back takes one call for each leg that is looked for.

Not here: debts of a dataset that was not ready (``pipeline.read.mixer``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoloader.host.frozen import frozen
from autoloader.samples.draws import Bools, Ints, ordered

WINDOW = 16_384
"""Blocks among which ``DrawnSchedule`` draws: many batches, and drawn in about 2 ms."""
NEVER = 2**62
"""The position of a sample that no position gives."""
_CELLS = 32_768
"""Numbers of a table of blocks by datasets that stay in the processor's cache."""


class Schedule:
    """Blocks dealt to datasets by share.

    Args:
        shares: relative weight of each dataset; one of weight 0 has no block.
        phases: phase of each dataset, in [0, 1): a keyed draw, so that heavy datasets do not all
            come first. A dataset that is behind from before has a lower phase, one that is ahead a
            higher one.
        finite: number of blocks of each dataset, and shares are ignored; ``None``: no end.

    Attributes:
        length: blocks in all; ``None`` without end.
        deals: [D] bool, which datasets have any.
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
        self.deals: Bools = weights > 0
        self._live = np.flatnonzero(self.deals)
        self._weights = weights[self._live] / weights.sum()
        self._phases = np.asarray(phases, dtype=np.float64)[self._live]
        self._finite = None if counts is None else counts[self._live]
        self._datasets = len(weights)
        self._row = np.cumsum(weights > 0) - 1
        self._first_due = min(0.0, float(self._due(np.zeros_like(self._live)).min(initial=0.0)))
        self.length: int | None = None if counts is None else int(counts.sum())

    def _due(self, k: Ints) -> NDArray[np.float64]:
        return np.asarray((k + self._phases) / self._weights)

    def _counts_at(self, v: float) -> Ints:
        """Blocks due before time v, per live dataset; exact with respect to ``_due``."""
        k = np.maximum(np.ceil(v * self._weights - self._phases), 0).astype(np.int64)
        k += self._due(k) < v
        k -= (k > 0) & (self._due(k - 1) >= v)
        return np.asarray(k if self._finite is None else np.minimum(k, self._finite))

    def _window(self, start: int, stop: int) -> tuple[Ints, Ints, Ints]:
        """(datasets in order, number of each block in its dataset, counts before them).

        What comes back covers [start, stop); its first block is at the sum of the counts.
        """
        margin = 4 * math.isqrt(len(self._live)) + 4
        low, high = float(max(0, start - margin)), float(stop + margin)
        before, step = self._counts_at(low), margin
        while int(before.sum()) > start:
            low, step = max(self._first_due, low - step), 2 * step
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

    def numbered(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Dataset of each block in [start, stop), and which of that dataset's blocks it is."""
        if self.length is not None:
            stop = min(stop, self.length)
        if stop <= start:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        sequence, k, before = self._window(start, stop)
        first = int(before.sum())
        cut = slice(start - first, stop - first)
        return np.asarray(self._live[sequence[cut]], dtype=np.int64), k[cut]

    def blocks(self, start: int, stop: int) -> Ints:
        """Dataset of each block in [start, stop), as [stop − start] int64."""
        return self.numbered(start, stop)[0]

    def places(self, dataset: Ints, number: Ints) -> Ints:
        """Number in the schedule of block ``number`` of each dataset, all [n] int64."""
        row = self._row[dataset]
        due = (number + self._phases[row]) / self._weights[row]
        place = np.empty(len(row), dtype=np.int64)
        size = max(1, _CELLS // len(self._live))
        for first in range(0, len(row), size):
            own = slice(first, first + size)
            place[own] = self._places(row[own], number[own], due[own])
        return place

    def _places(self, row: Ints, number: Ints, due: NDArray[np.float64]) -> Ints:
        """Blocks of all datasets before those that are due at ``due`` [n]."""
        own = np.arange(len(row)), row
        expected = due[:, None] * self._weights
        expected -= self._phases
        counts = np.ceil(expected)
        np.subtract(counts, expected, out=expected)
        expected[own] = 0.5
        # Where a count hangs on how the products are rounded, it is told from the due times.
        tolerance = 1e-14 * (due + 1)
        unsure = (expected.min(axis=1) < tolerance) | (expected.max(axis=1) > 1 - tolerance)
        counts[own] = number
        np.maximum(counts, 0, out=counts)
        for at in np.flatnonzero(unsure).tolist():
            counts[at] = self._counts_at(float(due[at]))
            same = self._due(counts[at].astype(np.int64)) == due[at]
            counts[at, : row[at]] += same[: row[at]]  # ties: by dataset, as they lie
            counts[at, row[at]] = number[at]
        if self._finite is not None:
            np.minimum(counts, self._finite, out=counts)
        return np.asarray(counts.sum(axis=1).astype(np.int64))

    def counts_before(self, position: int) -> Ints:
        """Blocks of each dataset before ``position``, as [datasets] int64."""
        if self.length is not None:
            position = min(position, self.length)
        counts = np.zeros(self._datasets, dtype=np.int64)
        if position > 0:
            sequence, _, before = self._window(position - 1, position)
            seen = sequence[: position - int(before.sum())]
            counts[self._live] = before + np.bincount(seen, minlength=len(self._live))
        return counts


class DrawnSchedule(Schedule):
    """A schedule whose blocks come in drawn order, without replacement within each window.

    Args:
        shares, phases, finite: as of ``Schedule``.
        key: key of the random draws.
        last: blocks that will be asked for, where that is known: the last window ends there.
    """

    def __init__(
        self,
        shares: Sequence[float],
        phases: Sequence[float],
        *,
        key: int,
        finite: Sequence[int] | None = None,
        last: int | None = None,
    ) -> None:
        super().__init__(shares, phases, finite=finite)
        self._key = key
        self._stop = last
        self._last = -1, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)

    def _drawn(self, window: int) -> tuple[Ints, Ints]:
        """Dataset and number of every block of a window; the last window asked for is kept."""
        known, dataset, number = self._last
        if known != window:
            start = window * WINDOW
            stop = start + WINDOW if self._stop is None else min(start + WINDOW, self._stop)
            due, _ = super().numbered(start, stop)
            places = np.arange(start, start + len(due), dtype=np.int64)
            dataset = due[ordered(self._key, places) - start]
            together = np.argsort(dataset, kind="stable")
            each = np.bincount(dataset, minlength=self._datasets)
            first = super().counts_before(start) - (np.cumsum(each) - each)
            number = np.empty_like(dataset)
            number[together] = np.arange(len(due)) + first[dataset[together]]
            self._last = window, dataset, number
        return dataset, number

    def numbered(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """See ``Schedule.numbered``."""
        if self.length is not None:
            stop = min(stop, self.length)
        datasets, numbers = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for window in range(start // WINDOW, -(-stop // WINDOW)):
            first = window * WINDOW
            cut = slice(max(0, start - first), stop - first)
            dataset, number = self._drawn(window)
            datasets.append(dataset[cut])
            numbers.append(number[cut])
        return np.concatenate(datasets), np.concatenate(numbers)

    def counts_before(self, position: int) -> Ints:
        """See ``Schedule.counts_before``."""
        start = position - position % WINDOW
        within = np.bincount(self.blocks(start, position), minlength=self._datasets)
        return super().counts_before(start) + within


PIECES = 64
"""Pieces of a curriculum: shares move by 1/64 of the way at a time."""
_ONE_BITS = 40
_ONE = 1 << _ONE_BITS
"""A share of 1, in whole numbers."""


@frozen
class Curriculum:
    """Shares that move evenly from an order's own to others.

    Attributes:
        to: [D] the shares at the end.
        over: the positions, from 0 on, over which they move.
    """

    to: tuple[float, ...]
    over: int


@frozen
class Change:
    """Shares that were set while running.

    Attributes:
        position: position from which the weights hold; a block begins there.
        shares: [D], summing to 1.
    """

    position: int
    shares: tuple[float, ...]


class Stretch(NamedTuple):
    """Shares that hold from a position on.

    Attributes:
        start: first position that has these shares.
        shares: [D], summing to 1.
        end: position at which the shares are exact, of a curriculum's stretch; ``None``: no end.
        number: number of a curriculum's stretch, from 1; ``None``: of no curriculum.
        whole: [D] shares of a curriculum's stretch, in whole numbers.
    """

    start: int
    shares: tuple[float, ...]
    end: int | None = None
    number: int | None = None
    whole: tuple[int, ...] = ()


SCALE_BITS = _ONE_BITS + (2 * PIECES).bit_length() - 1
"""Bits of a share of 1 in the whole numbers of a curriculum's stretch."""


def stretches_of(
    base: int, shares: tuple[float, ...], block_length: int, curriculum: Curriculum | None
) -> Iterator[Stretch]:
    """Stretches of an order before any change; arguments as of ``MixtureOrder``."""
    if curriculum is None:
        yield Stretch(base, shares)
        return
    first, last = _whole(shares), _whole(curriculum.to)
    start = base
    for k in range(PIECES + 1):
        at_end = k == PIECES
        before, after = (0, 2 * PIECES) if at_end else (2 * (PIECES - k) - 1, 2 * k + 1)
        whole = tuple(before * a + after * b for a, b in zip(first, last, strict=True))
        stop = block_start(base, curriculum.over * (k + 1) // PIECES, block_length)
        if at_end or stop > start:
            own = tuple(w / (1 << SCALE_BITS) for w in whole)
            yield Stretch(start, own, None if at_end else stop, k + 1, whole)
            start = stop


def shares_on_the_way(
    shares: Sequence[float], curriculum: Curriculum, position: int
) -> tuple[float, ...]:
    """[D] the shares of a curriculum at a position, whatever its blocks."""
    piece = min(position * PIECES // curriculum.over, PIECES)
    way = 1.0 if piece == PIECES else (2 * piece + 1) / (2 * PIECES)
    return tuple(a * (1 - way) + b * way for a, b in zip(shares, curriculum.to, strict=True))


def _whole(shares: Sequence[float]) -> list[int]:
    """Shares in whole numbers that sum to ``_ONE``; none that is above zero becomes zero."""
    whole = [max(1, round(share * _ONE)) if share > 0 else 0 for share in shares]
    whole[max(range(len(whole)), key=whole.__getitem__)] += _ONE - sum(whole)
    return whole


def block_start(base: int, position: int, block_length: int) -> int:
    """The first position from ``position`` on at which a block begins, counted from ``base``."""
    return base + -(-max(0, position - base) // block_length) * block_length
