"""A batch builder in a light process of its own; this side does what ``BatchBuilder`` does.

Theory of operation. This side keeps what it has asked for until the batch comes: the spans of every
batch and the slots given. A process that dies, by whatever signal, or hangs is started again and
asked for the same once more; a batch is filled from the plan, so it comes out the same. A thread
starts it and receives, and the process sends something every half second. The kernel ends the
process with that thread (PR_SET_PDEATHSIG). Otherwise a stopped process could outlive a child that
was killed, and later write into a slot that the next child uses.

Invariants:
    1. Batches come in the order in which they were assigned, each once.
    2. A slot is filled by one process at a time: the dead one is waited for before another starts,
       and before the frame cache has back what it had lent to it.

Not here: the process's side (``pipeline.decode_process``), whether it hangs, and when it is given
up (``supervision``).
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace

from autoloader.cache.lease import Lease
from autoloader.cache.table import FrameTable
from autoloader.decode.activity import BuilderActivity
from autoloader.decode.source import Spans
from autoloader.errors import AutoloaderError, as_fault
from autoloader.host.threads import LoaderThread, all_ended
from autoloader.knobs import Knobs
from autoloader.pipeline.frame_messages import answered, frames_of, note_stored
from autoloader.process import messages
from autoloader.process.messages import Message, Wire
from autoloader.ring.message import BatchMessage
from autoloader.samples.block import Place
from autoloader.supervision.supervisor import Supervisor, waited

_LOOK_S = 1.0
_END_S = 2.0
_LEAVE_S = 1.5
"""A process that does not end by itself within so long is killed."""


class RemoteBuilder:
    """Builds the batches of the runs it is assigned, in another process.

    Args:
        start: what the process is told first; its knobs are kept up to date here.
        ring: descriptor of the ring's memory.
        frames: the frame cache; its memory is mapped by the process too.
        datasets: number of datasets.
        bad: told of records to be quarantined; an error that it raises ends this builder.
    """

    def __init__(
        self,
        start: messages.BuildStart,
        ring: int,
        frames: FrameTable,
        *,
        datasets: int,
        bad: Callable[[Place, str], None],
    ) -> None:
        self._start = start
        self._ring = ring
        self._frames = frames
        self._leases: dict[int, Lease] = {}
        self._datasets = datasets
        self._bad = bad
        self._condition = threading.Condition()
        self._runs: collections.deque[collections.deque[tuple[int, int]]] = collections.deque()
        self._given: collections.deque[int] = collections.deque()
        self._filled: collections.deque[BatchMessage] = collections.deque()
        self._count = 0
        self._parked = False
        self._closed = False
        self._failure: BaseException | None = None
        self._before = self._now = BuilderActivity.none(datasets)
        self._wire: Wire | None = None
        self._supervisor = Supervisor(
            "a decode process",
            "autoloader.pipeline.decode_process",
            remedy="see what it printed last, or use decode_processes=1",
        )
        self._thread = LoaderThread(target=self._receive, name="autoloader-fill-receive")
        self._thread.start()

    here = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process; none before it has been started."""
        return (self._supervisor.pid,) if self._supervisor.pid else ()

    def assign(self, spans: Spans) -> None:
        """See ``BatchBuilder.assign``."""
        with self._condition:
            self._runs.append(collections.deque(spans))
            self._send(messages.BuildRun(0, [list(span) for span in spans]))

    def give(self, slot: int) -> None:
        """See ``BatchBuilder.give``."""
        with self._condition:
            self._given.append(slot)
            self._send(messages.BuildSlot(0, slot))

    def next(self, timeout_s: float) -> BatchMessage | None:
        """See ``BatchBuilder.next``.

        Raises:
            AutoloaderError: what the process failed with.
            WorkerError: it cannot be kept alive.
        """
        with self._condition:
            self._condition.wait_for(
                lambda: self._filled or self._failure or self._closed, timeout_s
            )
            if self._closed:
                return None
            if self._filled:
                return self._filled.popleft()
            if self._failure is not None:
                raise as_fault(self._failure, "decode")
            return None

    def retune(self, knobs: Knobs) -> None:
        """See ``BatchBuilder.retune``."""
        with self._condition:
            plain = knobs.flat()
            if plain != self._start.knobs:
                self._start = replace(self._start, knobs=plain)
                self._send(messages.BuildKnobs(0, plain))

    def park(self, parked: bool) -> None:
        """See ``BatchBuilder.park``."""
        with self._condition:
            self._parked = parked
            self._send(messages.Park(0, parked))

    def drop(self) -> None:
        """What it has read ahead stays: it is little, and the next batches need it."""

    @property
    def settled(self) -> bool:
        """It heeds its knobs as soon as it hears of them."""
        return True

    @property
    def filled(self) -> int:
        """Batches ready to be handed out."""
        return len(self._filled)

    def activity(self) -> BuilderActivity:
        """What its processes have done so far, half a second old at most."""
        return self._before.plus(self._now)

    def close(self, within_s: float) -> bool:
        """End the process; see ``BatchBuilder.close``."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            if self._wire is not None:
                self._wire.shut_down()
        process = self._supervisor.process
        if process is not None and not waited(process, min(_LEAVE_S, within_s)):
            process.kill()
        # The thread ends when the process can write no more, and has given up its leases then.
        return all_ended([self._thread], max(within_s, _END_S))

    slots: frozenset[int] = frozenset()
    """Slots that are written to though it is closed: a process that was killed writes no more."""

    @property
    def leased_frames(self) -> int:
        """See ``BatchBuilder.leased_frames``."""
        return sum(lease.pinned_frames for lease in list(self._leases.values()))

    def _spawn(self) -> Wire:
        """Start the process and ask for everything that has not come; under the lock."""
        ours, theirs = socket.socketpair()
        with theirs:
            slab = self._frames.shared_slab()
            held = -1 if slab is None else slab.descriptor
            self._supervisor.start(
                [
                    f"--socket={theirs.fileno()}",
                    f"--ring={self._ring}",
                    f"--frames={held}",
                    f"--parent={os.getpid()}",
                ],
                descriptors=(theirs.fileno(), self._ring, *([held] if slab else [])),
            )
        self._wire = Wire(ours)
        self._send(self._start)
        for run in self._runs:
            self._send(messages.BuildRun(0, [list(span) for span in run]))
        for slot in self._given:
            self._send(messages.BuildSlot(0, slot))
        if self._parked:
            self._send(messages.Park(0, True))
        return self._wire

    def _send(self, message: Message) -> None:
        """Send; a process that is gone is noticed by the thread that receives."""
        if self._wire is not None:
            with contextlib.suppress(OSError):
                self._wire.send(message)

    def _receive(self) -> None:
        try:
            while (wire := self._started()) is not None:
                self._restart_after(self._serve(wire))
        except (AutoloaderError, OSError) as error:
            with self._condition:
                self._failure = error
                self._condition.notify_all()
        finally:
            self._supervisor.end()
            self._give_up_leases()
            if self._wire is not None:
                self._wire.close()
            self._supervisor.close()

    def _started(self) -> Wire | None:
        """The connection to a new process; ``None`` where none is wanted any more."""
        with self._condition:
            return None if self._closed else self._spawn()

    def _serve(self, wire: Wire) -> str:
        """Take what the process sends; returns why it is over."""
        watch = self._supervisor.watch
        while not self._closed:
            try:
                message = wire.receive(_LOOK_S)
            except EOFError:
                return self._supervisor.how_it_ended(_END_S) or "it closed its connection"
            if message is not None:
                watch.saw_life()
                self._take(message)
            elif reason := watch.hung():
                return reason
        return ""

    def _take(self, message: Message) -> None:
        if isinstance(message, messages.BatchReady):
            batch = BatchMessage.from_plain(message.batch)
            with self._condition:
                self._runs[0].popleft()
                if not self._runs[0]:
                    self._runs.popleft()
                self._given.popleft()
                self._supervisor.progress()
                batch.number = self._count
                self._count += 1
                self._filled.append(batch)
                self._condition.notify_all()
        elif isinstance(message, messages.Activity):
            self._now = BuilderActivity.from_plain(message.activity)
        elif isinstance(message, messages.AskFrames):
            lease = self._frames.ask(
                message.files, frames_of(message), message.now, message.rows, elsewhere=True
            )
            self._leases[message.number] = lease
            self._send(answered(message.number, lease))
        elif isinstance(message, messages.FramesStored):
            lease = self._leases.pop(message.number)
            note_stored(lease, message)
            lease.give_up()
        elif isinstance(message, messages.ForgetFrames):
            self._frames.forget()
        elif isinstance(message, messages.Bad):
            self._bad(Place(*message.place), message.reason)
        elif isinstance(message, messages.Failed):
            raise message.to_error()

    def _give_up_leases(self) -> None:
        """The process has ended: nobody reads or writes its slots; what it was filling is lost."""
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            lease.give_up()

    def _restart_after(self, reason: str) -> None:
        """End the process for good; what it was asked for is asked of the next one.

        Raises:
            WorkerError: it has failed too often in a row.
        """
        self._supervisor.end()
        self._give_up_leases()
        with self._condition:
            if self._closed:
                return
            assert self._wire is not None
            self._wire.close()
            self._before = self.activity().over()
            self._now = BuilderActivity.none(self._datasets)
        self._supervisor.try_again(reason)
