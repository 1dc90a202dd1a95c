"""A pipeline over the sidecar index: planned samples, read at random, decoded by the pool.

It has the face of ``runtime.pipeline.Pipeline``. There is no mixer and no cursor: the plan names
the sample of every position, so where a pipeline is, is one number, and no knob moves the order.
TensorFlow is not imported.

Indexes are opened (and built where they are missing) on a thread of their own after ``start``.

Not here: the plan and the index (``index``), reading ahead (``runtime.planned``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from autoloader.clock import Clock, SystemClock
from autoloader.errors import UsageError, as_fault
from autoloader.index.dataset import DatasetIndex, open_indexes
from autoloader.index.plan import DatasetTable, SamplePlan
from autoloader.knobs import Knobs
from autoloader.runtime.activity import DatasetActivity, PipelineActivity
from autoloader.runtime.assembler import Assembler
from autoloader.runtime.decode import FrameDecoder
from autoloader.runtime.filled import FilledBatch, PipelineStart
from autoloader.runtime.planned import PlannedReader
from autoloader.runtime.pool import DecodePool
from autoloader.runtime.quarantine import BadRecord, Quarantine
from autoloader.runtime.ring import RingMemory
from autoloader.runtime.slots import SlotBook
from autoloader.sampling.dealing import Deal, DealtPositions
from autoloader.sampling.episode import Place
from autoloader.sampling.order import MixtureOrder, mixture_order
from autoloader.sampling.resolve import ResolvedDataset, ResolvedMixture

logger = logging.getLogger(__name__)

CLOSE_S = 1.5
_SAY_S = 5.0


class IndexedPipeline:
    """Runs one mixture from its index; see ``runtime.pipeline.Pipeline`` for the methods.

    Args:
        mixture: what to run.
        order: its order.
        knobs: values to begin with; checked by the caller.
        memory: the ring's memory.
        start: where to begin.
        held: slots that the consumer still has from an earlier pipeline.
        deal: which positions each batch takes.
        clock: for stalls.

    Raises:
        UsageError: ``start`` was saved under another reader.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        order: MixtureOrder,
        knobs: Knobs,
        memory: RingMemory,
        *,
        start: PipelineStart,
        held: Sequence[int] = (),
        deal: Deal,
        clock: Clock | None = None,
    ) -> None:
        self._mixture = mixture
        self._order = order
        self._knobs = knobs
        self._memory = memory
        _check_reader(start.mixer)
        self._deal = deal
        self._clock = clock or SystemClock()
        self._failure: BaseException | None = None
        self._closed = False
        self._parked = False
        self._condition = threading.Condition()
        self._lock = threading.Lock()
        self._quarantine = Quarantine(mixture)
        self._slots = SlotBook(memory, knobs.ring_slots, held=held)
        self._pool = DecodePool(
            knobs.decode_threads, datasets=len(mixture.datasets), failed=self._fail
        )
        self._reader: PlannedReader | None = None
        self._assembler: Assembler | None = None
        self._begun = threading.Event()
        self._opening = threading.Thread(target=self._begin, name="autoloader-index", daemon=True)

    def start(self) -> None:
        """Open the indexes, then read ahead and fill batches."""
        self._opening.start()

    def _begin(self) -> None:
        try:
            indexes = open_indexes(self._mixture.datasets, progress=_Progress())
            for dataset, index in zip(self._mixture.datasets, indexes, strict=True):
                for slice_, record, reason in index.damaged:
                    self._quarantine.add(Place(dataset.index, 0, slice_, record), reason)
            plan = plan_of(self._mixture, self._order, indexes)
            with self._lock:
                if self._closed:
                    return
                self._reader = reader = PlannedReader(
                    self._mixture,
                    plan,
                    indexes,
                    positions=DealtPositions(self._deal),
                    io_threads=self._knobs.io_threads,
                    read_ahead=self._knobs.read_ahead,
                    condition=self._condition,
                    failed=self._fail,
                )
                reader.park(self._parked)
                self._assembler = Assembler(
                    self._mixture.layout,
                    queues=reader.queues,
                    mixer=reader,
                    pool=self._pool,
                    decoders={
                        camera: FrameDecoder(spec)
                        for camera, spec in self._mixture.spec.cameras.items()
                    },
                    memory=self._memory,
                    slots=self._slots,
                    quarantine=self._quarantine,
                    condition=self._condition,
                    names=self._mixture.names,
                    clock=self._clock,
                    min_ready=0,
                    cut=self._deal.rows,
                    first_number=self._deal.first_number,
                    chained=any(plan.chained),
                    failed=self._fail,
                )
                self._assembler.start()
        except Exception as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
            self._fail(error)
        finally:
            self._begun.set()

    def next(self, timeout_s: float) -> FilledBatch | None:
        """See ``Pipeline.next``."""
        batch = None
        if self._begun.wait(timeout_s) and self._failure is None and self._assembler is not None:
            batch = self._assembler.next(timeout_s)
        if batch is None and self._failure is not None:
            raise as_fault(self._failure, "read")
        return batch

    def release(self, slot: int) -> None:
        """The consumer is done with a slot."""
        self._slots.release(slot)

    @property
    def knobs(self) -> Knobs:
        """The values in force."""
        return self._knobs

    def retune(self, knobs: Knobs) -> None:
        """Move to other knobs; none of them changes the order."""
        with self._lock:
            self._knobs = knobs
            if self._reader is not None:
                self._reader.resize(knobs.io_threads, knobs.read_ahead)
        self._pool.resize(knobs.decode_threads)
        self._slots.resize(knobs.ring_slots)

    def park(self, parked: bool) -> None:
        """Stop reading (True) or go on; the ring keeps what it has."""
        with self._lock:
            self._parked = parked
            if self._reader is not None:
                self._reader.park(parked)

    def quarantined(self) -> tuple[BadRecord, ...]:
        """Bad records so far."""
        return self._quarantine.records()

    def activity(self) -> PipelineActivity:
        """What every part is doing; ``queue`` is a dataset's share of what is read ahead."""
        decode_s, decoded, frames = self._pool.service()
        assembler, reader = self._assembler, self._reader
        ahead = reader.ready_samples() if reader else 0
        datasets = {
            dataset.name: DatasetActivity(
                queue=round(ahead * self._order.shares[dataset.index]),
                queue_bytes=0,
                taken=assembler.taken[dataset.index] if assembler else 0,
                stalls=assembler.stalls[dataset.index] if assembler else 0,
                quarantined=self._quarantine.count(dataset.index),
                generations=1,
                decode_s=float(decode_s[dataset.index]),
                decoded=int(decoded[dataset.index]),
                frames=int(frames[dataset.index]),
                read_s=0.0,
                episodes=0,
            )
            for dataset in self._mixture.datasets
        }
        return PipelineActivity(
            datasets=datasets,
            ring_slots=self._slots.slots,
            ring_out=self._slots.out,
            ring_filled=assembler.filled if assembler else 0,
            decode_waiting=self._pool.waiting,
            mix_wait_s=assembler.wait_s if assembler else 0.0,
        )

    def close(self) -> None:
        """End all threads; drops what is under way. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._slots.close()
        if self._reader is not None:
            self._reader.close()
        if self._assembler is not None:
            self._assembler.close()
        self._pool.close()
        deadline = time.monotonic() + CLOSE_S
        for part in (self._assembler, self._reader):
            if part is not None and not part.join(max(0.0, deadline - time.monotonic())):
                logger.warning("a reader thread is still waiting for its file")

    def _fail(self, error: BaseException) -> None:
        if self._failure is None and not self._closed:
            self._failure = error
        if self._assembler is not None:
            self._assembler.close()


class _Progress:
    """Says every few seconds how far the indexes are that have to be built."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._said_s >= _SAY_S:
            self._said_s = time.monotonic()
            logger.warning("building the index: %d of %d shard files", done, total)


def table_of(dataset: ResolvedDataset, index: DatasetIndex) -> DatasetTable:
    """What the plan needs to know of a dataset."""
    return DatasetTable(
        key=dataset.key,
        sample=dataset.sample,
        stride=dataset.stride,
        steps=index.steps,
        slice_of=index.slice_of,
        record_of=index.record_of,
    )


def plan_of(
    mixture: ResolvedMixture, order: MixtureOrder, indexes: Sequence[DatasetIndex]
) -> SamplePlan:
    """The plan over what the indexes really hold; an epoch of passes is dealt by that."""
    tables = [table_of(d, index) for d, index in zip(mixture.datasets, indexes, strict=True)]
    if order.pass_samples is not None:
        samples = {d.name: t.samples for d, t in zip(mixture.datasets, tables, strict=True)}
        order = mixture_order(mixture, samples)
    return SamplePlan(order, tables, chain=order.chain)


def _check_reader(mixer: dict[str, Any] | None) -> None:
    if mixer is not None and "position" not in mixer:
        raise UsageError(
            "the saved state is of the stream reader, this loader reads by index",
            remedy="resume with the reader that the state was saved with: reader: stream",
        )
