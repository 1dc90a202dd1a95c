"""The memory of the frame cache, in which every camera has slots of its size.

Theory of operation. The memory is sparse: it is as large as the machine's for each camera, and has
pages only where a slot was written. What is given back is the kernel's at once. The trainer never
maps it.

It is the child's own where no other process needs it: the kernel takes a third less time to give it
pages and a third of the time to take them back (`docs/adr/0026-private-frames.md`). Where decode
processes map it as well it is a file in memory, which goes with the last process that has it open.

Slots of a camera lie side by side, so that a slot's first and last page may be its neighbours' as
well: such a page goes back with the last of the slots on it, when all of them go together.

Invariants:
    1. Slot 0 of every camera is black: it is never written, and never handed out.
    2. Its size never changes (a seal forbids it to the file): no access to a slot ever fails.

Not here: which frame lies in which slot (``cache.table``).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import resource
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import PipelineError
from autoloader.host.files import memory_file
from autoloader.host.units import MIB, format_bytes

BLACK = 0
"""The slot of every camera that shows nothing."""
_F_ADD_SEALS = 1033
_F_SEAL_SHRINK = 0x0002
_KEEP_SIZE_AND_PUNCH = 0x01 | 0x02
_MAP_NORESERVE = 0x4000
_PAGE = mmap.PAGESIZE
_LONG_BYTES = 8 * MIB
"""For less a call keeps the interpreter: getting it back would take longer."""
_libc, _libc_at_once = ctypes.CDLL(None), ctypes.PyDLL(None)
_libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
for _library in (_libc, _libc_at_once):
    _library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_private: weakref.WeakSet[FrameSlab] = weakref.WeakSet()
_private_changes = threading.Lock()


def machine_bytes() -> int:
    """Bytes of the machine's memory: what a camera has room for."""
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


def private_bytes() -> int:
    """Bytes of this process's own memory that hold frames."""
    with _private_changes:
        slabs = list(_private)
    return sum(slab.private_bytes for slab in slabs)


class FrameSlab:
    """Slots for decoded frames.

    Args:
        frame_bytes: camera → bytes of a decoded frame.
        room_bytes: address space of each camera, whole slots of it.
        descriptor: an existing slab's file; without one a new one is made.
        private: have it in this process's own memory, where the kernel gives that much of it.

    Attributes:
        descriptor: of the file; −1 where it is private, or closed.
        private: no other process can map it.
        written: camera → [slots] bool, which slots hold a frame, as far as this process knows.

    Raises:
        PipelineError: the kernel refuses the file.
    """

    def __init__(
        self,
        frame_bytes: Mapping[str, int],
        *,
        room_bytes: int,
        descriptor: int | None = None,
        private: bool = False,
    ) -> None:
        self.room_bytes = room_bytes
        self.frame_bytes = dict(frame_bytes)
        self._begins: dict[str, int] = {}
        end = 0
        for camera, size in self.frame_bytes.items():
            self._begins[camera] = end
            end += -(-(room_bytes // size + 2) * size // _PAGE) * _PAGE
        pages = _own_pages(end) if private else None
        self.private, self.descriptor = pages is not None, -1
        if pages is None:
            if descriptor is None:
                descriptor = memory_file("autoloader-frames", end, os.MFD_ALLOW_SEALING)
                fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK)
            self.descriptor = descriptor
            self._close = weakref.finalize(self, os.close, descriptor)
            self._close.atexit = False
            pages = _pages_of(descriptor, end)
        self._frames = {
            camera: np.frombuffer(
                pages, np.uint8, (room_bytes // size + 1) * size, self._begins[camera]
            ).reshape(-1, size)
            for camera, size in self.frame_bytes.items()
        }
        # Has pages only where it was written to, as the file.
        self.written = {
            camera: np.zeros(len(slots), np.bool_) for camera, slots in self._frames.items()
        }
        for written in self.written.values():
            written[BLACK] = True
        self._counting = threading.Lock()
        self._is_there = np.zeros(end // _PAGE if self.private else 0, np.bool_)  # [pages]
        self._pages = 0
        if self.private:
            with _private_changes:
                _private.add(self)

    def gather(self, camera: str, slots: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy slots [n] into ``out`` [n, values of a frame], contiguous; others may work on."""
        # Any other mode than "raise" writes straight into ``out``.
        np.take(self._frames[camera], slots, axis=0, out=out.view(np.uint8), mode="clip")

    def put(self, camera: str, slot: int, picture: NDArray[Any]) -> None:
        """Copy a frame [H, W, C], contiguous, into a slot, which is written then."""
        if self.private:
            start = self._begins[camera] + slot * self.frame_bytes[camera]
            stop = start + self.frame_bytes[camera]
            self._count(start // _PAGE, -(-stop // _PAGE), there=True)
        self._frames[camera][slot] = picture.reshape(-1).view(np.uint8)
        self.written[camera][slot] = True

    def punch(self, camera: str, slots: NDArray[np.int64]) -> None:
        """Give the pages of slots [n], which ascend, back to the kernel; neighbours in one call."""
        if not len(slots):
            return
        size, begin = self.frame_bytes[camera], self._begins[camera]
        cuts = np.flatnonzero(np.diff(slots) > 1)
        firsts = slots[np.concatenate([[0], cuts + 1])]
        lasts = slots[np.concatenate([cuts, [len(slots) - 1]])]
        starts = -(-(begin + firsts * size) // _PAGE) * _PAGE
        stops = (begin + (lasts + 1) * size) // _PAGE * _PAGE
        address = self._frames[camera].ctypes.data - begin
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            if start >= stop:
                continue
            if self.private:
                libc = _libc if stop - start >= _LONG_BYTES else _libc_at_once
                libc.madvise(address + start, stop - start, mmap.MADV_DONTNEED)
                self._count(start // _PAGE, stop // _PAGE, there=False)
            else:  # it may wait for another process that does the same
                _libc.fallocate64(self.descriptor, _KEEP_SIZE_AND_PUNCH, start, stop - start)

    def _count(self, first: int, last: int, *, there: bool) -> None:
        """Pages from ``first`` up to ``last`` are there from now on, or are not."""
        with self._counting:
            pages = self._is_there[first:last]
            before = int(np.count_nonzero(pages))
            pages[:] = there
            self._pages += (last - first if there else 0) - before

    def allocated_bytes(self) -> int:
        """Bytes of pages that the kernel holds for it; 0 once it is closed."""
        if self.private:
            return self.private_bytes
        return os.fstat(self.descriptor).st_blocks * 512 if self.descriptor >= 0 else 0

    @property
    def private_bytes(self) -> int:
        """Bytes of its pages in this process's own memory; 0 once it is closed."""
        return self._pages * _PAGE if self in _private else 0

    def close(self) -> None:
        """Close the file; the mapping goes with this object and the last array over it."""
        with _private_changes:
            _private.discard(self)
        if self.descriptor >= 0:
            self._close()
            self.descriptor = -1


def _own_pages(size: int) -> mmap.mmap | None:
    """Sparse memory of this process's own; ``None`` where a limit on it forbids so much.

    Its pages are small ones: of a large one no part goes back to the kernel. A process that is
    forked from this one (and runs another program at once) has none of it.
    """
    if resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY or _is_promised():
        return None  # all of it would count, and not what has pages only
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        pages = mmap.mmap(-1, size, flags)
    except (OSError, ValueError, OverflowError):
        return None
    pages.madvise(mmap.MADV_DONTFORK)
    with contextlib.suppress(OSError):  # a kernel without large pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages


def _is_promised() -> bool:
    """Whether the kernel counts memory where it is asked for (``vm.overcommit_memory = 2``)."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    return False


def _pages_of(descriptor: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED)
    except (OSError, ValueError, OverflowError) as error:
        raise PipelineError(
            f"{format_bytes(size)} of address space for decoded frames cannot be had: {error}",
            remedy="allow this process more of it (ulimit -v); what it takes of the memory is "
            "what cache_bytes says",
        ) from error
