"""The trainer's side of the loader's child, and of each pipeline in it.

Theory of operation. One child serves all loaders of this process (train, validation), and those of
all other ranks on this node; the first that comes starts it (``process.discovery``). It is started
afresh (``host.supervision``): no fork, no pickle, no main guard in scripts. It sees no GPU,
has a bounded number of malloc arenas, and raises its own ``oom_score_adj``. With
``isolation="thread"`` the same service runs in a thread of this process (``ThreadChild``); both
talk over a socket pair all the same.

No thread is there for messages alone: the loader that looks for a batch reads the socket, and hands
messages for another loader to that loader.

A child that ends, or hangs, is started again, and every loader begins behind what it has delivered.
Each trainer notices when it comes to read the socket; the first one starts the child for all. Every
message is a sign of life, and while the trainer has read all of them comes one four times a second.

Preemption. Loaders of one trainer share a RAM floor. When another loader opens, headroom does not
show yet what the open ones reserved (a ring that is not filled, libraries that are being imported):
that is taken off. Where even the smallest new loader would not leave floor + margin free, the open
ones are preempted. Each shrinks to its minimum knobs and begins again behind its last batch.
Nothing is lost or comes twice; the controller lets it grow again. A loader without a controller is
never preempted, nor is one that runs in the trainer's own threads.

Not here: finding the child (``process.discovery``), its side (``process.control``), whether it
hangs (``host.supervision``), the budget of pipelines that run (``controller.admission``), OOM kills
(``host.headroom``).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, ClassVar

from autoloader.controller.admission import price_start
from autoloader.decode.message import BadRecord, BatchMessage
from autoloader.decode.ring import MAX_SLOTS
from autoloader.errors import AutoloaderError, WorkerError
from autoloader.host.headroom import HeadroomProbe, named_by_kernel, oom_kills
from autoloader.host.processes import tree_own_bytes
from autoloader.host.supervision import import_path, is_stopped
from autoloader.host.threads import LoaderThread, all_ended, free_in_forks
from autoloader.host.units import format_bytes
from autoloader.pipeline import messages
from autoloader.pipeline.messages import Message, Peer, Wire
from autoloader.process.discovery import find_or_start
from autoloader.process.ranks import Neighbours
from autoloader.process.setup import PipelineSetup
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.block import plain_of
from autoloader.spec.knobs import Knobs
from autoloader.telemetry.lines import script_name
from autoloader.telemetry.statistics import RingStatistics, Statistics

if TYPE_CHECKING:
    from autoloader.process.control import TrainerService

logger = logging.getLogger(__name__)


CLOSE_S = 1.0
_GIVES_WAY = "threads of it that decode did not end when they were told to"
_ANSWER_S = 5.0
_SHRINK_S = 2.0
_SHRINK_POLL_S = 0.01
_numbers = itertools.count()


class Child(Peer):
    """The loader's child process; use ``shared`` to get this process's one.

    Args:
        neighbours: the trainers of this node that share it.

    Attributes:
        neighbours: as given; alone in a thread.
        lock: held by the thread that sends or receives.
        clients: pipelines of this process in the child, by number.
        restarts: number of times that the child was started again.
    """

    _current: ClassVar[dict[str, Child]] = {}
    _current_lock = free_in_forks(threading.Lock(), _current.clear)

    def __init__(self, neighbours: Neighbours) -> None:
        super().__init__(
            "the loader's child",
            "autoloader.process.worker",
            remedy='see what it printed last, or run with isolation="thread" under a debugger, '
            "which sees the fault",
        )
        self._expected = 0
        self.neighbours = neighbours
        self._owner = os.getpid()
        self.lock = threading.RLock()
        self.clients: dict[int, ChildPipeline] = {}
        self._active = -1
        self._given_up: WorkerError | None = None
        self.restarts = 0
        try:
            self._connect()
        except BaseException:
            self.supervisor.close()
            raise

    @classmethod
    def shared(cls, neighbours: Neighbours) -> Child:
        """This process's connection to the child, which is started where there is none.

        The child stays until the caller lets a loader ``join``, or calls ``spare``.
        """
        with cls._current_lock:
            current = cls._current.get(neighbours.job)
            if current is None or not current.expect():
                current = cls(neighbours)
                current.expect()
                cls._current[neighbours.job] = current
            return current

    @classmethod
    def open_clients(cls) -> list[ChildPipeline]:
        """Pipelines of this process that have joined a child and not left it."""
        children = [child for child in cls._current.values() if child.usable]
        return [client for child in children for client in child.clients.values()]

    def expect(self) -> bool:
        """Note that a loader will join; False, and nothing is noted, where this is closed."""
        with self.lock:
            if self.usable:
                self._expected += 1
            return self.usable

    def spare(self) -> None:
        """The loader that was expected will not join; with no other one, the child ends at once."""
        with self.lock:
            if not self.usable:
                return
            self._expected = max(0, self._expected - 1)
            if self.clients or self._expected:
                return
            if self.neighbours.local_world_size == 1:
                self._end()  # it has nothing to put in order, and may be busy importing
            self.close()

    @property
    def usable(self) -> bool:
        """True if this is open, and this process made it (a fork has a copy)."""
        return not self.closed and self._owner == os.getpid()

    @property
    def pid(self) -> int:
        """Process id of the child; 0 while it is not known."""
        return self.supervisor.pid

    def held_bytes(self) -> int:
        """Bytes that child and decode processes hold beside shared memory."""
        return tree_own_bytes(self.pid) if self.pid else 0

    def join(self, client: ChildPipeline) -> int:
        """Register a loader's pipeline; returns the number of the pipeline."""
        with self.lock:
            number = next(_numbers)
            self.clients[number] = client
            self._expected = max(0, self._expected - 1)
            return number

    def leave(self, number: int, lent: Collection[int]) -> None:
        """Unregister a pipeline; with the last one the child ends, unless other ranks use it.

        A child that goes on gives the pages of the ring back, except those of ``lent`` slots.

        Args:
            number: number of the pipeline.
            lent: numbers of the slots under live batches.
        """
        if os.getpid() != self._owner:
            return
        with self.lock:
            if self.clients.pop(number, None) is None or self.closed:
                return
            last = not self.clients and not self._expected
            if not last or self.neighbours.local_world_size > 1:
                self.send(messages.Stop(number, sorted(lent)))
            if last:
                self.close()

    def activate(self, number: int) -> bool:
        """Have a pipeline read from now on, and no other; true if another one was in use before."""
        with self.lock:
            before = self.clients.get(self._active) if self._active != number else None
            if before is not None:
                before.use(False)
            self._active = number
            self.clients[number].use(True)
            return before is not None

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send; a child that is gone is noticed by the next ``receive``."""
        with self.lock, contextlib.suppress(OSError):
            self._wire.send(message, descriptors)

    def receive(self, number: int, came: Callable[[], object], timeout_s: float) -> None:
        """Hand messages to the loaders until ``came``, or for ``timeout_s``, or until it is closed.

        A handler of a signal may close it while this waits.

        Args:
            number: number of the pipeline that waits.
            came: true once the awaited message is there.
            timeout_s: longest wait, in seconds.

        Raises:
            WorkerError: the child cannot be kept alive.
        """
        deadline = time.monotonic() + timeout_s
        with self.lock:
            while not came():
                if self._given_up is not None:
                    raise self._given_up
                left = deadline - time.monotonic()
                if self.closed or number not in self.clients or left <= 0:
                    return
                reason = self.hear(self._wire, min(left, 1.0))
                if reason and not self.closed:
                    self._restart(reason)

    def receive_now(self) -> None:
        """Hand messages that have come to the loaders; waits for nothing."""
        with self.lock, contextlib.suppress(EOFError):  # ``receive`` meets it again
            while not self.closed and (message := self._wire.receive(0.0)) is not None:
                self.supervisor.saw_life()
                self.take(message)

    def take(self, message: Message) -> None:
        """Hand a message to the loader that it is for, or heed it."""
        if (client := self.clients.get(message.pipeline)) is not None:
            client.take(message)
        elif isinstance(message, messages.Hello):
            self._hello, self.supervisor.pid = message, message.pid
            self.supervisor.trim_log()
        elif isinstance(message, messages.GivesWay):
            self._killed = _GIVES_WAY
        elif isinstance(message, messages.Failed):
            logger.debug("a closed loader failed: %s", message.what)
        else:
            super().take(message)

    def _connect(self) -> None:
        run = json.dumps(script_name())[1:-1]  # for ``ps``
        self._hello = messages.Hello(-1, 0)
        wire = find_or_start(self.neighbours, [f"--run={run}"], self.supervisor)
        self._wire = self.connected(wire)

    def unread(self, wire: Wire) -> None:
        """See ``Peer.unread``."""
        self.receive_now()  # its signs of life, which nobody else reads meanwhile
        super().unread(wire)

    def _restart(self, reason: str) -> None:
        self._end()
        counts = reason != _GIVES_WAY
        out_of_memory = counts and self._was_oom()
        if out_of_memory:
            reason += " (out of memory, says the kernel)"
        try:
            self.supervisor.try_again(reason, out_of_memory=out_of_memory, counts=counts)
        except WorkerError as error:
            self._given_up = error
            self.close()
            raise
        self.restarts += 1
        for client in self.clients.values():
            client.lost(out_of_memory)
        self._connect()
        for client in self.clients.values():
            client.begin()

    def _end(self) -> None:
        """End the child for good, whoever started it, and the connection."""
        self._wire.close()
        self.supervisor.end()

    def _was_oom(self) -> bool:
        """True if the kernel killed the child for memory, by its cgroup's counter or by its log."""
        now = oom_kills(self._hello.cgroup)
        return (now is not None and now > self._hello.oom_kills) or named_by_kernel(self.pid)

    def close(self) -> None:
        """End the child, or with neighbours our part of it; within ``CLOSE_S`` and a little."""
        with self.lock:
            if not self.usable:
                return
            self.closed = True
            self._wire.shut_down(socket.SHUT_WR)
            gone, shared = self._let_go(CLOSE_S), self.neighbours.local_world_size > 1
            # It goes on for the others, who find it hung where it is; it sees that we are gone.
            if shared and (gone or not is_stopped(self.pid)):
                self._wire.close()
                self.supervisor.leave()
            else:
                self._end()
            self.supervisor.close()
            if Child._current.get(self.neighbours.job) is self:
                del Child._current[self.neighbours.job]

    def _let_go(self, timeout_s: float) -> bool:
        """Wait until the child has closed its end, or ended; whether it did in time."""
        deadline = time.monotonic() + timeout_s
        try:
            while (left := deadline - time.monotonic()) > 0:
                self._wire.receive(left)  # what it still says is dropped
        except EOFError:
            return True
        return False


class ThreadChild(Child):
    """Service of one loader in a thread of this process: ``isolation="thread"``.

    For debugging: TensorFlow, where it is needed, and torch share a process.

    Args:
        headroom: source of the memory that the machine can still give.

    Attributes:
        service: runs the loader's pipeline.
    """

    service: TrainerService

    def __init__(self, headroom: HeadroomProbe) -> None:
        self._headroom = headroom
        self._baseline_bytes = tree_own_bytes(os.getpid())
        super().__init__(Neighbours())

    def _connect(self) -> None:
        from autoloader.process.control import Control, TrainerService

        ours, theirs = socket.socketpair()
        self.service = TrainerService(theirs, Control(self._headroom))
        self._thread = LoaderThread(self._serve, "autoloader-service")
        self._wire = Wire(ours)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.closing(self.service) as service:
            service.serve()

    def held_bytes(self) -> int:
        """Bytes that this process holds, without frames, beyond those when this was made."""
        return max(0, tree_own_bytes(os.getpid()) - self._baseline_bytes)

    def hung(self) -> str:
        """Nothing: a thread ends with this process."""
        return ""

    def _restart(self, reason: str) -> None:
        self.close()
        self._given_up = WorkerError(
            f"the loader's thread has ended: {reason}",
            remedy="see what this process printed last, and report it",
        )
        raise self._given_up

    def _let_go(self, timeout_s: float) -> bool:
        """See ``Child._let_go``; also waits for threads that decode."""
        from autoloader.process import control

        return all_ended([self._thread], timeout_s + control.STUCK_S)


class ChildPipeline:
    """The trainer's side of one pipeline in the child, which runs one mixture.

    Attributes:
        setup: all that the pipeline is opened with; its knobs and order are those in force.
        child: child process that runs the pipeline.
        closed: whether it has left the child.
        begun: whether the child runs it.
        starts: number of times that it was begun, or begun elsewhere.
    """

    def __init__(self, setup: PipelineSetup, child: Child) -> None:
        self.setup = setup
        self.child = child
        self._generation = 0
        self._failure: AutoloaderError | None = None
        self._parked = False
        self.begun, self.starts = False, 0
        self._prepares = False
        self.closed = False
        self._was_full = False
        self._last = self._idle()
        self._quarantined: tuple[BadRecord, ...] = ()
        self._ready: deque[messages.BatchReady] = deque()
        self._answered = False
        self.number = child.join(self)

    def start(self) -> None:
        """Begin where ``setup.position()`` says, unless it has begun."""
        with self.child.lock:
            if not self.begun:
                self.begun, self._failure = True, None
                self.starts += 1
                self.begin()

    def go_to(self, order: MixtureOrder) -> None:
        """Read in ``order``, where ``setup.position()`` says: from now on, if it has begun."""
        self.setup = replace(self.setup, order=order)
        if self.begun:
            self.begun = False
            self.start()

    def reserved_bytes(self) -> int:
        """Bytes that the pipeline was admitted with and does not hold yet.

        They are the ring's; until the ring was full once, everything else's too.
        """
        if not self.begun:
            return 0  # admission reads headroom when it begins
        # The frame cache can be done without: it makes room for others.
        working = Knobs.build({"cache_bytes": 0}, base=self.knobs)
        price = price_start(working, self.setup.mixture.sizes)
        ring = max(0, price.parts["ring"] - self.setup.memory.allocated_bytes())
        self._was_full = self._was_full or ring == 0
        if self._was_full:
            return ring
        return ring + max(0, price.total_bytes - price.parts["ring"] - self.child.held_bytes())

    def spare_bytes(self) -> int:
        """Bytes of the ring that ``shrink_to_minimum`` would free.

        0 without a controller, which would let the ring grow again.
        """
        if not self.setup.control.moves or not self.begun:
            return 0
        memory = self.setup.memory
        ring = max(self.knobs.ring_slots * memory.slot_bytes, memory.allocated_bytes())
        return max(0, ring - self._minimum_bytes())

    def shrink_to_minimum(self) -> None:
        """Begin again with the minimum knobs, behind the last batch handed out."""
        with self.child.lock:
            self._set_knobs(self.setup.control.limits.least(self.knobs))
            self._make_pageable(self.setup.lent())
            self.begin()

    def has_shrunk(self) -> bool:
        """True once the kernel has the pages back."""
        return self.setup.memory.allocated_bytes() <= self._minimum_bytes()

    def _minimum_bytes(self) -> int:
        """Its smallest ring, and the batches that the consumer holds."""
        slots = self.setup.control.limits.least(self.knobs).ring_slots
        return (slots + len(self.setup.lent())) * self.setup.memory.slot_bytes

    def begin(self) -> None:
        """Send ``Start`` (again), from what has been delivered."""
        if not self.begun:
            return
        self._generation += 1
        self._ready.clear()
        setup = self.setup
        self.child.send(
            messages.Start(
                self.number,
                generation=self._generation,
                mixture=setup.mixture.plain(),
                knobs=setup.knobs.flat(),
                order=asdict(setup.order),
                place=setup.position().plain(),
                ranks=[setup.ranks.rank, setup.ranks.world_size],
                ranks_here=setup.ranks_here,
                held_slots=sorted(setup.lent()),
                restarts=self.child.restarts,
                control=plain_of(setup.control),
                import_path=import_path(),
            ),
            (setup.memory.descriptor,),
        )
        if self._parked:
            self.child.send(messages.Park(self.number, True))

    def lost(self, out_of_memory: bool) -> None:
        """The child is gone; forget batches under way, give free ring pages back."""
        self._ready.clear()
        if out_of_memory:
            self._set_knobs(self.setup.control.limits.smaller(self.knobs))
        self.setup.memory.punch_all_but(self.setup.lent())

    def next(self, timeout_s: float) -> BatchMessage | None:
        """The next batch, in order, or ``None`` where none came in time.

        Raises:
            AutoloaderError: the pipeline failed in the child.
            WorkerError: the child cannot be kept alive.
        """
        self.child.receive(self.number, lambda: self._ready or self._failure, timeout_s)
        if self._failure is not None and not self._ready:
            raise self._failure
        return self._next_ready()

    def next_now(self) -> BatchMessage | None:
        """The next batch where it has come already, else ``None``; waits for nothing.

        ``receive_now`` has ``take`` put batches that came into ``_ready``.
        """
        self.child.receive_now()
        return self._next_ready()

    def _next_ready(self) -> BatchMessage | None:
        if not self._ready:
            return None
        self.child.supervisor.progress()
        return BatchMessage.from_plain(self._ready.popleft().batch)

    def take(self, message: Message) -> None:
        """Heed a message of the child; batches and knobs of an earlier generation are dropped."""
        if isinstance(message, messages.Failed):
            self._failure = message.to_error()
        elif isinstance(message, messages.Activity):
            self._answered = True
            self._last = Statistics.from_dict(message.activity)
            self._quarantined = tuple(BadRecord(**bad) for bad in message.quarantined)
        elif (
            isinstance(message, (messages.BatchReady, messages.Retuned))
            and message.generation == self._generation
        ):
            if isinstance(message, messages.BatchReady):
                self._ready.append(message)
                return
            self._set_knobs(Knobs.build(message.knobs))

    def use(self, used: bool) -> None:
        """Note that batches are wanted of this loader (True), or of another one."""
        if used:
            self._prepares = False
            self.park(False)
        elif not self._prepares:
            self.park(True)

    def prepare(self) -> None:
        """Fill the ring while another loader is in use; it stops by itself where that is full."""
        self._prepares = True
        self.park(False)

    def suspend(self) -> None:
        """Have the child end the pipeline and give the ring's pages back, until ``start``."""
        with self.child.lock:
            if self.begun:
                self.begun = self._prepares = False
                lent = self.setup.lent()
                self._make_pageable(lent)
                self.child.send(messages.Stop(self.number, sorted(lent)))

    def _make_pageable(self, lent: Collection[int]) -> None:
        """Unregister all other slots from a device, so that the child may give their pages back."""
        for slot in range(MAX_SLOTS):
            if slot not in lent:
                self.setup.memory.make_pageable(slot)

    def release(self, slot: int) -> None:
        """Tell the child that the consumer has given a slot back."""
        self.child.send(messages.Release(self.number, slot))

    @property
    def knobs(self) -> Knobs:
        """Values of all knobs in force."""
        return self.setup.knobs

    def _set_knobs(self, knobs: Knobs) -> None:
        self.setup = replace(self.setup, knobs=knobs)

    def retune(self, knobs: Knobs) -> None:
        """Have the child move the pipeline to other knobs."""
        self._set_knobs(knobs)
        self.child.send(messages.Retune(self.number, knobs.flat()))

    def park(self, parked: bool) -> None:
        """Have the child stop reading for this pipeline (True), or go on."""
        if parked != self._parked:
            self._parked = parked
            if self.begun:
                self.child.send(messages.Park(self.number, parked))

    def activity(self) -> Statistics:
        """Counts of every part of the pipeline; once it is closed, those that the child told last.

        Raises:
            WorkerError: the child does not answer.
        """
        if self.closed:
            return self._last
        if not self.begun:
            return self._idle()
        return self._ask()

    def _idle(self) -> Statistics:
        return Statistics(ring=RingStatistics(self.knobs.ring_slots))

    def _ask(self) -> Statistics:
        child, asked = self.child, -1
        with child.lock:
            self._answered = False
            while not self._answered:
                if asked != child.restarts:
                    asked, deadline = child.restarts, time.monotonic() + _ANSWER_S
                    child.send(messages.AskActivity(self.number))
                left = deadline - time.monotonic()
                if left <= 0 or not child.usable or self.number not in child.clients:
                    return self._idle()
                child.receive(self.number, lambda: self._answered, min(left, 0.5))
        return self._last

    def quarantined(self) -> tuple[BadRecord, ...]:
        """Quarantined records that the pipeline knows; once it is closed, those told last."""
        self.activity()
        return self._quarantined

    def close(self) -> None:
        """Leave the child, which ends the pipeline; may be called twice."""
        if not self.closed:
            self.closed = True
            self.child.leave(self.number, self.setup.lent())


def preempt(loaders: Sequence[ChildPipeline], missing_bytes: int) -> None:
    """In the trainer, before another loader opens: shrink the largest open ones by so many bytes.

    Ends when all have shrunk, or after ``_SHRINK_S``.
    """
    shrinking: list[ChildPipeline] = []
    for one in sorted(loaders, key=lambda one: -one.spare_bytes()):
        spare = one.spare_bytes()
        if missing_bytes <= 0 or spare <= 0:
            break
        logger.info(
            "an open loader shrinks to its minimum knobs, since another one opens: it frees %s",
            format_bytes(spare),
        )
        one.shrink_to_minimum()
        shrinking.append(one)
        missing_bytes -= spare
    deadline = time.monotonic() + _SHRINK_S
    while not all(one.has_shrunk() for one in shrinking) and time.monotonic() < deadline:
        time.sleep(_SHRINK_POLL_S)
