"""Which slots of the ring are free, on the producing side.

Not here: the memory (``decode.ring.memory``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence

from autoloader.decode.ring.memory import MAX_SLOTS, RingMemory

DRAIN_S = 1.0
"""How long a ring that has become smaller waits for the consumer before it fills one more."""


class SlotPool:
    """Hands out free slots; the number in use may change at any time.

    Args:
        memory: the ring; retired slots give their pages back through it.
        slots: how many are in use at first.
        held: slots that the consumer has already.
        stuck: slots that threads of a ring before still write to; others serve in their stead.
    """

    def __init__(
        self,
        memory: RingMemory,
        slots: int,
        *,
        held: Sequence[int] = (),
        stuck: Collection[int] = (),
    ) -> None:
        self._memory = memory
        self._condition = threading.Condition()
        self._stuck = set(stuck)
        self._out = self._stuck.union(held)
        self._held = set(held)
        self.slots = slots
        self._free = [slot for slot in range(self._most - 1, -1, -1) if slot not in self._out]
        self._unpunched: set[int] = set()
        self._handed: set[int] = set()
        self._closed = False
        for slot in range(self._most, MAX_SLOTS):  # a ring before this one may have had more
            if slot not in self._out:
                self._punch(slot)

    @property
    def _most(self) -> int:
        """The first slot that is not in use."""
        return min(MAX_SLOTS, self.slots + len(self._stuck))

    @property
    def stuck(self) -> int:
        """Slots that threads of a ring before still write to."""
        return len(self._stuck)

    def ended(self, slot: int) -> None:
        """Nobody writes to a stuck slot any more."""
        with self._condition:
            self._stuck.discard(slot)
            self.release(slot)
            self.resize(self.slots)

    def acquire(self) -> int | None:
        """A free slot; waits for one. ``None`` once closed.

        After the ring was made smaller no slot is handed out until few enough are out, but for one
        every ``DRAIN_S`` seconds: the consumer may keep the batches it has for good.
        """
        with self._condition:
            begun = time.monotonic()
            while not self._closed:
                left = DRAIN_S - (time.monotonic() - begun)
                if self._free and (
                    len(self._out - self._held - self._stuck) < self.slots or left <= 0
                ):
                    break
                self._condition.wait(left if self._free else None)
            if self._closed:
                return None
            slot = self._free.pop()
            self._out.add(slot)
            return slot

    def release(self, slot: int) -> None:
        """A slot is free again; a retired one gives its pages back."""
        with self._condition:
            if slot not in self._out:
                return
            self._out.remove(slot)
            self._held.discard(slot)
            self._handed.discard(slot)
            self._condition.notify()
            if slot < self._most:
                self._free.append(slot)
            else:
                self._punch(slot)  # under the lock: it may come back into use at once
            self._punch_the_rest()

    def hand_out(self, slot: int) -> None:
        """A filled slot goes to the consumer's side."""
        with self._condition:
            self._handed.add(slot)

    @property
    def untaken(self) -> int:
        """Handed out and probably not taken yet: all but the one that the consumer works on.

        What crosses to another process lies there until it is asked for, and nobody says when.
        """
        return max(0, len(self._handed) - 1)

    def resize(self, slots: int) -> None:
        """Have ``slots`` slots; those beyond are retired as soon as they are free."""
        with self._condition:
            self.slots = slots
            most = self._most
            for slot in self._free:
                if slot >= most:
                    self._punch(slot)
            self._free = [slot for slot in self._free if slot < most]
            known = {*self._free, *self._out}
            self._free[:0] = [slot for slot in range(most - 1, -1, -1) if slot not in known]
            self._unpunched = {slot for slot in self._unpunched if slot >= most}
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
        """Slots that are being filled, filled or lent."""
        return len(self._out)

    def close(self) -> None:
        """Wake whoever waits."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
