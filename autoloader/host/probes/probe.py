"""What every optional probe is: something that may answer, and is asked again when it does not.

``Watched`` keeps the last answer with its age, says once that a probe fails, and asks a failing one
again with growing pauses, so that a dead source costs nothing and comes back by itself.

Not here: the probes (``pressure``, ``processors``, ``gpu``), headroom, which must answer
(``headroom``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from autoloader.errors import AutoloaderError

logger = logging.getLogger(__name__)

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
        probe: asked.
        name: in the log.
        now_s: of a monotonic clock.
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
