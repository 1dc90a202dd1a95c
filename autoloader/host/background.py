"""Runs what may not be torn in a thread of its own, one task at a time.

Python raises exceptions in the main thread between any two instructions: Ctrl-C, and whatever other
signal handlers raise. A task that runs here is never cut by them. Whoever waits for it may be: the
task is finished all the same, and later tasks run behind it.

Not here: what is run (``loader``, ``delivery``).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from autoloader.errors import PipelineError
from autoloader.host.threads import LoaderThread

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
        name: of the thread.
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
        """Run a task behind all others, and wait for it; returns or raises what it does.

        Who is interrupted while waiting does not interrupt the task.
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
        """Whether the last task is over, or there is no thread."""
        return self._thread is None or self._worker.ended

    @property
    def idle(self) -> bool:
        """Whether every task that was asked for is over."""
        last = self._last
        return last is None or last.over

    @property
    def _runs_here(self) -> bool:
        worker = self._worker
        return self.ended or worker.ident == threading.get_ident()

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
