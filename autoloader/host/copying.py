"""Times how fast one thread copies decoded frames: ``python -m``, bytes a second on stdout.

A process of its own, for the C library is told how to copy where a process starts
(``host.supervision``). It imports next to nothing, as ``autoloader plan`` waits for it.

Not here: what is made of the rate (``tune.bound``).
"""

from __future__ import annotations

import ctypes
import mmap
import statistics
import sys
import time

_FRAMES, _FRAME_BYTES, _STEP = 256, 192 * 1024, 97
"""Frames of 256×256 that are copied: more than the processor's own caches hold."""


def main() -> None:
    """Copy from and to anywhere in memory, a frame at a time; the median counts."""
    frames, slots = _memory(), _memory()
    began_at, ends_at = ctypes.addressof(frames), ctypes.addressof(slots)
    took = []
    for number in range(_FRAMES):
        source = began_at + number * _STEP % _FRAMES * _FRAME_BYTES
        began_s = time.perf_counter()
        ctypes.memmove(ends_at + number * _FRAME_BYTES, source, _FRAME_BYTES)
        took.append(time.perf_counter() - began_s)
    sys.stdout.write(f"{_FRAME_BYTES / max(statistics.median(took), 1e-9)}\n")


def _memory() -> ctypes.Array[ctypes.c_char]:
    """Memory of the system's pages, all of them written."""
    size = _FRAMES * _FRAME_BYTES
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    found = (ctypes.c_char * size).from_buffer(memory)
    ctypes.memset(found, 1, size)
    return found


if __name__ == "__main__":
    main()
