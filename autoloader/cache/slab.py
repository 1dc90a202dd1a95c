"""Memory of the frame cache: slots for decoded frames, and what one run may use of them.

Theory of operation. Each camera has slots of its frame size. The memory is sparse: each camera has
as much address space as the machine has memory, and pages only where a slot was written. Pages that
are given back are the kernel's at once. The memory is a file in memory, which decode processes map
too; it goes with the last process. The trainer never maps it.

Slots of a camera lie side by side, so neighbours may share a page. Such a page goes back with the
last slot on it, when all of them go together.

A ``Lease`` pins the slots that one planned run reads or fills, until its batches are filled.

Invariants:
    1. Slot 0 of every camera is black: it is never written, and never handed out.
    2. The size never changes (a seal forbids it): no access to a slot ever fails.

Not here: which frame lies in which slot, and who gets a lease (``cache.table``).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import PipelineError
from autoloader.host.files import memory_file
from autoloader.host.frozen import frozen
from autoloader.host.units import format_bytes

Ints = NDArray[np.int64]

BLACK = 0
"""The slot of every camera that shows nothing."""
FILE_BITS = 42
"""Bits of a place in a file: 4 TiB. Frames that lie beyond are not cached."""
_KEEP_SIZE_AND_PUNCH = 0x01 | 0x02
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None)
_libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def machine_bytes() -> int:
    """Bytes of the machine's memory: the room of a camera."""
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


class FrameSlab:
    """Slots for decoded frames.

    Args:
        frame_bytes: camera → bytes of a decoded frame.
        room_bytes: address space of each camera, whole slots of it.
        descriptor: an existing slab's file; without one a new one is made.

    Attributes:
        descriptor: descriptor of the file; −1 once it is closed.
        written: camera → [slots] bool, slots that hold a frame, as far as this process knows.

    Raises:
        PipelineError: the kernel refuses the file.
    """

    def __init__(
        self, frame_bytes: Mapping[str, int], *, room_bytes: int, descriptor: int | None = None
    ) -> None:
        self.room_bytes = room_bytes
        self.frame_bytes = dict(frame_bytes)
        self._begins: dict[str, int] = {}
        end = 0
        for camera, size in self.frame_bytes.items():
            self._begins[camera] = end
            end += -(-(room_bytes // size + 2) * size // _PAGE) * _PAGE
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

    def gather(self, camera: str, slots: Ints, out: NDArray[Any]) -> None:
        """Copy slots [n] into ``out`` [n, values of a frame], contiguous; others may work on."""
        # A mode other than "raise" writes straight into ``out``.
        np.take(self._frames[camera], slots, axis=0, out=out.view(np.uint8), mode="clip")

    def put(self, camera: str, slot: int, picture: NDArray[Any]) -> None:
        """Copy a frame [H, W, C], contiguous, into a slot, which is written then."""
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
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            if start < stop:
                _libc.fallocate64(self.descriptor, _KEEP_SIZE_AND_PUNCH, start, stop - start)

    def allocated_bytes(self) -> int:
        """Bytes of pages that the kernel holds for the slab; 0 once it is closed."""
        return os.fstat(self.descriptor).st_blocks * 512 if self.descriptor >= 0 else 0

    def close(self) -> None:
        """Close the file; the mapping goes with this object and the last array over it."""
        if self.descriptor >= 0:
            self._close()
            self.descriptor = -1


def _pages_of(descriptor: int, size: int) -> mmap.mmap:
    """A shared mapping of a memory file; ``PipelineError`` where the address space is too small."""
    try:
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED)
    except (OSError, ValueError, OverflowError) as error:
        raise PipelineError(
            f"the frame cache got no address space of {format_bytes(size)}: {error}",
            remedy="raise this process's limit of address space (ulimit -v), or lower cache_bytes",
        ) from error


@frozen
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

    def filled(self, rows: int) -> None:
        """Count ``rows`` more samples of the run, which lie in filled batches; any thread."""
        with self._lock:
            self.rows -= rows
            left = self.rows
        if left <= 0:
            self.give_up()

    def give_up(self) -> None:
        """Give the slots up, once; frames that were put into slots by then stay."""
        with self._lock:
            before, self.over = self.over, True
        if not before:
            self.settle(self)


class FrameCache(Protocol):
    """The frame cache as readers of planned runs ask it, in this process or another."""

    @property
    def budget_bytes(self) -> int:
        """Bytes that decoded frames may take; with 0 there is nothing to ask."""

    def ask(
        self, files: Sequence[str], frames: Mapping[str, CameraFrames], now: int, rows: int
    ) -> Lease:
        """Lease of a run of ``rows`` samples from position ``now`` on, which reads ``files``."""


def plain_slots(slots: Mapping[str, NDArray[Any]]) -> dict[str, list[Any]]:
    """Camera → a column about its frames, as a message to another process has it."""
    return {camera: column.tolist() for camera, column in slots.items()}
