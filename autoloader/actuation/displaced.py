"""What held frames cost: memory that holds them holds no pages, and files are read once more.

Theory of operation. Where all files fit into memory beside the frames nothing is lost. Where they
do not, some of what is asked for comes from storage again: so do all bytes from storage beyond the
size of the files. Not all of it is the frames' doing. With as many bytes of pages more as they
hold, a part held ÷ size of the files of what is asked for would have been in memory. So much is put
down to them at most, and costs the seconds that its reading took. On the other side are the seconds
of decoding that hits save. Both are told for a second of the last ``WINDOW_S``.

Not here: what follows from it (``controller.surplus``), counting (``probes.storage_reads``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autoloader.catalog.files import is_remote
from autoloader.decode.activity import PipelineActivity
from autoloader.samples.resolve import ResolvedMixture

WINDOW_S = 10.0


class Storage(Protocol):
    """Tells bytes from storage (``probes.storage_reads.StorageReads``)."""

    def read(self, pids: Sequence[int]) -> int | None:
        """So far, by these processes and others before; ``None``: not known."""
        ...


@dataclass(frozen=True, slots=True)
class _Totals:
    at_s: float
    hits: int
    asked_bytes: int
    reading_s: float
    storage_bytes: int


class Displaced:
    """Fed about once a second by the thread that observes.

    Args:
        storage: what was read from storage.
        file_bytes: tells the size of all files of the mixture; asked once, where it matters.
    """

    def __init__(self, storage: Storage, file_bytes: Callable[[], int]) -> None:
        self._storage = storage
        self._ask_size = file_bytes
        self._file_bytes: int | None = None
        self._totals: deque[_Totals] = deque()
        self._frame_s = 0.0
        self._held = 0

    def note(self, at_s: float, activity: PipelineActivity, pids: Sequence[int]) -> None:
        """What has been done by now; ``pids``: the processes that read."""
        storage_bytes = self._storage.read(pids)
        if storage_bytes is None:
            return
        decoded = activity.datasets.values()
        self._frame_s = sum(d.decode_s for d in decoded) / max(1, sum(d.frames for d in decoded))
        self._held = activity.cache.held_bytes
        totals = _Totals(
            at_s, activity.cache.hits, activity.read_bytes, activity.reading_s, storage_bytes
        )
        self._totals.append(totals)
        while len(self._totals) > 2 and at_s - self._totals[1].at_s >= WINDOW_S:
            self._totals.popleft()

    def seconds(self) -> tuple[float, float]:
        """(decoding that hits save, reading that the frames cause) in a second, of one thread."""
        if len(self._totals) < 2:
            return 0.0, 0.0
        first, last = self._totals[0], self._totals[-1]
        span_s = max(1e-9, last.at_s - first.at_s)
        saved = (last.hits - first.hits) * self._frame_s / span_s
        stored = last.storage_bytes - first.storage_bytes
        if stored <= 0 or not self._held:
            return saved, 0.0
        if self._file_bytes is None:
            self._file_bytes = max(1, self._ask_size())
        if last.storage_bytes <= self._file_bytes:
            return saved, 0.0
        would_be_there = (last.asked_bytes - first.asked_bytes) * self._held / self._file_bytes
        reading = (last.reading_s - first.reading_s) / span_s
        return saved, reading * min(1.0, would_be_there / stored)


def bytes_of_files(mixture: ResolvedMixture) -> int:
    """Of all local files of a mixture; one that is gone counts nothing."""
    paths = {part.path for dataset in mixture.datasets for part in dataset.slices}
    found = 0
    for path in paths:
        if not is_remote(path) and (file := Path(path)).exists():
            found += file.stat().st_size
    return found
