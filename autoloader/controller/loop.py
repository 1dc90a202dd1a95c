"""The two threads of control: the reflex ten times a second, the policy once.

Pipelines that have no controller are looked at by the second one alone, so that they say what they
do all the same.

They run beside the pipelines that they govern: in the loader's child, or in the trainer's process
with ``isolation="thread"``. The reflex waits for nobody. It reads headroom and acts, even while the
policy's thread waits for the GPU or for a slow file system. An error in either thread is counted,
logged once, and leaves all knobs as they are: the controller fails static.

Not here: what is done (``reflex``, ``policy``), to what (``autoloader.process.control``).
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from autoloader.controller.reflex import PERIOD_S, GrowthMeter
from autoloader.host.clock import Clock, SystemClock
from autoloader.host.probes.headroom import HeadroomSource
from autoloader.host.threads import LoaderThread

logger = logging.getLogger(__name__)

POLICY_PERIOD_S = 1.0


class Governed(Protocol):
    """What the threads call; each method from its own thread."""

    def reflex(self, at_s: float, headroom_bytes: int | None, growth_bytes: int) -> None:
        """Answer one reading of headroom; must not wait."""
        ...

    def govern(self, at_s: float, growth_bytes: int) -> None:
        """Observe, decide, apply."""
        ...


class ControlLoop:
    """Governs pipelines; its threads run while there are any.

    Args:
        headroom: read by the reflex; ``None``: there is none, and pipelines are only watched.
        clock: for what is governed.
    """

    def __init__(self, headroom: HeadroomSource | None, *, clock: Clock | None = None) -> None:
        self._headroom = headroom
        self._clock = clock or SystemClock()
        self._governed: tuple[Governed, ...] = ()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []
        self._said: set[str] = set()
        self.growth = GrowthMeter()
        self.faults = 0

    def add(self, one: Governed) -> None:
        """Govern one more."""
        with self._lock:
            self._governed = (*self._governed, one)
            if not self._threads:
                self._done.clear()
                jobs = {"reflex": self._watch, "control": self._govern}
                if self._headroom is None:
                    jobs = {"watch": self._govern}
                for name, target in jobs.items():
                    thread = LoaderThread(target=target, name=f"autoloader-{name}")
                    self._threads.append(thread)
                    thread.start()

    def remove(self, one: Governed) -> None:
        """Govern it no more; with the last one the threads end."""
        with self._lock:
            self._governed = tuple(other for other in self._governed if other is not one)
            if self._governed:
                return
            threads, self._threads = self._threads, []
            self._done.set()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(2.0)

    def react_once(self) -> None:
        """One round of the reflex."""
        headroom: int | None = None
        assert self._headroom is not None
        try:
            headroom = self._headroom.read().headroom_bytes
        except Exception as error:  # noqa: BLE001 the boundary of this thread: it must live on
            self._fault("headroom", error)
        else:
            self.growth.note(headroom)
        for one in self._governed:
            try:
                one.reflex(self._clock.now_s(), headroom, self.growth.p99_bytes)
            except Exception as error:  # noqa: BLE001 the boundary of this thread: static, counted
                self._fault("reflex", error)

    def govern_once(self) -> None:
        """One round of the policy."""
        for one in self._governed:
            try:
                one.govern(self._clock.now_s(), self.growth.p99_bytes)
            except Exception as error:  # noqa: BLE001 the boundary of this thread: static, counted
                self._fault("policy", error)

    def _watch(self) -> None:
        done = self._done
        while not done.wait(PERIOD_S):
            self.react_once()

    def _govern(self) -> None:
        done = self._done
        while not done.wait(POLICY_PERIOD_S):
            self.govern_once()

    def _fault(self, where: str, error: Exception) -> None:
        self.faults += 1
        text = f"{where}: {type(error).__name__}: {error}"
        if text not in self._said and len(self._said) < 100:
            self._said.add(text)
            kept = "the controller leaves things as they are"
            logger.warning(
                "%s: %s", "a loader cannot be watched" if self._headroom is None else kept, text
            )
