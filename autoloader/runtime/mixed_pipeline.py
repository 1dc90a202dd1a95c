"""What a pipeline of streams has behind its sources: decode pool, assembler and ring.

Theory of operation. Sources (a reader for each dataset, or one graph for all) put samples into
queues; a mixer says whose turn it is; the assembler takes samples from the queues, has the pool
decode them into a slot of the ring, and gives batches out in order. A kind of pipeline brings
sources, queues and mixer, and says here how they are started, retuned, parked and closed.

Invariants:
    1. An exception in any thread comes out of ``next``, with dataset and stage.
    2. ``close`` returns; it waits for threads at most ``CLOSE_S``, and threads are daemons.

Not here: sources (``runtime.pipeline``, ``runtime.graph_pipeline``), planned runs
(``runtime.indexed_pipeline``).
"""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autoloader.clock import Clock, SystemClock
from autoloader.errors import as_fault
from autoloader.knobs import Knobs
from autoloader.runtime.activity import DatasetActivity, PipelineActivity
from autoloader.runtime.assembler import Assembler, Turns, Waiting
from autoloader.runtime.filled import FilledBatch, PipelineStart
from autoloader.runtime.pool import DecodePool
from autoloader.runtime.quarantine import BadRecord, Quarantine
from autoloader.runtime.ring import RingMemory
from autoloader.runtime.row_jobs import Decoder
from autoloader.runtime.slots import SlotBook
from autoloader.sampling.resolve import ResolvedDataset, ResolvedMixture

logger = logging.getLogger(__name__)

CLOSE_S = 1.5


@dataclass(frozen=True, slots=True)
class SourceActivity:
    """What the source of one dataset has done; see ``DatasetActivity`` for each."""

    queue: int
    queue_bytes: int
    generations: int
    read_s: float
    episodes: int
    interruptions: int


class MixedPipeline(abc.ABC):
    """Runs one mixture whose samples come from streams.

    Args:
        mixture: what to run.
        knobs: values to begin with; checked by the caller.
        memory: the ring's memory.
        queues: by dataset index.
        mixer: who is next.
        decoders: by camera.
        quarantine, condition: shared with the sources.
        min_ready: datasets that must have a sample before the first batch is begun.
        start: where to begin.
        held: slots that the consumer still has from an earlier pipeline.
        cut: rows of batch n, where batches are not all full.
        clock: for stalls.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        knobs: Knobs,
        memory: RingMemory,
        *,
        queues: Sequence[Waiting],
        mixer: Turns,
        decoders: Mapping[str, Decoder],
        quarantine: Quarantine,
        condition: threading.Condition,
        min_ready: int,
        start: PipelineStart,
        held: Sequence[int],
        cut: Callable[[int], int] | None,
        clock: Clock | None,
    ) -> None:
        self._mixture = mixture
        self._knobs = knobs
        self._failure: BaseException | None = None
        self._closed = False
        self._quarantine = quarantine
        self._pool = DecodePool(
            knobs.decode_threads, datasets=len(mixture.datasets), failed=self._fail
        )
        self._slots = SlotBook(memory, knobs.ring_slots, held=held)
        self._assembler = Assembler(
            mixture.layout,
            queues=queues,
            mixer=mixer,
            pool=self._pool,
            decoders=decoders,
            memory=memory,
            slots=self._slots,
            quarantine=quarantine,
            condition=condition,
            names=mixture.names,
            clock=clock or SystemClock(),
            min_ready=min_ready,
            cut=cut,
            first_number=start.first_number,
            failed=self._fail,
        )

    @abc.abstractmethod
    def _start_sources(self) -> None:
        """Open what gives samples; must not wait for it."""

    @abc.abstractmethod
    def _retune_sources(self, knobs: Knobs) -> None:
        """Move the sources to other knobs."""

    @abc.abstractmethod
    def _close_sources(self) -> Sequence[Callable[[float], bool]]:
        """Have the sources end; what waits so long for each of their threads, and says whether."""

    @abc.abstractmethod
    def _source_activity(self, dataset: ResolvedDataset) -> SourceActivity:
        """What a dataset's source has done."""

    @abc.abstractmethod
    def park(self, parked: bool) -> None:
        """Stop admitting reads (True) or go on; the ring keeps what it has."""

    @property
    @abc.abstractmethod
    def settled(self) -> bool:
        """Whether every stream runs with the knobs in force."""

    @abc.abstractmethod
    def _check_sources(self) -> None:
        """No batch was ready in time: raises where the sources are why."""

    def start(self) -> None:
        """Open the sources and begin to fill batches."""
        self._start_sources()
        self._assembler.start()

    def next(self, timeout_s: float) -> FilledBatch | None:
        """The next batch, in order, or ``None`` where none was ready in time.

        Raises:
            AutoloaderError: a background part failed; names dataset and stage.
        """
        if self._failure is not None:
            raise as_fault(self._failure, "mix or decode")
        batch = self._assembler.next(timeout_s)
        if batch is None and self._failure is not None:
            raise as_fault(self._failure, "mix or decode")
        if batch is None:
            self._check_sources()
        else:
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
        self._retune_sources(knobs)
        self._pool.resize(knobs.decode_threads)
        self._slots.resize(knobs.ring_slots)

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
            index, source = dataset.index, self._source_activity(dataset)
            datasets[dataset.name] = DatasetActivity(
                queue=source.queue,
                queue_bytes=source.queue_bytes,
                taken=self._assembler.taken[index],
                stalls=self._assembler.stalls[index],
                quarantined=self._quarantine.count(index),
                generations=source.generations,
                decode_s=float(decode_s[index]),
                decoded=int(decoded[index]),
                frames=int(frames[index]),
                read_s=source.read_s,
                episodes=source.episodes,
                interruptions=source.interruptions,
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
        joins = [self._assembler.join, *self._close_sources()]
        self._slots.close()
        self._assembler.close()
        self._pool.close()
        deadline = time.monotonic() + CLOSE_S
        late = [join for join in joins if not join(max(0.0, deadline - time.monotonic()))]
        if late:
            logger.warning("%d threads are still waiting for their source", len(late))

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._assembler.close()
