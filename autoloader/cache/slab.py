"""The memory of the frame cache: one file in memory, in which every camera has slots of its size.

Theory of operation. The file is sparse: it is as large as the machine's memory for each camera, and
has pages only where a slot was written. What is given back is punched out of it and is the kernel's
at once. The child makes the file and decode processes map it as well; the trainer never does. It
goes with the last process that has it open.

Slots of a camera lie side by side, so that a slot's first and last page may be its neighbours' as
well: such a page goes back with the last of the slots on it, when all of them go together.

Invariants:
    1. Slot 0 of every camera is black: it is never written, and never handed out.
    2. The file never shrinks (a seal forbids it): no access to a slot ever fails.

Not here: which frame lies in which slot (``cache.table``).
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.host.files import memory_file

BLACK = 0
"""The slot of every camera that shows nothing."""
_F_ADD_SEALS = 1033
_F_SEAL_SHRINK = 0x0002
_KEEP_SIZE_AND_PUNCH = 0x01 | 0x02
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def machine_bytes() -> int:
    """Bytes of the machine's memory: what a camera has room for."""
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


class FrameSlab:
    """Slots for decoded frames.

    Args:
        frame_bytes: camera → bytes of a decoded frame.
        room_bytes: address space of each camera, whole slots of it.
        descriptor: an existing slab's file; without one a new one is made.

    Attributes:
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
    ) -> None:
        self.room_bytes = room_bytes
        self.frame_bytes = dict(frame_bytes)
        self._begins: dict[str, int] = {}
        end = 0
        for camera, size in self.frame_bytes.items():
            self._begins[camera] = end
            end += -(-(room_bytes // size + 2) * size // _PAGE) * _PAGE
        if descriptor is None:
            descriptor = memory_file("autoloader-frames", end, os.MFD_ALLOW_SEALING)
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK)
        self.descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)
        self._close.atexit = False
        pages = mmap.mmap(descriptor, end, mmap.MAP_SHARED)
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

    def frames(self, camera: str) -> NDArray[np.uint8]:
        """[slots, bytes of a frame] uint8: all of a camera; only what was written has pages."""
        return self._frames[camera]

    def gather(self, camera: str, slots: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy slots [n] into ``out`` [n, values of a frame], contiguous; others may work on."""
        # Any other mode than "raise" writes straight into ``out``.
        np.take(self._frames[camera], slots, axis=0, out=out.view(np.uint8), mode="clip")

    def put(self, camera: str, slot: int, picture: NDArray[Any]) -> None:
        """Copy a frame [H, W, C], contiguous, into a slot, which is written then."""
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
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            if start < stop:
                _libc.fallocate64(self.descriptor, _KEEP_SIZE_AND_PUNCH, start, stop - start)

    def allocated_bytes(self) -> int:
        """Bytes of pages that the kernel holds for it; 0 once it is closed."""
        return os.fstat(self.descriptor).st_blocks * 512 if self.descriptor >= 0 else 0

    def close(self) -> None:
        """Close the descriptor; the mapping goes with this object and the last array over it."""
        self._close()
        self.descriptor = -1
