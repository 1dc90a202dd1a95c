"""The legs of an order whose shares change on the way: one schedule behind the other.

    position   base            change                      ┌ over
    shares      │ first shares  │ set while running …      │
    curriculum  │ p0 │ p1 │ p2 │ … │ p63                   │ the last shares, without end

A leg begins at a block's first sample. How many samples every dataset has given by then is counted
once, so any position is still reached without walking there, and the way back is one search over
the legs.

Shares that are set while running begin a schedule of their own: from there on every dataset is
within one block of its share. A curriculum moves the shares in ``PIECES`` equal pieces, each with
those of its middle. There what a dataset was ahead or behind at the end of a piece is carried into
the next one. It is counted in whole numbers, so that nothing drifts: at any block of the curriculum
every dataset is within one block of the sum of its shares so far.

Invariants:
    1. The legs begin at ``base``, and each one where that before it ends; the last has no end.
    2. ``given`` of a leg is what the legs before it deal, from ``given`` of the order on.
    3. The same arguments give the same legs: what was set before ``base`` is not asked for.

Cost: a schedule for each leg, 65 with a curriculum, are made once for a plan; a run of positions
needs the one or two that it lies in, the way back one call for each leg that is looked for.

Not here: the schedule of one leg (``schedule``), epochs (``mixture``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.order.schedule import DrawnSchedule, Schedule
from autoloader.samples.draws import fold

PIECES = 64
"""Pieces of a curriculum: shares move by 1/64 of the way at a time."""
_ONE_BITS = 40
_ONE = 1 << _ONE_BITS
"""A share of 1, in whole numbers."""
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Shares that move evenly from an order's own to others.

    Attributes:
        to: [D] the shares at the end.
        over: the positions, from 0 on, over which they move.
    """

    to: tuple[float, ...]
    over: int


@dataclass(frozen=True, slots=True)
class Change:
    """Shares that were set while running.

    Attributes:
        position: from which they hold; a block begins there.
        shares: [D], summing to 1.
    """

    position: int
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Leg:
    """A part of an order with one schedule.

    Attributes:
        start: its first position.
        stop: the one behind its last; ``None``: it has no end.
        schedule: of its blocks.
        given: [D] samples that each dataset gave before it.
    """

    start: int
    stop: int | None
    schedule: Schedule
    given: Ints


@dataclass(frozen=True, slots=True)
class _Piece:
    """Shares that hold from a position on; ``whole`` are those of a curriculum's piece."""

    start: int
    shares: tuple[float, ...]
    number: int | None = None
    whole: tuple[int, ...] = ()


def legs_of(
    *,
    base: int,
    given: Sequence[int],
    shares: tuple[float, ...],
    phases: Sequence[float],
    block_length: int,
    curriculum: Curriculum | None,
    changes: Sequence[Change],
    draw_key: int | None,
) -> tuple[Leg, ...]:
    """The legs of an order; arguments as of ``MixtureOrder``."""
    pieces = list(_pieces(base, shares, block_length, curriculum))
    natural_ends = [piece.start for piece in pieces[1:]] + [None]
    if changes:
        kept = [piece for piece in pieces if piece.start < changes[0].position]
        pieces = [*kept, *(_Piece(one.position, one.shares) for one in changes)]
        natural_ends = [*natural_ends[: len(kept)], *(None for _ in changes)]
    found = []
    counted = np.asarray(given or (0,) * len(shares), dtype=np.int64)
    stops = [piece.start for piece in pieces[1:]] + [None]
    due, dealt = [0] * len(shares), [0] * len(shares)
    for piece, end, stop in zip(pieces, natural_ends, stops, strict=True):
        ahead = [(d << _SCALE_BITS) - t for d, t in zip(dealt, due, strict=True)]
        # What is within one block is told exactly: 47 bits fit in a float's 53.
        own = [u + a / (1 << _SCALE_BITS) for u, a in zip(phases, ahead, strict=True)]
        at = own if piece.whole else phases
        schedule = Schedule(piece.shares, at)
        if draw_key is not None:
            key = draw_key if piece.number is None else fold(draw_key, piece.number)
            # Turns are drawn within the piece, so that its shares are exact at its own end.
            last = None if end is None else (end - piece.start) // block_length
            schedule = DrawnSchedule(piece.shares, at, key=key, last=last)
        leg = Leg(piece.start, stop, schedule, counted)
        found.append(leg)
        if stop is not None:
            blocks = (stop - piece.start) // block_length
            taken = leg.schedule.counts_before(blocks)
            counted = counted + taken * block_length
            if piece.whole:
                due = [t + blocks * w for t, w in zip(due, piece.whole, strict=True)]
                dealt = [d + n for d, n in zip(dealt, taken.tolist(), strict=True)]
    return tuple(found)


_SCALE_BITS = _ONE_BITS + (2 * PIECES).bit_length() - 1


def _pieces(
    base: int, shares: tuple[float, ...], block_length: int, curriculum: Curriculum | None
) -> Iterator[_Piece]:
    if curriculum is None:
        yield _Piece(base, shares)
        return
    first, last = _whole(shares), _whole(curriculum.to)
    start = base
    for k in range(PIECES + 1):
        at_end = k == PIECES
        before, after = (0, 2 * PIECES) if at_end else (2 * (PIECES - k) - 1, 2 * k + 1)
        whole = tuple(before * a + after * b for a, b in zip(first, last, strict=True))
        piece = _Piece(start, tuple(w / (1 << _SCALE_BITS) for w in whole), k + 1, whole)
        stop = block_start(base, curriculum.over * (k + 1) // PIECES, block_length)
        if at_end:
            yield piece
        elif stop > start:
            yield piece
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
