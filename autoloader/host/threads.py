"""Threads and processes of the loader: names, stages, tasks, and the process that owns them.

To the kernel a new thread has the name of the thread that starts it, so a loader's thread takes its
own: ``top -H`` shows what it does.

Python raises exceptions in the main thread between any two instructions: Ctrl-C, and whatever other
signal handlers raise. A task of ``Background`` is never cut by them. A thread that waits for the
task may be: the task is finished all the same, and later tasks run behind it.

A fork has a copy of everything that its parent had, and shares the parent's sockets, shared memory
and children. A fork that used its copy would take messages that the parent waits for. So an object
with such parts has an ``Owner``, and checks first that the process that made it uses it.

A thread of the decode pool does a job from end to end. Where the job comes to the work of another
stage (``work_of``), the thread gives back its seat in the one stage, takes a seat in the other, and
comes back behind it. So a stage has at most as many threads as seats, stages overlap, and nothing
waits in a queue between them: results, exceptions and scratch memory are those of a plain call. A
thread that waits for a seat may hold a lock. So no thread waits for that lock in a seat: it is
``APART`` meanwhile.

Not here: what any thread does, seats (``decode.jobs``), starting processes (``host.supervision``).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from autoloader.errors import PipelineError, UsageError

MORE_THREADS = (
    "raise the limit of processes and threads (ulimit -u, pids.max of the control group), or use "
    "fewer: lower decode_threads, io_threads, decode_processes, and num_workers of other loaders"
)
_LONGEST_NAME = 15
_PR_SET_PDEATHSIG = 1


_Lock = TypeVar("_Lock")


def free_in_forks(lock: _Lock, *forget: Callable[[], object]) -> _Lock:
    """A lock of a module; a fork finds it free, as the thread that held it is not there.

    Args:
        lock: lock that threads of the module take.
        forget: functions that drop what it guards, in the fork: that is the parent's.
    """
    for step in (lock._at_fork_reinit, *forget):  # type: ignore[attr-defined]  # noqa: SLF001
        os.register_at_fork(after_in_child=step)
    return lock


class LoaderThread(threading.Thread):
    """A daemon thread; ``autoloader-decode-0`` is ``loader-decode-0`` to the kernel.

    Args:
        target: function that it runs.
        name: name in Python; the kernel keeps the first 15 bytes of "loader-…".
        args: positional arguments of ``target``.
    """

    def __init__(self, target: Callable[..., object], name: str, args: tuple[Any, ...] = ()):
        super().__init__(target=target, name=name, args=args, daemon=True)

    def start(self) -> None:
        """See ``threading.Thread.start``.

        Raises:
            PipelineError: the kernel gives this user or control group no further thread.
        """
        try:
            super().start()
        except RuntimeError as error:
            raise PipelineError(
                f"no thread can be started ({self.name}): {error}",
                remedy=MORE_THREADS,
                stage="threads",
            ) from error

    def run(self) -> None:
        """Take the name, then run the target."""
        name = "loader-" + self.name.removeprefix("autoloader-")
        with contextlib.suppress(OSError):
            task = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
            task.write_bytes(name.encode()[:_LONGEST_NAME])
        super().run()


APART = ""
"""Stage of a thread that waits for another one: it needs no seat."""


here = threading.local()
"""``move``: takes the calling thread to a stage, and gives the stage that it leaves."""


@contextlib.contextmanager
def work_of(stage: str) -> Iterator[None]:
    """Mark a function, or a block, as the work of a stage; no generator, which goes on later."""
    move = getattr(here, "move", str)
    left = move(stage)
    try:
        yield
    finally:
        move(left)


def all_ended(threads: Iterable[threading.Thread], within_s: float | None) -> bool:
    """Wait for threads for so long in all (``None``: until they end); whether all have ended."""
    deadline = None if within_s is None else time.monotonic() + within_s
    threads = [one for one in threads if one is not threading.current_thread()]
    for thread in threads:
        if thread.ident is not None:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Args:
        parent: process that started it; where it is gone already, this process ends now.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def become(name: str, level: int = logging.WARNING) -> None:
    """Make this process one of the loader's: named so, deaf to Ctrl-C, with threads that share.

    Args:
        name: shown by ``ps`` and ``top``, 15 bytes.
        level: level of what it logs to its stderr.
    """
    logging.basicConfig(level=level, format="%(asctime)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)
    sys.setswitchinterval(0.001)


_R = TypeVar("_R")
_LOOK_S = 0.5
_working = threading.local()


class _Task:
    """Something to be run once, and what came of it."""

    __slots__ = ("done", "error", "last", "over", "result", "work")

    def __init__(self, work: Callable[[], Any], *, last: bool = False) -> None:
        self.work: Callable[[], Any] | None = work
        self.last = last
        self.over = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = allocate_lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            self.result = cast("Callable[[], Any]", self.work)()
        except BaseException as error:  # noqa: BLE001 it is raised where it is waited for
            self.error = error
        self.work = None
        self.over = True
        self.done.release()

    def outcome(self) -> Any:
        error, self.error = self.error, None
        if error is None:
            return self.result
        try:
            raise error
        finally:
            del error  # its traceback has this frame


class _Worker:
    """The thread's side; it knows nothing of whoever uses it, so that garbage is collected."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self.ended = False
        self.ident = 0

    def run(self) -> None:
        self.ident = threading.get_ident()
        _working.here = True
        with contextlib.suppress(OSError):  # so that it does not take the processor of who posts
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        while (task := self.tasks.get()) is not None:
            task.run()
            last = task.last
            del task  # it may be the last thing that holds a loader, which then closes itself
            if last:
                break
        self.ended = True


class Background:
    """A thread and its tasks. Of one process: a fork has no such thread to wait for.

    Where the host has no thread for it, whoever asks runs the task, and may be interrupted in it.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._worker = _Worker()
        self._last: _Task | None = None
        self._thread: LoaderThread | None = LoaderThread(self._worker.run, name)
        try:
            self._thread.start()
        except PipelineError:
            self._thread = None

    def post(self, work: Callable[[], object]) -> None:
        """Have a task run soon; nobody learns what comes of it, and without a thread none runs."""
        if self._thread is not None:
            self._last = task = _Task(work)
            self._worker.tasks.put(task)

    def call(self, work: Callable[[], _R]) -> _R:
        """Run a task behind all others, and wait for it; returns or raises as the task does.

        An interrupt of the waiting thread does not interrupt the task.
        """
        if self._runs_here:
            return work()
        self._last = task = _Task(work)
        self._worker.tasks.put(task)
        while not task.done.acquire(timeout=_LOOK_S):
            if self._worker.ended and not task.over:  # it was put behind the last one
                return work()
        return cast("_R", task.outcome())

    @property
    def ended(self) -> bool:
        """True if the last task is over, or there is no thread."""
        return self._thread is None or self._worker.ended

    @property
    def idle(self) -> bool:
        """True if every task that was asked for is over."""
        last = self._last
        return last is None or last.over

    @property
    def _runs_here(self) -> bool:
        return self.ended or self._worker.ident == threading.get_ident()

    def close(self, work: Callable[[], object], within_s: float) -> bool:
        """Run the last task, and end the thread; whether that was done in time.

        It goes on where it was not. May be called again, and from a task, which does not wait.
        """
        if self._thread is None or self._worker.ended:
            work()
            return True
        task = _Task(work, last=True)
        self._worker.tasks.put(task)
        if getattr(_working, "here", False):
            return True
        deadline_s = time.monotonic() + within_s
        while not task.done.acquire(timeout=min(_LOOK_S, within_s)):
            if self._worker.ended:  # a task before it was the last one
                break
            if time.monotonic() >= deadline_s:
                return False
        self._thread.join(_LOOK_S)
        task.outcome()
        return True

    def __del__(self) -> None:
        self._worker.tasks.put(None)


class Owner:
    """The process that made something.

    Args:
        what: name of the thing, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def here(self) -> bool:
        """True in that process, and False in a fork of it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Refuse a fork.

        Raises:
            UsageError: this is another process than the one that made it.
        """
        if not self.here:
            raise UsageError(
                f"{self._what} belongs to process {self._pid}, which made it; process "
                f"{os.getpid()} is a fork of that one and may not use it",
                remedy="make an AutoLoader in the process that iterates it; in place of a torch "
                "DataLoader use loader.as_torch_dataloader()",
            )
