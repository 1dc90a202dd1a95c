"""The process that asks helpers on other hosts; this side, in the loader's child.

Theory of operation. The process is Ray's driver, and the only one of the loader that imports Ray:
it may end when the cluster does, and ends nobody else. It is started when helpers are first wanted,
and ended when none are. A batch is asked for, answered, and then copied into a slot on demand, so a
slot is never written to by a process that is not watched: where a copy does not end in time the
process is killed, and waited for, before anybody else fills the slot.

A process that dies is started again. Where it cannot reach the cluster, or dies again and again,
that is said once, and the loader goes on with the builders here.

Not here: who fills which batch (``sharing.builder``), the process's side (``cluster.driver``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from autoloader.errors import AutoloaderError
from autoloader.host.threads import LoaderThread
from autoloader.knobs import BATCHES_OF_A_HELPER
from autoloader.process import helper_messages, messages
from autoloader.process.messages import Message, Wire
from autoloader.ring.message import BatchMessage
from autoloader.samples.block import Place
from autoloader.supervision.supervisor import PAST_BATCHES, Supervisor, waited

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_END_S = 2.0
_MOST_RESTARTS = 3
_LONGEST_CHANGE_S = 60.0
"""After which a change of the number of helpers counts as done, whatever the cluster gave."""


class Answers(Protocol):
    """Who is told of what helpers do; any thread."""

    def answered(self, number: int, took_s: float, check: bool) -> None:
        """A batch is filled there."""
        ...

    def copied(self, number: int, batch: BatchMessage) -> None:
        """A batch is in its slot."""
        ...

    def compared(self, number: int, same: bool) -> None:
        """A batch was compared."""
        ...

    def lost(self, numbers: Sequence[int] | None = None) -> None:
        """Nobody fills these, or any, any more."""
        ...

    def changed(self) -> None:
        """There are more helpers, or fewer."""
        ...


class HelperClient:
    """Asks helpers for batches.

    Args:
        start: makes what the process is told first; called when it is first started.
        ring: descriptor of the ring's memory.
        answers: told of what comes; its lock may be held by whoever calls this.
        bad: told of records to be quarantined.
    """

    def __init__(
        self,
        start: Callable[[], helper_messages.HelpersStart],
        ring: int,
        answers: Answers,
        *,
        bad: Callable[[Place, str], None],
    ) -> None:
        self._start, self._ring = start, ring
        self._answers, self._bad = answers, bad
        self._condition = threading.Condition()
        self._wanted = 0
        self._changed_s = time.monotonic()
        self._wire: Wire | None = None
        self._gone = ""
        self._closed = False
        self._restarts = self._since_restart = 0
        self.present = 0
        self.possible = 0
        self._supervisor = Supervisor(
            "the process that asks helpers", "autoloader.cluster.driver", remedy="leave helpers out"
        )
        self._thread = LoaderThread(target=self._run, name="autoloader-helpers")
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id; 0 where there is none."""
        return self._supervisor.pid if self._wire is not None else 0

    @property
    def room(self) -> int:
        """Batches that they may have at a time."""
        return BATCHES_OF_A_HELPER * min(self.present, self._wanted)

    @property
    def settled(self) -> bool:
        """Whether there are as many as are wanted, or as the cluster gives."""
        awaited = min(self._wanted, self.possible or self._wanted)
        late = time.monotonic() - self._changed_s > _LONGEST_CHANGE_S
        return bool(self._gone) or self.present == awaited or late

    def want(self, count: int) -> None:
        """Have so many helpers from now on; 0 ends the process."""
        with self._condition:
            if count == self._wanted:
                return
            self._wanted, self._changed_s = count, time.monotonic()
            if count:
                self._send(helper_messages.HelpersWanted(0, count))
            elif self._wire is not None:
                self._wire.shut_down()
            self._condition.notify_all()

    def ask(self, number: int, span: tuple[int, int]) -> None:
        """Have a helper fill a batch."""
        self._send(helper_messages.HelperAsk(0, number, list(span)))

    def copy(self, number: int, slot: int) -> None:
        """Have an answer put into a slot."""
        self._send(helper_messages.HelperCopy(0, number, slot))

    def compare(self, number: int, batch: BatchMessage) -> None:
        """Have an answer compared with a filled slot."""
        self._send(helper_messages.HelperCompare(0, number, batch.plain()))

    def drop(self, number: int) -> None:
        """An answer, or the question, is not wanted any more."""
        self._send(helper_messages.HelperDrop(0, number))

    def restart(self) -> None:
        """It does not do what it should: kill it; ``lost`` is told once it is gone."""
        process = self._supervisor.process
        if process is not None and process.poll() is None:
            process.kill()

    def close(self, within_s: float) -> bool:
        """End the process, and with it the helpers; whether it has ended in time."""
        with self._condition:
            self._closed = True
            if self._wire is not None:
                self._wire.shut_down()
            self._condition.notify_all()
        process = self._supervisor.process
        if process is not None and not waited(process, max(0.05, within_s)):
            self._supervisor.end()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _send(self, message: Message) -> None:
        wire = self._wire
        if wire is not None:
            with contextlib.suppress(OSError, ValueError):
                wire.send(message)

    def _run(self) -> None:
        try:
            while self._awaited():
                reason = self._serve(self._spawned())
                self._end()
                if reason:
                    self._restarts, self._since_restart = self._restarts + 1, 0
                    if self._restarts > _MOST_RESTARTS:
                        self._give_up(f"the process that asks them ended again: {reason}")
        except (AutoloaderError, OSError) as error:
            self._end()
            self._give_up(str(error))
        finally:
            self._supervisor.close()

    def _awaited(self) -> bool:
        """Wait until helpers are wanted; False where they will not be any more."""
        with self._condition:
            self._condition.wait_for(lambda: self._wanted or self._closed)
            return not (self._closed or self._gone)

    def _spawned(self) -> Wire:
        start = self._start()
        ours, theirs = socket.socketpair()
        with theirs:
            self._supervisor.start(
                [f"--socket={theirs.fileno()}", f"--ring={self._ring}", f"--parent={os.getpid()}"],
                descriptors=(theirs.fileno(), self._ring),
            )
        wire = Wire(ours)
        wire.send(start)  # long, and read when the process has started: nobody waits for a lock
        with self._condition:
            wire.send(helper_messages.HelpersWanted(0, self._wanted))
            self._wire = wire
            if self._closed or not self._wanted:
                wire.shut_down()
        return wire

    def _serve(self, wire: Wire) -> str:
        """Take what the process sends; why it is over, "" where it was ended from here."""
        watch = self._supervisor.watch
        while True:
            try:
                message = wire.receive(_LOOK_S)
            except EOFError:
                if self._closed or not self._wanted:
                    return ""
                return self._supervisor.how_it_ended(_END_S) or "it closed its connection"
            if message is not None:
                watch.saw_life()
                self._take(message)
            elif reason := watch.hung():
                return reason

    def _take(self, message: Message) -> None:
        if isinstance(message, helper_messages.HelperAnswer):
            self._answers.answered(message.number, message.took_s, message.check)
        elif isinstance(message, helper_messages.HelperCopied):
            self._since_restart += 1
            if self._since_restart >= PAST_BATCHES:
                self._restarts = 0
            self._answers.copied(message.number, BatchMessage.from_plain(message.batch))
        elif isinstance(message, helper_messages.HelperCompared):
            self._answers.compared(message.number, message.same)
        elif isinstance(message, helper_messages.HelpersLost):
            self._answers.lost(message.numbers)
        elif isinstance(message, helper_messages.HelpersHere):
            self.present, self.possible = message.present, message.possible
            self._answers.changed()
        elif isinstance(message, messages.Bad):
            self._bad(Place(*message.place), message.reason)
        elif isinstance(message, messages.Logged):
            logging.getLogger(message.name).log(message.level, "%s", message.text)
        elif isinstance(message, messages.Failed):
            raise message.to_error()

    def _end(self) -> None:
        """The process is gone for good, and so is what it was asked for."""
        process = self._supervisor.process
        if process is not None and not (waited(process, _END_S) if not self._wanted else False):
            self._supervisor.end()
        with self._condition:
            self.present = self.possible = 0
            wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        self._answers.lost()

    def _give_up(self, reason: str) -> None:
        with self._condition:
            self._gone = reason
            if self._closed:
                return
        logger.warning("no more helpers: this host builds all batches itself: %s", reason)
