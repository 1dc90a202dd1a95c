"""Which frames of one camera are held, in which slots, and when each is shown next.

All methods work on arrays: a planned run is looked up, inserted and let go of in a few calls. Not
for several threads at a time; the owner (``cache.table``) has the lock.

Not here: how many bytes there are, and which frames are worth them (``cache.table``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoloader.cache.slab import BLACK
from autoloader.sampling.schedule import NEVER

Ints = NDArray[np.int64]

NOWHERE = -1

_FREE, _PENDING, _HELD = np.uint8(0), np.uint8(1), np.uint8(2)
_GROWN = 1024


class Shelf:
    """The slots of one camera.

    Args:
        frame_bytes: of each slot.
        written: [slots] bool, in which of them frames lie (``FrameSlab.written``); as many slots
            as there may be.

    Attributes:
        next_use: [S] int64, position at which the frame in a slot is shown next.
        dataset: [S] int32, whose frame it is: what a hit saves.
        used: slots that hold a frame, or will.
        pending: those of them that will.
        free: slots that have pages and hold nothing.
    """

    def __init__(self, frame_bytes: int, written: NDArray[np.bool_]) -> None:
        self.frame_bytes = frame_bytes
        self._written = written
        self._room = len(written) - BLACK - 1
        self._slot_of: dict[int, int] = {}
        self._key = np.empty(0, np.int64)
        self._state = np.empty(0, np.uint8)
        self._pins = np.empty(0, np.int32)
        self.next_use = np.empty(0, np.int64)
        self.dataset = np.empty(0, np.int32)
        self.used = self.pending = 0
        self.free: list[int] = []
        self._punched: list[int] = []
        self._top = BLACK + 1

    @property
    def used_bytes(self) -> int:
        """Bytes of the frames held."""
        return self.used * self.frame_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of the slots that have pages."""
        return (self.used + len(self.free)) * self.frame_bytes

    @property
    def is_empty(self) -> bool:
        """Whether no slot has pages, or is about to lose them."""
        return len(self._punched) == self._top - BLACK - 1

    @property
    def ever_used(self) -> Ints:
        """All slots that had pages once, ascending."""
        return np.arange(BLACK + 1, self._top)

    @property
    def addable(self) -> int:
        """Slots that can be taken, pages or none."""
        return len(self.free) + len(self._punched) + self._room + 1 - self._top

    def find(self, keys: Ints) -> Ints:
        """[n] the slot that each frame has or will have; ``NOWHERE`` where it has none."""
        known = self._slot_of.get
        return np.asarray([known(key, NOWHERE) for key in keys.tolist()], np.int64)

    def is_held(self, slots: Ints) -> NDArray[np.bool_]:
        """[n] whether there is a slot, and its frame lies in it."""
        held: NDArray[np.bool_] = (slots >= 0) & self._written[slots]
        return held

    def pin(self, slots: Ints, by: int) -> None:
        """Count ``by`` more holders of each of these slots [n]; one may come twice."""
        np.add.at(self._pins, slots, np.int32(by))  # another type takes sixty times as long

    def shown_next(self, slots: Ints, next_use: Ints) -> None:
        """These frames are shown later than was known."""
        np.maximum.at(self.next_use, slots, next_use)

    def take(self, keys: Ints, next_use: Ints, dataset: Ints) -> Ints:
        """[n] slots for new frames, which are pending; ``addable`` says how many there are."""
        count = len(keys)
        slots = [self.free.pop() for _ in range(min(count, len(self.free)))]
        slots += [self._punched.pop() for _ in range(min(count - len(slots), len(self._punched)))]
        fresh = count - len(slots)
        slots += range(self._top, self._top + fresh)
        self._top += fresh
        if self._top > len(self._key):
            self._grow()
        found = np.asarray(slots, np.int64)
        self._key[found], self._state[found], self._pins[found] = keys, _PENDING, 0
        self.next_use[found], self.dataset[found] = next_use, dataset
        self._slot_of.update(zip(keys.tolist(), slots, strict=True))
        self.used += count
        self.pending += count
        return found

    def due(self, position: int) -> int:
        """Frames held that were to be shown before a position."""
        held = self._state == _HELD
        return int((held & (self.next_use < position)).sum())

    def idle(self) -> Ints:
        """Slots whose frames are held, and that nobody has pinned."""
        return np.flatnonzero((self._state == _HELD) & (self._pins == 0))

    def unused(self) -> Ints:
        """Slots with pages that nobody needs where no frame is to be held any more, ascending."""
        return np.sort(np.concatenate([self.idle(), np.asarray(self.free, np.int64)]))

    def unpin(self, slots: Ints) -> None:
        """Count one holder less of each of these slots [n]; one may come twice.

        Those that were pending and are written are held from now on. Those that nobody has pinned
        any more are let go of where they are not written, or not shown again.
        """
        self.pin(slots, -1)
        slots = np.sort(slots)
        slots = slots[np.diff(slots, prepend=NOWHERE) > 0]
        written = self._written[slots]
        self.pending -= int((self._state[slots[written]] == _PENDING).sum())
        self._state[slots[written]] = _HELD
        over = ~written | (self.next_use[slots] >= NEVER)
        self.let_go(slots[over & (self._pins[slots] == 0)])

    def let_go(self, slots: Ints) -> None:
        """These slots hold nothing any more; their pages stay until they are taken out of ``free``.

        None of them may be pinned, or twice among them.
        """
        self.pending -= int((self._state[slots] == _PENDING).sum())
        self._state[slots], self._written[slots] = _FREE, False
        for key in self._key[slots].tolist():
            self._slot_of.pop(key, None)
        self.free += slots.tolist()
        self.used -= len(slots)

    def forget(self) -> None:
        """No frame is found any more; slots that are in use go as soon as they are not."""
        self.let_go(self.idle())
        left = np.flatnonzero(self._state)
        self._key[left], self.next_use[left] = -2 - left, NEVER
        self._slot_of.clear()

    def take_free(self, most: int) -> Ints:
        """Up to so many free slots, ascending, to be punched; ``punched`` brings them back.

        Where that leaves nothing those come too that have no pages any more: slots that lie side by
        side go in one call, which takes half as long.
        """
        taken = self.free[:most]
        del self.free[:most]
        if taken and not self.used and not self.free:
            taken += self._punched
            self._punched.clear()
        return np.asarray(sorted(taken), np.int64)

    def punched(self, slots: Ints) -> None:
        """Slots that ``take_free`` gave have no pages any more."""
        self._punched += slots.tolist()

    def _grow(self) -> None:
        size = min(self._room + BLACK + 1, max(_GROWN, 2 * len(self._key), self._top))
        for name in ("_key", "_state", "_pins", "next_use", "dataset"):
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
