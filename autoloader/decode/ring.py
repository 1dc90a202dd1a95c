"""The batch ring: slots of one memory file, filled by a batch builder, lent to the consumer.

Theory of operation. A slot holds one whole batch (``BatchLayout``). The producing side takes free
slots and fills them. The consuming side lends a filled slot out as NumPy arrays, and finds it free
again when the last array over it is gone. Both sides map the same descriptor, so in one process or
two the bytes are written once and never copied.

Pages of a retired slot go back to the kernel, and those of all free slots on demand (MADV_REMOVE
punches them out of the memfd). The file is never shrunk (a seal forbids it): a shrunk
mapping turns a reader's access into SIGBUS. A closed ring gives back the pages of all slots except
the lent ones. Each lent slot's pages follow when its last array is gone, then the mapping.

A slot that the consumer has registered with a device's driver is flagged in a page that both
sides map. Such a slot is never punched, and lent only to the transfer that registered it.

*Forks.* The parent fills a slot anew when its own arrays are gone, whatever a fork still holds. So
right before a fork the bytes of every lent slot are copied. In the fork the copy replaces the
shared pages, at the same addresses. The parent waits for nobody, and what the fork writes stays its
own. The price is a copy of the lent slots for every fork. Lending waits while a fork is under way.
A fork that Python does not know of (made in C, without ``PyOS_BeforeFork``) goes without.

Invariants:
    1. A slot is in one hand at a time: free, filling, filled or lent.
    2. While the ring is open no code runs when an array dies: the consumer looks whose arrays are
       gone. A finalizer could be interrupted (Ctrl-C), and the slot would be lost.
    3. Memory under live arrays outlives the ring, and nothing else does: by counting references
       alone, without the garbage collector.

Not here: which slot holds which batch (``pipeline.pipeline``), torch (``samples.layout``), what is
said of a filled slot (``decode.message``).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection

import numpy as np

from autoloader.errors import PipelineError
from autoloader.host.files import mapped, memory_file
from autoloader.host.threads import Owner
from autoloader.samples.layout import BatchLayout

MAX_SLOTS = 64
_FLAGS_BYTES = 4096
"""A page behind the slots: one byte for each, 1 where the slot is pinned; then three numbers that
the trainer alone writes: batches taken, nanoseconds waited for them, begin of the present wait."""
COPY_RESERVE = 2
"""Slots that lending leaves alone; past that the consumer gets a copy."""
DRAIN_S = 1.0
"""Seconds that a ring which became smaller waits for the consumer before it fills one more slot."""


class _Pages:
    """The mapping of a ring's file: held by the ring while it is open, and by every lent slot."""

    def __init__(self, descriptor: int, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.map = mapped(descriptor, slot_bytes * MAX_SLOTS + _FLAGS_BYTES)
        self.pinned = np.frombuffer(self.map, np.uint8, MAX_SLOTS, slot_bytes * MAX_SLOTS)
        self.consumer = np.frombuffer(self.map, np.int64, 3, slot_bytes * MAX_SLOTS + MAX_SLOTS)
        self.address = int(self.pinned.ctypes.data) - slot_bytes * MAX_SLOTS

    def base(self, slot: int) -> np.ndarray:
        """A new uint8 array over a slot."""
        return np.frombuffer(self.map, np.uint8, self.slot_bytes, slot * self.slot_bytes)

    def punch(self, slot: int) -> None:
        """Give a slot's pages back to the kernel."""
        self.map.madvise(mmap.MADV_REMOVE, slot * self.slot_bytes, self.slot_bytes)


class RingMemory:
    """The memory of a ring: ``MAX_SLOTS`` slots of address space, pages only where written.

    Args:
        layout: layout of the batches in a slot.
        descriptor: an existing ring's memfd; without one a new ring is made.

    Attributes:
        unpin: unregisters a slot from the device that has it; ``None`` in a process without one.
    """

    slots = MAX_SLOTS

    def __init__(self, layout: BatchLayout, *, descriptor: int | None = None) -> None:
        self.layout = layout
        new = descriptor is None
        if descriptor is None:
            size = layout.slot_bytes * MAX_SLOTS + _FLAGS_BYTES
            descriptor = memory_file("autoloader", size, sealed=True)
        self.descriptor = descriptor
        try:
            self._pages: _Pages | None = _Pages(descriptor, layout.slot_bytes)
        except PipelineError:
            if new:
                os.close(descriptor)
            raise
        if new:  # the flags' page is there from the start, so that it can be left uncounted
            self._pages.pinned[:] = 0
        self.address = self._pages.address
        self.unpin: Callable[[int], bool] | None = None

    @property
    def slot_bytes(self) -> int:
        """Size of a slot in bytes, in whole pages."""
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
        """Flag a slot as registered with a device's driver, or not; both processes see the flag."""
        if self._pages is not None:
            self._pages.pinned[slot] = pinned

    def note_wait(self, since_s: float) -> None:
        """The consumer waits since then, by the monotonic clock; 0: it does not wait."""
        if self._pages is not None:
            self._pages.consumer[2] = int(since_s * 1e9)

    def note_batch(self, waited_s: float) -> None:
        """Count a batch that the consumer has got, or has in hand, and waited for so long."""
        if self._pages is not None:
            self._pages.consumer[:2] += (1, int(waited_s * 1e9))

    def consumed(self) -> tuple[int, int]:
        """Number of batches counted, and nanoseconds that the consumer waited for them."""
        batches, waited_ns, _ = (0, 0, 0) if self._pages is None else self._pages.consumer.tolist()
        return batches, waited_ns

    def waiting_since_ns(self) -> int:
        """Begin of the consumer's wait, by the monotonic clock; 0: it does not wait."""
        pages = self._pages
        return 0 if pages is None else int(pages.consumer[2])

    def make_pageable(self, slot: int) -> bool:
        """Unregister a slot that nobody else uses; true if it is pageable now."""
        if self.pages.pinned[slot] and self.unpin is not None:
            self.unpin(slot)
        return not self.pages.pinned[slot]

    def punch_all_but(self, kept: Collection[int]) -> None:
        """``punch`` all slots except ``kept``."""
        for slot in set(range(MAX_SLOTS)).difference(kept):
            self.punch(slot)

    def punch(self, slot: int) -> bool:
        """Give a slot's pages back to the kernel; the slot reads as zeros afterwards.

        Returns:
            False, and nothing is done, where the slot is registered with a device and this process
            cannot change that: the device would go on using the old pages.
        """
        if self._pages is None:
            return True
        if not self.make_pageable(slot):
            return False
        self._pages.punch(slot)
        return True

    def allocated_bytes(self) -> int:
        """Bytes of pages that the kernel holds for the ring; 0 once the ring is closed."""
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
        with _lending:
            _lenders.add(self)

    @property
    def lent(self) -> frozenset[int]:
        """Slots that were lent, and that ``collect`` has not given back yet."""
        return frozenset(self._lent)

    def lent_bytes(self) -> list[tuple[int, bytes]]:
        """Address and a copy of every lent slot."""
        bases = [self._pages.base(slot) for slot in self.lent]
        return [(int(base.ctypes.data), base.tobytes()) for base in bases]

    def lend(
        self, slot: int, ring_slots: int, *, pinned: bool = False
    ) -> tuple[dict[str, np.ndarray], bool]:
        """Arrays over a filled slot, and whether they are a copy instead.

        The next ``collect`` gives a copied slot back.

        Args:
            slot: number of the filled slot.
            ring_slots: number of slots in the ring now; lending leaves ``COPY_RESERVE`` of them.
            pinned: whether the consumer is the library's own transfer, which may pin the slot.
        """
        pageable = pinned or self._memory.make_pageable(slot)
        if not (pageable and self.may_lend(ring_slots)):
            self.copies += 1
            memory = self._memory.base(slot).copy()
            self._copied.append(slot)
            return self._memory.layout.views(memory), True
        with _lending:
            base = self._memory.base(slot)
            self._lent[slot] = weakref.ref(base)
        return self._memory.layout.views(base), False

    def may_lend(self, ring_slots: int) -> bool:
        """True if, of ``ring_slots``, lending one more leaves ``COPY_RESERVE``.

        Otherwise ``lend`` copies the slot; it also copies one that cannot be made pageable.
        """
        return len(self._lent) - len(self._gone()) < ring_slots - COPY_RESERVE

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


class SlotPool:
    """Hands out free slots to the producing side; the number in use may change at any time.

    Args:
        memory: the ring; retired slots give their pages back through it.
        slots: number of slots in use at first.
        held: numbers of the slots that the consumer has already.
    """

    def __init__(self, memory: RingMemory, slots: int, *, held: Collection[int] = ()) -> None:
        self._memory = memory
        self._condition = threading.Condition()
        self._out, self._held = set(held), set(held)
        self.slots = slots
        self._free: list[int] = []
        self._unpunched: set[int] = set()
        self._handed: set[int] = set()
        self._closed = False
        self.resize(slots)
        for slot in range(slots, MAX_SLOTS):  # a ring before this one may have had more
            if slot not in self._out:
                self._punch(slot)

    def acquire(self) -> int | None:
        """A free slot; waits for one. ``None`` once closed.

        After the ring was made smaller no slot is handed out until few enough are out, except one
        every ``DRAIN_S`` seconds: the consumer may keep the batches it has for good. If these are
        all slots of the ring, and the consumer waits, that one is a slot beyond.
        """
        with self._condition:
            begun = time.monotonic()
            while not self._closed:
                left = DRAIN_S - (time.monotonic() - begun)
                filling = len(self._out - self._held)
                if self._free and (filling < self.slots or left <= 0):
                    slot = self._free.pop()
                    self._out.add(slot)
                    return slot
                if left <= 0:
                    begun = time.monotonic()
                    if (beyond := self._beyond()) is not None:
                        self._out.add(beyond)
                        return beyond
                self._condition.wait(max(0.0, left) or DRAIN_S)
        return None

    def _beyond(self) -> int | None:
        """A slot beyond those in use where the consumer has all of these and waits for one more."""
        if self._out <= self._held | self._handed and self._memory.waiting_since_ns():
            return min(set(range(self.slots, MAX_SLOTS)) - self._out, default=None)
        return None

    def release(self, slot: int) -> None:
        """Take a slot back; a retired one gives its pages back."""
        with self._condition:
            if slot not in self._out:
                return
            self._out.remove(slot)
            self._held.discard(slot)
            self._handed.discard(slot)
            self._condition.notify()
            if slot < self.slots:
                self._free.append(slot)
            else:
                self._punch(slot)  # under the lock: it may come back into use at once
            self._punch_the_rest()

    def hand_out(self, slot: int) -> None:
        """Note that a filled slot goes to the consumer's side."""
        with self._condition:
            self._handed.add(slot)

    @property
    def untaken(self) -> int:
        """Number of slots handed out and not taken yet, or so: all except the one in use.

        A batch that crosses to another process lies there until it is asked for, and nobody says
        when that is.
        """
        return max(0, len(self._handed) - 1)

    def resize(self, slots: int) -> None:
        """Have ``slots`` slots; those beyond are retired as soon as they are free."""
        with self._condition:
            self.slots = slots
            for slot in self._free:
                if slot >= slots:
                    self._punch(slot)
            self._free = [slot for slot in self._free if slot < slots]
            known = {*self._free, *self._out}
            self._free[:0] = [slot for slot in range(slots - 1, -1, -1) if slot not in known]
            self._unpunched = {slot for slot in self._unpunched if slot >= slots}
            self._condition.notify_all()

    def punch_free(self) -> None:
        """Give the pages of all free slots back to the kernel."""
        with self._condition:
            for slot in self._free:
                self._memory.punch(slot)
            self._punch_the_rest()

    def _punch(self, slot: int) -> None:
        """Give a retired slot's pages back, later where it is pinned."""
        if not self._memory.punch(slot):
            self._unpunched.add(slot)

    def _punch_the_rest(self) -> None:
        self._unpunched = {slot for slot in self._unpunched if not self._memory.punch(slot)}

    @property
    def out(self) -> int:
        """Number of slots that are being filled, filled or lent."""
        return len(self._out)

    def close(self) -> None:
        """Have ``acquire`` return ``None`` from now on, also where it waits."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()


_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip
_lending = threading.RLock()
"""Held while a slot is lent, and from right before a fork until behind it."""
_lenders: weakref.WeakSet[Lender] = weakref.WeakSet()
_copies: list[tuple[int, bytes]] = []


def _before_fork() -> None:
    """Stop lending, and copy the bytes of every lent slot."""
    _lending.acquire()
    for lender in list(_lenders):
        _copies.extend(lender.lent_bytes())


def _behind_fork() -> None:
    _copies.clear()
    _lending.release()


def _in_fork() -> None:
    """Put private copies in place of the lent slots' shared pages."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    for address, copy in _copies:
        got = _mmap(address, len(copy), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if got == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), "no private memory for a batch in a fork")
        ctypes.memmove(address, copy, len(copy))
    _behind_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_behind_fork, after_in_child=_in_fork)
