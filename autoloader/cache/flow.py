"""What a full cache holds while time goes by: the rule of the next use in its mean, step by step.

Theory of operation. How long intervals are is one thing (``intervals``), when they lie another.
With one use a pass every interval goes over an end of a pass. Where the passes of all datasets end
together, as they do where an epoch is a pass, all that is held is held at that moment, and the
cache hits no larger part than it holds. Where passes end at different times, the room that one
dataset does not need is another's. So a cache is followed through time.

Frames are grouped in *kinds* that behave alike. Time is cut into steps. Of each kind is told how
much of it is held for which later step. In a step what is held for it is hit; everything used
is held anew, for the steps that the law says; and what is too much goes, that with the largest
burden from now on first (steps to go × bytes ÷ seconds). All is in means, so nothing is drawn. The
passes of all kinds begin together, and two of the longest are followed before any is counted.

The loader plans samples before it shows them, and a frame that is to be held has its room from
then on. Of u uses a position of which h hit, u h (1 − h) frames for each position planned ahead
have room and are yet to be shown. Their bytes, half of all at most, are told anew at the end of
every pass, and missing in the next. So are those that a cut leaves empty for the frames to come.

Kinds whose passes are far shorter or longer than those that matter most, and such whose next use
may lie many passes away, are told by their law alone, at the burden of the moment.

Not here: which kinds there are, and other rules (``forecast``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from autoloader.cache.intervals import IntervalLaw
from autoloader.cache.table import SLACK

_STEPS = 64
"""Steps of the longest pass that is followed; fewer where there are many kinds."""
_CELLS = 2**16
"""Kinds times steps that are followed at most."""
_SPREAD = 16
"""The longest pass that is followed is so many times the shortest, at most."""
_LONGEST_LAW = 4
"""Passes that the next use of a kind that is followed may lie away."""
_WARM_PASSES, _PASSES = 2, 6
_TABLED = 2048
_BURDENS = 16
_NEAR = 1.5
_EXACT = 1e-3

Floats = NDArray[np.float64]
Ahead = Callable[[float, float], float]
"""(hit ratio, bytes that may be held) → positions from a sample's planning until it was shown."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Frames that behave alike.

    Attributes:
        law: of their intervals.
        frames: how many.
        frame_bytes: of each.
        decode_s: that a hit saves.
        pass_positions: positions of the mixture that a pass of theirs takes.
    """

    law: IntervalLaw
    frames: float
    frame_bytes: int
    decode_s: float
    pass_positions: float

    @property
    def burden(self) -> float:
        """Bytes over seconds: what holding one for a position costs."""
        return self.frame_bytes / self.decode_s

    @property
    def uses_per_position(self) -> float:
        """Uses of all of them, for each position of the mixture."""
        return self.law.uses * self.law.chance * self.frames / self.pass_positions


@dataclass(frozen=True, slots=True)
class Flow:
    """What was held and hit, in the mean over time.

    Attributes:
        threshold: positions × bytes ÷ second at which the cut was made, mostly; infinite where
            all frames fit.
        hit_ratio: [kinds] of the uses.
        held_bytes: [kinds].
    """

    threshold: float
    hit_ratio: list[float]
    held_bytes: list[float]


def full_cache(kinds: Sequence[Kind], cache_bytes: float, ahead: Ahead | None = None) -> Flow:
    """What a cache of ``cache_bytes`` will hold and hit of all kinds of a mixture.

    Args:
        kinds: of all its frames.
        cache_bytes: of decoded frames that may be held.
        ahead: how far ahead the loader plans; ``None``: what the rule alone would do.
    """
    every = [
        float(kind.law.held_ratio(math.inf)) * kind.frames * kind.frame_bytes for kind in kinds
    ]
    if cache_bytes <= 0:
        return Flow(0.0, [0.0] * len(kinds), [0.0] * len(kinds))
    if sum(every) <= cache_bytes:
        return Flow(math.inf, [float(kind.law.hit_ratio(math.inf)) for kind in kinds], every)
    steps = max(2 * _SPREAD, min(_STEPS, _CELLS // len(kinds)))
    longest = _longest_pass(kinds)
    step = longest / steps
    followed = [n for n, kind in enumerate(kinds) if _is_followed(kind, longest)]
    followed.sort(key=lambda n: _group(kinds[n], step))
    order = followed + [n for n in range(len(kinds)) if n not in set(followed)]
    steady = _Steady([kinds[n] for n in order[len(followed) :]], step)
    moving = _Moving([kinds[n] for n in followed], step)
    uses = np.asarray([kinds[n].uses_per_position for n in order])
    usable = cache_bytes if ahead is None else cache_bytes * (1 - 1 / SLACK)
    planned = np.zeros((steps, len(kinds)))
    passes = []
    for number in range(_WARM_PASSES + _PASSES):
        room = usable - planned.sum(axis=1)
        burdens, hit_ratio, held, new = _one_pass(moving, steady, number * steps, room)
        passes.append((burdens, hit_ratio, (held + planned).mean(axis=0)))
        if ahead is not None:
            positions = ahead(float(uses @ hit_ratio / uses.sum()), cache_bytes)
            planned = _coming(new, positions / step)
            planned *= np.minimum(1, usable / 2 / np.maximum(1, planned.sum(axis=1)))[:, None]
    every_burden, hits, bytes_held = zip(*passes[_WARM_PASSES:], strict=True)
    back = np.argsort(order)
    return Flow(
        float(np.median(every_burden)),
        np.mean(hits, axis=0)[back].tolist(),
        np.mean(bytes_held, axis=0)[back].tolist(),
    )


def _one_pass(
    moving: _Moving, steady: _Steady, first: int, room: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Follow a cache of ``room`` [steps] bytes for as many steps, from the ``first`` on.

    Returns:
        [steps] burdens of the cuts; [kinds] hit ratio; [steps, kinds] bytes held, and those of
        them that this step used, did not hit, and holds.
    """
    burdens = np.zeros(len(room))
    hits, held, new = np.zeros((3, len(room), len(moving.uses)))
    for k in range(len(room)):
        hits[k] = moving.advance(first + k)
        burdens[k] = moving.cut(room[k], steady)
        held[k], new[k] = moving.bytes_by_kind(), moving.bytes_held_anew()
    hit_ratio = np.clip(hits.mean(axis=0) / moving.uses, 0, 1)
    hit_by_law, held_by_law = steady.means(burdens)
    every_step = (len(room), 1)
    held = np.hstack([held, np.tile(held_by_law, every_step)])
    new = np.hstack([new, np.tile(steady.bytes_held_anew(hit_by_law), every_step)])
    return burdens, np.concatenate([hit_ratio, hit_by_law]), held, new


def _coming(new: Floats, steps: float) -> Floats:
    """[steps, kinds] what so many steps after each bring; they go round."""
    rounds, part = divmod(steps, len(new))
    whole = int(part)
    sums = np.concatenate([np.zeros((1, new.shape[1])), np.cumsum(np.tile(new, (3, 1)), axis=0)])
    first = np.arange(len(new)) + 1
    low = sums[first + whole] - sums[first]
    more = sums[first + whole + 1] - sums[first + whole]
    return np.asarray(rounds * new.sum(axis=0) + low + (part - whole) * more)


def _longest_pass(kinds: Sequence[Kind]) -> float:
    """The longest pass that is followed: of those kinds that have most of the seconds to save."""
    rows = sorted((k.pass_positions, k.uses_per_position * k.decode_s) for k in kinds)
    passes, seconds = np.asarray(rows).T
    before = np.concatenate([[0.0], np.cumsum(seconds)])
    low = np.searchsorted(passes, passes / _SPREAD)
    within = before[np.searchsorted(passes, passes, side="right")] - before[low]
    return float(passes[np.flatnonzero(within >= within.max() * (1 - 1e-9))[-1]])


def _is_followed(kind: Kind, longest: float) -> bool:
    near = longest / _SPREAD <= kind.pass_positions <= longest
    return near and kind.law.longest <= _LONGEST_LAW


def _group(kind: Kind, step: float) -> tuple[int, int, float]:
    return round(kind.pass_positions / step), kind.law.uses, kind.law.chance


class _Steady:
    """Kinds that are told by their law alone.

    Attributes:
        least, largest: burdens at which hardly any of them is held, and all.
    """

    def __init__(self, kinds: Sequence[Kind], step: float) -> None:
        self._used = np.asarray([k.uses_per_position * step * k.frame_bytes for k in kinds])
        scales = [kind.pass_positions * kind.burden for kind in kinds] or [1.0]
        low, high = min(scales) * 1e-4, max(scales) * max([k.law.longest for k in kinds] or [1.0])
        self.least, self.largest = (low, high) if kinds else (math.inf, 0.0)
        self._log = np.linspace(math.log(low), math.log(high), _TABLED)
        held = np.zeros((len(kinds), len(self._log)))
        hits = np.zeros_like(held)
        for row, kind in enumerate(kinds):
            passes = np.exp(self._log) / (kind.burden * kind.pass_positions)
            held[row] = kind.law.held_ratio(passes) * kind.frames * kind.frame_bytes
            hits[row] = kind.law.hit_ratio(passes)
        self._held, self._hits, self._total = held, hits, held.sum(axis=0)

    def bytes(self, burden: Floats) -> Floats:
        """Of all of them, held with intervals up to each burden."""
        return np.asarray(np.interp(np.log(burden), self._log, self._total))

    def bytes_held_anew(self, hit_ratio: Floats) -> Floats:
        """[kinds] in a step: of what is not hit as large a part is held as is hit of all."""
        return np.asarray(self._used * hit_ratio * (1 - hit_ratio))

    def means(self, burden: Floats) -> tuple[Floats, Floats]:
        """(hit ratio, held bytes) of each kind, in the mean over burdens."""
        at = np.interp(np.log(burden), self._log, np.arange(len(self._log))).astype(np.int64)
        return self._hits[:, at].mean(axis=1), self._held[:, at].mean(axis=1)


class _Moving:
    """Kinds that are followed, those of one group side by side.

    Attributes:
        uses: [kinds] frames used in a step.
    """

    def __init__(self, kinds: Sequence[Kind], step: float) -> None:
        self._tables: list[tuple[slice, Floats]] = []
        first = 0
        for (steps, _, _), members in groupby(kinds, key=lambda kind: _group(kind, step)):
            own = list(members)
            self._tables.append((slice(first, first + len(own)), own[0].law.from_phases(steps)))
            first += len(own)
        steps_of = np.asarray([_group(kind, step)[0] for kind in kinds], dtype=np.float64)
        per_pass = np.asarray([k.frames * k.law.uses * k.law.chance for k in kinds])
        self.uses: Floats = per_pass / steps_of
        self._bytes = np.asarray([float(kind.frame_bytes) for kind in kinds])
        self._burden = np.asarray([kind.burden * step for kind in kinds])
        width = max((table.shape[1] for _, table in self._tables), default=1)
        # Column j is what is held for the step j + 1 after this one.
        self._held = np.zeros((len(kinds), width))
        self._new = np.zeros_like(self._held)
        self._hit = np.zeros(len(kinds))
        self._last = 0.0

    def advance(self, now: int) -> Floats:
        """One step: what is hit of each kind; what is used is held anew."""
        self._hit = self._held[:, 0].copy()
        self._held[:, :-1] = self._held[:, 1:]
        self._held[:, -1] = 0
        for rows, table in self._tables:
            own = table[now % len(table)]
            self._new[rows, : len(own)] = self.uses[rows, None] * own
        self._held += self._new
        return self._hit

    def bytes_held_anew(self) -> Floats:
        """[kinds] of what this step used, had not hit, and holds."""
        missed = np.clip(1 - self._hit / self.uses, 0, 1)
        return np.asarray(self._new.sum(axis=1) * missed * self._bytes)

    def bytes_by_kind(self) -> Floats:
        """[kinds] bytes held."""
        return np.asarray(self._held.sum(axis=1) * self._bytes)

    def cut(self, cache_bytes: float, steady: _Steady) -> float:
        """Let go of what has the largest burden until the rest fits; the burden of the cut."""
        before = np.zeros((len(self._held), self._held.shape[1] + 1))
        np.cumsum(self._held, axis=1, out=before[:, 1:])
        before *= self._bytes[:, None]
        rows = np.arange(len(before))[:, None]

        def fits(burdens: Floats) -> int:
            """How many of some burdens, which ascend, leave no more than there is room for."""
            columns = self._columns(burdens)
            low = columns.astype(np.int64)
            own = before[rows, low]
            own += (columns - low) * (before[rows, np.minimum(low + 1, columns_most)] - own)
            return int(((own.sum(axis=0) + steady.bytes(burdens)) <= cache_bytes).sum())

        columns_most = self._held.shape[1]
        least, most = self._range(steady)
        low, high = max(least, self._last / _NEAR), min(most, self._last * _NEAR)
        if not (low < high and fits(np.asarray([low, high])) == 1):
            low, high = least, most
            if fits(np.asarray([high])):
                self._last = high
                return high
        while high > low * (1 + _EXACT):
            burdens = np.geomspace(low, high, _BURDENS)
            own = fits(burdens)
            low, high = burdens[max(own - 1, 0)], burdens[min(max(own, 1), _BURDENS - 1)]
        self._last = float(low)
        stays = np.clip(self._columns(np.asarray([low])) - np.arange(columns_most), 0, 1)
        self._held *= stays
        self._new *= stays
        return self._last

    def _columns(self, burdens: Floats) -> Floats:
        """[kinds, burdens] columns up to which each kind is held."""
        return np.asarray(np.minimum(burdens / self._burden[:, None], self._held.shape[1]))

    def _range(self, steady: _Steady) -> tuple[float, float]:
        """A burden at which hardly anything is held, and one at which all is."""
        every = [*(self._burden * self._held.shape[1]), steady.largest]
        return min([*(self._burden * 1e-3), steady.least]), max(every)
