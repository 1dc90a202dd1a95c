"""Looks at pipelines that have no controller, so that they say what they do all the same.

Not here: governing (``controller.loop``), what is said (``control.moments``).
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from autoloader.controller.loop import POLICY_PERIOD_S
from autoloader.host.threads import LoaderThread

logger = logging.getLogger(__name__)


class Watched(Protocol):
    """What the thread calls."""

    def watch(self, at_s: float) -> None:
        """Observe, and say what is seen."""
        ...


class Watcher:
    """Watches pipelines; its thread runs while there are any."""

    def __init__(self) -> None:
        self._watched: tuple[Watched, ...] = ()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread: LoaderThread | None = None
        self._said = ""

    def add(self, one: Watched) -> None:
        """Watch one more."""
        with self._lock:
            self._watched = (*self._watched, one)
            if self._thread is None:
                self._done = threading.Event()
                self._thread = LoaderThread(target=self._run, name="autoloader-watch")
                self._thread.start()

    def remove(self, one: Watched) -> None:
        """Watch it no more; with the last one the thread ends."""
        with self._lock:
            self._watched = tuple(other for other in self._watched if other is not one)
            if self._watched or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._done.set()
        thread.join(2.0)

    def _run(self) -> None:
        done = self._done
        while not done.wait(POLICY_PERIOD_S):
            for one in self._watched:
                try:
                    one.watch(time.monotonic())
                except Exception as error:  # noqa: BLE001 the boundary of this thread: it must live on
                    text = f"{type(error).__name__}: {error}"
                    if text != self._said:
                        self._said = text
                        logger.warning("a loader cannot be watched: %s", text)
