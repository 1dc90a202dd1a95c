"""Rows whose frames are all held: they are copied from the frame cache, many in one call.

Not here: rows of which a frame must be decoded (``decode.row_jobs``), what is held (``cache``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.decode.row_jobs import PendingBatch
from autoloader.samples.block import FrameLease, SampleBlock

_BLACK = 0
_ROWS = 64
"""Rows copied together at most. Copying a row takes microseconds, about as long as a thread takes
to fetch a job; several threads fill several batches, and share a large one."""


@dataclass(slots=True)
class GatherJob:
    """Copy the frames of rows that follow each other.

    Attributes:
        dataset: the number that stands for all datasets in the pool's service times.
        row: the first one in the batch.
        slots: camera → [rows, F] where their frames are held.
    """

    dataset: int
    row: int
    pending: PendingBatch
    lease: FrameLease
    slots: Mapping[str, NDArray[np.int64]]

    @property
    def rows(self) -> int:
        """How many."""
        return len(next(iter(self.slots.values())))

    @property
    def slot(self) -> int:
        """See ``decode.pool.Job``."""
        return self.pending.batch.slot

    def run(self) -> int:
        """See ``decode.pool.Job``."""
        rows = self.rows
        for camera, slots in self.slots.items():
            out = self.pending.views[f"images/{camera}"][self.row : self.row + rows]
            self.lease.gather(camera, slots.ravel(), out.reshape(slots.size, -1))
        self.pending.rows_done(rows)
        return 0


def held_rows(
    lease: FrameLease, block: SampleBlock, cameras: Iterable[str], first: int, count: int
) -> tuple[NDArray[np.bool_], dict[str, NDArray[np.int64]]]:
    """Which of a block's samples need no decoding.

    Returns:
        [count] bool, and camera → [count, F] the slot of every frame; −1 where it has none.
    """
    rows = slice(first, first + count)
    at, zeroed = block.frame_row[rows], block.frame_zeroed[rows]
    whole, slots = np.ones(count, np.bool_), {}
    for camera in cameras:
        shown = slots[camera] = np.where(zeroed, _BLACK, lease.slots[camera][at])
        whole &= ((shown >= 0) & lease.written[camera][shown]).all(axis=1)
    return whole, slots


def stretches(whole: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """[start, stop) of rows that follow each other and are all held, a few at a time."""
    edges = [0, len(whole)]
    if not whole.all():
        edges = np.flatnonzero(np.diff(whole, prepend=False, append=False)).tolist()
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        for begin in range(start, stop, _ROWS):
            yield begin, min(begin + _ROWS, stop)
