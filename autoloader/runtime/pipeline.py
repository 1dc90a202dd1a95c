"""A running pipeline over streams: a reader and a queue for each dataset, mixed in Python.

Theory of operation. Readers put samples into queues; a mixer says whose turn it is; the assembler
takes samples from the queues, has the pool decode them into a slot of the ring, and gives batches
out in order.

The same pipeline runs in the loader's child (``worker``) and, for debugging, in the trainer's own
process. Whoever holds it calls ``next`` and gives slots back by ``release``.

Invariants:
    1. An exception in any thread comes out of ``next``, with dataset and stage.
    2. ``close`` returns; it waits for threads at most ``CLOSE_S``, and threads are daemons.

Not here: planned runs (``runtime.indexed_pipeline``), choosing knobs (``profile``,
``controller``), tensors (``batch``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from autoloader.clock import Clock, SystemClock
from autoloader.errors import AutoloaderError, SourceError, as_fault
from autoloader.index import open_dataset_index
from autoloader.index.plan import check_count, table_of
from autoloader.knobs import Knobs
from autoloader.processors import usable_processors
from autoloader.runtime.activity import DatasetActivity, PipelineActivity
from autoloader.runtime.assembler import Assembler
from autoloader.runtime.decode import FrameDecoder
from autoloader.runtime.filled import FilledBatch, PipelineStart
from autoloader.runtime.mixer import Mixer
from autoloader.runtime.pool import DecodePool
from autoloader.runtime.quarantine import BadRecord, Quarantine
from autoloader.runtime.queues import SampleQueue
from autoloader.runtime.readers import Reader, opening_at_once
from autoloader.runtime.ring import RingMemory
from autoloader.runtime.slots import SlotBook
from autoloader.sampling.episode import Place
from autoloader.sampling.order import MixtureOrder
from autoloader.sampling.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.source import EpisodeSource

logger = logging.getLogger(__name__)

CLOSE_S = 1.5
SourceFactory = Callable[[ResolvedDataset], EpisodeSource]


class Pipeline:
    """Runs one mixture.

    Args:
        mixture: what to run.
        order: its order.
        knobs: values to begin with; checked by the caller.
        memory: the ring's memory.
        source: makes a dataset's reader; called on that dataset's thread.
        start: where to begin.
        held: slots that the consumer still has from an earlier pipeline.
        cut: rows of batch n, where batches are not all full.
        clock: for stalls.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        order: MixtureOrder,
        knobs: Knobs,
        memory: RingMemory,
        source: SourceFactory,
        *,
        start: PipelineStart,
        held: Sequence[int] = (),
        cut: Callable[[int], int] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._mixture = mixture
        self._knobs = knobs
        self._failure: BaseException | None = None
        self._closed = False
        self._condition = threading.Condition()
        self._quarantine = Quarantine(mixture)
        self._queues = [
            SampleQueue(
                dataset.key,
                self._condition,
                capacity=knobs.for_dataset(dataset.name).queue_samples,
                shuffle=knobs.for_dataset(dataset.name).shuffle_samples,
            )
            for dataset in mixture.datasets
        ]
        opening = threading.Semaphore(opening_at_once(usable_processors()))
        self._readers = [
            Reader(
                dataset,
                source,
                start.cursors[dataset.index].copy(),
                self._queues[dataset.index],
                knobs.for_dataset(dataset.name),
                quarantine=self._quarantine,
                opening=opening,
                counted=_counted(dataset, order),
                failed=self._reader_failed,
            )
            for dataset in mixture.datasets
        ]
        self._mixer = Mixer(order, owe=not mixture.spec.mixing.waits)
        if start.mixer is not None:
            self._mixer.restore(start.mixer)
        self._pool = DecodePool(
            knobs.decode_threads, datasets=len(mixture.datasets), failed=self._fail
        )
        self._slots = SlotBook(memory, knobs.ring_slots, held=held)
        self._assembler = Assembler(
            mixture.layout,
            queues=self._queues,
            mixer=self._mixer,
            pool=self._pool,
            decoders={camera: FrameDecoder(spec) for camera, spec in mixture.spec.cameras.items()},
            memory=memory,
            slots=self._slots,
            quarantine=self._quarantine,
            condition=self._condition,
            names=mixture.names,
            clock=clock or SystemClock(),
            min_ready=min(knobs.min_ready_datasets, len(mixture.datasets)),
            cut=cut,
            first_number=start.first_number,
            failed=self._fail,
        )

    def start(self) -> None:
        """Open all streams side by side, the heaviest first, and begin to fill batches."""
        for dataset in sorted(self._mixture.datasets, key=lambda dataset: -dataset.weight):
            self._readers[dataset.index].start()
        self._assembler.start()

    def next(self, timeout_s: float) -> FilledBatch | None:
        """The next batch, in order, or ``None`` where none was ready in time.

        Raises:
            AutoloaderError: a background part failed; names dataset and stage.
        """
        batch = self._assembler.next(timeout_s) if self._failure is None else None
        if batch is None and self._failure is not None:
            raise as_fault(self._failure, "mix or decode")
        if batch is not None:
            self._slots.hand_out(batch.slot)
        return batch

    def release(self, slot: int) -> None:
        """The consumer is done with a slot."""
        self._slots.release(slot)

    @property
    def knobs(self) -> Knobs:
        """The values in force."""
        return self._knobs

    def retune(self, knobs: Knobs) -> None:
        """Move to other knobs; each takes effect as its row in the knob table says."""
        self._knobs = knobs
        for dataset in self._mixture.datasets:
            own = knobs.for_dataset(dataset.name)
            self._queues[dataset.index].limit(
                capacity=own.queue_samples, shuffle=own.shuffle_samples
            )
            self._readers[dataset.index].retune(own)
        self._pool.resize(knobs.decode_threads)
        self._slots.resize(knobs.ring_slots)

    def park(self, parked: bool) -> None:
        """Stop admitting reads (True) or go on; the ring keeps what it has."""
        for queue in self._queues:
            queue.park(parked)

    @property
    def settled(self) -> bool:
        """Whether every stream runs with the knobs in force."""
        return all(reader.settled for reader in self._readers)

    @property
    def ready_batches(self) -> int:
        """Batches that are filled and not taken."""
        return self._assembler.filled + self._slots.untaken

    def drop(self) -> None:
        """Give the pages of free slots back; queues drain by themselves while parked."""
        self._slots.punch_free()

    def quarantined(self) -> tuple[BadRecord, ...]:
        """Bad records so far."""
        return self._quarantine.records()

    def activity(self) -> PipelineActivity:
        """What every part is doing."""
        decode_s, decoded, frames = self._pool.service()
        datasets = {}
        for dataset in self._mixture.datasets:
            index = dataset.index
            queue, reader = self._queues[index], self._readers[index]
            datasets[dataset.name] = DatasetActivity(
                queue=queue.pending,
                queue_bytes=queue.held_bytes,
                taken=self._assembler.taken[index],
                stalls=self._assembler.stalls[index],
                quarantined=self._quarantine.count(index),
                generations=reader.generations,
                decode_s=float(decode_s[index]),
                decoded=int(decoded[index]),
                frames=int(frames[index]),
                read_s=reader.read_s,
                episodes=reader.episodes,
                interruptions=reader.interruptions,
            )
        return PipelineActivity(
            datasets=datasets,
            ring_slots=self._slots.slots,
            ring_out=self._slots.out,
            ring_filled=self.ready_batches,
            decode_waiting=self._pool.waiting,
            mix_wait_s=self._assembler.wait_s,
        )

    def close(self) -> None:
        """End all threads; drops what is under way. May be called twice."""
        if self._closed:
            return
        self._closed = True
        for reader in self._readers:
            reader.close()
        for queue in self._queues:
            queue.close()
        self._slots.close()
        self._assembler.close()
        self._pool.close()
        joins = [self._assembler.join, *(reader.join for reader in self._readers)]
        deadline = time.monotonic() + CLOSE_S
        late = [join for join in joins if not join(max(0.0, deadline - time.monotonic()))]
        if late:
            logger.warning("%d threads are still waiting for their source", len(late))

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._assembler.close()

    def _reader_failed(self, dataset: int, error: AutoloaderError) -> None:
        drop = self._mixture.spec.errors.dead_dataset == "drop"
        if drop and isinstance(error, SourceError) and self._live() > 1:
            logger.error("going on without dataset %s: %s", self._mixture.names[dataset], error)
            with self._condition:
                self._queues[dataset].park(True)
                self._mixer.drop(dataset)
                self._condition.notify_all()
            return
        self._fail(error)

    def _live(self) -> int:
        return len(self._mixture.datasets) - len(self._mixer.snapshot()["dropped"])


def _counted(dataset: ResolvedDataset, order: MixtureOrder) -> _Counted | None:
    """The count that a pass is held to, where an epoch is one pass and the index made the count."""
    if order.pass_samples is None or dataset.remote or dataset.num_samples is not None:
        return None
    return _Counted(dataset, order.pass_samples[dataset.index])


class _Counted:
    """What the index says of a dataset's records; opened when first asked.

    Args:
        dataset: whose records.
        samples: of a pass, as the run was planned.
    """

    def __init__(self, dataset: ResolvedDataset, samples: int) -> None:
        self._dataset = dataset
        self._samples = samples
        self._of: dict[tuple[int, int], int] = {}
        self._damage: dict[tuple[int, int], str] = {}

    def samples(self, place: Place) -> int:
        """Samples that a pass takes of a record."""
        return self._looked_up().get((place.shard, place.record), 0)

    def damage(self, place: Place) -> str | None:
        """Why a record was not counted; ``None`` where it was."""
        self._looked_up()
        return self._damage.get((place.shard, place.record))

    def _looked_up(self) -> dict[tuple[int, int], int]:
        if not self._of:
            index = open_dataset_index(self._dataset)
            table = table_of(self._dataset, index)
            check_count(self._dataset, table.samples, self._samples)
            places = zip(table.slice_of.tolist(), table.record_of.tolist(), strict=True)
            self._damage = {(slice_, record): why for slice_, record, why in index.damaged}
            self._of = dict(zip(places, table.counts.tolist(), strict=True))
        return self._of
