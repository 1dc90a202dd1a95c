"""Reads planned runs: which samples come is known beforehand, so their bytes are read ahead.

Theory of operation. The owner assigns runs: spans of positions, some ``RUN_SAMPLES`` samples in
all, whose batches this reader's consumer fills. Reader threads take run after run; each looks up
its samples in the plan, computes their windows over the index's columns, and reads their frames
with ``pread``, in the order in which they lie in their files, neighbours in one call. Finished runs
wait, at most ``read_ahead`` of them, until the assembler has taken the runs before.

What the samples of a run hold beside their frames lies in columns over the whole run, in the order
of the positions, padded to the mixture's widths.

Invariants:
    1. Samples come in the order in which their positions were assigned, whatever the threads do.
    2. No knob changes which sample a position names.
    3. At most ``OPEN_FILES`` files are open.

Not here: the plan and the index (``index``), who fills which batch (``sampling.dealing``), decoding
(``runtime.run_assembler``).
"""

from __future__ import annotations

import collections
import heapq
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError
from autoloader.index.dataset import DatasetIndex
from autoloader.index.plan import SamplePlan
from autoloader.sampling.layout import PROVENANCE, BatchLayout
from autoloader.sampling.planned import FrameRange, PlannedGroup, plan_group
from autoloader.sampling.resolve import ResolvedMixture

RUN_SAMPLES = 256
"""Samples read together, or somewhat more: a run is whole batches."""

Spans = Sequence[tuple[int, int]]
"""Positions [start, stop), one pair for each batch of a run."""

LEAST_RUN_SAMPLES = 64
OPEN_FILES = 256
_MERGE_GAP_BYTES = 16_384


def run_samples(ranks_here: int) -> int:
    """Samples of a run where so many ranks read ahead in one process: together as much as one."""
    return max(LEAST_RUN_SAMPLES, RUN_SAMPLES // ranks_here)


class FileCache:
    """Open descriptors of data files, the least recently used closed first; thread-safe."""

    def __init__(self, limit: int = OPEN_FILES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[str, _SharedFile] = collections.OrderedDict()

    def borrow(self, path: str) -> _SharedFile:
        """An open file, to be given back by its ``release``."""
        with self._lock:
            shared = self._open.pop(path, None) or _SharedFile(path)
            self._open[path] = shared
            shared.users += 1
            while len(self._open) > self._limit:
                _, oldest = self._open.popitem(last=False)
                oldest.retire()
            return shared

    def give_back(self, shared: _SharedFile) -> None:
        """The borrower is done."""
        with self._lock:
            shared.users -= 1
            if shared.retired:
                shared.retire()

    def close(self) -> None:
        """Close all files that nobody reads."""
        with self._lock:
            for shared in self._open.values():
                shared.retire()
            self._open.clear()


class _SharedFile:
    """A descriptor and how many are reading from it."""

    __slots__ = ("descriptor", "retired", "users")

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self.users = 0
        self.retired = False

    def retire(self) -> None:
        self.retired = True
        if not self.users and self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass(slots=True)
class PlannedRun:
    """Samples read together, in order.

    Attributes:
        positions, datasets: [n] of each sample.
        numbers: [n] of each sample in its dataset's group.
        groups: dataset → its samples, with their frames.
        columns: array of the batch → [n, …] its values.
        texts: [n] UTF-8 languages.
    """

    positions: list[int]
    datasets: list[int]
    numbers: list[int]
    groups: dict[int, PlannedGroup]
    columns: dict[str, NDArray[Any]]
    texts: list[bytes]


class PlannedReader:
    """Reads runs ahead.

    Args:
        mixture: what is read.
        plan: which sample each position names.
        indexes: of every dataset.
        io_threads, read_ahead: the knobs.
        condition: told when a run is ready.
        failed: told of the exception that ends a thread.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        plan: SamplePlan,
        indexes: Sequence[DatasetIndex],
        *,
        io_threads: int,
        read_ahead: int,
        condition: threading.Condition,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._mixture = mixture
        self._plan = plan
        self._indexes = indexes
        self._files = FileCache()
        self._condition = condition
        self._room = threading.Condition()
        self._failed = failed
        self._closed = False
        self._parked = False
        self._threads: list[threading.Thread] = []
        self._io_threads = 0
        self._read_ahead = read_ahead
        self._assigned: collections.deque[Spans] = collections.deque()
        self._claimed = 0
        self._ready: dict[int, PlannedRun] = {}
        self._wanted = 0
        self._run: PlannedRun | None = None
        self._at = 0
        self._spans: dict[int, Spans] = {}
        self._again: list[tuple[int, Spans]] = []
        self.busy_s = 0.0
        self.bytes_read = 0
        self.reads = 0
        self.resize(io_threads, read_ahead)

    def assign(self, spans: Spans) -> None:
        """Have a run read, after those assigned before."""
        with self._room:
            self._assigned.append(spans)
            self._room.notify()

    def resize(self, io_threads: int, read_ahead: int) -> None:
        """Have so many threads, and so many runs ahead, from now on."""
        with self._room:
            self._read_ahead = read_ahead
            grow = io_threads - self._io_threads
            self._io_threads = io_threads
            self._room.notify_all()
        for _ in range(grow):
            thread = threading.Thread(target=self._work, name="autoloader-read", daemon=True)
            self._threads.append(thread)
            thread.start()

    def park(self, parked: bool) -> None:
        """Stop reading (True) or go on."""
        with self._room:
            self._parked = parked
            self._room.notify_all()

    def drop(self) -> None:
        """Give back what is read and not wanted next; it is read again, in its turn."""
        with self._room:
            for number in [n for n in self._ready if n != self._wanted]:
                del self._ready[number]
                heapq.heappush(self._again, (number, self._spans.pop(number)))
            self._room.notify_all()

    def take(self, count: int) -> tuple[PlannedRun, int] | None:
        """The run that holds the next batch, of ``count`` samples, and the first one's number.

        ``None`` where that run is not read yet.
        """
        if self._run is None:
            with self._room:
                self._run = self._ready.pop(self._wanted, None)
                if self._run is None:
                    return None
                del self._spans[self._wanted]
                self._wanted += 1
                self._at = 0
                self._room.notify_all()
        run, first = self._run, self._at
        self._at += count
        if self._at >= len(run.datasets):
            self._run = None
        return run, first

    def ready_samples(self) -> int:
        """Samples of runs that are read and not yet begun."""
        return sum(len(run.datasets) for run in list(self._ready.values()))

    def close(self) -> None:
        """End the threads after the run in hand."""
        with self._room:
            self._closed = True
            self._room.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads; whether all have ended."""
        for thread in self._threads:
            thread.join(timeout_s)
        over = not any(thread.is_alive() for thread in self._threads)
        if over:
            self._files.close()
        return over

    def _work(self) -> None:
        try:
            while (claimed := self._claim()) is not None:
                number, spans = claimed
                began = time.perf_counter()
                run = self._read(spans)
                with self._room:
                    self.busy_s += time.perf_counter() - began
                    self._ready[number] = run
                    self._spans[number] = spans
                with self._condition:
                    self._condition.notify_all()
        except BaseException as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
            if not self._closed:
                self._failed(error)

    def _claim(self) -> tuple[int, Spans] | None:
        """The next run to read, when there is room for it; ``None`` to end."""
        with self._room:
            while not self._closed:
                if threading.current_thread() not in self._threads[: self._io_threads]:
                    self._threads.remove(threading.current_thread())
                    return None
                ahead = self._claimed - self._wanted
                near = self._again and self._again[0][0] - self._wanted < self._read_ahead
                if near and not self._parked:
                    return heapq.heappop(self._again)
                if self._assigned and not self._parked and ahead < self._read_ahead:
                    self._claimed += 1
                    return self._claimed - 1, self._assigned.popleft()
                self._room.wait()
        return None

    def _read(self, spans: Spans) -> PlannedRun:
        planned = self._plan.spans(spans)
        groups: dict[int, PlannedGroup] = {}
        columns = _columns(self._mixture.layout, len(planned))
        numbers = np.empty(len(planned), np.int64)
        texts = [b""] * len(planned)
        wanted: list[tuple[FrameRange, list[bytes], int]] = []
        for dataset in np.unique(planned.dataset).tolist():
            rows = np.flatnonzero(planned.dataset == dataset)
            index, t = self._indexes[dataset], planned.t[rows]
            episodes, passes = planned.episode[rows], planned.pass_[rows]
            group = plan_group(
                self._mixture.datasets[dataset],
                self._mixture.layout,
                [index.episode(e) for e in episodes.tolist()],
                passes.tolist(),
                t,
                chained=self._plan.chained[dataset],
            )
            for camera, ranges in group.ranges.items():
                frames = [b""] * len(ranges)
                group.frames[camera] = frames
                wanted.extend((found, frames, at) for at, found in enumerate(ranges))
            groups[dataset] = group
            numbers[rows] = np.arange(len(rows))
            for row, text in zip(rows.tolist(), group.language, strict=True):
                texts[row] = text
            for name in ("action", "action_mask", "state", "state_mask", "frame_offset"):
                columns[name][rows] = getattr(group, name)
            for camera in group.frames:
                columns[f"frame_mask/{camera}"][rows] = group.frame_mask
            places = (dataset, passes, index.slice_of[episodes], index.record_of[episodes], t, 1)
            for column, values in enumerate(places):
                columns["ledger"][rows, column] = values
        columns["provenance"][:] = columns["ledger"][:, : len(PROVENANCE)]
        columns["dataset_index"][:] = planned.dataset
        self._read_frames(wanted)
        positions = [position for start, stop in spans for position in range(start, stop)]
        return PlannedRun(
            positions, planned.dataset.tolist(), numbers.tolist(), groups, columns, texts
        )

    def _read_frames(self, wanted: list[tuple[FrameRange, list[bytes], int]]) -> None:
        """Fill in every frame's bytes, file by file, neighbours in one read."""
        wanted.sort(key=lambda item: (item[0].path, item[0].offset))
        at = 0
        while at < len(wanted):
            first = wanted[at][0]
            stop, end = first.offset + first.length, at + 1
            while end < len(wanted) and wanted[end][0].path == first.path:
                following = wanted[end][0]
                if following.offset > stop + _MERGE_GAP_BYTES:
                    break
                stop = max(stop, following.offset + following.length)
                end += 1
            data = self._pread(first.path, first.offset, stop - first.offset)
            for found, frames, k in wanted[at:end]:
                begin = found.offset - first.offset
                frames[k] = data[begin : begin + found.length]
            at = end

    def _pread(self, path: str, offset: int, length: int) -> bytes:
        try:
            shared = self._files.borrow(path)
            try:
                data = os.pread(shared.descriptor, length, offset)
                while len(data) < length:
                    more = os.pread(shared.descriptor, length - len(data), offset + len(data))
                    if not more:
                        break
                    data += more
            finally:
                self._files.give_back(shared)
        except OSError as error:
            raise _unreadable(path, error.strerror or str(error)) from error
        if len(data) < length:
            raise _unreadable(path, f"it ends before byte {offset + length}")
        self.bytes_read += length
        self.reads += 1
        return data


def _columns(layout: BatchLayout, samples: int) -> dict[str, NDArray[Any]]:
    """Room for what a batch's rows hold beside pictures and text; zero."""
    return {
        name: np.zeros((samples, *array.shape[1:]), array.dtype)
        for name, array in layout.arrays.items()
        if not name.startswith(("images/", "language_"))
    }


def _unreadable(path: str, reason: str) -> SourceError:
    return SourceError(
        f"{path} cannot be read any more: {reason}",
        remedy="put the file back as it was, or take its dataset out",
    )
