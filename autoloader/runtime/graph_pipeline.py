"""A running pipeline whose mixture lives in TensorFlow's graph (``mixing.strategy``).

It fills the same batches as ``runtime.pipeline``: same keys, shapes and,
for every row, the same values. What differs is the order, and who waits: an in-graph mixture waits
for each dataset in turn and owes none (``on_stall`` has no say), one dataset cannot be dropped, and
``shuffle_samples`` is without effect. With ``decode: graph`` a ``python`` mixture runs here too, as
``choose``.

Retune and resume are one thing here too: the graph is opened anew at the cursors and at the
position in the mixture's order. ``FilledBatch.mixer`` holds that position, ``{"samples": n}``.

Frames are decoded by the pool; with ``decode: graph`` by TensorFlow's kernels inside the graph,
except for frames that do not look whole, which the pool decodes or quarantines. Should a kernel
fail all the same, decoding goes on in the pool for the rest of the run, and says so.

Not here: pulling and counting (``runtime.arrivals``), the graph (``graph.mixture``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoloader.clock import Clock, SystemClock
from autoloader.errors import UsageError
from autoloader.knobs import Knobs
from autoloader.runtime.arrivals import Arrivals
from autoloader.runtime.decode import FrameDecoder
from autoloader.runtime.filled import PipelineStart
from autoloader.runtime.mixed_pipeline import MixedPipeline, SourceActivity
from autoloader.runtime.quarantine import Quarantine
from autoloader.runtime.ring import RingMemory
from autoloader.sampling.episode import Encoded
from autoloader.sampling.order import MixtureOrder
from autoloader.sampling.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.rows import RowSource

logger = logging.getLogger(__name__)


class _DecodedOrNot:
    """Copies a picture that the graph has decoded; decodes what it has left encoded."""

    def __init__(self, decoder: FrameDecoder) -> None:
        self._decoder = decoder

    def decode_into(self, encoded: Encoded | np.ndarray, out: np.ndarray) -> None:
        """See ``FrameDecoder.decode_into``."""
        if isinstance(encoded, np.ndarray):
            out[:] = encoded
        else:
            self._decoder.decode_into(encoded, out)


class GraphPipeline(MixedPipeline):
    """Runs one mixture in the graph; see ``runtime.mixed_pipeline``.

    Args:
        mixture: what to run.
        order: its order.
        knobs: values to begin with; checked by the caller.
        memory: the ring's memory.
        source: makes the graph (``graph.mixture.MixtureStream``); called on a thread of its own.
        start: where to begin.
        held: slots that the consumer still has from an earlier pipeline.
        cut: rows of batch n, where batches are not all full.
        clock: for stalls.

    Raises:
        UsageError: ``start`` was saved by a pipeline whose mixture is not in the graph.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        order: MixtureOrder,
        knobs: Knobs,
        memory: RingMemory,
        source: Callable[[], RowSource],
        *,
        start: PipelineStart,
        held: Sequence[int] = (),
        cut: Callable[[int], int] | None = None,
        clock: Clock | None = None,
    ) -> None:
        del order  # the graph's affair
        if any(knobs.for_dataset(name).shuffle_samples for name in mixture.names):
            logger.warning(
                "shuffle_samples is without effect in an in-graph mixture (mixing.strategy %s)",
                mixture.spec.mixing.strategy,
            )
        condition, quarantine = threading.Condition(), Quarantine(mixture)
        self._arrivals = Arrivals(
            mixture,
            source,
            [cursor.copy() for cursor in start.cursors],
            _position(start.mixer),
            knobs,
            quarantine=quarantine,
            condition=condition,
            clock=clock or SystemClock(),
            failed=self._fail,
        )
        super().__init__(
            mixture,
            knobs,
            memory,
            queues=self._arrivals.datasets,
            mixer=self._arrivals,
            decoders={
                camera: _DecodedOrNot(FrameDecoder(spec))
                for camera, spec in mixture.spec.cameras.items()
            },
            quarantine=quarantine,
            condition=condition,
            min_ready=1,
            start=start,
            held=held,
            cut=cut,
            clock=clock,
        )

    def _start_sources(self) -> None:
        self._arrivals.start()

    def _check_sources(self) -> None:
        self._arrivals.check_flow()

    def _retune_sources(self, knobs: Knobs) -> None:
        """Knobs of the streams open the graph anew."""
        self._arrivals.retune(knobs)

    def park(self, parked: bool) -> None:
        """See ``MixedPipeline``; the graph keeps what it has, too."""
        self._arrivals.park(parked)

    @property
    def settled(self) -> bool:
        """Whether the graph runs with the knobs in force."""
        return self._arrivals.settled

    def _source_activity(self, dataset: ResolvedDataset) -> SourceActivity:
        """``generations`` and ``read_s`` are those of the one graph."""
        arrived = self._arrivals.datasets[dataset.index]
        return SourceActivity(
            queue=arrived.pending,
            queue_bytes=arrived.held_bytes,
            generations=self._arrivals.generations,
            read_s=self._arrivals.read_s,
            episodes=arrived.episodes,
            interruptions=self._arrivals.interruptions(dataset.index),
        )

    def _close_sources(self) -> Sequence[Callable[[float], bool]]:
        self._arrivals.close()
        return [self._arrivals.join]


def _position(mixer: dict[str, Any] | None) -> int:
    if mixer is None:
        return 0
    if "samples" not in mixer:
        raise UsageError(
            "the saved state is of a mixture outside the graph, and this one is in it "
            "(mixing.strategy, decode)",
            remedy="resume with the mixing.strategy and decode that the state was saved with",
        )
    return int(mixer["samples"])
