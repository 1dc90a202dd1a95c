"""Measures the consumer: how long it waited for each batch, and how long it took in all.

Not here: what anybody does with it.
"""

from __future__ import annotations

from collections import deque

import numpy as np

WINDOW_BATCHES = 256


class ConsumerMeter:
    """Fed by the loader around every ``next``; used by the consumer's thread."""

    def __init__(self) -> None:
        self._waits: deque[float] = deque(maxlen=WINDOW_BATCHES)
        self._steps: deque[float] = deque(maxlen=WINDOW_BATCHES)
        self._step_waits: deque[float] = deque(maxlen=WINDOW_BATCHES)
        self._rows: deque[int] = deque(maxlen=WINDOW_BATCHES)
        self._last_s: float | None = None
        self.batches = 0
        self.samples = 0

    def note(self, asked_s: float, got_s: float, rows: int) -> None:
        """One batch: when it was asked for, when it was there, and its samples."""
        self.batches += 1
        self.samples += rows
        self._waits.append(got_s - asked_s)
        if self._last_s is not None:
            self._steps.append(got_s - self._last_s)
            self._step_waits.append(got_s - asked_s)
            self._rows.append(rows)
        self._last_s = got_s

    def pause(self) -> None:
        """The consumer does something else (validation): the next step's time means nothing."""
        self._last_s = None

    @property
    def samples_per_s(self) -> float | None:
        """Over the window; ``None`` before the second batch."""
        seconds = sum(self._steps)
        return sum(self._rows) / seconds if seconds > 0 else None

    @property
    def wait_ratio(self) -> float | None:
        """Waiting / whole time, over the window."""
        seconds = sum(self._steps)
        return min(1.0, sum(self._step_waits) / seconds) if seconds > 0 else None

    def latency_s(self) -> dict[str, float] | None:
        """p50, p90 and p99 of the waits in the window."""
        if not self._waits:
            return None
        p50, p90, p99 = np.percentile(list(self._waits), [50, 90, 99]).tolist()
        return {"p50": p50, "p90": p90, "p99": p99}
