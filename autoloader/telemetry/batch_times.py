"""Times of the batches that training takes: how long it waited for each, measured and logged.

The batch log has one JSON line for every batch handed out, with its time and its datasets.

A ``start`` line names the datasets and their weights; a ``batch`` line holds the batch's number,
its time on the host's monotonic clock, and the trainer's wait for it. It counts the samples of each
dataset that gave any, as (dataset's number, samples).

Not here: what is read from it (the bench's mixture analysis).
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoloader.telemetry.lines import LineLog, log_path, run_name

logger = logging.getLogger(__name__)

WINDOW_BATCHES = 256
SCHEMA_VERSION = 1
VARIABLE = "AUTOLOADER_BATCH_TIMES"
"""Environment variable: where the batch log goes; unset: nowhere."""


class ConsumerMeter:
    """Figures of the consumer over its last batches; fed by the loader around every ``next``.

    Attributes:
        batches: number of batches since it was made.
        samples: number of samples since it was made.
    """

    def __init__(self) -> None:
        self._window: deque[tuple[float, float | None, int]] = deque(maxlen=WINDOW_BATCHES)
        self._last_s: float | None = None
        self.batches = 0
        self.samples = 0

    def note(self, asked_s: float, got_s: float, rows: int) -> None:
        """Count one batch.

        Args:
            asked_s: time of the request for it, on a monotonic clock.
            got_s: time of its arrival, on the same clock.
            rows: number of its samples.
        """
        self.batches += 1
        self.samples += rows
        step_s = None if self._last_s is None else got_s - self._last_s
        self._window.append((got_s - asked_s, step_s, rows))
        self._last_s = got_s

    def pause(self) -> None:
        """Leave out the next step: the consumer does something else (validation)."""
        self._last_s = None

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second over the window; ``None`` before the second batch."""
        steps = self._steps()
        seconds = sum(step_s for _, step_s, _ in steps)
        return sum(rows for *_, rows in steps) / seconds if seconds > 0 else None

    @property
    def wait_ratio(self) -> float | None:
        """Share of the whole time spent waiting, over the window."""
        steps = self._steps()
        seconds = sum(step_s for _, step_s, _ in steps)
        return min(1.0, sum(wait_s for wait_s, *_ in steps) / seconds) if seconds > 0 else None

    def _steps(self) -> list[tuple[float, float, int]]:
        """Wait, time since the batch before, and rows of each batch behind another one."""
        seen = tuple(self._window)  # at once: another thread may note a batch
        return [(wait_s, step_s, rows) for wait_s, step_s, rows in seen if step_s is not None]

    def latency_s(self) -> dict[str, float] | None:
        """p50, p90 and p99 of the waits in the window."""
        if not self._window:
            return None
        waits = [wait_s for wait_s, *_ in tuple(self._window)]
        p50, p90, p99 = np.percentile(waits, [50, 90, 99]).tolist()
        return {"p50": p50, "p90": p90, "p99": p99}


class BatchTimes:
    """Writes one loader's batches.

    Args:
        path: path of the log's file.
        pipeline: number of the loader in this process.
    """

    def __init__(self, path: Path, *, pipeline: int) -> None:
        self._lines = LineLog(path, {"run": run_name(), "pipeline": pipeline})
        self._batches = 0

    @classmethod
    def wanted(cls, pipeline: int) -> BatchTimes | None:
        """The log that the environment asks for; ``None`` where it asks for none."""
        wanted = os.environ.get(VARIABLE, "")
        if not wanted:
            return None
        path = log_path(wanted, "batch_times", run_name())
        try:
            return cls(path, pipeline=pipeline)
        except OSError as error:
            logger.warning("no batch log: %s cannot be written: %s", path, error)
            return None

    def start(self, split: str, names: Sequence[str], weights: Sequence[float]) -> None:
        """The datasets that lines speak of from now on.

        Args:
            split: name of the split that is read.
            names: name of each dataset.
            weights: share of the samples that each dataset should have, of 1.
        """
        self._lines.write(
            {
                "kind": "start",
                "schema_version": SCHEMA_VERSION,
                "split": split,
                "names": list(names),
                "weights": list(weights),
            }
        )

    def note(self, asked_s: float, got_s: float, datasets: NDArray[np.int64]) -> None:
        """One batch.

        Args:
            asked_s: time of the request for it, on a monotonic clock.
            got_s: time of its arrival, on the same clock.
            datasets: [B] of each sample.
        """
        counts = np.bincount(datasets)
        given = np.flatnonzero(counts)
        self._lines.write(
            {
                "kind": "batch",
                "number": self._batches,
                "at_s": round(got_s, 6),
                "wait_s": round(got_s - asked_s, 6),
                "samples": np.stack((given, counts[given]), axis=1).tolist(),
            }
        )
        self._batches += 1

    def close(self) -> None:
        """End the log."""
        self._lines.close()
