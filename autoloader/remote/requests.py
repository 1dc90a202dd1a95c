"""The requests of this process: so many at a time at most, what is waited for first.

Not here: what is asked (``remote.store``), how often (``remote.patience``).
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
from collections.abc import Callable

from autoloader.host.threads import LoaderThread

IN_FLIGHT = 12
"""At a time: enough to keep 1 Gb/s busy over 50 ms with requests of 2 MiB."""

logger = logging.getLogger(__name__)


class Requests:
    """Threads that work jobs off, urgent ones first.

    Args:
        most: jobs under way at a time.
    """

    def __init__(self, most: int = IN_FLIGHT) -> None:
        self._most = most
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._threads = self._idle = 0

    def submit(self, job: Callable[[], None], urgency: float) -> None:
        """Have a job done; the smaller ``urgency``, the sooner. It raises nothing."""
        with self._changed:
            heapq.heappush(self._waiting, (urgency, next(self._number), job))
            if len(self._waiting) > self._idle and self._threads < self._most:
                self._threads += 1
                LoaderThread(target=self._work, name="autoloader-remote").start()
            self._changed.notify()

    def drop(self) -> None:
        """Forget the jobs that have not begun."""
        with self._changed:
            self._waiting.clear()

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return len(self._waiting)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._waiting:
                    self._changed.wait()
                self._idle -= 1
                _, _, job = heapq.heappop(self._waiting)
            try:
                job()
            except Exception:  # a job tells its own faults; a thread must outlive what it missed
                logger.exception("a request failed in a way that nobody foresaw")


_made: dict[int, Requests] = {}
_lock = threading.Lock()


def requests() -> Requests:
    """This process's."""
    with _lock:
        return _made.setdefault(os.getpid(), Requests())
