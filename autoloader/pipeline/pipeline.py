"""Runs one mixture: deals batches to builders, gives them slots, hands filled batches out in order.

Theory of operation. After ``start`` a thread opens the reader (which may build an index), then
deals batches to the builders (``order.dealing``) and gives each batch a slot as slots become
free. With ``decode_processes`` 1, and for streams, there is one builder, in this process; with more
there are as many light processes. A change of their number applies from the next round on: builders
that get no more rounds are closed when their last batch is handed out.

The same pipeline runs in the loader's child (``worker``) and, for debugging, in the trainer's own
process. Whoever holds it calls ``next`` and gives slots back by ``release``.

Invariants:
    1. An exception in any thread comes out of ``next``, with dataset and stage.
    2. ``close`` returns; it waits for threads as long as it is told, and threads are daemons.
    3. Once it is closed nothing begins in it any more, and ``slots`` says which slots are written
       to nonetheless: nobody may use these before that is over.

Not here: what the readers read (``read.streams``, ``read.planned``), building a batch
(``decode.batch_builder``), choosing knobs (``profile``, ``controller``), tensors (``batch``).
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoloader.cache.disk import FramesOnDisk
from autoloader.cache.slab import private_bytes
from autoloader.cache.table import CacheCounts, FrameCosts
from autoloader.clock import Clock
from autoloader.decode.activity import BuilderActivity, PipelineActivity
from autoloader.decode.batch_builder import BatchBuilder
from autoloader.decode.quarantine import BadRecord, Quarantine
from autoloader.decode.source import SampleSource
from autoloader.errors import AutoloaderError, as_fault
from autoloader.host.threads import LoaderThread
from autoloader.knobs import Knobs
from autoloader.order.dealing import Deal, Rounds
from autoloader.ring.memory import RingMemory
from autoloader.ring.message import BatchMessage
from autoloader.ring.slots import SlotPool
from autoloader.samples.resolve import ResolvedMixture

if TYPE_CHECKING:
    from autoloader.pipeline.batch_call import BatchCall
    from autoloader.pipeline.decode_client import RemoteBuilder
    from autoloader.sharing.builder import SharedBuilder

logger = logging.getLogger(__name__)

CLOSE_S = 1.5
STUCK_S = 5.0
"""A thread that still writes so long after it was told to end is not waited for."""


LocalBuilder: TypeAlias = "BatchBuilder | RemoteBuilder"
"""Builds batches on this host, in this process or in another one."""
Builder: TypeAlias = "LocalBuilder | SharedBuilder"
"""Builds batches, wherever."""


class MixtureReader(ABC):
    """What a pipeline asks of the reader of its mixture; by default it reads in this process."""

    def open(self, quarantine: Quarantine) -> None:  # noqa: B027 most readers open as they read
        """Open what must be there before anything is read; may take long, and is called once."""

    @abstractmethod
    def source(
        self,
        knobs: Knobs,
        quarantine: Quarantine,
        condition: threading.Condition,
        failed: Callable[[BaseException], None],
    ) -> SampleSource:
        """What gives the samples to a builder in this process."""

    def processes(self, knobs: Knobs) -> int:
        """How many processes build batches: 1 is this one."""
        del knobs
        return 1

    def remote(self, knobs: Knobs, memory: RingMemory, quarantine: Quarantine) -> LocalBuilder:
        """A builder in a process of its own; asked only where ``processes`` is more than 1."""
        raise NotImplementedError

    def shared(
        self,
        make: Callable[[Knobs, bool], LocalBuilder],
        knobs: Knobs,
        memory: RingMemory,
        quarantine: Quarantine,
    ) -> SharedBuilder | None:
        """The one builder that shares its batches with other hosts; ``None``: they are built here.

        Args:
            make: makes a builder here: its share of the knobs, and whether it is in this process.
            knobs: to begin with.
            memory: the ring.
            quarantine: told of bad records.
        """
        del make, knobs, memory, quarantine
        return None

    def run_samples(self, knobs: Knobs) -> int:
        """Samples that a builder should read together; 1 takes each batch as its samples come."""
        del knobs
        return 1

    def hold(self, cache_bytes: int, costs: FrameCosts) -> None:  # noqa: B027 streams hold nothing
        """Hold so many bytes of decoded frames, by what decoding them costs, from now on."""

    def held(self) -> CacheCounts:
        """What is held of decoded frames."""
        return CacheCounts()

    def close(self) -> None:  # noqa: B027 most readers have nothing to close
        """All builders have ended, or were given up."""


class Pipeline:
    """Runs one mixture.

    Args:
        mixture: what to run.
        reader: reads it.
        knobs: values to begin with; checked by the caller.
        memory: the ring's memory.
        deal: which positions each batch takes.
        held: slots that the consumer still has from an earlier pipeline.
        stuck: slots that threads of an earlier pipeline still write to.
        disk: where decoded frames may lie; ``None``: nowhere.
        clock: for stalls.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        reader: MixtureReader,
        knobs: Knobs,
        memory: RingMemory,
        *,
        deal: Deal,
        held: Sequence[int] = (),
        stuck: Collection[int] = (),
        disk: FramesOnDisk | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._mixture = mixture
        self._disk = disk
        self._reader = reader
        self._knobs = knobs
        self._memory = memory
        self._number = deal.first_number
        self._rounds = Rounds(deal)
        self._clock = clock
        self._failure: BaseException | None = None
        self._closed = False
        self._parked = False
        self.opened = False
        """Whether the reader is open."""
        self._lock = threading.Lock()
        self._taking = threading.RLock()
        self._calls_for = -1
        self._dealt = threading.Condition(self._lock)
        self._quarantine = Quarantine(mixture)
        self._slots = SlotPool(memory, knobs.ring_slots, held=held, stuck=stuck)
        self._builders: list[Builder] = []
        self._shared: SharedBuilder | None = None
        self._leaving: list[Builder] = []
        self._unslotted: collections.deque[Builder] = collections.deque()
        self._under_way: collections.deque[Builder] = collections.deque()
        self._round_batches = 0
        self._call: BatchCall | None = None
        if mixture.spec.batch.call:
            from autoloader.pipeline.batch_call import BatchCall  # most mixtures have none

            self._call = BatchCall(mixture)
        self._ended: BuilderActivity | None = None
        self.at_close: Callable[[], object] = lambda: None
        """Called once, when all has ended."""
        self._dealing = LoaderThread(target=self._run, name="autoloader-deal")

    def start(self) -> None:
        """Open the reader, then read and fill batches."""
        self._dealing.start()

    def _run(self) -> None:
        try:
            self._reader.open(self._quarantine)
            self.opened = True
            self._hold()
            with self._lock:
                if not self._closed:
                    self._deal()
            while (slot := self._slots.acquire()) is not None:
                with self._dealt:
                    if self._closed:
                        return
                    self._deal()
                    builder = self._unslotted.popleft()
                    builder.give(slot)
                    self._under_way.append(builder)
                    self._dealt.notify_all()
        except Exception as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
            self._fail(error)

    def _hold(self) -> None:
        self._reader.hold(self._knobs.cache_bytes, self._frame_costs)

    def _frame_costs(self) -> NDArray[np.float64]:
        """[D] seconds of a decode, so far; NaN where there was none."""
        done = self._builder_activity().datasets
        decode_s = np.asarray([one.decode_s for one in done])
        frames = np.asarray([one.frames or np.nan for one in done])
        return np.asarray(decode_s / frames)

    def _deal(self) -> None:
        """Keep ``read_ahead`` rounds dealt that have no slots yet; under the lock."""
        if len(self._builders) != self._processes:
            self._adjust_builders()
        samples, shared = self._reader.run_samples(self._knobs), self._shared
        while len(self._unslotted) <= max(
            self._knobs.read_ahead * self._round_batches, shared.ahead if shared else 0
        ):
            runs = self._rounds.next(shared.width if shared else len(self._builders), samples)
            self._round_batches = sum(map(len, runs))
            if shared is not None:
                shared.deal(runs)
                self._unslotted += [shared] * self._round_batches
                continue
            for builder, spans in zip(self._builders, runs, strict=True):
                builder.assign(spans)
            self._unslotted += [self._builders[k % len(runs)] for k in range(self._round_batches)]

    @property
    def _processes(self) -> int:
        """How many builders the knobs ask for; one that shares its batches has others inside."""
        return 1 if self._shared is not None else self._reader.processes(self._knobs)

    def _adjust_builders(self) -> None:
        """Have as many builders as the knobs say; under the lock."""
        if not self._builders:
            self._shared = self._reader.shared(
                self._new_builder, self._knobs, self._memory, self._quarantine
            )
            if self._shared is not None:
                self._shared.park(self._parked)
                self._builders = [self._shared]
                return
        wanted = self._processes
        here = wanted == 1
        kept = [one for one in self._builders if one.here is here][:wanted]
        for share in self._knobs.shares(wanted)[len(kept) :]:
            builder = self._new_builder(share, here)
            builder.park(self._parked)
            kept.append(builder)
        self._leaving += [one for one in self._builders if one not in kept]
        self._builders = kept
        self._share_knobs()

    def _new_builder(self, knobs: Knobs, here: bool) -> LocalBuilder:
        if not here:
            return self._reader.remote(knobs, self._memory, self._quarantine)
        return BatchBuilder(
            self._mixture,
            self._reader.source,
            knobs,
            self._memory,
            self._quarantine,
            disk=self._disk,
            clock=self._clock,
        )

    def _share_knobs(self) -> None:
        own = self._knobs.shares(len(self._builders))
        for builder, share in zip(self._builders, own, strict=True):
            builder.retune(share)

    def next(self, timeout_s: float) -> BatchMessage | None:
        """The next batch, in order, or ``None`` where none was ready in time.

        Raises:
            AutoloaderError: a background part failed; names dataset and stage.
        """
        with self._taking:
            try:
                return self._next(timeout_s)
            finally:
                self._calls_for = -1

    def _next(self, timeout_s: float) -> BatchMessage | None:
        deadline = time.monotonic() + timeout_s
        with self._dealt:
            self._dealt.wait_for(
                lambda: self._under_way or self._failure or self._closed, timeout_s
            )
            if self._closed:
                return None
            builder = self._under_way[0] if self._under_way else None
        if self._failure is None and builder is not None:
            try:
                batch = builder.next(max(0.0, deadline - time.monotonic()))
                if batch is not None and self._call is not None:
                    self._calls_for = batch.slot
                    if self._closed:  # asked behind it, as who closes looks at the slot
                        return None
                    views = self._mixture.layout.views(self._memory.base(batch.slot))
                    self._call.complete(views, batch)
            except AutoloaderError as error:
                self._fail(error)
            else:
                if batch is not None:
                    self._slots.hand_out(batch.slot)
                    batch.number = self._number
                    self._number += 1
                    self._hand_out(builder)
                return batch
        if self._failure is not None:
            raise as_fault(self._failure, "read")
        return None

    def _hand_out(self, builder: Builder) -> None:
        """A builder's batch goes out; one that leaves and has no other is closed."""
        with self._lock:
            self._under_way.popleft()
            over = (
                builder in self._leaving
                and builder not in self._under_way
                and builder not in self._unslotted
            )
            if over:
                self._leaving.remove(builder)
                self._ended = builder.activity().over().plus(self._ended)
        if over:
            builder.close(CLOSE_S)

    def release(self, slot: int) -> None:
        """The consumer is done with a slot."""
        self._slots.release(slot)

    def ended(self, slot: int) -> None:
        """Nobody writes to a stuck slot any more."""
        self._slots.ended(slot)

    @property
    def knobs(self) -> Knobs:
        """The values in force."""
        return self._knobs

    def retune(self, knobs: Knobs) -> None:
        """Move to other knobs; each takes effect as its row in the knob table says."""
        with self._lock:
            if self._closed:
                return
            self._knobs = knobs
        self._hold()  # before builders put back runs that pin frames, and read them again
        with self._lock:
            if len(self._builders) == self._processes and not self._closed:
                self._share_knobs()
        self._slots.resize(knobs.ring_slots)

    def park(self, parked: bool) -> None:
        """Stop reading (True) or go on; the ring keeps what it has."""
        with self._lock:
            self._parked = parked
            for builder in self._all():
                builder.park(parked)

    @property
    def settled(self) -> bool:
        """Whether all builders, and as many as the knobs say, work with the knobs in force."""
        with self._lock:
            wanted = self._processes
            as_many = not self._leaving and len(self._builders) in (0, wanted)
            return as_many and all(builder.settled for builder in self._builders)

    @property
    def ready_batches(self) -> int:
        """Batches that are filled and not taken, wherever they lie."""
        with self._lock:
            builders = self._all()
        return sum(builder.filled for builder in builders) + self._slots.untaken

    def drop(self) -> None:
        """Give back what can be read again, and the pages of free slots; does not wait."""
        with self._lock:
            builders = self._all()
        for builder in builders:
            builder.drop()
        self._slots.punch_free()

    def frames_held(self) -> CacheCounts:
        """What is held of decoded frames, by all pipelines over this mixture."""
        return self._reader.held()

    def quarantined(self) -> tuple[BadRecord, ...]:
        """Bad records so far."""
        return self._quarantine.records()

    def activity(self) -> PipelineActivity:
        """What every part is doing."""
        done = self._builder_activity()
        with self._lock:
            builders = self._all()
        datasets = {
            dataset.name: own
            for dataset, own in zip(self._mixture.datasets, done.datasets, strict=True)
        }
        for k, name in enumerate(datasets):
            if bad := self._quarantine.count(k):
                datasets[name] = dataclasses.replace(datasets[name], quarantined=bad)
        return PipelineActivity(
            datasets=datasets,
            ring_slots=self._slots.slots,
            ring_out=self._slots.out,
            ring_filled=self.ready_batches,
            ring_stuck=self._slots.stuck,
            run_bytes=done.run_bytes,
            read_bytes=done.read_bytes,
            reading_s=done.reading_s,
            processes=[pid for one in builders for pid in one.pids],
            gather_s=done.gather_s,
            gathered=done.gathered,
            cache=dataclasses.replace(
                self.frames_held(), from_disk=done.from_disk, private_bytes=private_bytes()
            ),
            call_s=self._call.seconds if self._call else 0.0,
            calls=self._call.calls if self._call else 0,
            helpers=done.helpers,
        )

    def _builder_activity(self) -> BuilderActivity:
        """What all builders have done so far."""
        with self._lock:
            builders, done = self._all(), self._ended
        for builder in builders:
            done = builder.activity().plus(done)
        return done or BuilderActivity.none(len(self._mixture.datasets))

    def close(self, within_s: float | None = None) -> bool:
        """End all threads; drops what is under way. May be called again, to wait longer.

        Args:
            within_s: so long threads are waited for; default: ``CLOSE_S``.

        Returns:
            Whether nobody writes into slots any more. Threads may still wait for their source.
        """
        with self._dealt:
            first, self._closed = not self._closed, True
            builders = self._all()
            self._dealt.notify_all()
        self._slots.close()
        deadline = time.monotonic() + (CLOSE_S if within_s is None else within_s)

        def left_s() -> float:
            return max(0.0, deadline - time.monotonic())

        written = [one.close(left_s()) for one in builders]
        if first:
            if not self._dealing.ended(min(CLOSE_S, left_s())):
                logger.warning("the index is still being opened")
            self._reader.close()
            self.at_close()
        if self._taking.acquire(timeout=left_s()):
            self._taking.release()
        return all(written) and self._calls_for < 0

    @property
    def slots(self) -> frozenset[int]:
        """Slots that threads write to though it is closed; there come no others."""
        called = frozenset({self._calls_for} - {-1})
        return called.union(*(builder.slots for builder in self._all()))

    @property
    def leased_frames(self) -> int:
        """Frames of the frame cache that are pinned."""
        return sum(builder.leased_frames for builder in self._all())

    def _all(self) -> list[Builder]:
        return [*self._builders, *self._leaving]

    def _fail(self, error: BaseException) -> None:
        with self._dealt:
            if self._failure is None and not self._closed:
                self._failure = error
            self._dealt.notify_all()
