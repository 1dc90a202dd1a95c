"""A running pipeline whose mixture lives in TensorFlow's graph (``mixing.strategy``).

It has the face of ``runtime.pipeline.Pipeline``, and fills the same batches: same keys, shapes and,
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
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoloader.clock import Clock, SystemClock
from autoloader.errors import UsageError, as_fault
from autoloader.knobs import Knobs
from autoloader.runtime.activity import DatasetActivity, PipelineActivity
from autoloader.runtime.arrivals import Arrivals
from autoloader.runtime.assembler import Assembler
from autoloader.runtime.decode import FrameDecoder
from autoloader.runtime.filled import FilledBatch, PipelineStart
from autoloader.runtime.pool import DecodePool
from autoloader.runtime.quarantine import BadRecord, Quarantine
from autoloader.runtime.ring import RingMemory
from autoloader.runtime.slots import SlotBook
from autoloader.sampling.episode import Encoded
from autoloader.sampling.order import MixtureOrder
from autoloader.sampling.resolve import ResolvedMixture
from autoloader.sampling.rows import RowSource

logger = logging.getLogger(__name__)

CLOSE_S = 1.5


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


class GraphPipeline:
    """Runs one mixture in the graph; see ``runtime.pipeline.Pipeline`` for the methods.

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
        self._mixture = mixture
        self._knobs = knobs
        self._failure: BaseException | None = None
        self._closed = False
        if any(knobs.for_dataset(name).shuffle_samples for name in mixture.names):
            logger.warning(
                "shuffle_samples is without effect in an in-graph mixture (mixing.strategy %s)",
                mixture.spec.mixing.strategy,
            )
        condition = threading.Condition()
        clock = clock or SystemClock()
        self._quarantine = Quarantine(mixture)
        self._arrivals = Arrivals(
            mixture,
            source,
            [cursor.copy() for cursor in start.cursors],
            _position(start.mixer),
            knobs,
            quarantine=self._quarantine,
            condition=condition,
            clock=clock,
            failed=self._fail,
        )
        self._pool = DecodePool(
            knobs.decode_threads, datasets=len(mixture.datasets), failed=self._fail
        )
        self._slots = SlotBook(memory, knobs.ring_slots, held=held)
        self._assembler = Assembler(
            mixture.layout,
            queues=self._arrivals.datasets,
            mixer=self._arrivals,
            pool=self._pool,
            decoders={
                camera: _DecodedOrNot(FrameDecoder(spec))
                for camera, spec in mixture.spec.cameras.items()
            },
            memory=memory,
            slots=self._slots,
            quarantine=self._quarantine,
            condition=condition,
            names=mixture.names,
            clock=clock,
            min_ready=1,
            cut=cut,
            first_number=start.first_number,
            failed=self._fail,
        )

    def start(self) -> None:
        """Open the graph and begin to fill batches."""
        self._arrivals.start()
        self._assembler.start()

    def next(self, timeout_s: float) -> FilledBatch | None:
        """See ``Pipeline.next``."""
        if self._failure is not None:
            raise as_fault(self._failure, "mix or decode")
        batch = self._assembler.next(timeout_s)
        if batch is None and self._failure is not None:
            raise as_fault(self._failure, "mix or decode")
        if batch is None:
            self._arrivals.check_flow()
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
        """Move to other knobs; those of the streams open the graph anew."""
        self._knobs = knobs
        self._arrivals.retune(knobs)
        self._pool.resize(knobs.decode_threads)
        self._slots.resize(knobs.ring_slots)

    def park(self, parked: bool) -> None:
        """Stop pulling (True) or go on; the ring keeps what it has, and so does the graph."""
        self._arrivals.park(parked)

    @property
    def settled(self) -> bool:
        """Whether the graph runs with the knobs in force."""
        return self._arrivals.settled

    @property
    def ready_batches(self) -> int:
        """Batches that are filled and not taken."""
        return self._assembler.filled + self._slots.untaken

    def drop(self) -> None:
        """Give the pages of free slots back."""
        self._slots.punch_free()

    def quarantined(self) -> tuple[BadRecord, ...]:
        """Bad records so far."""
        return self._quarantine.records()

    def activity(self) -> PipelineActivity:
        """What every part is doing; ``generations`` and ``read_s`` are those of the one graph."""
        decode_s, decoded, frames = self._pool.service()
        datasets = {}
        for dataset in self._mixture.datasets:
            index = dataset.index
            arrived = self._arrivals.datasets[index]
            datasets[dataset.name] = DatasetActivity(
                queue=arrived.pending,
                queue_bytes=arrived.held_bytes,
                taken=self._assembler.taken[index],
                stalls=self._assembler.stalls[index],
                quarantined=self._quarantine.count(index),
                generations=self._arrivals.generations,
                decode_s=float(decode_s[index]),
                decoded=int(decoded[index]),
                frames=int(frames[index]),
                read_s=self._arrivals.read_s,
                episodes=arrived.episodes,
                interruptions=self._arrivals.interruptions(index),
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
        self._arrivals.close()
        self._slots.close()
        self._assembler.close()
        self._pool.close()
        deadline = time.monotonic() + CLOSE_S
        for part in (self._assembler, self._arrivals):
            if not part.join(max(0.0, deadline - time.monotonic())):
                logger.warning("a thread is still waiting for the in-graph mixture")

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._assembler.close()


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
