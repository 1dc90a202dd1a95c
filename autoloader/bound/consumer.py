"""The step of a recorded run's trainer: the time from having a batch to asking for the next.

Read from the record that every run leaves (``telemetry.run_log``), a batch log
(``telemetry.batch_times``) or a decision log (``controller.decisions``); of a folder its newest.
What is told is the median, so that pauses for validation and checkpoints do not count.

Not here: writing logs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autoloader.errors import UsageError

LEAST_STEPS = 10
"""Fewer steps say nothing."""

_LOGS = "*.jsonl"
_REMEDY = (
    "name a run of `autoloader report`, its folder, or a batch log (AUTOLOADER_BATCH_TIMES); or "
    "give the step with --step-time"
)


def recorded_step_s(run: Path) -> float:
    """Seconds of the trainer's step.

    Args:
        run: a log or a record, or a folder with such at any depth.

    Raises:
        UsageError: there is no such log, or it has too few steps.
    """
    try:
        logs = [run] if run.is_file() else sorted(run.rglob(_LOGS), key=_written, reverse=True)
        for log in logs:
            with log.open(encoding="utf-8", errors="replace") as lines:
                steps = steps_of(lines)
            if len(steps) >= LEAST_STEPS:
                return statistics.median(steps)
    except OSError as error:
        raise UsageError(f"--trace {run}: {error.strerror or error}", remedy=_REMEDY) from error
    found = "there is no log of a run here" if not logs else f"no log has {LEAST_STEPS} steps"
    raise UsageError(f"--trace {run}: {found}", remedy=_REMEDY)


def steps_of(lines: Iterable[str]) -> list[float]:
    """Seconds of each step that a log tells of; lines that say nothing of one are left out."""
    steps = []
    had_s: dict[tuple[str, int], float] = {}
    for line in _records(lines):
        whose = (str(line.get("run")), int(line.get("pipeline") or 0))
        if line.get("kind") == "batch":
            asked_s = line["at_s"] - line["wait_s"]
            if whose in had_s and asked_s >= had_s[whose]:
                steps.append(asked_s - had_s[whose])
            had_s[whose] = line["at_s"]
        else:
            seen = line.get("observation") or line.get("consumer") or {}
            step_s, waited = _value(seen, "step_s"), _value(seen, "wait_ratio")
            if step_s is not None and waited is not None:
                steps.append(step_s * (1 - waited))
    return [step for step in steps if step > 0]


def _value(seen: Mapping[str, Any], name: str) -> float | None:
    """A figure of a moment, or the reading of a decision, which says how old it was."""
    found = seen.get(name)
    if isinstance(found, Mapping):
        found = found.get("value")
    return float(found) if isinstance(found, (int, float)) else None


def _records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # a writer was killed in the middle of it
        if isinstance(record, dict):
            yield record


def _written(path: Path) -> float:
    return path.stat().st_mtime
