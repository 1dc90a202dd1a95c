"""Measurements by the command line: one of a loader (``measure``), and a study (``tune``).

Not here: how it is measured (``tune.measurement``), the study (``tune.offline``), what is shown of
it (``tune.report``).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from autoloader.cli.output import answered, emit, emit_document, note
from autoloader.cli.recorded_run import Run, read_run, run_folder
from autoloader.errors import UsageError
from autoloader.host.units import parse_seconds

if TYPE_CHECKING:
    from autoloader.spec import PipelineSpec
    from autoloader.tune.offline import TuneOptions

ENOUGH_WARMUP = 8
ENOUGH_BATCHES = 160
LEAST_MOMENTS = 10
"""Fewer moments of a record say nothing of the trainer's step; there is one a second."""


@contextmanager
def measuring(progress_fd: int | None) -> Iterator[Callable[..., None] | None]:
    """Give what tells a study of progress; ``None`` where a person has called.

    Args:
        progress_fd: descriptor of the study's socket; ``None`` without one.
    """
    if progress_fd is None:
        yield None
        return
    from autoloader.tune.trial import progress_to

    with progress_to(progress_fd) as tell:
        yield tell


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


def show_study(options: TuneOptions, *, plain: bool, began_s: float) -> None:
    """Run a study and show its report.

    Args:
        options: options of the study.
        plain: whether every trial and the host are told, too.
        began_s: second of the system's clock at which the budget began.
    """
    from rich.console import Console

    from autoloader.host.clock import SystemClock
    from autoloader.tune.offline import tune
    from autoloader.tune.report import LiveWatcher

    clock = SystemClock()
    watcher = LiveWatcher(Console(stderr=True), clock, options.budget_s)
    try:
        report = tune(options, watcher, clock=clock, began_s=began_s)
    finally:
        watcher.close()
    if not answered(report.as_dict()):
        emit(report.text(whole=plain))


def trainer_step_s(step_time: str | None, trace: str | None) -> float | None:
    """Seconds of the trainer's step, given or recorded; ``None`` where neither is asked for."""
    if trace is None:
        return None if step_time is None else parse_seconds(step_time, name="--step-time")
    if step_time is not None:
        raise UsageError(
            "--step-time and --trace both say how long a step takes", remedy="give one of them"
        )
    step_s = recorded_step_s(read_run(run_folder(trace)))
    note(f"the recorded trainer's step: {step_s * 1e3:.1f} ms")
    return step_s


def typed_command() -> str:
    """Give the command line that was typed, under either of the command's names."""
    words = sys.argv[1:]
    return shlex.join(["autoloader.tune", *(words[1:] if words[:1] == ["tune"] else words)])


def recorded_step_s(run: Run) -> float:
    """Give the seconds of a recorded trainer's step: the time in which it did not wait.

    Raises:
        UsageError: the record tells of too few steps.
    """
    seen = [moment.consumer for moment in run.own.moments]
    known = [(one.step_s, one.wait_ratio) for one in seen]
    steps = [step_s * (1 - waited) for step_s, waited in known if step_s and waited is not None]
    if len(steps) < LEAST_MOMENTS:
        raise UsageError(
            f"--trace {run.name}: its record has {len(steps)} moments that tell of a step",
            remedy=f"name a run that trained for {LEAST_MOMENTS} s; or give the step with "
            "--step-time",
        )
    return median(steps)
