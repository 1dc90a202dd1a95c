"""Fills batches of planned samples: a reader, a mixer's place taken by the plan, a decode pool.

Theory of operation. A filler is assigned runs (spans of positions, one a batch) and is given one
slot for each of their batches, in the same order; it hands the filled batches out in that order.
It neither knows what other fillers do nor where the sequence ends. One may live in the pipeline's
own process, or one in each of several light processes (``runtime.fill_process``).

Not here: who is assigned what (``sampling.dealing``), the slots' numbers (``runtime.slots``).
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from autoloader.clock import Clock, SystemClock
from autoloader.errors import as_fault
from autoloader.index.dataset import DatasetIndex
from autoloader.index.plan import SamplePlan
from autoloader.runtime.decode import FrameDecoder
from autoloader.runtime.filled import FilledBatch
from autoloader.runtime.planned import PlannedReader, Spans
from autoloader.runtime.pool import DecodePool
from autoloader.runtime.quarantine import Quarantine
from autoloader.runtime.ring import RingMemory
from autoloader.runtime.run_assembler import RunAssembler
from autoloader.sampling.resolve import ResolvedMixture


@dataclass(frozen=True, slots=True)
class FillerKnobs:
    """The part of the knobs that a filler works with; its share where there are several."""

    decode_threads: int
    io_threads: int
    read_ahead: int


@dataclass(frozen=True, slots=True)
class FillerActivity:
    """What a filler has done so far.

    Attributes:
        taken: [D] samples mixed.
        stalls: [D] times it waited 5 s for a dataset.
        decode_s, decoded, frames: [D] seconds of decoding, samples and frames decoded.
        wait_s: time it waited for its reader.
        ahead: samples read and not yet mixed.
        waiting: samples waiting for a decode thread.
        read_s: seconds of work of its read threads.
        run_bytes: of the memory that its last run was read into; 0: none was.
    """

    taken: Sequence[int]
    stalls: Sequence[int]
    decode_s: Sequence[float]
    decoded: Sequence[int]
    frames: Sequence[int]
    wait_s: float = 0.0
    ahead: int = 0
    waiting: int = 0
    read_s: float = 0.0
    run_bytes: int = 0

    @classmethod
    def none(cls, datasets: int) -> FillerActivity:
        """Nothing yet."""
        return cls([0] * datasets, [0] * datasets, [0.0] * datasets, [0] * datasets, [0] * datasets)

    def plus(self, other: FillerActivity) -> FillerActivity:
        """Both together."""
        return FillerActivity(
            [a + b for a, b in zip(self.taken, other.taken, strict=True)],
            [a + b for a, b in zip(self.stalls, other.stalls, strict=True)],
            [a + b for a, b in zip(self.decode_s, other.decode_s, strict=True)],
            [a + b for a, b in zip(self.decoded, other.decoded, strict=True)],
            [a + b for a, b in zip(self.frames, other.frames, strict=True)],
            self.wait_s + other.wait_s,
            self.ahead + other.ahead,
            self.waiting + other.waiting,
            self.read_s + other.read_s,
            max(self.run_bytes, other.run_bytes),
        )


class GivenSlots:
    """Slots in the order in which they were given; see ``assembler.Slots``."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._slots: collections.deque[int] = collections.deque()
        self._closed = False

    def give(self, slot: int) -> None:
        """One more."""
        with self._condition:
            self._slots.append(slot)
            self._condition.notify()

    def acquire(self) -> int | None:
        """The next one; waits for it. ``None`` once closed."""
        with self._condition:
            while not self._closed and not self._slots:
                self._condition.wait()
            return None if self._closed else self._slots.popleft()

    def close(self) -> None:
        """Wake whoever waits."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()


class Filler:
    """Fills the batches of the runs it is assigned, in this process.

    Args:
        mixture: what is read.
        plan, indexes: the samples, and where they lie.
        knobs: to begin with.
        memory: the ring.
        quarantine: told of undecodable frames.
        clock: for stalls.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        plan: SamplePlan,
        indexes: Sequence[DatasetIndex],
        knobs: FillerKnobs,
        memory: RingMemory,
        quarantine: Quarantine,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._failure: BaseException | None = None
        self._closed = False
        self._rows: collections.deque[int] = collections.deque()
        self._slots = GivenSlots()
        condition = threading.Condition()
        self._pool = DecodePool(
            knobs.decode_threads, datasets=len(mixture.datasets), failed=self._fail
        )
        self._reader = PlannedReader(
            mixture,
            plan,
            indexes,
            io_threads=knobs.io_threads,
            read_ahead=knobs.read_ahead,
            condition=condition,
            failed=self._fail,
        )
        self._assembler = RunAssembler(
            mixture.layout,
            reader=self._reader,
            rows=self._rows.popleft,
            pool=self._pool,
            decoders={camera: FrameDecoder(spec) for camera, spec in mixture.spec.cameras.items()},
            memory=memory,
            slots=self._slots,
            quarantine=quarantine,
            condition=condition,
            names=mixture.names,
            clock=clock or SystemClock(),
            chained=any(plan.chained),
            failed=self._fail,
        )
        self._assembler.start()

    def assign(self, spans: Spans) -> None:
        """A run to fill, after those assigned before."""
        self._rows.extend(stop - start for start, stop in spans)
        self._reader.assign(spans)

    def give(self, slot: int) -> None:
        """A slot for the next batch that has none; its run is assigned already."""
        self._slots.give(slot)

    def next(self, timeout_s: float) -> FilledBatch | None:
        """The next filled batch, numbered from 0; ``None`` where none is ready in time.

        Raises:
            AutoloaderError: whatever ended a thread.
        """
        batch = self._assembler.next(timeout_s) if self._failure is None else None
        if batch is None and self._failure is not None:
            raise as_fault(self._failure, "read")
        return batch

    def retune(self, knobs: FillerKnobs) -> None:
        """Move to other knobs."""
        self._reader.resize(knobs.io_threads, knobs.read_ahead)
        self._pool.resize(knobs.decode_threads)

    def park(self, parked: bool) -> None:
        """Stop reading (True) or go on."""
        self._reader.park(parked)

    def drop(self) -> None:
        """Give back what is read ahead; it is read again."""
        self._reader.drop()

    @property
    def filled(self) -> int:
        """Batches ready to be handed out."""
        return self._assembler.filled

    def activity(self) -> FillerActivity:
        """What it has done so far."""
        decode_s, decoded, frames = self._pool.service()
        return FillerActivity(
            list(self._assembler.taken),
            list(self._assembler.stalls),
            decode_s.tolist(),
            decoded.tolist(),
            frames.tolist(),
            self._assembler.wait_s,
            self._reader.ready_samples(),
            self._pool.waiting,
            self._reader.busy_s,
            self._reader.run_bytes,
        )

    def close(self, within_s: float) -> bool:
        """End all threads; drops what is under way. Whether all ended in time."""
        self._closed = True
        self._slots.close()
        self._reader.close()
        self._assembler.close()
        self._pool.close()
        deadline = time.monotonic() + within_s
        parts = (self._assembler, self._reader)
        ended = [part.join(max(0.0, deadline - time.monotonic())) for part in parts]
        return all(ended)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None and not self._closed:
            self._failure = error
        self._assembler.close()
