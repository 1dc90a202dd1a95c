"""A batch log as arrays.

Not here: writing it (``autoloader.telemetry.batch_times``), what follows from it
(``bench.mixture_analysis.findings``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCHEMA_VERSION = 1


class BatchLogError(Exception):
    """A file that is no batch log, or one without batches."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One loader's run.

    Attributes:
        name: run, pipeline and split.
        datasets: their names.
        weights: [D] what share of the samples each should have.
        counts: [N, D] samples that each dataset gave to each batch.
        at_s: [N] when each batch was there.
        wait_s: [N] how long the trainer waited for it.
    """

    name: str
    datasets: tuple[str, ...]
    weights: NDArray[np.float64]
    counts: NDArray[np.int64]
    at_s: NDArray[np.float64]
    wait_s: NDArray[np.float64]

    @property
    def batches(self) -> int:
        """How many."""
        return len(self.counts)


def read_runs(path: Path, called: str = "") -> list[Recorded]:
    """Every loader's run in batch logs, those with the most batches first.

    Args:
        path: a log, or a directory with some (``batch_times*.jsonl``, at any depth).
        called: part of the name of those wanted.

    Raises:
        BatchLogError: a file is no batch log, or there is no batch in any.
    """
    logs = sorted(path.rglob("batch_times*.jsonl")) if path.is_dir() else [path]
    runs = [run for log in logs for run in _runs_of(log) if called in run.name]
    if not runs:
        raise BatchLogError(
            f"no batches of a run {called!r} in {', '.join(map(str, logs)) or path}; "
            "AUTOLOADER_BATCH_TIMES=RUN/ makes a run write them"
        )
    return sorted(runs, key=lambda run: -run.batches)


def _runs_of(log: Path) -> Iterator[Recorded]:
    starts: dict[tuple[str, int], dict[str, Any]] = {}
    batches: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for number, line in enumerate(log.read_text().splitlines(), start=1):
        if not line.strip() or not line.endswith("}"):
            continue  # what a writer that was killed has left
        try:
            record = json.loads(line)
            whose = (record["run"], record["pipeline"])
            if record["kind"] == "start":
                if record["schema_version"] != SCHEMA_VERSION:
                    raise BatchLogError(
                        f"{log}: schema version {record['schema_version']}, this reads "
                        f"{SCHEMA_VERSION}"
                    )
                starts[whose] = record
            else:
                batches.setdefault(whose, []).append(record)
        except (ValueError, KeyError, TypeError) as error:
            raise BatchLogError(f"{log}, line {number}: no line of a batch log: {error}") from error
    for whose, own in batches.items():
        if whose in starts:
            yield _recorded(whose, starts[whose], own)


def _recorded(
    whose: tuple[str, int], start: dict[str, Any], batches: list[dict[str, Any]]
) -> Recorded:
    counts = np.zeros((len(batches), len(start["names"])), np.int64)
    for row, batch in enumerate(batches):
        for dataset, samples in batch["samples"]:
            counts[row, dataset] = samples
    return Recorded(
        name=f"{whose[0]}, loader {whose[1]}, split {start['split']}",
        datasets=tuple(start["names"]),
        weights=np.array(start["weights"], np.float64),
        counts=counts,
        at_s=np.array([batch["at_s"] for batch in batches]),
        wait_s=np.array([batch["wait_s"] for batch in batches]),
    )
