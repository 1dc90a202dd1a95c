"""Builds batches: takes samples from a source, fills rows, has a decode pool decode their frames.

Theory of operation. A builder is assigned runs (spans of positions, one a batch) and is given one
slot for each of their batches, in the same order. It hands the filled batches out in that order. It
neither knows what other builders do nor where the sequence ends. One may live in the pipeline's own
process, or one in each of several light processes (``pipeline.decode_process``).

One thread takes a slot, begins a batch in it, and takes samples from the source. It copies their
numbers column by column and gives their frames to the decode pool. It goes on to the next batch
while the pool still decodes. A batch is filled when its last row is. Rows whose frames are all in
the frame cache are copied in a few jobs instead.

A sample that cannot be used is quarantined: a frame of it cannot be decoded, or the spec's
``errors.non_finite`` refuses its values. Its row repeats another row of the batch, provenance
included. The ledger names the sample that was due, so every sample is accounted for.

Two sources exist: the streams of all datasets with the mixer behind them
(``pipeline.read.streams``), and planned runs over the index (``pipeline.read.planned``). A batch
builder does not know which one it has.

Not here: who is assigned what (``sampling.dealing``), the slots' numbers (``decode.ring``),
decoding a row (``decode.jobs``), the sources.
"""

from __future__ import annotations

import collections
import logging
import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from autoloader.cache.disk import FramesOnDisk
from autoloader.decode import jobs
from autoloader.decode.decoders import decoders_of
from autoloader.decode.message import BatchMessage, TellBad, languages
from autoloader.decode.ring import RingMemory
from autoloader.errors import AutoloaderError, SourceError, as_fault
from autoloader.host.clock import Clock
from autoloader.host.frozen import frozen
from autoloader.host.threads import LoaderThread
from autoloader.samples.block import MOST_UNFINISHED, RUN_BYTES, Place, SampleBlock
from autoloader.samples.resolve import ResolvedMixture
from autoloader.spec.knobs import Knobs
from autoloader.telemetry.statistics import Counts

logger = logging.getLogger(__name__)

Spans = Sequence[tuple[int, int]]
"""Positions [start, stop) of the mixture's sequence, one pair for each batch of a run."""

READ_S = 1.5
"""Most seconds that ``close`` waits for threads that read: they write to no shared memory."""
STALL_S = 5.0
_NO_SLOT = -1


class SampleSource(ABC):
    """Gives the samples of one mixture, in order; ``take`` is called by one thread.

    Attributes:
        run_bytes: bytes of the memory that the last planned run was read into; 0: there is none.
    """

    run_bytes = 0

    @abstractmethod
    def start(self) -> None:
        """Begin to read; must not wait for the first sample."""

    def assign(self, spans: Spans) -> None:  # noqa: B027 a stream goes on from its cursor
        """Name the positions of the next batches, after those assigned before."""

    @abstractmethod
    def take(self, count: int) -> tuple[SampleBlock, int, int] | None:
        """The next samples: a block, the number of the first one in it, and how many.

        Args:
            count: most samples to take; the batch under way wants no more.

        Returns:
            ``None`` where the next sample is not there yet.
        """

    def read(self, span: tuple[int, int]) -> SampleBlock:
        """Samples of a batch that was not assigned; only where batches have positions."""
        raise NotImplementedError

    def finish(self, batch: BatchMessage) -> None:  # noqa: B027 a position needs no note
        """Note in the message of a batch, whose last sample was taken, how to resume behind it."""

    @abstractmethod
    def stalled(self, waited_s: float) -> Sequence[int] | None:
        """Log what ``take`` waits for; the datasets that are late, where that is known.

        Returns:
            ``None`` where there is nothing to log yet.
        """

    @abstractmethod
    def retune(self, knobs: Knobs) -> None:
        """Move to other knobs."""

    @abstractmethod
    def park(self, parked: bool) -> None:
        """Stop reading (True) or go on."""

    def drop(self) -> None:  # noqa: B027 queues drain by themselves while parked
        """Give back samples that were read ahead and can be read again; must not wait."""

    @property
    def settled(self) -> bool:
        """True if the source reads with the knobs that it was given last."""
        return True

    @abstractmethod
    def activity(self, own: Sequence[Counts]) -> Counts:
        """Counts so far.

        Args:
            own: for each dataset, the fields of its statistics that the builder counts.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop; does not wait."""

    @abstractmethod
    def join(self, within_s: float | None) -> bool:
        """Wait for the threads; true if all have ended. Called when nobody shows the samples.

        Once it is true, frames of the frame cache that the samples pinned are given up.
        """


@frozen
class Listener:
    """Hears of a source's news; any thread may tell.

    Attributes:
        bad: told of bad records.
        arrived: notified when samples are there.
        failed: told of the exception that ends the source.
    """

    bad: TellBad
    arrived: threading.Condition
    failed: Callable[[BaseException], None]


MakeSource = Callable[[Knobs, Listener], SampleSource]


class BatchBuilder:
    """Fills the batches of the runs it is assigned, in this process.

    Args:
        mixture: the resolved mixture that is read.
        source: makes the source of samples.
        knobs: values to begin with; where several builders share the work, this builder's share.
        memory: memory of the ring.
        bad: told of undecodable frames.
        disk: decoded frames on a disk; ``None``: there are none.
        clock: time source for the detection of stalls.
        begun: called on a thread that decodes when all frames of a further batch are under way.

    Attributes:
        here: True: it builds in this process.
        pids: ids of its processes: none.
        to_begin: 0: it is given every slot at once.
    """

    here, to_begin = True, 0
    pids: tuple[int, ...] = ()

    def __init__(
        self,
        mixture: ResolvedMixture,
        source: MakeSource,
        knobs: Knobs,
        memory: RingMemory,
        bad: TellBad,
        *,
        disk: FramesOnDisk | None = None,
        clock: Clock | None = None,
        begun: Callable[[], object] | None = None,
    ) -> None:
        self._layout, self._names = mixture.layout, mixture.names
        self._slices = [one.slices for one in mixture.datasets]
        self._tell_begun = begun
        self._memory = memory
        self._bad = bad
        self._non_finite = mixture.spec.errors.non_finite
        self._disk = disk
        self._loaded_before = 0 if disk is None else disk.loaded
        self._clock = clock or Clock()
        self._decoders = decoders_of(mixture, disk)
        self._failure: BaseException | None = None
        self._closed = self._ends_late = False
        self._rows: collections.deque[int] = collections.deque()
        self._slots: queue.SimpleQueue[tuple[int, tuple[int, int] | None] | None]
        self._slots = queue.SimpleQueue()
        self._arrived = threading.Condition()
        self._line: list[jobs.PendingBatch] = []
        self._line_changed = threading.Condition()
        self._handing = threading.RLock()
        self._begun = 0
        self._decoded = [0] * len(self._names)
        self._copied = np.zeros(len(self._names), np.int64)
        self._stalls = [0] * len(self._names)
        fail = weakref.WeakMethod(self._fail)

        def failed(error: BaseException) -> None:  # threads do not keep the builder alive
            if (alive := fail()) is not None:
                alive(error)

        # One number more than there are datasets: rows that are copied from the frame cache.
        self._pool = jobs.DecodePool(
            knobs.pixel_threads, datasets=len(self._names) + 1, failed=failed
        )
        self._source = source(knobs, Listener(bad, self._arrived, failed))
        self._thread = LoaderThread(target=self._run, name="autoloader-mix")
        self._source.start()
        self._thread.start()

    def assign(self, spans: Spans) -> None:
        """Have a run filled, after those assigned before."""
        self._rows.extend(stop - start for start, stop in spans)
        self._source.assign(spans)

    def give(self, slot: int, span: tuple[int, int] | None = None) -> None:
        """Give a slot to the next batch that has none, or to one that was not assigned."""
        self._slots.put((slot, span))

    def skip(self) -> None:
        """Pass over the next batch that has no slot: another builder fills it."""
        self._slots.put((_NO_SLOT, None))

    def next(self, timeout_s: float) -> BatchMessage | None:
        """The next filled batch, numbered from 0; ``None`` where none is ready in time.

        Raises:
            AutoloaderError: whatever ended a thread; no row of a batch can be used; too many
                records are bad.
        """
        batch = self._next(timeout_s) if self._failure is None else None
        if batch is None and self._failure is not None:
            raise as_fault(self._failure, "read")
        return batch

    def _next(self, timeout_s: float) -> BatchMessage | None:
        with self._line_changed:
            if not self._line:
                self._line_changed.wait(timeout_s)
            if not self._line:
                return None
            pending = self._line[0]
        if not pending.done.wait(timeout_s):
            return None
        with self._line_changed:
            if self._is_ended or not self._line:
                return None
            self._line.pop(0)
        with self._handing:
            if self._is_ended:
                return None
            if pending.bad:
                try:
                    self._repair(pending)
                except AutoloaderError as error:
                    self._fail(error)
                    raise
        return pending.batch

    def retune(self, knobs: Knobs) -> None:
        """Move to other knobs; nothing where the builder is closed."""
        self._source.retune(knobs)
        self._pool.resize(knobs.pixel_threads)

    def park(self, parked: bool) -> None:
        """Stop reading (True) or go on."""
        self._source.park(parked)

    def drop(self) -> None:
        """Give back samples that were read ahead; they are read again."""
        self._source.drop()

    @property
    def settled(self) -> bool:
        """True if the source reads with the knobs in force."""
        return self._source.settled

    @property
    def filled(self) -> int:
        """Batches ready to be handed out."""
        return sum(pending.done.is_set() for pending in list(self._line))

    def activity(self) -> Counts:
        """Counts so far."""
        (*worked, _), work = self._pool.service()
        counted = zip(worked, self._decoded, self._copied.tolist(), self._stalls, strict=True)
        own = [{**one, "samples": made + copied, "stalls": s} for one, made, copied, s in counted]
        loaded = 0 if self._disk is None else self._disk.loaded - self._loaded_before
        return self._source.activity(own) | {"work": work, "cache": {"from_disk": loaded}}

    def close(self, within_s: float) -> bool:
        """End all threads; drops what is under way.

        May be called again, to wait longer. Frames of the frame cache stay pinned until all threads
        have ended.

        Returns:
            True if nobody writes into slots any more. Threads may still wait for their source.
        """
        if not self._closed:
            self._closed = True
            self._source.close()
            self._end()
            self._pool.close()
        deadline = time.monotonic() + within_s
        written = self._pool.join(within_s, self._thread)
        read = written and self._source.join(max(0.0, min(READ_S, deadline - time.monotonic())))
        if not read and not self._ends_late:
            self._ends_late = True
            if written:
                logger.warning("threads that read are still waiting for their source")
            LoaderThread(target=self._end_late, name="autoloader-end").start()
        return written

    def _end(self) -> None:
        """Begin no further batch; wake whoever waits for one."""
        for pending in list(self._line):
            pending.done.set()
        with self._handing:  # a batch that is being repaired is
            pass
        self._slots.put(None)
        for condition in (self._arrived, self._line_changed):
            with condition:
                condition.notify_all()

    @property
    def _is_ended(self) -> bool:
        return self._closed or self._failure is not None

    def _end_late(self) -> None:
        """Wait for threads that did not end in time: what they use is given up behind them."""
        self._pool.join(None, self._thread)
        self._source.join(None)

    def _fail(self, error: BaseException) -> None:
        if self._is_ended:
            return
        self._failure = error
        self._end()

    def _run(self) -> None:
        try:
            unfinished = collections.deque[jobs.PendingBatch](maxlen=MOST_UNFINISHED)
            while (given := self._slots.get()) is not None and not self._is_ended:
                if self._source.run_bytes > RUN_BYTES and len(unfinished) == MOST_UNFINISHED:
                    unfinished[0].done.wait()
                    if self._is_ended:
                        return
                slot, span = given
                rows = self._rows.popleft() if span is None else span[1] - span[0]
                if slot == _NO_SLOT:
                    self._pass(rows)
                    continue
                batch = BatchMessage(slot, rows, self._begun)
                pending = jobs.PendingBatch(batch, self._layout.views(self._memory.base(slot)))
                self._begun += 1
                with self._line_changed:
                    self._line.append(pending)
                    self._line_changed.notify_all()
                self._fill(pending, None if span is None else self._source.read(span))
                unfinished.append(pending)
        except BaseException as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
            self._fail(as_fault(error, "mix"))

    def _pass(self, rows: int) -> None:
        """Take samples that another builder shows."""
        while rows and (found := self._source.take(rows) or self._wait(rows)) is not None:
            block, _, count = found
            if block.lease is not None:
                block.lease.filled(count)
            rows -= count

    def _fill(self, pending: jobs.PendingBatch, own: SampleBlock | None) -> None:
        """Have all rows filled, by the samples of ``own`` if given; returns early once closed."""
        rows, row, texts = pending.batch.rows, 0, list[bytes]()
        while row < rows:
            found = (own, 0, rows) if own else self._source.take(rows - row)
            found = found or self._wait(rows - row)
            if found is None:
                return
            block, first, count = found
            for name, column in block.columns.items():
                pending.views[name][row : row + count] = column[first : first + count]
            texts += block.texts[first : first + count]
            if row + count == rows:
                # The batch may be filled, and taken, as soon as its last row is submitted.
                self._write_texts(pending, texts)
                self._note_non_finite(pending)
                self._source.finish(pending.batch)
            left: Iterable[int] = range(row, row + count)
            if block.lease is not None:
                pending.leases.append((block.lease, count))
                left = self._copy(pending, row, block, first, count)
            self._decode(pending, left, block, first - row)
            row += count
        if self._tell_begun is not None:  # jobs are begun in their order
            self._pool.submit(jobs.Job(self._note_begun, len(self._names), 0))

    def _note_begun(self) -> int:
        assert self._tell_begun is not None
        self._tell_begun()
        return 0

    def _copy(
        self, pending: jobs.PendingBatch, row: int, block: SampleBlock, first: int, count: int
    ) -> list[int]:
        """Have rows copied whose frames are all cached; the other rows."""
        assert block.lease is not None
        whole, slots = jobs.cached_rows(block.lease, block, self._layout.cameras, first, count)
        datasets = block.columns["dataset_index"][first : first + count][whole]
        self._copied += np.bincount(datasets, minlength=len(self._copied))
        for start, stop in jobs.stretches(whole):
            mine = {camera: every[start:stop] for camera, every in slots.items()}
            run = partial(jobs.copy_rows, pending, block.lease, row + start, mine)
            self._pool.submit(jobs.Job(run, len(self._names), stop - start))
        rest: list[int] = (row + np.flatnonzero(~whole)).tolist()
        return rest

    def _decode(
        self, pending: jobs.PendingBatch, rows: Iterable[int], block: SampleBlock, shift: int
    ) -> None:
        """Have rows decoded; ``shift`` is the number of a row's sample in the block, less the row.

        A row that shares a frame with the row before goes into its job, and so do rows that show
        frames of one keyframe of a video.
        """
        linked, datasets = block.linked, block.datasets
        chains: list[list[int]] = []
        for row in rows:
            if linked is not None and chains and linked[row + shift]:
                chains[-1].append(row)
            else:
                chains.append([row])
        chains = jobs.joined_by_keyframes(chains, block, shift)
        seen: dict[str, dict[int, np.ndarray]] = {camera: {} for camera in self._layout.cameras}
        runs: dict[int, Callable[[Sequence[int]], int]] = {}
        for chain in chains:
            dataset = datasets[chain[0] + shift]
            if dataset not in runs:
                own = self._decoders[dataset], self._names[dataset]
                runs[dataset] = jobs.RowDecoding(pending, block, shift, *own, seen).run
            count = len(chain)
            self._decoded[dataset] += count
            self._pool.submit(jobs.Job(partial(runs[dataset], chain), dataset, count))

    def _wait(self, count: int) -> tuple[SampleBlock, int, int] | None:
        """The source's next samples, as soon as it has any; ``None`` once closed."""
        started = named = self._clock.now_s()
        with self._arrived:
            while not self._is_ended:
                found = self._source.take(count)
                if found is not None:
                    return found
                self._arrived.wait(0.5)
                now = self._clock.now_s()
                if now - named < STALL_S:
                    continue
                late = self._source.stalled(now - started)
                if late is not None:
                    named = now
                    for dataset in late:
                        self._stalls[dataset] += 1
        return None

    @staticmethod
    def _write_texts(pending: jobs.PendingBatch, texts: Sequence[bytes]) -> None:
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        room = len(pending.views["language_text"])
        if ends[-1] > room:
            # The rows from the first that does not fit on carry their texts beside the slot.
            fits = int(np.searchsorted(ends, room, side="right"))
            pending.batch.texts.update(enumerate(texts[fits:], start=fits))
            texts, ends = texts[:fits], np.minimum(ends, ends[fits - 1] if fits else 0)
        joined = np.frombuffer(b"".join(texts), np.uint8)
        pending.views["language_text"][: len(joined)] = joined
        pending.views["language_end"][: len(ends)] = ends

    def _told(self, place: Place) -> str:
        return f"record {place.record} of {self._slices[place.dataset][place.shard].path}"

    def _repair(self, pending: jobs.PendingBatch) -> None:
        """Have unusable rows repeat a usable row, one of their dataset if there is one."""
        bad = {row for row, _, _ in pending.bad}
        for _, place, reason in pending.bad:
            self._bad(place, reason)
        rows = [row for row in range(pending.batch.rows) if row not in bad]
        if not rows:
            _, place, reason = pending.bad[0]
            name = self._names[place.dataset]
            raise SourceError(
                f"none of the {pending.batch.rows} samples of a batch can be used; the first is of "
                f"dataset {name!r}, {self._told(place)}: {reason}",
                remedy="repair the dataset, or remove the feature or the dataset from the spec",
                dataset=name,
            )
        texts = languages(pending.views, pending.batch)
        datasets = pending.views["dataset_index"]
        for row in bad:
            same = [other for other in rows if datasets[other] == datasets[row]]
            good = (same or rows)[0]
            for name, view in pending.views.items():
                if name not in ("ledger", "language_end", "language_text"):
                    view[row] = view[good]
            pending.batch.texts[row] = texts[good]

    def _note_non_finite(self, pending: jobs.PendingBatch) -> None:
        """Find values that are not finite; called before the pool gets the last row.

        Raises:
            SourceError: the spec allows finite values only.
        """
        shown = slice(pending.batch.rows)
        finite = {name: np.isfinite(pending.views[name][shown]) for name in ("action", "state")}
        if all(every.all() for every in finite.values()):
            return
        odd = {name: ~every.all(axis=tuple(range(1, every.ndim))) for name, every in finite.items()}
        rows = np.flatnonzero(odd["action"] | odd["state"]).tolist()
        pending.batch.non_finite = rows
        how = self._non_finite
        for row in rows if how != "keep" else ():
            *numbers, t = pending.views["provenance"][row].tolist()
            place = Place(*numbers)
            names = " and ".join(name for name in odd if odd[name][row])
            reason = f"{names} at t = {t} holds NaN or an infinite value"
            if how == "error":
                name = self._names[place.dataset]
                raise SourceError(
                    f"dataset {name!r}, {self._told(place)}: {reason}",
                    remedy="repair the record, or set errors.non_finite: drop (another sample "
                    "takes its place) or keep",
                )
            pending.bad.append((row, place, reason))
