"""What a cache of so many bytes will do: which frames it holds, how many it hits, how fast that is.

One rule says which frames are held. A frame that is shown now and again x positions later takes its
bytes for x positions and saves the seconds of one decode. It is held where

    x ≤ threshold × decode seconds ÷ bytes

and the threshold is whatever fills the cache. That is the choice of the most saved seconds for the
bytes: Belady's rule (IBM Systems Journal 5(2), 1966) with sizes and costs. A dataset whose uses all
follow each other within its limit is held whole by the same rule. What it hits is foretold by
``flow``.

The other rule holds a fixed part that is never evicted (MinIO, in CoorDL of Mohan et al.,
"Analyzing and mitigating data stalls in DNN training", VLDB 2021), of the frames that save most
for their bytes. It hits as large a part as it holds. Which rule saves more hangs on the mixture:

- With one frame a sample and passes that end together every interval goes over that end, so what is
  held then bounds the hits of any rule: a fixed part of c hits c, and no rule hits more.
- Where passes end at different times, or a frame is shown several times a pass, the next use does
  better, and most so in small caches.
- With many nodes a node's next use of a frame lies passes away. Where it is not known so far ahead
  the frame is not held for it. What the near uses leave of the bytes then holds a fixed part, of
  the frames that came first: so the loader does what both rules do.

A steady state is what both are told for. In the first pass of a run there is nothing to hit but
what the pass itself has shown.

Not here: when one frame is shown next (``order.next_use``), holding frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autoloader.cache.flow import Ahead, Kind, full_cache
from autoloader.cache.intervals import interval_law
from autoloader.cache.shown import Shown

SAMPLE_S = 5e-5
"""Seconds that a sample takes of the interpreter beside its frames (measured: 48 to 58 µs)."""
HELD_SAMPLE_S = 2.2e-5
"""The same where its frames are held (measured: 17 to 19 µs, and 40,000 to 42,000 samples/s of two
frames of 192 KiB on two cores, where copies in two threads take longer than in one)."""

Rule = Literal["next use", "never evict"]
_ALIKE = 0.01
"""By so much a rule must save more to be preferred to the next use, which adapts."""


@dataclass(frozen=True, slots=True)
class FrameSet:
    """The frames of one camera of one dataset.

    Attributes:
        dataset: its name.
        camera: its name.
        share: of the mixture's samples.
        samples: of a pass.
        shown: how often its frames are used in a pass.
        frame_bytes: of a decoded frame.
        decode_s: seconds of one thread that a hit saves.
        chance: that a use comes in a pass, on this node.
        goals: frames of goals that a sample shows beside these. They are drawn, from all frames
            alike, so no next use is known of them; one is hit where it happens to be held.
    """

    dataset: str
    camera: str
    share: float
    samples: int
    shown: Shown
    frame_bytes: int
    decode_s: float
    chance: float = 1.0
    goals: float = 0.0

    @property
    def frames(self) -> float:
        """Different frames."""
        return sum(frames for _, frames in self.shown)

    @property
    def frames_bytes(self) -> float:
        """Bytes of all of them."""
        return self.frames * self.frame_bytes

    @property
    def pass_positions(self) -> float:
        """Positions of the mixture that a pass takes."""
        return self.samples / self.share

    def uses(self, uses: int, frames: float) -> float:
        """Uses of some of its frames for each position."""
        return uses * frames * self.chance / self.pass_positions

    @property
    def uses_per_position(self) -> float:
        """Frames that a position of the mixture uses of these, in the mean."""
        foreseen = sum(self.uses(uses, frames) for uses, frames in self.shown)
        return foreseen + self.share * self.goals

    def held(self, hits_per_position: float, held_bytes: float) -> Holding:
        """What becomes of these where so many foreseen uses hit, and so much is held."""
        hits = hits_per_position + self.share * self.goals * _part(held_bytes, self.frames_bytes)
        return Holding(self, _part(hits, self.uses_per_position), held_bytes)


@dataclass(frozen=True, slots=True)
class Holding:
    """What is held of one set, in the mean.

    Attributes:
        frames: which set.
        hit_ratio: of its uses.
        held_bytes: of its frames.
    """

    frames: FrameSet
    hit_ratio: float
    held_bytes: float

    @property
    def saved_s(self) -> float:
        """Decode seconds saved for each position."""
        return self.frames.uses_per_position * self.hit_ratio * self.frames.decode_s


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a cache will do by one rule.

    Attributes:
        rule: by which frames are held.
        cache_bytes: that there are.
        threshold: of the next use, positions × bytes ÷ second; infinite where all is held that is
            shown again, or where nothing is evicted.
        sets: each set's part.
    """

    rule: Rule
    cache_bytes: int
    threshold: float
    sets: tuple[Holding, ...]

    @property
    def hit_ratio(self) -> float:
        """Of all uses of frames."""
        return hit_ratio(self.sets)

    @property
    def held_bytes(self) -> float:
        """Bytes of what is held, in the mean."""
        return sum(one.held_bytes for one in self.sets)

    @property
    def uses_per_sample(self) -> float:
        """Frames that a sample shows, in the mean."""
        return sum(one.frames.uses_per_position for one in self.sets)

    @property
    def saved_s(self) -> float:
        """Seconds of one thread that a sample's decoding takes less, in the mean."""
        return sum(one.saved_s for one in self.sets)

    @property
    def missed_s(self) -> float:
        """Seconds of one thread that a sample's decoding still takes, in the mean."""
        every = sum(one.frames.uses_per_position * one.frames.decode_s for one in self.sets)
        return max(0.0, every - self.saved_s)

    def longest_positions(self, one: FrameSet) -> float:
        """The interval up to which frames of a set are held; infinite where all are."""
        return self.threshold * one.decode_s / one.frame_bytes


def forecast(
    sets: Sequence[FrameSet],
    cache_bytes: int,
    *,
    known_uses: float = math.inf,
    ahead: Ahead | None = None,
) -> tuple[Forecast, Forecast]:
    """What a cache will do by either rule; the one that saves more seconds comes first.

    Args:
        sets: of the whole mixture.
        cache_bytes: of decoded frames that it may hold.
        known_uses: of a frame, on any node, that are looked at for one of this node.
        ahead: how far ahead the loader plans; ``None``: what the rules alone would do.
    """
    by_next_use = _next_use(sets, cache_bytes, known_uses, ahead)
    fixed = Forecast("never evict", cache_bytes, math.inf, _never_evict(sets, cache_bytes))
    if fixed.saved_s > by_next_use.saved_s * (1 + _ALIKE):
        return fixed, by_next_use
    return by_next_use, fixed


def _next_use(
    sets: Sequence[FrameSet], cache_bytes: int, known_uses: float, ahead: Ahead | None
) -> Forecast:
    kinds = _kinds(sets, known_uses)
    flow = full_cache(kinds, cache_bytes, ahead)
    hits, held = list(flow.hit_ratio), list(flow.held_bytes)
    if known_uses < math.inf:
        left = [kind.frames * kind.frame_bytes - own for kind, own in zip(kinds, held, strict=True)]
        fixed = _worthiest(kinds, left, cache_bytes - sum(held))
        for n, more in enumerate(fixed):
            hits[n] += (1 - hits[n]) * _part(more, left[n])
            held[n] += more
    return Forecast("next use", cache_bytes, flow.threshold, _holdings(sets, kinds, hits, held))


def _never_evict(sets: Sequence[FrameSet], cache_bytes: int) -> tuple[Holding, ...]:
    """The frames that save most for their bytes are held for good."""
    kinds = _kinds(sets, math.inf)
    every = [kind.frames * kind.frame_bytes for kind in kinds]
    held = _worthiest(kinds, every, cache_bytes)
    return _holdings(sets, kinds, list(map(_part, held, every)), held)


def _kinds(sets: Sequence[FrameSet], known_uses: float) -> list[Kind]:
    """The frames of each set, told apart by their uses."""
    return [
        Kind(
            interval_law(uses, one.chance, known_uses / uses),
            frames,
            one.frame_bytes,
            one.decode_s,
            one.pass_positions,
        )
        for one in sets
        for uses, frames in one.shown
    ]


def _worthiest(kinds: Sequence[Kind], there: Sequence[float], room: float) -> list[float]:
    """Bytes of each kind that are held, of those that are ``there``: what saves most first."""
    held, room = [0.0] * len(kinds), max(0.0, room)
    for _, n in sorted(
        (-_part(kind.uses_per_position * kind.decode_s, kind.frames * kind.frame_bytes), n)
        for n, kind in enumerate(kinds)
    ):
        held[n] = min(there[n], room)
        room -= held[n]
    return held


def _holdings(
    sets: Sequence[FrameSet], kinds: Sequence[Kind], hits: Sequence[float], held: Sequence[float]
) -> tuple[Holding, ...]:
    """What becomes of each set, of what becomes of its kinds."""
    found, first = [], 0
    for one in sets:
        own = slice(first, first + len(one.shown))
        first = own.stop
        each = zip(kinds[own], hits[own], strict=True)
        hit = sum(kind.uses_per_position * ratio for kind, ratio in each)
        found.append(one.held(hit, sum(held[own])))
    return tuple(found)


def hit_ratio(holdings: Sequence[Holding]) -> float:
    """Of all uses of frames of some sets."""
    hits = sum(one.hit_ratio * one.frames.uses_per_position for one in holdings)
    return _part(hits, sum(one.frames.uses_per_position for one in holdings))


def _part(some: float, every: float) -> float:
    return some / every if every > 0 else 0.0
