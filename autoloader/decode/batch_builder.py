"""Builds batches: a source of samples, an assembler and a decode pool.

Theory of operation. A builder is assigned runs (spans of positions, one a batch) and is given one
slot for each of their batches, in the same order; it hands the filled batches out in that order.
It neither knows what other builders do nor where the sequence ends. One may live in the pipeline's
own process, or one in each of several light processes (``pipeline.decode_process``).

Not here: who is assigned what (``sampling.dealing``), the slots' numbers (``decode.ring``).
"""

from __future__ import annotations

import collections
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable

from autoloader.cache.disk import FramesOnDisk
from autoloader.decode.activity import BuilderActivity
from autoloader.decode.assembler import Assembler
from autoloader.decode.decoders import decoders_of
from autoloader.decode.message import BatchMessage
from autoloader.decode.pool import DecodePool
from autoloader.decode.quarantine import Quarantine
from autoloader.decode.ring import RingMemory
from autoloader.decode.source import MakeSource, Spans
from autoloader.errors import as_fault
from autoloader.host.clock import Clock, SystemClock
from autoloader.host.threads import LoaderThread
from autoloader.samples.resolve import ResolvedMixture
from autoloader.spec.knobs import Knobs

logger = logging.getLogger(__name__)

READ_S = 1.5
"""So long is waited for threads that read: they write to no memory that others use."""


class BatchBuilder:
    """Fills the batches of the runs it is assigned, in this process.

    Args:
        mixture: the resolved mixture that is read.
        source: makes what gives the samples.
        knobs: to begin with; where several builders share the work, this one's share.
        memory: the ring.
        quarantine: told of undecodable frames.
        disk: where decoded frames may lie; ``None``: nowhere.
        clock: time source for the detection of stalls.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        source: MakeSource,
        knobs: Knobs,
        memory: RingMemory,
        quarantine: Quarantine,
        *,
        disk: FramesOnDisk | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._disk = disk
        self._loaded_before = 0 if disk is None else disk.loaded
        self._failure: BaseException | None = None
        self._closed = self._ends_late = False
        self._rows: collections.deque[int] = collections.deque()
        self._slots: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        condition = threading.Condition()
        failed = _weak_callback(weakref.WeakMethod(self._fail))
        # One number more than there are datasets: rows that are copied from the frame cache.
        self._pool = DecodePool(
            knobs.decode_threads, datasets=len(mixture.datasets) + 1, failed=failed
        )
        self._source = source(knobs, quarantine, condition, failed)
        self._assembler = Assembler(
            mixture.layout,
            source=self._source,
            rows=self._rows.popleft,
            pool=self._pool,
            decoders=decoders_of(mixture, disk),
            memory=memory,
            slots=self._slots,
            quarantine=quarantine,
            condition=condition,
            names=mixture.names,
            clock=clock or SystemClock(),
            failed=failed,
        )
        self._source.start()
        self._assembler.start()

    here = True
    pids: tuple[int, ...] = ()

    def assign(self, spans: Spans) -> None:
        """A run to fill, after those assigned before."""
        self._rows.extend(stop - start for start, stop in spans)
        self._source.assign(spans)

    def give(self, slot: int) -> None:
        """A slot for the next batch that has none; its run is assigned already."""
        self._slots.put(slot)

    def next(self, timeout_s: float) -> BatchMessage | None:
        """The next filled batch, numbered from 0; ``None`` where none is ready in time.

        Raises:
            AutoloaderError: whatever ended a thread.
        """
        batch = self._assembler.next(timeout_s) if self._failure is None else None
        if batch is None and self._failure is not None:
            raise as_fault(self._failure, "read")
        return batch

    def retune(self, knobs: Knobs) -> None:
        """Move to other knobs; nothing where it is closed."""
        self._source.retune(knobs)
        self._pool.resize(knobs.decode_threads)

    def park(self, parked: bool) -> None:
        """Stop reading (True) or go on."""
        self._source.park(parked)

    def drop(self) -> None:
        """Give back what is read ahead; it is read again."""
        self._source.drop()

    @property
    def settled(self) -> bool:
        """Whether the source reads with the knobs in force."""
        return self._source.settled

    @property
    def filled(self) -> int:
        """Batches ready to be handed out."""
        return self._assembler.filled

    def activity(self) -> BuilderActivity:
        """What it has done so far."""
        decode_s, decoded, frames = (each.tolist() for each in self._pool.service())
        datasets = self._source.activity()
        for k, own in enumerate(datasets):
            own.taken, own.stalls = self._assembler.taken[k], self._assembler.stalls[k]
            own.decode_s, own.decoded, own.frames = decode_s[k], decoded[k], frames[k]
        return BuilderActivity(
            datasets,
            self._source.run_bytes,
            self._source.read_bytes,
            self._source.reading_s,
            gather_s=decode_s[-1],
            gathered=decoded[-1],
            from_disk=0 if self._disk is None else self._disk.loaded - self._loaded_before,
        )

    def close(self, within_s: float) -> bool:
        """End all threads; drops what is under way.

        May be called again, to wait longer. Frames of the frame cache stay pinned until all threads
        have ended.

        Returns:
            Whether nobody writes into slots any more. Threads may still wait for their source.
        """
        if not self._closed:
            self._closed = True
            self._source.close()
            self._assembler.close()
            self._pool.close()
        deadline = time.monotonic() + within_s
        written = self._writers_ended(within_s)
        read = written and self._source.join(max(0.0, min(READ_S, deadline - time.monotonic())))
        if not read and not self._ends_late:
            self._ends_late = True
            if written:
                logger.warning("threads that read are still waiting for their source")
            LoaderThread(target=self._end_late, name="autoloader-end").start()
        return written

    def _writers_ended(self, within_s: float | None) -> bool:
        deadline = None if within_s is None else time.monotonic() + within_s
        mixed = self._assembler.join(within_s)
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        return self._pool.join(left_s) and mixed

    def _end_late(self) -> None:
        """Wait for threads that did not end in time: what they use is given up behind them."""
        self._writers_ended(None)
        self._source.join(None)

    @property
    def slots(self) -> frozenset[int]:
        """Slots that its threads write to."""
        return self._assembler.slots | self._pool.slots

    @property
    def leased_frames(self) -> int:
        """Frames of the frame cache that it has pinned."""
        return self._source.leased_frames

    def _fail(self, error: BaseException) -> None:
        if self._failure is None and not self._closed:
            self._failure = error
        self._assembler.close()


def _weak_callback(
    fail: weakref.WeakMethod[Callable[[BaseException], None]],
) -> Callable[[BaseException], None]:
    """Calls ``fail`` while its owner lives; does not keep the owner, and what it holds, alive."""

    def failed(error: BaseException) -> None:
        if (alive := fail()) is not None:
            alive(error)

    return failed
