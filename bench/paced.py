"""A consumer that takes batches at a fixed pace, as a training step would, and says how it waited.

Not here: what runs beside it (``bench.top_cost``, ``bench.record_cost``).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from autoloader import AutoLoader


def options(description: str) -> argparse.ArgumentParser:
    """The command line of what is measured beside it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a turn")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--step-ms", type=float, default=100.0, help="of the consumer")
    parser.add_argument("--json", action="store_true")
    return parser


class PacedConsumer:
    """Takes a loader's batches, over epochs.

    Args:
        loader: gives them.
        step_s: from one batch to the next, where the loader keeps up.
    """

    def __init__(self, loader: AutoLoader, step_s: float) -> None:
        self._loader, self._step_s = loader, step_s
        self._stream = iter(loader)

    def take(self, seconds: float) -> list[float]:
        """Milliseconds waited for each batch of so long a time."""
        waits, until = [], time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            try:
                next(self._stream)
            except StopIteration:
                self._stream = iter(self._loader)
                continue
            waits.append((time.perf_counter() - began) * 1e3)
            time.sleep(max(0.0, self._step_s - (time.perf_counter() - began)))
        return waits


def p99(waits: list[float]) -> float:
    """Of the waits of a turn."""
    return float(np.percentile(waits, 99))


def waits_told(turns: list[list[float]]) -> dict[str, Any]:
    """Waits of several turns: p50, p99, the longest, and of how many batches."""
    waits = [wait for turn in turns for wait in turn]
    middle, high = np.percentile(waits, [50, 99]).tolist()
    return {"p50": middle, "p99": high, "longest": max(waits), "batches": len(waits)}
