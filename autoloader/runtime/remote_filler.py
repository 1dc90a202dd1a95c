"""A filler in a light process of its own, with the face of ``runtime.filler.Filler``.

Theory of operation. This side keeps what it has asked for until the batch comes: the spans of every
batch and the slots given. A process that dies, by whatever signal, is started again and asked for
the same once more; a batch is filled from the plan, so it comes out the same. A thread receives;
whoever waits for a batch waits on its condition.

Invariants:
    1. Batches come in the order in which they were assigned, each once.
    2. A slot is filled by one process at a time: the dead one is waited for before another starts.

Not here: the process's side (``runtime.fill_process``).
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from autoloader.errors import AutoloaderError, WorkerError, as_fault
from autoloader.runtime.filled import FilledBatch
from autoloader.runtime.filler import FillerActivity, FillerKnobs
from autoloader.runtime.messages import (
    Activity,
    Bad,
    Failed,
    Filled,
    FillKnobs,
    FillRun,
    FillSlot,
    FillStart,
    Message,
    Park,
    Wire,
)
from autoloader.runtime.planned import Spans
from autoloader.sampling.episode import Place
from autoloader.threads import LoaderThread

logger = logging.getLogger(__name__)

MAX_DEATHS = 5
"""Deaths in a row without a batch; then the filler fails."""


class RemoteFiller:
    """Fills the batches of the runs it is assigned, in another process.

    Args:
        start: what the process is told first; its knobs are kept up to date here.
        ring: descriptor of the ring's memory.
        datasets: number of datasets.
        bad: told of records to be quarantined; may raise what then ends this filler.
    """

    def __init__(
        self,
        start: FillStart,
        ring: int,
        *,
        datasets: int,
        bad: Callable[[Place, str], None],
    ) -> None:
        self._start = start
        self._ring = ring
        self._datasets = datasets
        self._bad = bad
        self._condition = threading.Condition()
        self._runs: collections.deque[collections.deque[tuple[int, int]]] = collections.deque()
        self._given: collections.deque[int] = collections.deque()
        self._filled: collections.deque[FilledBatch] = collections.deque()
        self._count = 0
        self._deaths = 0
        self._parked = False
        self._closed = False
        self._failure: BaseException | None = None
        self._before = self._now = FillerActivity.none(datasets)
        self._spawn()
        self._thread = LoaderThread(target=self._receive, name="autoloader-fill-receive")
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def assign(self, spans: Spans) -> None:
        """See ``Filler.assign``."""
        with self._condition:
            self._runs.append(collections.deque(spans))
            self._send(FillRun(0, [list(span) for span in spans]))

    def give(self, slot: int) -> None:
        """See ``Filler.give``."""
        with self._condition:
            self._given.append(slot)
            self._send(FillSlot(0, slot))

    def next(self, timeout_s: float) -> FilledBatch | None:
        """See ``Filler.next``.

        Raises:
            AutoloaderError: what the process failed with.
            WorkerError: it cannot be kept alive.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._filled or self._failure, timeout_s)
            if self._filled:
                return self._filled.popleft()
            if self._failure is not None:
                raise as_fault(self._failure, "decode")
            return None

    def retune(self, knobs: FillerKnobs) -> None:
        """See ``Filler.retune``."""
        with self._condition:
            plain = asdict(knobs)
            if plain != self._start.knobs:
                self._start = replace(self._start, knobs=plain)
                self._send(FillKnobs(0, plain))

    def park(self, parked: bool) -> None:
        """See ``Filler.park``."""
        with self._condition:
            self._parked = parked
            self._send(Park(0, parked))

    @property
    def filled(self) -> int:
        """Batches ready to be handed out."""
        return len(self._filled)

    def activity(self) -> FillerActivity:
        """What its processes have done so far, half a second old at most."""
        return self._before.plus(self._now)

    def close(self, within_s: float) -> bool:
        """End the process; whether it has ended in time."""
        with self._condition:
            self._closed = True
            with contextlib.suppress(OSError):
                self._wire.socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(max(0.05, within_s))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._thread is not threading.current_thread():
            self._thread.join(within_s)
        self._wire.close()
        return not self._thread.is_alive()

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "autoloader.runtime.fill_process",
                    "--socket",
                    str(theirs.fileno()),
                    "--ring",
                    str(self._ring),
                ],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
                },
                pass_fds=(theirs.fileno(), self._ring),
                stdin=subprocess.DEVNULL,
            )
        self._wire = Wire(ours)
        self._send(self._start)
        for run in self._runs:
            self._send(FillRun(0, [list(span) for span in run]))
        for slot in self._given:
            self._send(FillSlot(0, slot))
        if self._parked:
            self._send(Park(0, True))

    def _send(self, message: Message) -> None:
        """Send; a process that is gone is noticed by the thread that receives."""
        with contextlib.suppress(OSError):
            self._wire.send(message)

    def _receive(self) -> None:
        try:
            while not self._closed:
                try:
                    message = self._wire.receive(None)
                except EOFError:
                    self._revive()
                    continue
                if message is not None:
                    self._take(message)
        except (AutoloaderError, OSError) as error:
            with self._condition:
                self._failure = error
                self._condition.notify_all()

    def _take(self, message: Message) -> None:
        if isinstance(message, Filled):
            batch = message.to_batch()
            with self._condition:
                self._runs[0].popleft()
                if not self._runs[0]:
                    self._runs.popleft()
                self._given.popleft()
                self._deaths = 0
                batch.number = self._count
                self._count += 1
                self._filled.append(batch)
                self._condition.notify_all()
        elif isinstance(message, Activity):
            self._now = FillerActivity(**message.activity)
        elif isinstance(message, Bad):
            self._bad(Place(*message.place), message.reason)
        elif isinstance(message, Failed):
            raise message.to_error()

    def _revive(self) -> None:
        """Start again what died, and ask for everything that has not come."""
        with self._condition:
            if self._closed:
                return
            self._process.kill()
            status = self._process.wait()
            self._wire.close()
            self._deaths += 1
            if self._deaths > MAX_DEATHS:
                raise WorkerError(
                    f"a decode process died {self._deaths} times in a row without a batch; "
                    f"last with status {status}",
                    remedy="use decode_processes=1, and less memory if the kernel killed it",
                )
            logger.warning("a decode process is started again: it ended with status %d", status)
            self._before = self.activity()
            self._now = FillerActivity.none(self._datasets)
            self._spawn()
