"""The memory that runs are read into: one piece for each run, used again when its frames are gone.

Theory of operation. A run's encoded frames lie in one piece, read there by the kernel, and each
frame is a view of it. As long as any view lives the piece is in use; when the last one dies, the
piece is free for the next run. So frames are never copied, nothing is allocated frame by frame, and
pages that were faulted in once are written again instead of fetched anew. At most ``kept`` free
pieces wait; the kernel has back what is beyond.

Not here: what is read where (``pipeline.read.planned``).
"""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import NDArray

_GRAIN_BYTES = 2**18

Piece = NDArray[np.uint8]


class RunMemory:
    """Pieces of memory; any thread.

    Args:
        kept: free pieces that may wait.
    """

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self._free: list[Piece] = []
        self._largest = 0
        self._lent: dict[int, weakref.ref[Piece]] = {}

    def take(self, size: int) -> memoryview:
        """``size`` writable bytes; theirs until the last view of them is gone."""
        # A little over the largest run so far: the next ones find room in the same pieces.
        if size > self._largest:
            self._largest = -(-(size + size // 8) // _GRAIN_BYTES) * _GRAIN_BYTES
        whole = self._piece()
        lent = whole[:size]

        def is_back(gone: weakref.ref[Piece]) -> None:
            # Runs wherever the last view dies, maybe with a lock held: it takes none.
            self._lent.pop(id(gone), None)
            if len(self._free) < self.kept and len(whole) >= self._largest:
                self._free.append(whole)

        watch = weakref.ref(lent, is_back)
        self._lent[id(watch)] = watch
        return lent.data

    def release(self, kept: int | None = None) -> None:
        """Let free pieces go, and have at most ``kept`` wait from now on (default: as before)."""
        if kept is not None:
            self.kept = kept
        self._free.clear()

    def _piece(self) -> Piece:
        try:
            whole = self._free.pop()
        except IndexError:
            whole = np.empty(0, np.uint8)
        return whole if len(whole) >= self._largest else np.empty(self._largest, np.uint8)
