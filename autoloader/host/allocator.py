"""The C library's memory: what is freed is used again, or given back to the kernel.

Not here: memory that is mapped by hand (``decode.ring``, ``cache.slab``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

from autoloader.host.threads import free_in_forks

_MMAP_THRESHOLD = -3
"""``M_MMAP_THRESHOLD`` of ``mallopt``."""
MOST_REUSED_BYTES = 32 * 2**20
"""The largest threshold that glibc takes (``HEAP_MAX_SIZE / 2``)."""
_lock = free_in_forks(threading.Lock())
_threshold = 0


def reuse_freed(size: int) -> None:
    """Have malloc use freed memory again for pieces below ``size`` bytes, in a loader's process.

    Each larger piece is mapped from the kernel, which clears its pages one by one, and unmapped
    when it is freed. malloc raises its threshold by itself, but not where
    ``MALLOC_TRIM_THRESHOLD_`` is set (``process.discovery``). A user's own
    ``MALLOC_MMAP_THRESHOLD_`` stays. The largest size asked for in a process counts.

    Args:
        size: bytes from which a piece is mapped, at most ``MOST_REUSED_BYTES``.
    """
    global _threshold
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    with _lock, contextlib.suppress(OSError, AttributeError):
        if size > _threshold:
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, size)
            _threshold = size


def give_memory_back() -> None:
    """Have the C library return what it holds free to the kernel (``malloc_trim``)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
