"""Work on the rows of a batch, and the pool of threads that does it, in stages (``host.threads``).

A job decodes one row, or a chain of rows that share frames, or copies rows whose frames are all
cached. The number of threads may change at any time: growing is at once, shrinking after the job in
hand. Decoding releases the interpreter, so the threads run side by side.

A frame that several rows of a batch show is decoded for one row. It is copied to the others, which
costs a few hundredths of its decoding. Two threads that come to a frame at the same moment both
decode it. Rows of a chained dataset that share frames and follow each other are one job together.
Where a batch ends within a chain the frame at the cut is decoded twice, unless the frame cache has
it.

Rows that show frames of one keyframe of a video are one job too, which decodes these frames in one
go. With them it decodes frames that later batches of the run show. They wait, as far as there is
room (``formats.frames.SharedFrames``).

A frame that cannot be decoded fails for every row that shows it.

Not here: decoding one frame (``decode.frames``), which sample a row takes
(``decode.batch_builder``).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from autoloader.decode.frames import UndecodableFrameError
from autoloader.decode.message import BatchMessage
from autoloader.errors import as_fault
from autoloader.formats.frames import Encoded, SharedFrames, VideoFrame
from autoloader.host.frozen import frozen
from autoloader.host.threads import APART, LoaderThread, all_ended, here, work_of
from autoloader.samples.block import FrameLease, Place, SampleBlock

_BLACK = 0
_FIRST = "decode"
"""Stage in which all jobs begin."""
_COPIED_TOGETHER = 64
"""Most rows that are copied in one job. Copying a row takes microseconds, about as long as a thread
takes to fetch a job; several threads fill several batches, and share a large one."""


Seats = Mapping[str, queue.SimpleQueue[None]]
"""Stage → its free seats; a thread takes one while it is in the stage."""


class Decoder(Protocol):
    """Decodes one camera's frames; see ``decode.frames.FrameDecoder``."""

    def decode_into(self, encoded: Encoded, out: np.ndarray) -> None:
        """Decode and resize into ``out`` [H, W, C]."""

    def decode_together(self, frames: Sequence[VideoFrame], out: Sequence[np.ndarray]) -> Set[int]:
        """Decode frames of one keyframe; the numbers of those that came."""
        return frozenset()


class PendingBatch:
    """A batch under way: many threads fill its rows, and the last row completes it.

    Attributes:
        batch: message about the batch.
        views: arrays of the batch's slot.
        done: set when all rows are filled.
        bad: unusable rows: row, place, reason.
        leases: leases of the blocks that rows come from, and the number of rows of each.
    """

    def __init__(self, batch: BatchMessage, views: dict[str, np.ndarray]) -> None:
        self.batch = batch
        self.views = views
        self.done = threading.Event()
        self.bad: list[tuple[int, Place, str]] = []
        self.leases: list[tuple[FrameLease, int]] = []
        self._left = batch.rows
        self._lock = threading.Lock()

    def rows_done(self, rows: int) -> None:
        """Count rows that are decoded, or have failed; the last one tells the leases."""
        with self._lock:
            self._left -= rows
            if self._left:
                return
        for lease, filled in self.leases:
            lease.filled(filled)
        self.done.set()


@frozen
class RowDecoding:
    """Decodes rows of one batch, one dataset and one block; many threads at a time.

    Attributes:
        pending: the batch under way.
        block: block that the samples lie in.
        shift: number of a row's sample in the block, less the row.
        decoders: decoders of the dataset's cameras.
        name: name of the dataset.
        seen: camera → number of a frame in the block → pixels of a row that has it decoded. All
            rows of a block add to it.
    """

    pending: PendingBatch
    block: SampleBlock
    shift: int
    decoders: Mapping[str, Decoder]
    name: str
    seen: Mapping[str, dict[int, np.ndarray]]

    def run(self, rows: Sequence[int]) -> int:
        """Decode these rows of the batch; the number of frames decoded."""
        decoded = 0
        try:
            if self.block.videos:
                shown = self.block.videos & self.decoders.keys()
                decoded += sum(self._videos(camera, rows) for camera in shown)
            for row in rows:
                number = row + self.shift
                try:
                    for camera, decoder in self.decoders.items():
                        out = self.pending.views[f"images/{camera}"][row]
                        frames = self.block.frames.get(camera)
                        if frames is None:
                            out[:] = 0
                        else:
                            decoded += self._camera(camera, decoder, number, frames, out)
                except UndecodableFrameError as error:
                    place = self.block.place_at(number)
                    self.pending.bad.append((row, place, f"a frame cannot be decoded: {error}"))
                self.pending.rows_done(1)
        except Exception as error:  # decoders raise whatever the bytes provoke
            raise as_fault(error, "decode", self.name) from error
        return decoded

    def _videos(self, camera: str, rows: Sequence[int]) -> int:
        """Decode the frames of these rows that share a keyframe with others; how many they are.

        Frames that cannot be decoded together are left.
        """
        frames, seen = self.block.frames[camera], self.seen[camera]
        wanted: dict[SharedFrames, dict[int, np.ndarray]] = {}
        for row in rows:
            out = self.pending.views[f"images/{camera}"][row]
            number = row + self.shift
            zeroed = self.block.frame_zeroed[number]
            for f, at in enumerate(self.block.frame_row[number].tolist()):
                one = frames[at]
                if not isinstance(one, VideoFrame) or one.shared is None:
                    continue
                if not zeroed[f] and at not in seen and not self._is_cached(camera, at):
                    wanted.setdefault(one.shared, {}).setdefault(at, out[f])
        return sum(self._shared(camera, shared, outs) for shared, outs in wanted.items())

    def _shared(self, camera: str, shared: SharedFrames, outs: dict[int, np.ndarray]) -> int:
        """Decode or take frames of one keyframe; the number of those decoded for this batch."""
        left = {}
        if not shared.lock.acquire(blocking=False):
            with work_of(APART):
                shared.lock.acquire()
        try:
            for at, out in outs.items():
                waiting = shared.take(at, self.shift)
                if waiting is None:
                    left[at] = out
                else:
                    out[...] = waiting
            came = self._together(camera, shared, left) if left else set()
        finally:
            shared.lock.release()
        for at, out in outs.items():
            if at not in left or at in came:
                self._has(camera, at, out)
        return len(came & left.keys())

    def _together(
        self, camera: str, shared: SharedFrames, outs: Mapping[int, np.ndarray]
    ) -> set[int]:
        """Decode ``outs``, and what batches to come show and there is room for; what came."""
        out = next(iter(outs.values()))
        waiting = dict.fromkeys(shared.choose(self._to_come(camera, shared), out.nbytes))
        into = {at: np.empty_like(out) for at in waiting if at not in outs} | dict(outs)
        rows, came = list(into), set()
        try:
            together = [shared.frames[at] for at in rows]
            found = self.decoders[camera].decode_together(together, list(into.values()))
            came = {rows[k] for k in found}
        finally:
            for at in waiting:
                picture = into[at].copy() if at in outs else into[at]
                shared.keep(at, picture if at in came else None)
        return came

    def _to_come(self, camera: str, shared: SharedFrames) -> dict[int, list[int]]:
        """Number of each later batch of the block that shows frames of a keyframe → which."""
        size = self.pending.batch.rows
        start = self.shift + size
        shown = np.zeros(len(self.block.frames[camera]), np.bool_)
        shown[list(shared.frames)] = True
        later = self.block.frame_row[start:]
        number, f = np.nonzero(shown[later] & ~self.block.frame_zeroed[start:])
        found: dict[int, dict[int, None]] = {}
        for batch, at in zip((number // size).tolist(), later[number, f].tolist(), strict=True):
            found.setdefault(start + batch * size, {})[at] = None
        return {batch: list(rows) for batch, rows in found.items()}

    def _is_cached(self, camera: str, at: int) -> bool:
        lease = self.block.lease
        slot = -1 if lease is None else int(lease.slots[camera][at])
        return lease is not None and slot >= 0 and bool(lease.written[camera][slot])

    def _has(self, camera: str, at: int, picture: np.ndarray) -> None:
        """Note a decoded frame, for other rows and for the frame cache."""
        self.seen[camera][at] = picture
        lease = self.block.lease
        if lease is not None and (slot := int(lease.slots[camera][at])) >= 0:
            lease.put(camera, slot, picture)

    def _camera(
        self,
        camera: str,
        decoder: Decoder,
        number: int,
        frames: Sequence[Encoded | None],
        out: np.ndarray,
    ) -> int:
        zeroed, lease = self.block.frame_zeroed[number], self.block.lease
        seen, decoded = self.seen[camera], 0
        for f, at in enumerate(self.block.frame_row[number].tolist()):
            encoded = frames[at]
            slot = -1 if lease is None else int(lease.slots[camera][at])
            if zeroed[f]:
                out[f] = 0
            elif lease is not None and slot >= 0 and lease.written[camera][slot]:
                lease.gather(camera, lease.slots[camera][at : at + 1], out[f].reshape(1, -1))
            elif encoded is None:
                out[f] = 0
            elif at not in seen:
                picture = out[f]
                decoder.decode_into(encoded, picture)
                decoded += 1
                self._has(camera, at, picture)
            elif not np.shares_memory(seen[at], out[f]):
                out[f] = seen[at]
        return decoded


def joined_by_keyframes(chains: list[list[int]], block: SampleBlock, shift: int) -> list[list[int]]:
    """Chains of rows, those joined that show frames of one keyframe; see ``RowDecoding``."""
    if not block.videos:
        return chains
    kinds = [
        [one.shared if isinstance(one, VideoFrame) else None for one in block.frames[camera]]
        for camera in block.videos
    ]
    joined = list(range(len(chains)))

    def root(k: int) -> int:
        while joined[k] != k:
            k = joined[k]
        return k

    first: dict[SharedFrames, int] = {}
    for k, chain in enumerate(chains):
        shown = set(block.frame_row[[row + shift for row in chain]].ravel().tolist())
        for shared in {kind[at] for kind in kinds for at in shown}:
            if shared is not None:
                one, other = sorted((root(k), root(first.setdefault(shared, k))))
                joined[other] = one
    found: dict[int, list[int]] = {}
    for k, chain in enumerate(chains):
        found.setdefault(root(k), []).extend(chain)
    return list(found.values())


def copy_rows(
    pending: PendingBatch, lease: FrameLease, row: int, slots: Mapping[str, NDArray[np.int64]]
) -> int:
    """Copy cached frames into rows that follow each other.

    Args:
        pending: the batch under way.
        lease: lease on the frames.
        row: first row in the batch.
        slots: camera → [rows, F] slots of the frames.

    Returns:
        Number of frames decoded: 0.
    """
    rows = 0
    for camera, own in slots.items():
        rows = len(own)
        out = pending.views[f"images/{camera}"][row : row + rows]
        lease.gather(camera, own.ravel(), out.reshape(own.size, -1))
    pending.rows_done(rows)
    return 0


def cached_rows(
    lease: FrameLease, block: SampleBlock, cameras: Iterable[str], first: int, count: int
) -> tuple[NDArray[np.bool_], dict[str, NDArray[np.int64]]]:
    """Samples of a block that need no decoding.

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
    """[start, stop) of cached rows that follow each other, a few at a time."""
    edges = [0, len(whole)]
    if not whole.all():
        edges = np.flatnonzero(np.diff(whole, prepend=False, append=False)).tolist()
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        for begin in range(start, stop, _COPIED_TOGETHER):
            yield begin, min(begin + _COPIED_TOGETHER, stop)


@dataclass(slots=True)
class Job:
    """Work for one thread: samples of one dataset.

    Attributes:
        run: does the work and gives the number of frames decoded; an exception ends the pipeline.
        dataset: index of the dataset.
        rows: number of samples that it fills.
    """

    run: Callable[[], int]
    dataset: int
    rows: int


class Worker:
    """A thread of the pool on its way through the stages, and its work by dataset.

    Plain lists: adding to an item of an array costs several times as much.

    Args:
        seats: stage → its free seats.
        datasets: number of datasets.
        clock: gives the seconds so far.

    Attributes:
        stage: stage that it is in.
        since_s: time at which it came there.
        dataset: index of the dataset that it works for.
        seconds: stage → seconds in it, by dataset.
    """

    thread: LoaderThread

    def __init__(self, seats: Seats, datasets: int, clock: Callable[[], float]) -> None:
        self._seats, self._clock = seats, clock
        self.stage, self.since_s, self.dataset = APART, 0.0, 0
        self.seconds = {stage: [0.0] * datasets for stage in seats}
        self.rows, self.frames = [0] * datasets, [0] * datasets

    def move(self, stage: str) -> str:
        """Leave the stage for another, and wait for a seat there; the stage that was left."""
        left = self.stage
        if stage != left:
            if left:
                self.seconds[left][self.dataset] += self._clock() - self.since_s
                self._seats[left].put(None)
            if stage:
                self._seats[stage].get()
            self.stage, self.since_s = stage, self._clock()
        return left


def _added(every: Iterable[list[Any]]) -> list[Any]:
    """Sums of the lists' first items, of their second ones and so on."""
    return [sum(column) for column in zip(*every, strict=True)]


class DecodePool:
    """Threads that make pixels: they run jobs in the order submitted, each from end to end.

    A stage has a number of seats, and a thread takes one while it is in the stage. A job begins in
    "decode". There are as many threads as seats in all.

    Args:
        threads: stage → number of its seats at first (``Knobs.pixel_threads``).
        datasets: number of datasets, for the service times.
        failed: called with an exception that a job let out.

    Attributes:
        submit: queues a job.
        threads: stage → number of its seats, as soon as threads that are too many have ended.
    """

    def __init__(
        self, threads: Mapping[str, int], *, datasets: int, failed: Callable[[BaseException], None]
    ) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.submit: Callable[[Job], object] = self._jobs.put
        self._free: Seats = {stage: queue.SimpleQueue() for stage in threads}
        self._failed = failed
        self._datasets = datasets
        self._workers: list[Worker] = []
        self._closed = False
        self._seats = dict.fromkeys(threads, 0)
        self._lock = threading.Lock()
        # OpenCV would otherwise start threads of its own below each of ours.
        cv2.setNumThreads(1)
        self.resize(threads)

    def resize(self, threads: Mapping[str, int]) -> None:
        """Have so many seats in each stage from now on, and as many threads."""
        with self._lock:
            if self._closed:
                return
            self.threads = threads  # before anybody is woken to look at it
            for stage, wanted in threads.items():
                for _ in range(self._seats[stage] - wanted):
                    self._jobs.put(None)  # wakes one; who is at work looks when it is done
                for _ in range(wanted - self._seats[stage]):
                    own, name = Worker(self._free, self._datasets, perf_counter), len(self._workers)
                    own.thread = LoaderThread(self._work, f"autoloader-decode-{name}", (own,))
                    self._workers.append(own)
                    self._seats[stage] += 1
                    self._free[stage].put(None)
                    own.thread.start()

    def service(self) -> tuple[list[dict[str, Any]], dict[str, tuple[float, int]]]:
        """[D] counts of all work so far, as statistics name them; stage → (seconds, samples)."""
        workers = list(self._workers)
        seconds = {stage: _added(one.seconds[stage] for one in workers) for stage in self._free}
        rows, frames = _added(one.rows for one in workers), _added(one.frames for one in workers)
        counts = zip(_added(seconds.values()), rows, frames, strict=True)
        own = [{"decode_s": busy_s, "decoded": made, "frames": f} for busy_s, made, f in counts]
        return own, {stage: (sum(busy), sum(rows)) for stage, busy in seconds.items()}

    def close(self) -> None:
        """Begin no further job; each thread ends with the job that it has in hand."""
        with suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        with self._lock:
            self._closed = True
            for _ in self._workers:
                self._jobs.put(None)

    def join(self, within_s: float | None, *others: threading.Thread) -> bool:
        """Wait for the threads, and others, for so long in all; true if all have ended."""
        return all_ended([*others, *(own.thread for own in self._workers)], within_s)

    def _work(self, own: Worker) -> None:
        here.move, free = own.move, self._free[_FIRST]
        while not self._is_surplus():
            job = self._jobs.get()
            if job is None or self._closed:
                continue
            free.get()
            own.dataset, own.stage, own.since_s = job.dataset, _FIRST, perf_counter()
            try:
                frames = job.run()
            except BaseException as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
                self._failed(error)
                return
            finally:
                free.put(None)
            own.seconds[_FIRST][own.dataset] += perf_counter() - own.since_s
            own.rows[own.dataset] += job.rows
            own.frames[own.dataset] += frames
            del job  # what it refers to must not wait with this thread for the next one

    def _is_surplus(self) -> bool:
        """True if the calling thread ends: with the pool, or with a seat that is one too many."""
        if self._closed or self._seats == self.threads:
            return self._closed
        with self._lock:
            many = (stage for stage, most in self.threads.items() if self._seats[stage] > most)
            if (stage := next(many, None)) is None:
                return False
            self._seats[stage] -= 1
        self._free[stage].get()
        return True
