"""Clocks that a test can drive by hand, and probes whose last answer counts for a while.

Any probe may have no answer. ``Watched`` keeps its last answer for some seconds, says once that a
probe fails, and asks a failing probe again with growing pauses.

Not here: durations and their text (``host.units``), the probes themselves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from autoloader.errors import AutoloaderError

logger = logging.getLogger(__name__)


class Clock:
    """The machine's monotonic clock, for a part that waits or measures; tests drive another one."""

    def now_s(self) -> float:
        """Seconds on a clock that never goes backwards; only differences mean anything."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        time.sleep(seconds)


OLDEST_S = 3.0
"""An answer older than this is unknown."""
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0

T = TypeVar("T")


@dataclass(slots=True)
class Watched(Generic[T]):
    """A probe's last answer, while it is young enough, and the patience with the probe.

    Attributes:
        probe: function that asks the probe; ``None``: it has no answer here, or now.
        name: name of the probe in the log.
        now_s: function that gives seconds of a monotonic clock.
        every_s: a younger answer is given again: several may ask in turn.
    """

    probe: Callable[[], T | None]
    name: str
    now_s: Callable[[], float] = time.monotonic
    every_s: float = 0.0
    _value: T | None = None
    _at_s: float = 0.0
    _pause_s: float = 0.0
    _next_s: float = float("-inf")
    _told: bool = False

    def read(self) -> T | None:
        """The last answer; ``None`` where there has been none for ``OLDEST_S``."""
        now = self.now_s()
        if now >= self._next_s:
            self._ask(now)
        return self._value if now - self._at_s <= OLDEST_S else None

    def _ask(self, now: float) -> None:
        reason = "no reading"
        try:
            value = self.probe()
        except (AutoloaderError, OSError, ValueError) as error:
            value, reason = None, str(error)
        if value is not None:
            self._value, self._at_s = value, now
            self._pause_s, self._next_s = 0.0, now + self.every_s
            return
        if not self._told:
            self._told = True
            logger.info("%s is unknown: %s; going on without", self.name, reason)
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        self._next_s = now + self._pause_s
