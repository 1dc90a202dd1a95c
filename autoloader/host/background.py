"""Runs short tasks beside the thread that uses it, one at a time.

Not here: what is run (``delivery``).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from autoloader.errors import PipelineError
from autoloader.host.threads import LoaderThread


class Background:
    """A thread that begins with the first task.

    ``run`` and ``settle`` are for one thread of one process: a fork has no such thread to wait for.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: LoaderThread | None = None
        self._error: BaseException | None = None
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Lock()

    def run(self, task: Callable[[], None]) -> None:
        """Begin a task, if the host has a thread for it; the one before must be settled."""
        if self._thread is None:
            thread = LoaderThread(self._work, self._name)
            try:
                thread.start()
            except PipelineError:
                return
            self._thread = thread
        self._idle.acquire()
        self._tasks.put(task)

    def settle(self) -> None:
        """Wait until no task is under way; raises what the last one raised."""
        with self._idle:
            error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame

    def close(self) -> None:
        """End the thread, behind its task. Garbage collection may call it from a task."""
        self._tasks.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._error = None  # its traceback has the thread's frame, and so this object

    def _work(self) -> None:
        with contextlib.suppress(OSError):  # so that it does not take the processor of who began it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:  # noqa: BLE001 it is raised where it is settled
                self._error = error
            finally:
                del task
                self._idle.release()
