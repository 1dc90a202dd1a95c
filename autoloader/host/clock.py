"""Time as an interface, so that what depends on it can be driven by hand in tests.

Not here: durations and their text (``host.units``).
"""

from __future__ import annotations

import time
from typing import Protocol


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
