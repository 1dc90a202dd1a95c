"""Runs one mixture: deals batches to builders, gives them slots, hands filled batches out in order.

Theory of operation. After ``start`` a thread opens the reader, which may build an index. It then
deals batches to the builders (``sampling.dealing``) and gives each batch a slot as slots become
free. With ``decode_processes`` 1, and for streams, there is one builder, in this process; with more
there are as many light processes. A change of their number applies from the next round on: builders
that get no more rounds are closed when their last batch is handed out.

Without helpers, whole rounds go to the builders. One in a decode process is given a slot when it
has begun the batches before; the one in this process is given every slot at once. A builder that
has nothing to begin takes over the first batch that waits for a builder which is late. So slow
samples in one process hold up no other.

With helpers on other hosts (``pipeline.builders``), batches wait in one line. A builder that has
fewer than two batches to fill takes the next one that has a slot. Helpers take the next ones when
they have room. A faster one fills more. A batch that does not come back in time is filled by a
builder. So a slot has one writer, and training waits for no helper.

``process.control`` runs the pipeline: it calls ``next`` and gives slots back by ``release``.

Invariants:
    1. An exception in any thread comes out of ``next``, with dataset and stage.
    2. ``close`` returns; it waits for threads as long as it is told, and threads are daemons.
    3. Once it is closed nothing begins in it any more. Nobody may use its slots before ``close``
       says that no thread writes to them.
    4. Batches leave in the order in which they were dealt, each once, whoever fills them.
    5. A batch that is waited for has its slot, and so has every batch before it.
    6. A builder has no batch without a slot behind one that may still come back from a helper.

Not here: what the readers read (``pipeline.read.streams``, ``pipeline.read.planned``), building a
batch (``decode.batch_builder``), choosing knobs (``controller.profile``, ``controller``), tensors
(``samples.layout``).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoloader.cache.disk import FramesOnDisk
from autoloader.cache.table import FrameCosts
from autoloader.decode.batch_builder import BatchBuilder, Listener, SampleSource
from autoloader.decode.message import BadRecord, BatchMessage, Quarantine, TellBad
from autoloader.decode.ring import RingMemory, SlotPool
from autoloader.errors import as_fault
from autoloader.host.clock import Clock
from autoloader.host.threads import LoaderThread, all_ended
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.dealing import Deal, Rounds
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.knobs import Knobs
from autoloader.telemetry import statistics

if TYPE_CHECKING:
    from autoloader.pipeline.batch_call import BatchCall
    from autoloader.pipeline.builders import Answers, Helpers, RemoteBuilder

logger = logging.getLogger(__name__)

CLOSE_S = 1.5
_HERE = 2
"""Batches that a builder has to fill at a time, while helpers work."""
_LONG_RING = 4
"""Slots for each builder, from which a builder may have two batches to begin, not one."""

Builder: TypeAlias = "BatchBuilder | RemoteBuilder"
"""Builds batches on this host, in this process or in another one."""


@dataclasses.dataclass(slots=True, eq=False)
class Task:
    """One batch on its way.

    Attributes:
        number: number of the batch, in the order in which batches leave.
        span: positions [start, stop) of the batch.
        slot: number of the slot for the batch; ``None``: not known yet.
        given: whether a builder has the slot, and keeps the batch.
        batch: message about the batch; ``None`` until it is filled.
    """

    number: int
    span: tuple[int, int]
    slot: int | None = None
    given: bool = False
    batch: BatchMessage | None = None


class Lane:
    """A builder, and in order the batches that it has to fill or that were not taken from it.

    A slot is given to a decode process when that has begun the batches before it. Until then a
    builder that has nothing to begin may take the batch over.
    """

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.tasks: collections.deque[Task] = collections.deque()

    def assign(self, tasks: Sequence[Task]) -> None:
        """Have batches filled after those that the lane has."""
        self.tasks += tasks
        self.builder.assign([task.span for task in tasks])

    @property
    def waiting(self) -> Task | None:
        """The first batch that the builder has not been given, if that batch has its slot."""
        task = next((one for one in self.tasks if not one.given), None)
        return None if task is None or task.slot is None else task

    def give(self, most: int) -> None:
        """Give the builder slots of its next batches until it has ``most`` to begin."""
        while self.builder.to_begin < most and (task := self.waiting) is not None:
            assert task.slot is not None
            task.given = True
            self.builder.give(task.slot)

    def take_over(self, late: Lane) -> None:
        """Fill the waiting batch of another lane, next."""
        task = late.waiting
        assert task is not None
        assert task.slot is not None
        late.tasks.remove(task)
        late.builder.skip()
        task.given = True
        self.tasks.insert(sum(one.given for one in self.tasks), task)
        self.builder.give(task.slot, task.span)

    @property
    def to_fill(self) -> int:
        """Number of batches that are not filled yet."""
        return len(self.tasks) - self.builder.filled


class MixtureReader(ABC):
    """Reader of a mixture as its pipeline uses it; by default it reads in this process.

    Attributes:
        order: the order of the mixture's samples.
    """

    order: MixtureOrder

    def open(self, bad: TellBad) -> None:  # noqa: B027 most readers open as they read
        """Open what must be there before anything is read; may take long, and is called once."""

    @abstractmethod
    def source(self, knobs: Knobs, listener: Listener) -> SampleSource:
        """A source of samples for a builder in this process."""

    def processes(self, knobs: Knobs) -> int:
        """Number of processes that build batches: 1 is this one."""
        return 1

    def remote(self, knobs: Knobs, memory: RingMemory, bad: TellBad) -> RemoteBuilder:
        """A builder in a process of its own; asked only where ``processes`` is more than 1."""
        raise NotImplementedError

    def helpers(self, memory: RingMemory, bad: TellBad, answers: Answers) -> Helpers | None:
        """The way to helpers on other hosts; ``None``: this reader asks none."""
        return None

    def run_samples(self, knobs: Knobs) -> int:
        """Samples that a builder should read together; 1 takes each batch as its samples come."""
        return 1

    def hold(self, cache_bytes: int, costs: FrameCosts) -> None:  # noqa: B027 streams hold nothing
        """Keep so many bytes of decoded frames from now on, by the costs of decoding them."""

    def held(self) -> statistics.CacheStatistics:
        """Counts of decoded frames that are kept."""
        return statistics.CacheStatistics()

    def close(self) -> None:  # noqa: B027 most readers have nothing to close
        """Close the reader: all builders have ended, or were given up."""


class Pipeline:
    """Runs one mixture.

    Args:
        mixture: the resolved mixture to run.
        reader: reader that gives the mixture's samples.
        knobs: values to begin with; checked by the caller.
        memory: shared memory of the batch ring.
        deal: positions that each batch takes.
        held: slots that the consumer still has from an earlier pipeline.
        disk: decoded frames on a disk; ``None``: there are none.
        clock: time source for the detection of stalls.

    Attributes:
        knobs: the values in force; ``retune`` changes them.
        opened: whether the reader is open.
        at_close: called once, when all has ended.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        reader: MixtureReader,
        knobs: Knobs,
        memory: RingMemory,
        *,
        deal: Deal,
        held: Collection[int] = (),
        disk: FramesOnDisk | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._mixture = mixture
        self._disk = disk
        self._reader = reader
        self.knobs = knobs
        self._memory = memory
        self._rounds = Rounds(deal)
        self._clock = clock
        self._failure: BaseException | None = None
        self._closed = False
        self._parked = False
        self.opened = False
        self._lock = threading.Lock()
        self._taking = threading.RLock()
        self._calling = False
        self._changed = threading.Condition(self._lock)
        self._quarantine = Quarantine(mixture)
        self._slots = SlotPool(memory, knobs.ring_slots, held=held)
        self._lanes: list[Lane] = []
        self._leaving: list[Lane] = []
        self._tasks: collections.deque[Task] = collections.deque()
        self._unslotted: collections.deque[Task] = collections.deque()
        self._line: collections.deque[Task] = collections.deque()
        self._away: dict[int, Task] = {}
        self._numbers = itertools.count(deal.first_number)
        self._helpers: Helpers | None = None
        self._helped: collections.Counter[str] = collections.Counter()
        self._taken_there = np.zeros(len(mixture.datasets), np.int64)
        self._round_batches = 0
        self._call: BatchCall | None = None
        if mixture.spec.batch.call:
            from autoloader.pipeline.batch_call import BatchCall  # most mixtures have none

            self._call = BatchCall(mixture)
        self._ended: statistics.Counts = {}
        self.at_close: Callable[[], object] = lambda: None
        self._dealing = LoaderThread(target=self._run, name="autoloader-deal")

    def start(self) -> None:
        """Open the reader, then read and fill batches."""
        self._dealing.start()

    def _run(self) -> None:
        try:
            self._reader.open(self._quarantine.add)
            self.opened = True
            self._hold()
            with self._lock:
                if not self._closed:
                    self._deal()
            while (slot := self._slots.acquire()) is not None:
                with self._changed:
                    if self._closed:
                        return
                    self._deal()
                    task = self._unslotted.popleft()
                    task.slot = slot
                    if task.number in self._away and self._helpers is not None:
                        self._helpers.give(task.number, slot)
                    self._hand_on()
                    self._give()
        except Exception as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
            self._fail(error)

    def _give(self) -> None:
        """Give builders slots; one that has nothing to begin takes a batch over; under the lock."""
        most = 2 if self.knobs.ring_slots >= _LONG_RING * len(self._lanes) else 1
        for lane in (*self._lanes, *self._leaving):
            lane.give(most)
        for lane in self._lanes:
            late = [(one.number, other) for other in self._lanes if (one := other.waiting)]
            if late and not lane.builder.to_begin:
                lane.take_over(min(late)[1])
        self._changed.notify_all()

    def _begun(self) -> None:
        """Give a builder its next slot: it has begun the batches that it had."""
        with self._lock:
            if not self._closed:
                self._give()

    def _hold(self) -> None:
        self._reader.hold(self.knobs.cache_bytes, self._frame_costs)

    def _frame_costs(self) -> NDArray[np.float64]:
        """[D] seconds of a decode, so far; NaN where there was none."""
        known = self._builder_activity().get("datasets", {})
        done = [known.get(name, {}) for name in self._mixture.names]
        decode_s = np.asarray([one.get("decode_s", 0.0) for one in done])
        return np.asarray(decode_s / np.asarray([one.get("frames") or np.nan for one in done]))

    def _deal(self) -> None:
        """Keep ``read_ahead`` rounds dealt that have no slots yet; under the lock."""
        if len(self._lanes) != self._reader.processes(self.knobs):
            self._adjust_lanes()
        if self.knobs.helper_slots:
            self._want_helpers()
        samples = self._reader.run_samples(self.knobs)
        while len(self._unslotted) <= max(
            self.knobs.read_ahead * self._round_batches, 2 * self._helpers_room
        ):
            runs = self._rounds.next(len(self._lanes), samples)
            self._round_batches = sum(map(len, runs))
            tasks = [  # batch k is the next of run k mod n
                Task(next(self._numbers), runs[k % len(runs)][k // len(runs)])
                for k in range(self._round_batches)
            ]
            self._unslotted += tasks
            self._tasks += tasks
            if self._helpers_room or self._line or self._away:  # Ray helpers take batches, too
                self._line += tasks
                self._hand_on()
            else:
                for k, lane in enumerate(self._lanes):
                    lane.assign(tasks[k :: len(runs)])

    def _adjust_lanes(self) -> None:
        """Have as many builders as the knobs say; under the lock."""
        wanted = self._reader.processes(self.knobs)
        here = wanted == 1
        kept = [one for one in self._lanes if one.builder.here is here][:wanted]
        for share in self.knobs.shares(wanted)[len(kept) :]:
            builder = self._new_builder(share, here)
            builder.park(self._parked)
            kept.append(Lane(builder))
        self._leaving += [one for one in self._lanes if one not in kept]
        self._lanes = kept
        self._share_knobs()

    def _want_helpers(self) -> None:
        """Have as many helpers as the knobs say; they may have been given back for want of work."""
        if self._helpers is None:
            self._helpers = self._reader.helpers(self._memory, self._quarantine.add, self)
        if self._helpers is not None:
            self._helpers.want(self.knobs.helper_slots)

    @property
    def _helpers_room(self) -> int:
        """Batches that helpers may have at a time."""
        return 0 if self._helpers is None or self._parked else self._helpers.room

    def _hand_on(self) -> None:
        """Give batches that wait in line to whoever has room for them; under the lock."""
        while self._line and not self._closed:
            lane, first, room = self._shortest, self._line[0], self._helpers_room
            alone = not (room or self._away)
            if alone or (first.slot is not None and lane.to_fill < _HERE):
                lane.assign([self._line.popleft()])
                self._give()
            elif len(self._away) < room and self._helpers is not None:
                self._away[first.number] = self._line.popleft()
                self._helpers.ask(first.number, first.span)
                if first.slot is not None:
                    self._helpers.give(first.number, first.slot)
            else:
                return

    @property
    def _shortest(self) -> Lane:
        return min(self._lanes, key=lambda lane: lane.to_fill)

    def done(self, number: int, batch: BatchMessage) -> None:
        """Take in a helper's batch, which is in its slot; see ``builders.Answers``."""
        with self._changed:
            task = self._away.pop(number, None)
            if task is None or self._closed:
                return
            rows = self._mixture.layout.views(self._memory.base(batch.slot))["dataset_index"]
            self._taken_there += np.bincount(rows[: batch.rows], minlength=len(self._taken_there))
            self._helped["batches"] += 1
            task.batch = batch
            self._hand_on()
            self._changed.notify_all()

    def lost(self, numbers: Sequence[int] | None = None, *, late: bool = False) -> None:
        """Have builders fill these batches, before those that wait (``builders.Answers``)."""
        with self._changed:
            for number in list(self._away) if numbers is None else numbers:
                if (task := self._away.pop(number, None)) is None:
                    continue
                self._helped["again"] += 1
                self._helped["late"] += late
                if self._closed:
                    continue
                if task.slot is not None:
                    self._shortest.assign([task])
                    self._give()
                else:
                    self._line.insert(sum(waiting.number < number for waiting in self._line), task)
            self._hand_on()
            self._changed.notify_all()

    def helped(self) -> tuple[int, int]:
        """Give helpers that have room further batches; see ``builders.Answers``."""
        with self._changed:
            self._hand_on()
            return len(self._away), sum(one.slot is not None for one in self._away.values())

    def _new_builder(self, knobs: Knobs, here: bool) -> Builder:
        if not here:
            remote = self._reader.remote(knobs, self._memory, self._quarantine.add)
            remote.begun = self._begun
            return remote
        return BatchBuilder(
            self._mixture,
            self._reader.source,
            knobs,
            self._memory,
            self._quarantine.add,
            disk=self._disk,
            clock=self._clock,
        )

    def _share_knobs(self) -> None:
        for lane, share in zip(self._lanes, self.knobs.shares(len(self._lanes)), strict=True):
            lane.builder.retune(share)

    def next(self, timeout_s: float) -> BatchMessage | None:
        """The next batch, in order, or ``None`` where none was ready in time.

        Raises:
            AutoloaderError: a background part failed; names dataset and stage.
        """
        with self._taking:
            try:
                batch = self._next(timeout_s)
            except BaseException as error:  # noqa: BLE001 as of all threads: the trainer must hear of it
                self._fail(as_fault(error, "hand out"))
                batch = None
            finally:
                self._calling = False
        if batch is None and self._failure is not None and not self._closed:
            raise as_fault(self._failure, "read")
        return batch

    def _next(self, timeout_s: float) -> BatchMessage | None:
        task = self._filled(time.monotonic() + timeout_s)
        if task is None or (batch := task.batch) is None:
            return None
        if self._call is not None:
            self._calling = True
            if self._closed:  # asked behind it, as who closes looks at it
                return None
            memory = self._memory.base(batch.slot)
            kept = weakref.ref(memory)
            self._call.complete(self._mixture.layout.views(memory), batch)
            del memory
            self._call.check_let_go(kept)
        self._slots.hand_out(batch.slot)
        batch.number = task.number
        self._hand_out()
        return batch

    def _filled(self, deadline: float) -> Task | None:
        """The first batch, where it is filled in time; taken from its builder with those before it.

        Raises:
            AutoloaderError: whatever ended the builder.
        """

        def left_s() -> float:
            return max(0.0, deadline - time.monotonic())

        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._first() or self._failure or self._closed, left_s()
                )
                first = self._first()
                if first is None or self._closed or self._failure is not None:
                    return None
                lanes = (*self._lanes, *self._leaving)
                lane = next((one for one in lanes if first in one.tasks), None)
            if first.batch is not None or lane is None:
                return first
            batch = lane.builder.next(left_s())
            if batch is None:
                return None
            with self._changed:
                lane.tasks.popleft().batch = batch
                self._hand_on()

    def _first(self) -> Task | None:
        """The first batch, if it is filled or a builder is at it; under the lock."""
        first = self._tasks[0] if self._tasks else None
        return first if first is not None and (first.batch is not None or first.given) else None

    def _hand_out(self) -> None:
        """Count the first batch as handed out; close builders that leave and have no other."""
        with self._lock:
            self._tasks.popleft()
            over = [lane.builder for lane in self._leaving if not lane.tasks]
            self._leaving = [lane for lane in self._leaving if lane.tasks]
            for builder in over:
                self._ended = statistics.merged(self._ended, statistics.over(builder.activity()))
        for builder in over:
            builder.close(CLOSE_S)

    def release(self, slot: int) -> None:
        """Take a slot back that the consumer is done with."""
        self._slots.release(slot)

    def retune(self, knobs: Knobs) -> None:
        """Move to other knobs; each takes effect as its row in the knob table says."""
        with self._lock:
            if self._closed:
                return
            self.knobs = knobs
        self._hold()  # before builders put back runs that pin frames, and read them again
        with self._lock:
            if self._closed:
                return
            if len(self._lanes) == self._reader.processes(knobs):
                self._share_knobs()
            if self._helpers is not None or knobs.helper_slots:
                self._want_helpers()
                self._hand_on()
        self._slots.resize(knobs.ring_slots)

    def park(self, parked: bool) -> None:
        """Stop reading (True) or go on; the ring keeps what it has."""
        with self._lock:
            self._parked = parked
            for builder in self._all():
                builder.park(parked)
            self._hand_on()

    @property
    def settled(self) -> bool:
        """True if all builders, and as many as the knobs say, work with the knobs in force."""
        with self._lock:
            as_many = len(self._lanes) in (0, self._reader.processes(self.knobs))
            return (
                as_many
                and not self._leaving
                and all(lane.builder.settled for lane in self._lanes)
                and (self._helpers is None or self._helpers.settled)
            )

    @property
    def ready_batches(self) -> int:
        """Batches that are filled and not taken, wherever they lie."""
        with self._lock:
            builders = self._all()
            taken = sum(task.batch is not None for task in self._tasks)
        return sum(builder.filled for builder in builders) + taken + self._slots.untaken

    def drop(self) -> None:
        """Give back samples that can be read again, and the pages of free slots; does not wait."""
        with self._lock:
            builders = self._all()
        for builder in builders:
            builder.drop()
        self._slots.punch_free()

    def frames_held(self) -> statistics.CacheStatistics:
        """Counts of decoded frames that are kept, by all pipelines over this mixture."""
        return self._reader.held()

    def quarantined(self) -> tuple[BadRecord, ...]:
        """Quarantined records of the pipeline so far."""
        return self._quarantine.records()

    def activity(self) -> statistics.Statistics:
        """Counts of every part; the rest is the host's and the trainer's."""
        done = self._builder_activity()
        with self._lock:
            builders, helpers, counts = self._all(), self._helpers, dict(self._helped)
            there = self._taken_there.tolist()
        processes = [pid for one in builders for pid in one.pids]
        if helpers is not None:
            processes += helpers.pids
            for name in ("present", "possible", "compared", "different"):
                counts[name] = getattr(helpers, name)
        known, names = done.get("datasets", {}), self._mixture.names
        parts = [known.get(name, {}) for name in names]
        samples = [own.get("samples", 0) + taken for own, taken in zip(parts, there, strict=True)]
        mixed = sum(samples)
        datasets = {
            name: statistics.DatasetStatistics(
                **parts[k]
                | {
                    "weight": self._reader.order.shares[k],
                    "share": samples[k] / mixed if mixed else None,
                    "samples": samples[k],
                    "quarantined": self._quarantine.count(k),
                }
            )
            for k, name in enumerate(names)
        }
        cache = dataclasses.replace(self.frames_held(), **done.get("cache", {}))
        return statistics.Statistics(
            **done | {"samples": mixed, "datasets": datasets, "cache": cache},
            ring=statistics.RingStatistics(
                slots=self._slots.slots,
                filled=self.ready_batches,
                allocated_bytes=self._memory.allocated_bytes(),
                out=self._slots.out,
            ),
            processes=tuple(processes),
            call_s=self._call.seconds if self._call else 0.0,
            calls=self._call.calls if self._call else 0,
            helpers=statistics.HelperStatistics(**counts),
        )

    def _builder_activity(self) -> statistics.Counts:
        """Counts of all builders so far."""
        with self._lock:
            builders, done = self._all(), self._ended
        for builder in builders:
            done = statistics.merged(done, builder.activity())
        return done

    def close(self, within_s: float | None = None) -> bool:
        """End all threads; drops what is under way. May be called again, to wait longer.

        Args:
            within_s: so long threads are waited for; default: ``CLOSE_S``.

        Returns:
            Whether nobody writes into slots any more. Threads may still wait for their source.
        """
        with self._changed:
            first, self._closed = not self._closed, True
            writers: list[Builder | Helpers] = [*self._all()]
            if self._helpers is not None:
                writers.append(self._helpers)
            self._changed.notify_all()
        self._slots.close()
        deadline = time.monotonic() + (CLOSE_S if within_s is None else within_s)

        def left_s() -> float:
            return max(0.0, deadline - time.monotonic())

        written = [one.close(left_s()) for one in writers]
        if first:
            if not all_ended([self._dealing], min(CLOSE_S, left_s())):
                logger.warning("the index is still being opened")
            self._reader.close()
            self.at_close()
        if self._taking.acquire(timeout=left_s()):
            self._taking.release()
        return all(written) and not self._calling

    def _all(self) -> list[Builder]:
        return [lane.builder for lane in (*self._lanes, *self._leaving)]

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None and not self._closed:
                self._failure = error
            self._changed.notify_all()
