"""Keeps the batches that a process holds when it forks unchanged in the fork.

Theory of operation. A lent slot is shared memory, which the parent fills anew when its own arrays
over it are gone, whatever a fork still holds. So right before a fork the bytes of every lent slot
are copied, and in the fork the copy takes the place of the shared pages, at the same addresses. No
slot is kept for the sake of a fork, the parent waits for nobody, and what the fork writes stays its
own. The price is a copy of the lent slots for every fork; without a lent slot it is nothing.

Lending waits while a fork is under way: a slot that is lent is either copied or not yet in use.

A fork that Python does not know of (made in C, without ``PyOS_BeforeFork``) goes without.

Not here: who may use a loader (``owner``), when a slot is free (``decode.ring.memory``).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value


class Lends(Protocol):
    """Has lent memory out."""

    def lent_bytes(self) -> Iterator[tuple[int, bytes]]:
        """Address and a copy of every piece under live arrays; whole pages."""
        ...


lending = threading.RLock()
"""Held while memory is lent, and from right before a fork until behind it."""
_lenders: weakref.WeakSet[Lends] = weakref.WeakSet()
_copies: list[tuple[int, bytes]] = []
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip


def keep_in_forks(lender: Lends) -> None:
    """Copy the slots that ``lender`` has lent at every fork, as long as it lives."""
    with lending:
        _lenders.add(lender)


def _before() -> None:
    lending.acquire()
    for lender in list(_lenders):
        _copies.extend(lender.lent_bytes())


def _in_parent() -> None:
    _copies.clear()
    lending.release()


def _in_fork() -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    for address, copy in _copies:
        got = _mmap(address, len(copy), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if got == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), "no private memory for a batch in a fork")
        ctypes.memmove(address, copy, len(copy))
    _copies.clear()
    lending.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_fork)
