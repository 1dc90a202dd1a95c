"""The frame cache under control: the first to go, and grown while training waits. Pure.

Theory of operation. Decoded frames that are held are surplus: without them the same batches come,
later. So below floor + margin they are given back before anything else is touched, as many bytes
as are missing, and nobody has to wait for it. They grow by steps while training waits, as long as
what they may hold is full and more frames are worth holding. Such a step is not judged by the rate
that follows, as other changes are, since a frame pays when it is shown again, a pass later. It is
judged by the hits that were foretold: every frame is held for a position at which it will be shown.
Where many of these positions are past and their frames were not shown, what is held does not do
what it was held for, and holds no more. It is not taken back because training has stopped waiting.

What it displaces is the page cache. Where files have to be read again for it, and that takes longer
than decoding would, a part is given back, until the rest saves more than it costs; then it does not
grow for a while.

Not here: which frames are held (``cache``), when to ask (``policy``,
``autoloader.process.control``).
"""

from __future__ import annotations

from autoloader.controller.limits import ControllerLimits
from autoloader.controller.observation import Observation, fresh
from autoloader.controller.reflex import REOPEN_RATIO
from autoloader.host.units import MIB
from autoloader.spec.knobs import Knobs

STEP_BYTES = 256 * MIB
"""Least step of growth, where so much is there."""
LEAST_STEP_BYTES = 32 * MIB
LATE_RATIO = 0.25
"""With such a part of what is held late, the hits fall short of those foretold."""
FULL_RATIO = 0.9
"""From so full on it may grow."""
GROWN_RATIO = 0.5
"""A step takes no more than this part of what is free above floor and margin."""


def missing_bytes(headroom_bytes: int, ram_floor_bytes: int, margin_bytes: int) -> int:
    """What must come back for reads to be admitted again; 0 where they are."""
    if headroom_bytes >= ram_floor_bytes + margin_bytes:
        return 0
    return ram_floor_bytes + int(margin_bytes * REOPEN_RATIO) - headroom_bytes


def lowered_cache(knobs: Knobs, held_bytes: int, missing: int) -> Knobs:
    """The knobs once the frame cache has given back ``missing`` of what it holds, or all."""
    left = max(0, min(knobs.cache_bytes, held_bytes) - missing)
    return Knobs.build({"cache_bytes": left if left >= LEAST_STEP_BYTES else 0}, base=knobs)


def cheaper_cache(seen: Observation) -> Knobs | None:
    """The knobs with fewer frames held, where they cost more reading than they save decoding."""
    cache = seen.cache
    if cache is None or not seen.knobs.cache_bytes or cache.reread_ratio <= cache.saved_ratio:
        return None
    return lowered_cache(seen.knobs, cache.held_bytes, max(STEP_BYTES, cache.held_bytes // 4))


def grown_cache(seen: Observation, limits: ControllerLimits, margin_bytes: int) -> Knobs | None:
    """The knobs with a larger frame cache.

    ``None`` where it is not full, where it hits less than was foretold, or where there is no room.
    """
    cache, now = seen.cache, seen.knobs.cache_bytes
    headroom = fresh(seen.headroom_bytes, limits.oldest_s)
    if cache is None or headroom is None:
        return None
    if now and not (cache.wanting and cache.held_bytes >= FULL_RATIO * now):
        return None
    if cache.late_bytes > LATE_RATIO * cache.held_bytes:
        return None
    room = headroom - limits.ram_floor_bytes - margin_bytes
    room = min(room * limits.budget_ratio, room if seen.room_bytes is None else seen.room_bytes)
    step = min(max(STEP_BYTES, now), int(GROWN_RATIO * room))
    caps = (limits.knobs.cache_bytes, limits.most_cache_bytes)
    to = min(now + step, *(most for most in caps if most is not None))
    if to - now < LEAST_STEP_BYTES:
        return None
    return Knobs.build({"cache_bytes": to}, base=seen.knobs)
