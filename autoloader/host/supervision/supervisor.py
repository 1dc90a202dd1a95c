"""One process of the library, watched: is it alive, how did it end, start it again or give it up.

Theory of operation. The supervisor holds no thread: whoever waits for the process calls ``hung``
when nothing came for a moment, and ``saw_life`` when something did. A process that hangs is killed
(SIGKILL ends a stopped process as well); one that ended is started again by its owner, who asks
``try_again`` first. After ``MAX_RESTARTS`` in a row without ``progress`` that raises, with what
the process printed last: its stdout and stderr go to a memory file, of which the end is read. A
crash, or an exit with a status, is past only when ``PAST_BATCHES`` batches came behind it: what
crashes it may lie behind batches that come again each time.

Not here: what is said to the process, and where it begins again (``process.child``,
``pipeline.messages``, ``formats.tensorflow_process``); the judgement itself (``vitals``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from autoloader.errors import WorkerError
from autoloader.host.files import memory_file
from autoloader.host.supervision.start import start
from autoloader.host.supervision.vitals import (
    Kind,
    Silence,
    Vitals,
    kind_of,
    read_vitals,
    waits_in_kernel,
)

logger = logging.getLogger(__name__)

MAX_RESTARTS = 5
PAST_BATCHES = 1000
"""More than a pipeline has under way: a process that delivers so many is beyond what crashed it."""
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_LOOK_EVERY_S = 0.5
_SAY_EVERY_S = 30.0
_LAST_BYTES = 8192
_KILL_S = 30.0
_GONE_S = 2.0
"""A killed process that is still there then mostly waits inside the kernel."""
_blocked: list[subprocess.Popen[bytes]] = []
"""Killed processes that were left inside the kernel: kept to be waited for."""


class ProcessWatch:
    """Tells a process that hangs from one that is only slow.

    Args:
        what: the process, in messages.
        pid: its id; 0 where it is not known.
        read: function that reads the process's vitals.
    """

    def __init__(self, what: str, pid: int, *, read: Callable[[int], Vitals] = read_vitals) -> None:
        self._what = what
        self.pid = pid
        self._read = read
        self.saw_life()

    def saw_life(self) -> None:
        """It has just shown that it lives."""
        self._silence = Silence()
        self._before: Vitals | None = None
        self._said_s = 0.0

    @property
    def stopped(self) -> bool:
        """True if all its threads are stopped now."""
        now = self._read(self.pid)
        return kind_of(now, now) is Kind.STOPPED

    def hung(self) -> str:
        """Why it is taken for hung; "" where it is not. Called while nothing comes from it."""
        before = self._before
        if before is not None and time.monotonic() - before.at_s < _LOOK_EVERY_S:
            return self._silence.verdict
        self._before = now = self._read(self.pid)
        if before is not None:
            self._silence = self._silence.after(before, now)
        if self._silence.starved_s >= self._said_s + _SAY_EVERY_S:
            self._said_s = self._silence.starved_s
            logger.warning(
                "%s has waited for a processor for %.0f s: this machine is busy with other work",
                self._what,
                self._said_s,
            )
        return self._silence.verdict


class Supervisor:
    """Starts a process again when it ends or hangs, until it has failed too often.

    Args:
        what: the process, in messages, as in "the loader's child".
        module: full name of the module that it runs.
        remedy: what to do where it cannot be kept alive for a reason that is not memory.
    """

    def __init__(self, what: str, module: str, *, remedy: str) -> None:
        self._what = what
        self._module = module
        self._remedy = remedy
        self._in_a_row = self._crashes = self._since_crash = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.watch = ProcessWatch(what, 0)
        self._log = memory_file("autoloader-log")

    @property
    def pid(self) -> int:
        """Process id; 0 where it is not known yet."""
        return self.watch.pid

    def start(
        self,
        arguments: Sequence[str],
        *,
        descriptors: tuple[int, ...] = (),
        changes: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start the process, with these descriptors and changes of the environment."""
        os.ftruncate(self._log, 0)
        os.lseek(self._log, 0, os.SEEK_SET)
        self.process = start(
            self._module,
            arguments,
            changes=changes,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        self.watch = ProcessWatch(self._what, self.process.pid)
        return self.process

    def adopt(self, pid: int) -> None:
        """Watch a process that somebody else has started."""
        self.process = None
        self.watch = ProcessWatch(self._what, pid)

    def progress(self) -> None:
        """The process delivered a batch: earlier restarts no longer count, but for late crashes."""
        self._in_a_row = 0
        if self._crashes:
            self._since_crash += 1
            if self._since_crash >= PAST_BATCHES:
                self._crashes = 0

    def how_it_ended(self, within_s: float) -> str:
        """Describe how it ended by itself; "" where it is not ours, or has not ended in time."""
        if self.process is None or not waited(self.process, within_s):
            return ""
        return describe_end(self.process.returncode)

    def end(self) -> None:
        """Kill it where it still runs, and wait until it can write no more.

        That is when it is gone, or when all its threads wait inside the kernel, for a disk mostly:
        a thread that was killed runs no instruction of its program after such a wait.

        Raises:
            WorkerError: it is not, for a long time.
        """
        process = self.process
        if process is None:
            return
        if process.poll() is None:
            process.kill()
        deadline = time.monotonic() + _KILL_S
        while not waited(process, _GONE_S):
            if waits_in_kernel(process.pid):
                logger.warning(
                    "%s (process %d) was killed and waits inside the kernel, mostly for a disk: "
                    "look whether the data's file system answers",
                    self._what,
                    process.pid,
                )
                _blocked.append(process)
                break
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"{self._what} (process {process.pid}) was killed and has not ended for "
                    f"{_KILL_S:.0f} s",
                    remedy="look what it waits for (cat /proc/PID/task/*/stack), then start the "
                    "run again",
                )
        _blocked[:] = [one for one in _blocked if one.poll() is None]

    def try_again(self, reason: str, *, out_of_memory: bool = False, counts: bool = True) -> None:
        """Count an end of the process, for this reason; returns where it may be started again.

        One that ended for the next one to begin ``counts`` for nothing.

        Raises:
            WorkerError: it has failed too often in a row.
        """
        self._in_a_row += counts
        if counts and self._crashed:
            self._crashes, self._since_crash = self._crashes + 1, 0
        if max(self._in_a_row, self._crashes) <= MAX_RESTARTS:
            logger.warning("%s is started again: %s", self._what, reason)
            return
        lines = self.last_lines()
        printed = f"; it printed last:\n{lines}" if lines else ""
        remedy = self._remedy
        if out_of_memory:
            remedy = "use smaller knobs or free memory: the kernel ended it for want of memory"
        elif "SIGKILL" in reason:
            remedy = (
                "find out who killed it: the kernel for want of memory (its log says so: dmesg), "
                "a job scheduler or a person; with too little memory use smaller knobs"
            )
        often = f"{self._in_a_row} times in a row without a batch"
        if self._in_a_row <= MAX_RESTARTS:
            often = (
                f"{self._crashes} times by its own fault, each less than {PAST_BATCHES} batches "
            )
            often += "after the one before"
        raise WorkerError(
            f"{self._what} ended {often}; last: {reason}{printed}",
            remedy=remedy,
        )

    @property
    def _crashed(self) -> bool:
        """True if it ended by its own fault."""
        code = None if self.process is None else self.process.poll()
        return code is not None and (code > 0 or -code in _CRASHES)

    def last_lines(self, count: int = 20) -> str:
        """The end of what it wrote to its stdout and stderr."""
        return last_lines(self._log, count)

    def close(self) -> None:
        """Forget what it printed; the process is ended before."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1


def describe_end(code: int) -> str:
    """Describe a process's end by its return code (negative: a signal)."""
    if code >= 0:
        return f"it exited with status {code}"
    with contextlib.suppress(ValueError):
        return f"it was killed by {signal.Signals(-code).name}"
    return f"it was killed by signal {-code}"


def waited(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """True if a process of ours ends in time."""
    try:
        process.wait(max(0.0, within_s))
    except subprocess.TimeoutExpired:
        return False
    return True


def last_lines(descriptor: int, count: int) -> str:
    """The last lines of a file that a process writes, without empty ones."""
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, _LAST_BYTES, max(0, size - _LAST_BYTES))
    lines = [line.rstrip() for line in text.decode("utf-8", "replace").splitlines()]
    return "\n".join([line for line in lines if line][-count:])
