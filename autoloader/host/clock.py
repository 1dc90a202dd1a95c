"""Clocks that a test can drive by hand, and probes whose last answer has an age.

Any probe may have no answer. ``Watched`` keeps its last answer and the age of it, says once that a
probe fails, and asks a failing probe again with growing pauses.

Not here: durations and their text (``host.units``), the probes themselves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from autoloader.errors import AutoloaderError

logger = logging.getLogger(__name__)


class Clock(Protocol):
    """Time, for a part that waits or measures."""

    def now_s(self) -> float:
        """Seconds on a clock that never goes backwards; only differences mean anything."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Probe(Protocol[T_co]):
    """A source that may know."""

    def read(self) -> T_co | None:
        """A fresh reading; ``None`` where there is none to be had on this machine, or now."""
        ...


class Watched(Generic[T]):
    """A probe's last answer, its age, and the patience with it.

    Args:
        probe: probe that is asked.
        name: name of the probe in the log.
        now_s: function that gives seconds of a monotonic clock.
        every_s: a younger answer is given again: several may ask in turn.
    """

    def __init__(
        self, probe: Probe[T], name: str, now_s: Callable[[], float], *, every_s: float = 0.0
    ) -> None:
        self._probe = probe
        self._name = name
        self._now_s = now_s
        self._value: T | None = None
        self._at_s = 0.0
        self._every_s = every_s
        self._pause_s = 0.0
        self._next_s = float("-inf")
        self._told = False

    def read(self) -> tuple[T, float] | None:
        """(the last answer, its age in seconds); ``None`` where there has been none."""
        now = self._now_s()
        if now >= self._next_s:
            self._ask(now)
        return None if self._value is None else (self._value, max(0.0, now - self._at_s))

    def _ask(self, now: float) -> None:
        reason = "no reading"
        try:
            value = self._probe.read()
        except (AutoloaderError, OSError, ValueError) as error:
            value, reason = None, str(error)
        if value is not None:
            self._value, self._at_s = value, now
            self._pause_s, self._next_s = 0.0, now + self._every_s
            return
        if not self._told:
            self._told = True
            logger.info("%s is unknown: %s; going on without", self._name, reason)
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        self._next_s = now + self._pause_s
