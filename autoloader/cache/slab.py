"""Memory of the frame cache: slots for decoded frames, and what one run may use of them.

Theory of operation. Each camera has slots of its frame size. The memory is sparse: each camera has
as much address space as the machine has memory, and pages only where a slot was written. Pages that
are given back are the kernel's at once. The trainer never maps the memory.

The memory is private to the child where no other process needs it. The kernel then takes a third
less time to give pages, and a third of the time to take them back
(`docs/adr/0026-private-frames.md`). Where decode processes map it too it is a file in memory, which
goes with the last process.

Slots of a camera lie side by side, so neighbours may share a page. Such a page goes back with the
last slot on it, when all of them go together.

A ``Lease`` pins the slots that one planned run reads or fills, until its batches are filled.

Invariants:
    1. Slot 0 of every camera is black: it is never written, and never handed out.
    2. The size never changes (a seal forbids it to the file): no access to a slot ever fails.

Not here: which frame lies in which slot, and who gets a lease (``cache.table``).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import PipelineError
from autoloader.host.files import memory_file
from autoloader.host.units import MIB, format_bytes

Ints = NDArray[np.int64]

BLACK = 0
"""The slot of every camera that shows nothing."""
FILE_BITS = 42
"""Bits of a place in a file: 4 TiB. Frames that lie beyond are not cached."""
_KEEP_SIZE_AND_PUNCH = 0x01 | 0x02
_MAP_NORESERVE = 0x4000
_PAGE = mmap.PAGESIZE
_LONG_BYTES = 8 * MIB
"""A call for fewer bytes keeps the interpreter: getting the interpreter back would take longer."""
_libc, _libc_at_once = ctypes.CDLL(None), ctypes.PyDLL(None)
_libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
for _library in (_libc, _libc_at_once):
    _library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_private: weakref.WeakSet[FrameSlab] = weakref.WeakSet()
_private_changes = threading.Lock()


def machine_bytes() -> int:
    """Bytes of the machine's memory: the room of a camera."""
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
        private: use this process's own memory, where the kernel gives that much.

    Attributes:
        descriptor: descriptor of the file; −1 where the memory is private, or closed.
        private: true if no other process can map the memory.
        written: camera → [slots] bool, slots that hold a frame, as far as this process knows.

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
                descriptor = memory_file("autoloader-frames", end, sealed=True)
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

    def gather(self, camera: str, slots: Ints, out: NDArray[Any]) -> None:
        """Copy slots [n] into ``out`` [n, values of a frame], contiguous; others may work on."""
        # A mode other than "raise" writes straight into ``out``.
        np.take(self._frames[camera], slots, axis=0, out=out.view(np.uint8), mode="clip")

    def put(self, camera: str, slot: int, picture: NDArray[Any]) -> None:
        """Copy a frame [H, W, C], contiguous, into a slot, which is written then."""
        if self.private:
            start = self._begins[camera] + slot * self.frame_bytes[camera]
            stop = start + self.frame_bytes[camera]
            self._count(start // _PAGE, -(-stop // _PAGE), there=True)
        self._frames[camera][slot] = picture.reshape(-1).view(np.uint8)
        self.written[camera][slot] = True

    def punch(self, camera: str, slots: Ints) -> None:
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
        """Bytes of pages that the kernel holds for the slab; 0 once it is closed."""
        if self.private:
            return self.private_bytes
        return os.fstat(self.descriptor).st_blocks * 512 if self.descriptor >= 0 else 0

    @property
    def private_bytes(self) -> int:
        """Bytes of pages in this process's own memory; 0 once the slab is closed."""
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
    """True if the kernel counts memory when it is asked for (``vm.overcommit_memory = 2``)."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    return False


def _pages_of(descriptor: int, size: int) -> mmap.mmap:
    """A shared mapping of a memory file; ``PipelineError`` where the address space is too small."""
    try:
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED)
    except (OSError, ValueError, OverflowError) as error:
        raise PipelineError(
            f"{format_bytes(size)} of address space for the frame cache are refused: {error}",
            remedy="allow this process more address space (ulimit -v); the memory it takes is "
            "what cache_bytes says",
        ) from error


@dataclass(frozen=True, slots=True)
class CameraFrames:
    """The frames of one camera that a run shows.

    Attributes:
        key: [m] int64, number of the encoded frame's file among those that the run reads, above
            ``FILE_BITS`` bits of the place there; −1 where there is no frame.
        next_use: [m] int64, position after the run at which the frame is shown again, or ``NEVER``.
        dataset: [m] int64, dataset whose decode costs count.
        uses: [m] int64, number of times that the run shows the frame.
    """

    key: Ints
    next_use: Ints
    dataset: Ints
    uses: Ints


@dataclass(eq=False)
class Lease:
    """Slots that one run may use, pinned until ``over``; see ``samples.block.FrameLease``.

    Attributes:
        slab: memory of the slots.
        rows: samples of the run that are in no filled batch yet.
        settle: called once, when all are in filled batches, or the run is dropped.
        cache: the frame cache; with a budget of 0 no frame is put into a slot any more.
        slots: camera → [m] slot of each frame; −1: none.
        cached: camera → [m] bool, frames that lay in their slots from the beginning: they need not
            be read.
        over: true once the lease is settled.
    """

    slab: FrameSlab
    rows: int
    settle: Callable[[Lease], None]
    cache: FrameCache
    slots: dict[str, Ints] = field(default_factory=dict)
    cached: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def written(self) -> Mapping[str, NDArray[np.bool_]]:
        """Camera → [S] bool, in which slots a frame lies."""
        return self.slab.written

    def gather(self, camera: str, slots: Ints, out: NDArray[Any]) -> None:
        """Copy slots [n] into ``out`` [n, H·W·3], contiguous; slot 0 is black."""
        self.slab.gather(camera, slots, out)

    def put(self, camera: str, slot: int, picture: NDArray[Any]) -> None:
        """Copy a frame [H, W, C], contiguous, into a slot; nothing while the budget is 0."""
        if self.cache.budget_bytes:
            self.slab.put(camera, slot, picture)

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the slots that the lease shows frames from, or puts frames into."""
        return sum(
            self.slab.frame_bytes[camera] * int((slots > BLACK).sum())
            for camera, slots in self.slots.items()
        )

    @property
    def pinned_frames(self) -> int:
        """Number of slots that the lease pins."""
        return sum(int((slots > BLACK).sum()) for slots in self.slots.values())

    def filled(self, rows: int) -> None:
        """Count ``rows`` more samples of the run, which lie in filled batches; any thread."""
        with self._lock:
            self.rows -= rows
            left = self.rows
        if left <= 0:
            self.settle(self)

    def give_up(self) -> None:
        """Give the slots up; frames that were put into slots by then stay."""
        self.settle(self)


class FrameCache(Protocol):
    """The frame cache as readers of planned runs ask it, in this process or another."""

    @property
    def budget_bytes(self) -> int:
        """Bytes that decoded frames may take; with 0 there is nothing to ask."""
        ...

    def ask(
        self, files: Sequence[str], frames: Mapping[str, CameraFrames], now: int, rows: int
    ) -> Lease:
        """Lease of a run of ``rows`` samples from position ``now`` on, which reads ``files``."""
        ...

    def forget(self) -> None:
        """Forget all frames: their files are not there any more."""
        ...


def plain_slots(slots: Mapping[str, Ints]) -> dict[str, list[int]]:
    """Camera → slots of frames, or places of frames, as a message to another process has them."""
    return {camera: column.tolist() for camera, column in slots.items()}
