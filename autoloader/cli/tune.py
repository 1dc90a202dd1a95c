"""Measurements by the command line: one of a loader (``measure``), and a study (``tune``).

Not here: how it is measured (``tune.measurement``), the study (``tune.offline``), what is shown of
it (``tune.report``).
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoloader.cli.output import answered, emit, emit_document, emit_table, note
from autoloader.errors import UsageError
from autoloader.host.units import parse_seconds

if TYPE_CHECKING:
    from autoloader.spec import PipelineSpec
    from autoloader.tune.offline import TuneOptions

ENOUGH_WARMUP = 8
ENOUGH_BATCHES = 160


@contextmanager
def measuring(progress_fd: int | None) -> Iterator[Callable[..., None] | None]:
    """Give what tells a study of progress; ``None`` where a person has called.

    Args:
        progress_fd: descriptor of the study's socket; ``None`` without one.
    """
    from autoloader.tune.trial import ProgressWriter

    link = None if progress_fd is None else ProgressWriter(progress_fd)
    try:
        yield None if link is None else link.send
    finally:
        if link is not None:
            link.close()


def show_measurement(
    spec: PipelineSpec,
    given: Mapping[str, Any],
    *,
    warmup: int,
    batches: int,
    how: Mapping[str, Any],
) -> None:
    """Measure a loader and show the figures.

    Args:
        spec: spec of the mixture.
        given: arguments of ``AutoLoader``, by name.
        warmup: number of batches before the measured ones.
        batches: number of batches that are measured.
        how: further arguments of ``tune.measurement.measure``, by name.
    """
    from autoloader.loader import AutoLoader
    from autoloader.tune.measurement import measure

    loader = partial(AutoLoader, spec, output="numpy", **given)
    found = measure(loader, warmup=warmup, batches=batches, **how).as_dict()
    if answered(found):
        return
    latency = " / ".join(f"{one * 1e3:.1f} ms" for one in found.pop("batch_latency_s").values())
    del found["trace"]
    emit_document({**found, "batch latency p50 / p90 / p99": latency})
    if warmup < ENOUGH_WARMUP or batches < ENOUGH_BATCHES:
        note(
            f"{warmup} + {batches} batches say little; figures need a warm-up of "
            f"{ENOUGH_WARMUP} and {ENOUGH_BATCHES} batches"
        )


def show_study(options: TuneOptions, *, plain: bool) -> None:
    """Run a study and show its report.

    Args:
        options: options of the study.
        plain: whether the whole report is printed as text.
    """
    from rich.console import Console

    from autoloader.host.clock import SystemClock
    from autoloader.tune.offline import tune
    from autoloader.tune.report import LiveWatcher

    clock = SystemClock()
    watcher = LiveWatcher(Console(stderr=True), clock, options.budget_s)
    try:
        report = tune(options, watcher, clock=clock)
    finally:
        watcher.close()
    if answered(report.as_dict()):
        return
    if plain:
        emit(report.plain_text())
        return
    emit(f"study {report.result.name}")
    emit_table(("", "start", "best"), report.rows())
    emit("\n".join(report.lines()))


def trainer_step_s(step_time: str | None, trace: str | None) -> float | None:
    """Seconds of the trainer's step, given or recorded; ``None`` where neither is asked for."""
    if trace is None:
        return None if step_time is None else parse_seconds(step_time, name="--step-time")
    if step_time is not None:
        raise UsageError(
            "--step-time and --trace both say how long a step takes", remedy="give one of them"
        )
    from autoloader.cli.recorded_run import run_folder

    step_s = recorded_step_s(run_folder(trace))
    note(f"the recorded trainer's step: {step_s * 1e3:.1f} ms")
    return step_s


def typed_command() -> str:
    """Give the command line that was typed, whichever of the command's names it has."""
    words = sys.argv[1:]
    return shlex.join(["autoloader.tune", *(words[1:] if words[:1] == ["tune"] else words)])


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
        logs = (
            [run]
            if run.is_file()
            else sorted(run.rglob(_LOGS), key=lambda one: one.stat().st_mtime, reverse=True)
        )
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
