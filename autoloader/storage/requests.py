"""The requests of this process: so many bytes at a time at most, what is waited for first.

Theory of operation. What a link can carry while one answer is on its way has to be asked for all
the time. A sample that is wanted now asks for a chunk here and a chunk there, what is fetched ahead
for long stretches. So what is under way is bounded in bytes, and small requests may be as many as
fill that.

Not here: what is asked (``storage.store``), how often (``storage.patience``).
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
from collections.abc import Callable

from autoloader.host.threads import LoaderThread

REQUEST_BYTES = 2 * 2**20
"""Of a request at most."""

IN_FLIGHT_BYTES = 12 * REQUEST_BYTES
"""At a time: keeps 1 Gb/s busy over 150 ms."""

IN_FLIGHT = 48
"""Requests at a time, however small: of 256 KiB enough to keep 1 Gb/s busy over 100 ms."""

logger = logging.getLogger(__name__)


class Requests:
    """Threads that work jobs off, urgent ones first.

    Args:
        most: jobs under way at a time.
        most_bytes: of them together; one alone may be larger.
    """

    def __init__(self, most: int = IN_FLIGHT, most_bytes: int = IN_FLIGHT_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._under_way_bytes = 0
        self._waiting: list[tuple[float, int, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._threads = self._idle = 0

    def submit(self, job: Callable[[], None], urgency: float, nbytes: int) -> None:
        """Have a job done; the smaller ``urgency``, the sooner.

        Args:
            job: raises nothing.
            urgency: among all that wait.
            nbytes: that it asks for.
        """
        with self._changed:
            heapq.heappush(self._waiting, (urgency, next(self._number), nbytes, job))
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
                while not self._may_begin():
                    self._changed.wait()
                self._idle -= 1
                _, _, nbytes, job = heapq.heappop(self._waiting)
                self._under_way_bytes += nbytes
            try:
                job()
            except Exception:  # a job tells its own faults; a thread must outlive what it missed
                logger.exception("a request failed in a way that nobody foresaw")
            with self._changed:
                self._under_way_bytes -= nbytes
                self._changed.notify()

    def _may_begin(self) -> bool:
        """Whether the most urgent job fits beside what is under way."""
        if not self._waiting:
            return False
        together = self._under_way_bytes + self._waiting[0][2]
        return not self._under_way_bytes or together <= self._most_bytes


_made: dict[int, Requests] = {}
_lock = threading.Lock()


def requests() -> Requests:
    """This process's."""
    with _lock:
        return _made.setdefault(os.getpid(), Requests())
