"""Knobs that suit a host: measured (``measure``), searched (``tune``), kept (``profile``).

Not here: measuring (``tune.measurement``), the study (``tune.offline``, ``tune.report``), what a
profile is and where it is found (``controller.profile``).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autoloader.cli.output import answered, emit, emit_document, emit_table, note, progress_bar
from autoloader.controller import profiles
from autoloader.controller.profile import HostFacts, diff, host_facts
from autoloader.errors import ProfileError, shortened
from autoloader.host.machine import usable_processors
from autoloader.host.units import format_bytes
from autoloader.spec.knobs import used_knobs

if TYPE_CHECKING:
    from autoloader.spec import PipelineSpec
    from autoloader.tune.study import TuneOptions
    from autoloader.tune.trial import TrialProgress

_CELL_CHARACTERS = 48
_BUSY_RATIO = 0.1
"""Part of the processors from which on other processes change a measurement."""
_LISTED = ("name", "default", "origin", "source", "for", "mixture")


def show_measurement(
    spec: PipelineSpec,
    place: Path,
    given: Mapping[str, Any],
    *,
    warmup: int,
    batches: int,
    step_time_s: float,
    progress_fd: int | None,
) -> None:
    """Measure a loader and show the figures; of an interrupted measurement, those so far.

    Args:
        spec: spec of the mixture.
        place: path of the spec file, for the answer.
        given: arguments of ``AutoLoader``, by name.
        warmup: number of batches before the measured ones.
        batches: number of batches that are measured.
        step_time_s: seconds of a trainer's step.
        progress_fd: descriptor of the socket of a study, which has the rate settle in the warm-up;
            ``None``: a person has called.
    """
    from autoloader.loader import AutoLoader
    from autoloader.tune.measurement import LEAST_BATCHES, LEAST_WARMUP, measure
    from autoloader.tune.trial import progress_to

    loader = partial(AutoLoader, spec, output="numpy", **given)
    with ExitStack() as stack:
        if progress_fd is not None:
            tell = stack.enter_context(progress_to(progress_fd))
        else:
            advance = stack.enter_context(progress_bar("measuring batches"))

            def tell(progress: TrialProgress) -> None:
                advance(progress.batches, batches)

        found = measure(
            loader, warmup=warmup, batches=batches, step_time_s=step_time_s,
            settle=progress_fd is not None, progress=tell,
        )  # fmt: skip
    if not answered(found):
        for label, told in _verdict(found, place, step_time_s):
            emit(f"{label:<6} {told}")
        emit("")
        _show_figures(found, step_time_s)
        if warmup < LEAST_WARMUP or batches < LEAST_BATCHES:
            note(
                f"{warmup} + {batches} batches say little; figures need a warm-up of "
                f"{LEAST_WARMUP} and {LEAST_BATCHES} batches"
            )
    if found["interrupted"]:
        note(f"interrupted: the figures are of the first {found['samples']} samples")
        raise KeyboardInterrupt


def _verdict(
    found: Mapping[str, Any], place: Path, step_time_s: float
) -> Iterator[tuple[str, str]]:
    """Yield what a person asks of a measurement: rate, memory, limit, next step."""
    from autoloader.telemetry.verdict import MOSTLY_RATIO
    from autoloader.tune.bound import Analyst

    rate, waits, lowest = (
        found[key] for key in ("samples_per_s", "wait_ratio", "min_headroom_bytes")
    )
    cpus = usable_processors()
    analyst = Analyst(cpus)
    analyst.learn(found)
    bound = analyst.bound()
    yield "Rate", f"{rate:.0f} samples/s, {found['batches_per_s']:.1f} batches/s"
    free = "" if lowest is None else f"; {format_bytes(lowest)} could still be taken at the least"
    yield "Memory", f"the loader took {format_bytes(found['peak_rss_bytes'])}{free}"
    if step_time_s and waits < MOSTLY_RATIO:
        yield "Limit", f"the step of {step_time_s * 1e3:g} ms: it waited {waits:.1%} of the time"
        yield "Next", "train: a faster loader would change little"
        return
    others = (found["trace"] or {}).get("others_cpus") or 0.0
    if bound is None:
        limit, then = "not known", ""
    elif others > _BUSY_RATIO * cpus:
        limit = f"other processes, which took {others:.1f} of {cpus} processors meanwhile"
        then = "measure again when the machine is idle"
    else:
        limit = bound.describe(rate) if analyst.near(rate) else f"the knobs: {bound.near(rate)}"
        best = bound.lifts[0] if bound.lifts and analyst.near(rate) else None
        then = f"{best.change}: up to {best.samples_per_s:.0f} samples/s" if best else ""
    yield "Limit", limit
    yield "Next", then or f"autoloader tune {shlex.quote(str(place))}  # tries other knobs"


def _show_figures(measured: Mapping[str, Any], step_time_s: float) -> None:
    """Show all figures of a measurement, except the trace."""
    found = dict(measured)
    latency = " / ".join(f"{one * 1e3:.1f} ms" for one in found.pop("batch_latency_s").values())
    del found["trace"], found["interrupted"]
    found["knobs"] = used_knobs(found["knobs"])
    said = {"wait_ratio": step_time_s, "batch_call_s": found["batch_call_s"]}
    said["cache"] = found["cache"] and found["cache"]["budget_bytes"]
    found = {name: value for name, value in found.items() if said.get(name, True)}
    emit_document({**found, "batch latency p50 / p90 / p99": latency})


def show_study(options: TuneOptions, *, began_s: float) -> None:
    """Run a study and show its report.

    Args:
        options: options of the study.
        began_s: second of the system's clock at which the budget began.
    """
    from rich.console import Console

    from autoloader.host.clock import Clock
    from autoloader.tune.offline import tune
    from autoloader.tune.report import LiveWatcher

    clock = Clock()
    watcher = LiveWatcher(Console(stderr=True), clock, options.budget_s, began_s)
    try:
        report = tune(options, watcher, clock=clock, began_s=began_s)
    finally:
        watcher.close()
    if not answered(report.as_dict()):
        emit(report.text())


def typed_command() -> str:
    """Give the command line that was typed, under either of the command's names."""
    words = sys.argv[1:]
    return shlex.join(["autoloader.tune", *(words[1:] if words[:1] == ["tune"] else words)])


def show_list() -> None:
    """Show every profile that has a name here, and tell the default."""
    host = host_facts()
    default = profiles.load_profile(host=host)
    rows = [_row(name, path, default) for name, path in profiles.profile_paths().items()]
    if not answered({"host": host.model_dump(mode="json"), "profiles": rows}):
        emit_document({"profiles": rows}, {"profiles": _LISTED})
        note(f"this host: {host.describe()}")


def show_profile(which: str) -> None:
    """Print a profile in full, in this version's format.

    Args:
        which: name of a profile, or path of its file.
    """
    found = profiles.find_profile(which)
    _, clamps = found.profile.fit(host_facts())
    document = {"origin": found.origin, "profile": found.profile.as_dict(), "clamped_here": clamps}
    if answered(document):
        return
    for line in (*found.notes, *clamps):
        note(line)
    emit(found.profile.to_yaml().rstrip("\n"))


def show_checks(which: list[str] | None, *, strict: bool) -> None:
    """Read profiles as a loader would on this host; exit code 2 where one is broken.

    Args:
        which: names or paths; ``None``: every profile that has a name here.
        strict: whether a profile that must be clamped is broken.
    """
    host = host_facts()
    reports = [_report(name, host, strict=strict) for name in which or profiles.profile_paths()]
    if not answered({"host": host.model_dump(mode="json"), "profiles": reports}):
        for report in reports:
            emit(f"{'ok   ' if report['ok'] else 'BAD  '}{report['profile']}")
            for line in (*report["notes"], *report["problems"]):
                emit(f"       {line}")
    if not all(report["ok"] for report in reports):
        raise typer.Exit(ProfileError.exit_code)


def show_diff(first: str, second: str | None) -> None:
    """Show in which fields two profiles differ, and what this host would clamp of the second.

    Args:
        first: profile that the other is held against; without a second, the one to look at.
        second: the other; ``None``: ``first``, held against the profile that is taken here.
    """
    base = profiles.load_profile() if second is None else profiles.find_profile(first)
    found = profiles.find_profile(first if second is None else second).profile
    changes = diff(base.profile, found)
    _, clamps = found.fit(host_facts())
    differences = [{"field": field, "a": a, "b": b} for field, a, b in changes]
    if answered({"name": found.name, "differences": differences, "clamped_here": clamps}):
        return
    if changes:
        rows = ((name, *map(_cell, values)) for name, *values in changes)
        emit_table(("field", base.profile.name, found.name), rows)
    for line in clamps:
        note(line)
    if not changes:
        note("no field differs")


def _cell(value: Any) -> str:
    """A value of a field for people, long text cut."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "-" if value is None else shortened(text, _CELL_CHARACTERS)


def _row(name: str, path: Path, default: profiles.ResolvedProfile) -> dict[str, Any]:
    """One row of ``profile list``; a broken profile's says so."""
    origin = "shipped" if path.parent == profiles.shipped_profiles_dir() else str(path)
    row: dict[str, Any] = {"name": name, "origin": origin, "default": False}
    try:
        profile = profiles.find_profile(path).profile
    except ProfileError as error:
        return row | {"source": "broken", "for": error.what, "mixture": "", "description": ""}
    return row | {
        "default": origin == default.origin and profile.name == default.profile.name,
        "source": profile.provenance.source,
        "for": profile.host.describe(),
        "mixture": "any" if profile.mixture is None else profile.mixture.describe(),
        "description": profile.description,
    }


def _report(name: str, host: HostFacts, *, strict: bool) -> dict[str, Any]:
    """One result of ``profile check``."""
    try:
        found = profiles.find_profile(name)
        _, clamps = found.profile.fit(host, strict=strict)
    except ProfileError as error:
        problem = f"{error.what} ({error.remedy})"
        return {"profile": name, "ok": False, "problems": [problem], "notes": []}
    return {"profile": name, "ok": True, "problems": [], "notes": [*found.notes, *clamps]}
