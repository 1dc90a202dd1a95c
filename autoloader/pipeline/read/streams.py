"""The source of samples from streams: a reader and a queue for each dataset, and the mixer.

Theory of operation. All readers open side by side and fill their queues. The mixer says whose turn
it is; the sample comes from that dataset's queue. The first sample is given out when
``min_ready_datasets`` have one.

Not here: reading one dataset (``pipeline.read.stream_reader``), who is next
(``pipeline.read.mixer``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from autoloader.decode.activity import DatasetActivity
from autoloader.decode.batch_builder import SampleSource
from autoloader.decode.message import BatchMessage, PipelineStart
from autoloader.decode.quarantine import Quarantine
from autoloader.errors import AutoloaderError, SourceError
from autoloader.host.machine import usable_processors
from autoloader.host.threads import all_ended
from autoloader.pipeline.read.mixer import Mixer
from autoloader.pipeline.read.queues import SampleQueue
from autoloader.pipeline.read.record_counts import record_counts
from autoloader.pipeline.read.stream_reader import DatasetReader, opening_at_once
from autoloader.samples.block import EpisodeStream, SampleBlock
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.knobs import Knobs

logger = logging.getLogger(__name__)


class StreamSource(SampleSource):
    """Gives the samples of one mixture from its streams; see ``decode.batch_builder.SampleSource``.

    Args:
        mixture: the resolved mixture that is read.
        order: the order of the mixture's samples.
        knobs: values to begin with.
        open_stream: makes a dataset's stream; called on that dataset's thread.
        start: where to begin.
        world_size: ranks that stream a part of the mixture each.
        quarantine: told of bad records.
        condition: told when samples are there.
        failed: told of the exception that ends a reader.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        order: MixtureOrder,
        knobs: Knobs,
        open_stream: Callable[[ResolvedDataset], EpisodeStream],
        *,
        start: PipelineStart,
        world_size: int = 1,
        quarantine: Quarantine,
        condition: threading.Condition,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._mixture = mixture
        self._condition = condition
        self._failed = failed
        self._used = order.used
        self._min_ready = min(knobs.min_ready_datasets, sum(self._used))
        self._begun = False
        self._queues = [
            SampleQueue(
                dataset.key,
                condition,
                capacity=knobs.for_dataset(dataset.name).queue_samples,
                shuffle=knobs.for_dataset(dataset.name).shuffle_samples,
            )
            for dataset in mixture.datasets
        ]
        opening = threading.Semaphore(opening_at_once(usable_processors()))
        self._readers = [
            DatasetReader(
                dataset,
                open_stream,
                start.cursors[dataset.index].copy(),
                self._queues[dataset.index],
                knobs.for_dataset(dataset.name),
                quarantine=quarantine,
                opening=opening,
                counts=record_counts(dataset, order),
                failed=self._reader_failed,
            )
            for dataset in mixture.datasets
        ]
        self._mixer = Mixer(order, owe=not mixture.spec.mixing.waits, streams=world_size)
        if start.mixer is not None:
            self._mixer.restore(start.mixer)

    def start(self) -> None:
        """Open all streams side by side, the heaviest first; none of a dataset without a share."""
        for dataset in sorted(self._mixture.datasets, key=lambda dataset: -dataset.weight):
            if self._used[dataset.index]:
                self._readers[dataset.index].start()

    def take(self, count: int) -> tuple[SampleBlock, int, int] | None:
        """See ``SampleSource.take``."""
        del count
        if not self._begun:
            ready = sum(queue.pending > 0 for queue in self._queues)
            if ready < min(self._min_ready, self._live()):
                return None
            self._begun = True
        dataset = self._mixer.next(self._is_ready)
        if dataset is None:
            return None
        return (*self._queues[dataset].take(), 1)

    def _is_ready(self, dataset: int, samples: int) -> bool:
        return self._queues[dataset].pending >= samples

    def finish(self, batch: BatchMessage) -> None:
        """See ``SampleSource.finish``."""
        batch.empties = [place for queue in self._queues for place in queue.take_empties()]
        batch.mixer = self._mixer.snapshot()

    def stalled(self, waited_s: float) -> Sequence[int] | None:
        """See ``SampleSource.stalled``."""
        names = self._mixture.names
        if not self._begun:
            late = [
                f"{name} ({reader.awaits})" if reader.awaits else name
                for name, queue, used, reader in zip(
                    names, self._queues, self._used, self._readers, strict=True
                )
                if used and not queue.pending
            ]
            logger.warning(
                "%d/%d datasets ready, %d wanted to begin; waiting for %s",
                len(names) - len(late),
                len(names),
                self._min_ready,
                ", ".join(late[:5]) + (" …" if len(late) > 5 else ""),
            )
            return ()
        dataset = self._mixer.waiting_for
        if dataset is None:
            return None
        logger.warning(
            "dataset %s has given nothing for %.0f s; the mixture waits for it",
            names[dataset],
            waited_s,
        )
        return (dataset,)

    def retune(self, knobs: Knobs) -> None:
        """See ``SampleSource.retune``."""
        for dataset in self._mixture.datasets:
            if not self._used[dataset.index]:
                continue
            own = knobs.for_dataset(dataset.name)
            self._queues[dataset.index].limit(
                capacity=own.queue_samples, shuffle=own.shuffle_samples
            )
            self._readers[dataset.index].retune(own)

    def park(self, parked: bool) -> None:
        """See ``SampleSource.park``."""
        for queue in self._queues:
            queue.park(parked)

    @property
    def settled(self) -> bool:
        """Whether every stream runs with the knobs in force."""
        return all(reader.settled for reader in self._readers)

    def activity(self) -> list[DatasetActivity]:
        """See ``SampleSource.activity``."""
        return [
            DatasetActivity(
                queue=queue.pending,
                queue_bytes=queue.held_bytes,
                generations=reader.generations,
                read_s=reader.read_s,
                episodes=reader.episodes,
                interruptions=reader.interruptions,
                awaits="" if queue.pending else reader.awaits,
            )
            for queue, reader in zip(self._queues, self._readers, strict=True)
        ]

    def close(self) -> None:
        """Stop all readers after the episode in hand; does not wait."""
        for reader in self._readers:
            reader.close()
        for queue in self._queues:
            queue.close()

    def join(self, within_s: float | None) -> bool:
        """See ``SampleSource.join``."""
        return all_ended([reader.thread for reader in self._readers], within_s)

    def _reader_failed(self, dataset: int, error: AutoloaderError) -> None:
        drop = self._mixture.spec.errors.dead_dataset == "drop"
        if drop and isinstance(error, SourceError) and self._live() > 1:
            logger.error("going on without dataset %s: %s", self._mixture.names[dataset], error)
            with self._condition:
                self._queues[dataset].park(True)
                self._mixer.drop(dataset)
                self._condition.notify_all()
            return
        self._failed(error)

    def _live(self) -> int:
        return sum(self._used) - len(self._mixer.snapshot()["dropped"])
