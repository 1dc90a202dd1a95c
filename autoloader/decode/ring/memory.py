"""The batch ring: slots of one memfd, filled by the decode pool, lent to the consumer.

Theory of operation. A slot holds one whole batch (``BatchLayout``). The producing side takes free
slots and fills them; the consuming side lends a filled slot out as NumPy arrays, and finds it free
again when the last array over it is gone. Both sides map the same descriptor, so in
one process or two the bytes are written once and never copied.

Pages of a slot that is retired, or of all free slots on demand, go back to the kernel
(MADV_REMOVE punches them out of the memfd); the file is never shrunk (a seal forbids it), because
a shrunk mapping turns a reader's access into SIGBUS. When the ring is closed the pages of all slots
but the lent ones go back, and each lent one's when the last array over it is gone; with the last
of them the mapping goes.

A slot that the consumer has registered with a device's driver is flagged in a page that both
sides map, and is neither punched nor lent to anybody but the transfer that registered it.

Invariants:
    1. A slot is in one hand at a time: free, filling, filled or lent.
    2. While the ring is open no code runs when an array dies: the consumer looks whose arrays are
       gone. A finalizer could be interrupted (Ctrl-C), and the slot would be lost.
    3. Memory under live arrays outlives the ring, and nothing else does: by counting references
       alone, without the garbage collector.

Not here: which slot holds which batch (``pipeline.pipeline``), torch (``batch``), what a fork sees
of lent slots (``decode.ring.forks``).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable, Collection, Iterator

import numpy as np

from autoloader.decode.ring.forks import keep_in_forks, lending
from autoloader.host.files import memory_file
from autoloader.host.threads import Owner
from autoloader.samples.layout import BatchLayout

MADV_REMOVE = 9
_F_ADD_SEALS = 1033
_F_SEAL_SHRINK = 0x0002
MAX_SLOTS = 64
_FLAGS_BYTES = 4096
"""A page behind the slots: one byte for each, whether it is pinned."""
COPY_RESERVE = 2
"""Slots that lending leaves alone; past that the consumer gets a copy."""


class _Pages:
    """The mapping of a ring's file: held by the ring while it is open, and by every lent slot."""

    def __init__(self, descriptor: int, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.map = mmap.mmap(descriptor, slot_bytes * MAX_SLOTS + _FLAGS_BYTES, mmap.MAP_SHARED)
        self.pinned = np.frombuffer(self.map, np.uint8, MAX_SLOTS, slot_bytes * MAX_SLOTS)
        self.address = int(self.pinned.ctypes.data) - slot_bytes * MAX_SLOTS

    def base(self, slot: int) -> np.ndarray:
        return np.frombuffer(self.map, np.uint8, self.slot_bytes, slot * self.slot_bytes)

    def punch(self, slot: int) -> None:
        self.map.madvise(MADV_REMOVE, slot * self.slot_bytes, self.slot_bytes)


class RingMemory:
    """The memory of a ring: ``MAX_SLOTS`` slots of address space, pages only where written.

    Args:
        layout: layout of the batches in a slot.
        descriptor: an existing ring's memfd; without one a new ring is made.
        name: shown by ``ls -l /proc/PID/fd``.
    """

    def __init__(
        self, layout: BatchLayout, *, descriptor: int | None = None, name: str = "autoloader"
    ) -> None:
        self.layout = layout
        size = layout.slot_bytes * MAX_SLOTS + _FLAGS_BYTES
        new = descriptor is None
        if descriptor is None:
            descriptor = memory_file(name, size, os.MFD_ALLOW_SEALING)
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK)
        self.descriptor = descriptor
        self._pages: _Pages | None = _Pages(descriptor, layout.slot_bytes)
        if new:  # the flags' page is there from the start, so that it can be left uncounted
            self._pages.pinned[:] = 0
        self.address = self._pages.address
        self.slots = MAX_SLOTS
        self.unpin: Callable[[int], bool] | None = None

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot; whole pages."""
        return self.layout.slot_bytes

    @property
    def pages(self) -> _Pages:
        """The mapping.

        Raises:
            ValueError: the ring is closed.
        """
        if self._pages is None:
            raise ValueError("the ring is closed")
        return self._pages

    def base(self, slot: int) -> np.ndarray:
        """A new uint8 array over a slot; all arrays made from it keep it alive."""
        return self.pages.base(slot)

    def note_pinned(self, slot: int, pinned: bool) -> None:
        """A slot is registered with a device's driver, or no longer; both processes see it."""
        self.pages.pinned[slot] = pinned

    def make_pageable(self, slot: int) -> bool:
        """Unregister a slot that is in nobody's hand but ours; whether it is pageable now."""
        if self.pages.pinned[slot] and self.unpin is not None:
            self.unpin(slot)
        return not self.pages.pinned[slot]

    def punch_all_but(self, kept: Collection[int]) -> None:
        """``punch`` all slots but ``kept``."""
        for slot in set(range(MAX_SLOTS)).difference(kept):
            self.punch(slot)

    def punch(self, slot: int) -> bool:
        """Give a slot's pages back to the kernel; it reads as zeros afterwards.

        False, and nothing is done, where it is registered with a device and this process cannot
        change that: the device would go on using the old pages. Of a closed ring nothing is left
        to give.
        """
        pages = self._pages
        if pages is None:
            return True
        if not self.make_pageable(slot):
            return False
        pages.punch(slot)
        return True

    def allocated_bytes(self) -> int:
        """Bytes of pages the kernel really holds for the ring; 0 once it is closed."""
        if self.descriptor < 0:
            return 0
        return os.fstat(self.descriptor).st_blocks * 512 - _FLAGS_BYTES

    def close(self) -> None:
        """Close the descriptor; the mapping goes with the last array over it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self._pages = self.unpin = None


class Lender:
    """Lends filled slots to the consumer and finds those whose arrays are gone.

    Used by one thread at a time; ``lent`` by any.
    """

    def __init__(self, memory: RingMemory) -> None:
        self._memory = memory
        self._pages = memory.pages
        self._owner = Owner("a batch")
        self._lent: dict[int, weakref.ref[np.ndarray]] = {}
        self._copied: list[int] = []
        self.copies = 0
        keep_in_forks(self)

    @property
    def lent(self) -> frozenset[int]:
        """Slots under live arrays, and those whose arrays are gone since the last ``collect``."""
        return frozenset(self._lent)

    def lent_bytes(self) -> Iterator[tuple[int, bytes]]:
        """See ``forks.Lends``."""
        for slot in self.lent:
            base = self._pages.base(slot)
            yield int(base.ctypes.data), base.tobytes()

    def lend(
        self, slot: int, slots: int, *, pinned: bool = False
    ) -> tuple[dict[str, np.ndarray], bool]:
        """A filled slot's arrays, and whether they are a copy (the slot is then free again).

        Args:
            slot: number of the filled slot.
            slots: slots in the ring now; lending always leaves ``COPY_RESERVE`` of them.
            pinned: the consumer is the library's own transfer and may have it pinned.
        """
        pageable = pinned or self._memory.make_pageable(slot)
        if not (pageable and self.may_lend(slots)):
            self.copies += 1
            memory = self._memory.base(slot).copy()
            self._copied.append(slot)
            return self._memory.layout.views(memory), True
        with lending:
            base = self._memory.base(slot)
            self._lent[slot] = weakref.ref(base)
        return self._memory.layout.views(base), False

    def may_lend(self, slots: int) -> bool:
        """True if another slot is lent, of a ring with so many; else a copy is handed out."""
        live = len(self._lent) - len(self._gone())
        return live + 1 <= slots - COPY_RESERVE

    def collect(self) -> list[int]:
        """Slots that are free again since the last call; none in a fork of this process."""
        if not self._owner.here:
            return []
        free, self._copied = [*self._copied, *self._gone()], []
        for slot in free:
            self._lent.pop(slot, None)
        return free

    def close(self) -> None:
        """Give the pages of all free slots back, and from now on those of each that comes back.

        Nobody may fill the ring any more, and no device have its slots registered.
        """
        for slot in range(MAX_SLOTS):
            base = self._lent[slot]() if slot in self._lent else None
            if base is None:
                self._punch(slot)
            else:
                weakref.finalize(base, self._punch, slot).atexit = False

    def _gone(self) -> list[int]:
        """Lent slots whose last array is gone."""
        return [slot for slot, base in list(self._lent.items()) if base() is None]

    def _punch(self, slot: int) -> None:
        """Give a slot's pages back; any thread, and not from a fork of this process."""
        if self._owner.here:
            self._pages.punch(slot)
            self._lent.pop(slot, None)
