"""A pipeline with a stream for each dataset: readers and queues, and a mixer that Python runs.

The same pipeline runs in the loader's child (``worker``) and, for debugging, in the trainer's own
process. Whoever holds it calls ``next`` and gives slots back by ``release``.

Not here: what is behind the queues (``runtime.mixed_pipeline``), choosing knobs (``profile``,
``controller``), tensors (``batch``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from autoloader.clock import Clock
from autoloader.errors import AutoloaderError, SourceError
from autoloader.knobs import Knobs
from autoloader.processors import usable_processors
from autoloader.runtime.decode import FrameDecoder
from autoloader.runtime.filled import PipelineStart
from autoloader.runtime.mixed_pipeline import MixedPipeline, SourceActivity
from autoloader.runtime.mixer import Mixer
from autoloader.runtime.quarantine import Quarantine
from autoloader.runtime.queues import SampleQueue
from autoloader.runtime.readers import Reader, opening_at_once
from autoloader.runtime.ring import RingMemory
from autoloader.sampling.counts import samples_of_records
from autoloader.sampling.episode import Place
from autoloader.sampling.order import MixtureOrder
from autoloader.sampling.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.source import EpisodeSource

logger = logging.getLogger(__name__)

SourceFactory = Callable[[ResolvedDataset], EpisodeSource]


class Pipeline(MixedPipeline):
    """Runs one mixture; see ``runtime.mixed_pipeline``.

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
        self._condition = threading.Condition()
        quarantine = Quarantine(mixture)
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
                quarantine=quarantine,
                opening=opening,
                counted=_Counted(dataset) if order.pass_samples and not dataset.remote else None,
                failed=self._reader_failed,
            )
            for dataset in mixture.datasets
        ]
        self._mixer = Mixer(order, owe=mixture.spec.mixing.on_stall != "wait")
        if start.mixer is not None:
            self._mixer.restore(start.mixer)
        super().__init__(
            mixture,
            knobs,
            memory,
            queues=self._queues,
            mixer=self._mixer,
            decoders={camera: FrameDecoder(spec) for camera, spec in mixture.spec.cameras.items()},
            quarantine=quarantine,
            condition=self._condition,
            min_ready=min(knobs.min_ready_datasets, len(mixture.datasets)),
            start=start,
            held=held,
            cut=cut,
            clock=clock,
        )

    def _start_sources(self) -> None:
        """All streams side by side, the heaviest first."""
        for dataset in sorted(self._mixture.datasets, key=lambda dataset: -dataset.weight):
            self._readers[dataset.index].start()

    def _check_sources(self) -> None:
        """A reader says itself when it has waited long."""

    def _retune_sources(self, knobs: Knobs) -> None:
        for dataset in self._mixture.datasets:
            own = knobs.for_dataset(dataset.name)
            self._queues[dataset.index].limit(
                capacity=own.queue_samples, shuffle=own.shuffle_samples
            )
            self._readers[dataset.index].retune(own)

    def park(self, parked: bool) -> None:
        """See ``MixedPipeline``."""
        for queue in self._queues:
            queue.park(parked)

    @property
    def settled(self) -> bool:
        """See ``MixedPipeline``."""
        return all(reader.settled for reader in self._readers)

    def _source_activity(self, dataset: ResolvedDataset) -> SourceActivity:
        queue, reader = self._queues[dataset.index], self._readers[dataset.index]
        return SourceActivity(
            queue=queue.pending,
            queue_bytes=queue.held_bytes,
            generations=reader.generations,
            read_s=reader.read_s,
            episodes=reader.episodes,
            interruptions=reader.interruptions,
        )

    def _close_sources(self) -> Sequence[Callable[[float], bool]]:
        for reader in self._readers:
            reader.close()
        for queue in self._queues:
            queue.close()
        return [reader.join for reader in self._readers]

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


class _Counted:
    """Samples that were counted of a dataset's records; looked up when first asked."""

    def __init__(self, dataset: ResolvedDataset) -> None:
        self._dataset = dataset
        self._of: NDArray[np.int64] | None = None
        before = np.cumsum([0, *(piece.records for piece in dataset.slices)]).tolist()
        starts = [piece.start for piece in dataset.slices]
        self._first = [row - start for row, start in zip(before, starts, strict=False)]

    def __call__(self, place: Place) -> int:
        if self._of is None:
            self._of = samples_of_records(self._dataset)
        return int(self._of[self._first[place.shard] + place.record])
