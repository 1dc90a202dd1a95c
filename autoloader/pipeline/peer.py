"""A process that works for this one, at the other end of a socket pair: started, heard, restarted.

Theory of operation. A thread starts the process, takes what it sends, and starts it again where it
ends or hangs (``host.supervision``). The kernel ends the process with that thread
(PR_SET_PDEATHSIG). Otherwise a stopped process could outlive a child that was killed, and later
write into a slot that the next child uses.

Invariant: ``gone`` is called when the process has ended, so that it writes nothing any more, and
before another one starts.

Not here: what is said (``pipeline.decode_client``, ``pipeline.helpers``), the process's own side.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from autoloader.errors import AutoloaderError
from autoloader.host.supervision.supervisor import Supervisor, waited
from autoloader.host.threads import LoaderThread, all_ended
from autoloader.pipeline.messages import Message, Wire

_END_S = 2.0
_LEAVE_S = 1.5
"""A process that does not end by itself within so long is killed."""


class Peer(ABC):
    """A process, and the thread that serves it; who makes one starts ``thread``.

    Args:
        what: the process, in messages.
        module: full name of the module that it runs.
        remedy: what to do where it cannot be kept alive.
        thread: name of the thread.

    Attributes:
        condition: guards what both sides use, and ``wire``.
        wire: to the process; ``None`` where there is none.
        closed: whether it is to end.
    """

    look_s = 1.0
    """How often ``look`` is called, at least."""

    def __init__(self, what: str, module: str, *, remedy: str, thread: str) -> None:
        self.condition = threading.Condition()
        self.wire: Wire | None = None
        self.closed = False
        self.supervisor = Supervisor(what, module, remedy=remedy)
        self.thread = LoaderThread(target=self._run, name=thread)

    @abstractmethod
    def begin(self) -> Wire | None:
        """Start the process by ``spawn``, and say what it must know; ``None``: it is not wanted."""

    @abstractmethod
    def take(self, message: Message) -> None:
        """Heed what the process says; an error that it raises ends this for good."""

    @abstractmethod
    def gone(self) -> None:
        """The process has ended, and what it was asked for is lost."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """It cannot be kept alive, or has said that it cannot work."""

    def look(self) -> None:  # noqa: B027 few look
        """Called by the thread behind each message, and every ``look_s``."""

    @property
    def over(self) -> bool:
        """True if the process is to end."""
        return self.closed

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process; none before it has been started."""
        return (self.supervisor.pid,) if self.wire is not None else ()

    def spawn(self, arguments: Sequence[str], *descriptors: int) -> Wire:
        """Start the process, which inherits these descriptors."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.supervisor.start(
                [f"--socket={theirs.fileno()}", f"--parent={os.getpid()}", *arguments],
                descriptors=(theirs.fileno(), *descriptors),
            )
        return Wire(ours)

    def send(self, message: Message) -> None:
        """Send; a process that is gone is noticed by the thread."""
        if (wire := self.wire) is not None:
            with contextlib.suppress(OSError, ValueError):
                wire.send(message)

    def kill(self) -> None:
        """It does not do what it should: it is started again."""
        process = self.supervisor.process
        if process is not None and process.poll() is None:
            process.kill()

    def close(self, within_s: float) -> bool:
        """End the process; whether it has ended in time, and writes nothing any more."""
        with self.condition:
            self.closed = True
            self.condition.notify_all()
            if self.wire is not None:
                self.wire.shut_down()
        process = self.supervisor.process
        if process is not None and not waited(process, min(_LEAVE_S, within_s)):
            process.kill()
        return all_ended([self.thread], max(within_s, _END_S))

    def _run(self) -> None:
        try:
            while (wire := self.begin()) is not None:
                reason = self._serve(wire)
                self._end()
                if reason and not self.over:
                    self.supervisor.try_again(reason)
        except (AutoloaderError, OSError) as error:
            with self.condition:
                self.failed(error)
                self.condition.notify_all()
        finally:
            self._end()
            self.supervisor.close()

    def _serve(self, wire: Wire) -> str:
        """Take what the process sends; why it is over, "" where it was ended from here."""
        watch = self.supervisor.watch
        while True:
            try:
                message = wire.receive(self.look_s)
            except EOFError:
                if self.over:
                    return ""
                return self.supervisor.how_it_ended(_END_S) or "it closed its connection"
            if message is not None:
                watch.saw_life()
                self.take(message)
            elif reason := watch.hung():
                return reason
            self.look()

    def _end(self) -> None:
        process = self.supervisor.process
        if process is not None and self.over:
            waited(process, _LEAVE_S)
        self.supervisor.end()
        with self.condition:
            wire, self.wire = self.wire, None
        if wire is not None:
            wire.close()
        self.gone()
