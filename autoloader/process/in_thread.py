"""The loader's service in a thread of the trainer's process: ``isolation="thread"``.

For debugging: TensorFlow, where it is needed, and torch share a process. Trainer and service talk
as they do with a child, over a socket pair.

Not here: the service (``process.control``), the trainer's side (``process.child``).
"""

from __future__ import annotations

import socket

from autoloader.errors import WorkerError
from autoloader.host.headroom import HeadroomSource
from autoloader.host.supervision import Supervisor
from autoloader.host.threads import LoaderThread, all_ended
from autoloader.pipeline.messages import Wire
from autoloader.process import control
from autoloader.process.child import Child
from autoloader.process.control import Control, TrainerService
from autoloader.process.discovery import Link
from autoloader.process.observer import held_here
from autoloader.process.ranks import Neighbours


class ThreadChild(Child):
    """Service of one loader, in this process.

    Args:
        headroom: source of the memory that the machine can still give.

    Attributes:
        service: runs the loader's pipeline.
    """

    def __init__(self, headroom: HeadroomSource) -> None:
        self._headroom = headroom
        self._baseline_bytes = held_here()
        super().__init__(Neighbours())

    def _connect(self) -> None:
        ours, theirs = socket.socketpair()
        self.service = TrainerService(theirs, Control(self._headroom))
        thread = LoaderThread(self._serve, "autoloader-service")
        self._link = _ThreadLink(Wire(ours), self.supervisor, thread)
        thread.start()

    def _serve(self) -> None:
        try:
            self.service.serve()
        finally:
            self.service.close()

    def held_bytes(self) -> int:
        """Bytes that this process holds, without frames, beyond those when this was made."""
        return max(0, held_here() - self._baseline_bytes)

    def _look_for_life(self) -> None:
        """Nothing: a thread ends with this process."""

    def _restart(self, reason: str) -> None:
        self.close()
        self._given_up = WorkerError(
            f"the loader's thread has ended: {reason}",
            remedy="see what this process printed last, and report it",
        )
        raise self._given_up


class _ThreadLink(Link):
    """Connection to the service of a thread, which ends its pipelines when that is closed."""

    def __init__(self, wire: Wire, supervisor: Supervisor, thread: LoaderThread) -> None:
        super().__init__(wire, supervisor)
        self._thread = thread

    def leave(self, timeout_s: float, *, shared: bool) -> bool:
        """See ``Link.leave``; waits for threads that decode, too."""
        del shared
        gone = all_ended([self._thread], timeout_s + control.STUCK_S)
        self.wire.close()
        return gone
