"""``autoloader tune`` (also ``autoloader.tune``): the offline study.

Not here: the study (``tune.offline``), what is shown of it (``tune.report``).
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from autoloader.cli import options
from autoloader.cli.output import emit, emit_json, emit_table, note, progress_bar
from autoloader.errors import UsageError
from autoloader.host.extras import needs
from autoloader.host.units import parse_seconds


def tune(
    profile: options.ProfileName = None,
    ram_floor: options.RamFloor = None,
    spec: options.DemoOrSpecFile = None,
    trials: Annotated[int, typer.Option(help="Trials to run, the start among them.")] = 12,
    budget: Annotated[str, typer.Option(help='Time for it all, such as "10m".')] = "5m",
    storage: Annotated[
        str | None,
        typer.Option(help="Optuna storage URL, such as sqlite:///… or postgresql://…"),
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="Name of the study; an existing one is resumed.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with --study, or with the last one: it must be there."
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the profile to keep; default: the start's where it is your own, else "
            "NAME-tuned."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the profile; default: your config folder.")
    ] = None,
    report_file: Annotated[
        Path | None,
        typer.Option(
            "--report",
            help="File for the HTML report; default: STUDY.html in --out, else your data folder.",
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print the whole report as plain text.")
    ] = False,
    step_time: Annotated[
        str | None,
        typer.Option(
            help='The trainer\'s step, such as "80ms": find the least memory and threads with '
            "which it waits at most 1 % of its time."
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help='Take the step from a recorded run: as `autoloader report` names it ("last"), '
            "its folder, or a batch log.",
        ),
    ] = None,
    split: options.Split = "train",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the sampler.")] = 0,
    warmup: Annotated[int, typer.Option(min=0, help="Batches before each measurement.")] = 8,
    batches: Annotated[int, typer.Option(min=1, help="Batches of each measurement.")] = 160,
    _no_transforms: options.NoTransforms = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Find the knobs that suit this machine, under a RAM floor, and save them as a profile."""
    floor = options.floor_bytes(ram_floor)
    budget_s = parse_seconds(budget, name="--budget")
    step_time_s = _step_s(step_time, trace)
    from autoloader.host.clock import SystemClock

    with needs("the tuner"):
        from autoloader.tune.offline import TuneOptions
        from autoloader.tune.offline import tune as run_tune
        from autoloader.tune.report import LiveWatcher

    chosen = TuneOptions(
        spec_path=_demo() if spec is None else spec,
        host_profile=profile,
        floor_bytes=floor,
        trials=trials,
        budget_s=budget_s,
        storage=storage,
        study=study,
        resume=resume,
        name=name,
        out=out,
        split=split,
        seed=seed,
        warmup=warmup,
        batches=batches,
        command=_command_line(),
        step_time_s=step_time_s,
        report=report_file,
    )
    from rich.console import Console

    clock = SystemClock()
    watcher = LiveWatcher(Console(stderr=True), clock, budget_s)
    try:
        report = run_tune(chosen, watcher, clock=clock)
    finally:
        watcher.close()
    if as_json:
        emit_json(report.as_dict())
    elif plain:
        emit(report.plain_text())
    else:
        emit(f"study {report.result.name}")
        emit_table(("", "start", "best"), report.rows())
        emit("\n".join(report.lines()))


def _step_s(step_time: str | None, trace: str | None) -> float | None:
    """The trainer's step, given or recorded."""
    if trace is None:
        return None if step_time is None else parse_seconds(step_time, name="--step-time")
    if step_time is not None:
        raise UsageError(
            "--step-time and --trace both say how long a step takes", remedy="give one of them"
        )
    from autoloader.cli.report import run_folder

    step_s = recorded_step_s(run_folder(trace))
    note(f"the recorded trainer's step: {step_s * 1e3:.1f} ms")
    return step_s


def _command_line() -> str:
    """What was typed, whichever of the command's names it was typed under."""
    words = sys.argv[1:]
    return shlex.join(["autoloader.tune", *(words[1:] if words[:1] == ["tune"] else words)])


def _demo() -> Path:
    from autoloader.cli.demo import ensure_demo

    with progress_bar("writing the demo mixture") as advance:
        spec_path = ensure_demo(progress=advance)
    note(f"demo mixture: {spec_path}")
    return spec_path


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
