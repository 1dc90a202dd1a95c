"""The trainer's side of the loader's child: starts it, talks to it, starts it again.

Theory of operation. One child serves all loaders of this process (train, validation), and those of
all other ranks on this node; whoever comes first starts it (``process.discovery``). It is started
afresh (``supervision.start``): no fork, no pickle, no main guard in scripts. It sees no GPU, has a
bounded number of malloc arenas, and raises its own ``oom_score_adj``.

No thread on this side waits for messages: whoever waits for a batch reads the socket, and hands
what belongs to another loader to that loader's inbox.

A child that ends, or hangs, is started again, and every loader begins at what it has delivered: in
every trainer of its own accord, when it comes to read the socket, and the first one that does
starts the child for all. The heartbeat on the control page and every message are signs of life.

Not here: finding it (``process.discovery``), whether it hangs, and when it is given up
(``supervision``), the child's side (``worker``), cursors (``loader``), what counts as an OOM kill
(``probes.oom``).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, cast

from autoloader.errors import WorkerError
from autoloader.probes.oom import named_by_kernel, oom_kills
from autoloader.process.control_page import ControlPage
from autoloader.process.discovery import find_or_start
from autoloader.process.messages import BatchReady, Failed, Hello, Logged, Message, Retuned, Stop
from autoloader.process.ranks import Neighbours
from autoloader.supervision.supervisor import Supervisor
from autoloader.telemetry.lines import script_name

logger = logging.getLogger(__name__)

CLOSE_S = 1.0
_END_S = 2.0
_numbers = itertools.count()


def pipeline_number() -> int:
    """A number that no other pipeline of this process has had."""
    return next(_numbers)


class Preemptible(Protocol):
    """A loader that is open, as one that opens sees it (``planning.preemption``)."""

    @property
    def reader(self) -> str:
        """The reader whose libraries its child has imported."""
        ...

    def reserved_bytes(self) -> int:
        """Memory that it was admitted with and does not hold yet."""
        ...

    def spare_bytes(self) -> int:
        """What ``shrink_to_minimum`` would free of its ring, filled or yet to be."""
        ...

    def shrink_to_minimum(self) -> None:
        """Begin again with the minimum knobs, behind the last batch handed out."""
        ...

    def has_shrunk(self) -> bool:
        """Whether the kernel has the pages back."""
        ...


class Client(Preemptible, Protocol):
    """A loader's side of one pipeline in the child."""

    def begin(self, child: Child) -> None:
        """Send ``Start`` (again), from what has been delivered."""
        ...

    def note(self, message: Message) -> None:
        """Heed a message that is not a batch."""
        ...

    def lost(self, reason: str, out_of_memory: bool) -> None:
        """The child is gone; forget what was under way, give free ring pages back."""
        ...

    def use(self, used: bool) -> None:
        """Batches are wanted of this loader (True), or of another one from now on."""
        ...


@dataclass(slots=True)
class _Inbox:
    client: Client
    messages: deque[Message] = field(default_factory=deque)


class Child:
    """The loader's child process; use ``shared`` to get this process's one.

    Args:
        neighbours: the trainers of this node that share it.
    """

    _current: ClassVar[dict[str, Child]] = {}
    _current_lock = threading.Lock()

    def __init__(self, neighbours: Neighbours) -> None:
        self._expected = 0
        self._neighbours = neighbours
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._clients: dict[int, _Inbox] = {}
        self._active = -1
        self._closed = False
        self._given_up: WorkerError | None = None
        self.page = ControlPage()
        self.restarts = 0
        self.out_of_memory = 0
        self._beat_ns = 0
        self._supervisor = Supervisor(
            "the loader's child",
            "autoloader.worker",
            remedy='see what it printed last, or run with isolation="thread" to see the fault',
        )
        try:
            self._connect()
        except BaseException:
            self.page.close()
            self._supervisor.close()
            raise

    @classmethod
    def shared(cls, neighbours: Neighbours) -> Child:
        """This process's connection to the child, which is started where there is none.

        It stays for the caller, who either lets a loader ``join``, or calls ``spare``.
        """
        with cls._current_lock:
            current = cls._current.get(neighbours.job)
            if current is None or not current.expect():
                current = cls(neighbours)
                current.expect()
                cls._current[neighbours.job] = current
            return current

    @classmethod
    def open_clients(cls) -> list[Preemptible]:
        """The loaders of this process that have joined a child and not left it."""
        children = [child for child in cls._current.values() if child.usable]
        return [client for child in children for client in child.clients]

    @property
    def clients(self) -> list[Preemptible]:
        """Those that have joined and not left."""
        return [inbox.client for inbox in self._clients.values()]

    def expect(self) -> bool:
        """A loader will join; False where it would find this closed."""
        with self._lock:
            if self.usable:
                self._expected += 1
            return self.usable

    def spare(self) -> None:
        """The loader that was expected will not join; with no other one, the child ends at once."""
        with self._lock:
            if self._closed or os.getpid() != self._owner:
                return
            self._expected = max(0, self._expected - 1)
            if self._clients or self._expected:
                return
            if self._neighbours.local_world_size == 1:
                self._link.kill()  # it has nothing to put in order, and may be busy importing
            self.close()

    @property
    def usable(self) -> bool:
        """Whether it is open, and this process's own (not a fork's copy)."""
        return not self._closed and self._owner == os.getpid()

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._supervisor.pid

    @property
    def started_here(self) -> bool:
        """Whether this process has started it, and not another rank of the node."""
        return self._link.started_here

    @property
    def ranks_here(self) -> int:
        """Trainers that share it."""
        return self._neighbours.local_world_size

    @property
    def lock(self) -> threading.RLock:
        """Held by whoever sends or receives."""
        return self._lock

    def join(self, client: Client) -> int:
        """Register a loader; returns its pipeline number."""
        with self._lock:
            number = pipeline_number()
            self._clients[number] = _Inbox(client)
            self._expected = max(0, self._expected - 1)
            return number

    def leave(self, number: int, lent: Collection[int]) -> None:
        """A loader is done; with the last one this trainer is, and with it maybe the child.

        A child that goes on gives the pages of its ring back, but those of the ``lent`` slots.
        """
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._clients.pop(number, None) is None or self._closed:
                return
            last = not self._clients and not self._expected
            if not last or self.ranks_here > 1:
                with contextlib.suppress(OSError):
                    self._link.wire.send(Stop(number, sorted(lent)))
            if last:
                self.close()

    def activate(self, number: int) -> bool:
        """This pipeline is the one in use from now on. Whether another one was before."""
        with self._lock:
            if self._active == number:
                return False
            before = self._clients.get(self._active)
            if before is not None:
                before.client.use(False)
            self._active = number
            self._clients[number].client.use(True)
            return before is not None

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send; a child that is gone is noticed by the next ``receive``."""
        with self._lock, contextlib.suppress(OSError):
            self._link.wire.send(message, descriptors)

    def receive(self, number: int, timeout_s: float) -> Message | None:
        """The next message for a pipeline; ``None`` where none came in time, or it is closed.

        A handler of a signal may close it while this waits.

        Raises:
            WorkerError: the child cannot be kept alive.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            known = self._clients.get(number)
            inbox = known.messages if known is not None else deque()
            while not inbox:
                if self._given_up is not None:
                    raise self._given_up
                if self._closed or number not in self._clients:
                    return None
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                try:
                    message = self._link.wire.receive(min(left, 1.0))
                except EOFError:
                    if self._closed:
                        return None
                    ended = self._supervisor.how_it_ended(_END_S)
                    self._restart(ended or "it closed its connection")
                    continue
                if message is None and not self._closed:
                    self._look_for_life()
                elif message is not None:
                    self._supervisor.watch.saw_life()
                    self._deliver(message)
            return inbox.popleft()

    def receive_batch(self, number: int) -> BatchReady | None:
        """A pipeline's next message where that has come and is a batch; nothing is waited for."""
        with self._lock:
            if self._closed:
                return None
            with contextlib.suppress(EOFError):  # ``receive`` meets it again
                while (message := self._link.wire.receive(0.0)) is not None:
                    self._supervisor.watch.saw_life()
                    self._deliver(message)
            inbox = self._clients[number].messages
            ready = inbox[0] if inbox else None
            return cast("BatchReady", inbox.popleft()) if isinstance(ready, BatchReady) else None

    def put_back(self, number: int, messages: list[Message]) -> None:
        """Return messages that were received while waiting for another one."""
        with self._lock:
            self._clients[number].messages.extendleft(reversed(messages))

    def note_progress(self) -> None:
        """A batch was delivered: earlier restarts no longer count."""
        self._supervisor.progress()

    def _deliver(self, message: Message) -> None:
        if isinstance(message, Logged):
            logging.getLogger(message.name).log(message.level, "%s", message.text)
            return
        inbox = self._clients.get(message.pipeline)
        if isinstance(message, Hello):
            self._supervisor.watch.pid = message.pid
        elif inbox is not None:
            inbox.messages.append(message)
        elif isinstance(message, Failed):
            logger.debug("a closed loader failed: %s", message.what)

    def _connect(self) -> None:
        self._link = find_or_start(self._neighbours, [f"--run={_describe_run()}"], self._supervisor)

    def _look_for_life(self) -> None:
        if ended := self._supervisor.how_it_ended(0.0):
            self._restart(ended)
            return
        beat_ns = self.page.heartbeat_ns
        if beat_ns != self._beat_ns:
            self._beat_ns = beat_ns
            self._supervisor.watch.saw_life()
        elif reason := self._supervisor.watch.hung():
            self._restart(reason)

    def _restart(self, reason: str) -> None:
        self._link.kill()
        gives_way = self.page.gives_way
        if gives_way:
            reason = "threads of it that decode did not end when they were told to"
        out_of_memory = not gives_way and _was_oom(self.page, self.pid)
        if out_of_memory:
            self.out_of_memory += 1
            reason += " (out of memory, says the kernel)"
        try:
            self._supervisor.try_again(reason, out_of_memory=out_of_memory, counts=not gives_way)
        except WorkerError as error:
            self._given_up = error
            self.close()
            raise
        self.restarts += 1
        for inbox in self._clients.values():
            for message in inbox.messages:
                if isinstance(message, Retuned):  # the last of them say what to begin again with
                    inbox.client.note(message)
            inbox.messages.clear()
            inbox.client.lost(reason, out_of_memory)
        self.page.renew()
        self._connect()
        for inbox in self._clients.values():
            inbox.client.begin(self)

    def close(self) -> None:
        """End the child, or with neighbours our part of it; within ``CLOSE_S`` and a little."""
        with self._lock:
            if self._closed or os.getpid() != self._owner:
                return
            self._closed = True
            shared = self._neighbours.local_world_size > 1
            with contextlib.suppress(OSError):
                self._link.wire.send(Stop(-1))
            if not self._link.leave(CLOSE_S, shared=shared):
                # It goes on for the others, who find it hung where it is; it sees that we are gone.
                if shared and not self._supervisor.watch.stopped:
                    self._link.drop()
                else:
                    self._link.kill()
            self.page.close()
            self._supervisor.close()
            if Child._current.get(self._neighbours.job) is self:
                del Child._current[self._neighbours.job]


def _leave_to_parent() -> None:
    """In a fork: connections, and whoever makes one at this moment, are the parent's."""
    Child._current = {}  # noqa: SLF001 its own module
    Child._current_lock = threading.Lock()  # noqa: SLF001 its own module


os.register_at_fork(after_in_child=_leave_to_parent)


def _was_oom(page: ControlPage, pid: int) -> bool:
    """Whether the kernel killed the child for memory, by its cgroup's counter or by its log."""
    directory, before = page.cgroup
    now = oom_kills(directory)
    return (now is not None and now > before) or named_by_kernel(pid)


def _describe_run() -> str:
    """A name for this run, for ``ps``: job and script."""
    return json.dumps(script_name())[1:-1]
