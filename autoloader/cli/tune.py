"""Knobs that suit a host: measured (``measure``), searched (``tune``), kept (``profile``).

A profile is offered by a study, by a teammate's file, or by a run whose controller found what
lasts.

Not here: measuring (``tune.measurement``), the study (``tune.offline``, ``tune.report``), what a
profile is and where it is found (``controller.profile``), what of a run lasts (``process.proven``,
``cli.recorded_run``).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autoloader.cli.output import (
    answered,
    emit,
    emit_document,
    emit_table,
    file_errors,
    note,
    wants_json,
)
from autoloader.cli.recorded_run import is_run, read_run, run_folder
from autoloader.controller.profile import (
    HostFacts,
    Profile,
    Provenance,
    described_host,
    diff,
    host_facts,
)
from autoloader.controller.profiles import (
    ResolvedProfile,
    check_name,
    find_profile,
    free_name,
    keep_entry,
    keep_whole,
    load_profile,
    profile_path,
    profile_paths,
    shipped_profiles_dir,
)
from autoloader.errors import ProfileError, UsageError
from autoloader.host.files import write_whole
from autoloader.process.proven import proposed, proven_knobs

if TYPE_CHECKING:
    from autoloader.spec import PipelineSpec
    from autoloader.tune.offline import TuneOptions

ENOUGH_WARMUP = 8
ENOUGH_BATCHES = 160
_CELL_CHARACTERS = 48
_LISTED = ("name", "default", "origin", "source", "for", "mixtures")


def show_measurement(
    spec: PipelineSpec,
    given: Mapping[str, Any],
    *,
    warmup: int,
    batches: int,
    step_time_s: float,
    progress_fd: int | None,
) -> None:
    """Measure a loader and show the figures.

    Args:
        spec: spec of the mixture.
        given: arguments of ``AutoLoader``, by name.
        warmup: number of batches before the measured ones.
        batches: number of batches that are measured.
        step_time_s: seconds of a trainer's step.
        progress_fd: descriptor of the socket of a study, which has the rate settle in the warm-up;
            ``None``: a person has called.
    """
    from autoloader.loader import AutoLoader
    from autoloader.tune.measurement import measure
    from autoloader.tune.trial import progress_to

    loader = partial(AutoLoader, spec, output="numpy", **given)
    with ExitStack() as stack:
        tell = None
        if progress_fd is not None:
            tell = stack.enter_context(progress_to(progress_fd))
        measured = measure(
            loader, warmup=warmup, batches=batches, step_time_s=step_time_s,
            settle=tell is not None, progress=tell,
        )  # fmt: skip
    found = measured.as_dict()
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


def show_study(options: TuneOptions, *, began_s: float) -> None:
    """Run a study and show its report.

    Args:
        options: options of the study.
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
        emit(report.text())


def typed_command() -> str:
    """Give the command line that was typed, under either of the command's names."""
    words = sys.argv[1:]
    return shlex.join(["autoloader.tune", *(words[1:] if words[:1] == ["tune"] else words)])


def show_list() -> None:
    """Show every profile that has a name here, and tell the default."""
    host = host_facts()
    default = load_profile(host=host)
    rows = [_row(name, path, default) for name, path in profile_paths().items()]
    if not answered({"host": host.model_dump(mode="json"), "profiles": rows}):
        emit_document({"profiles": rows}, {"profiles": _LISTED})
        note(f"this host: {host.describe()}")


def show_profile(which: str, output: Path | None) -> None:
    """Print a profile in full, or write it as a file in this version's format.

    Args:
        which: name of a profile, or path of its file.
        output: file or folder to write; ``None``: it is printed.

    Raises:
        UsageError: the file is there with another content, or cannot be written.
    """
    found = find_profile(which)
    text, path = found.profile.to_yaml(), None
    if output is not None:
        path = profile_path(found.profile.name, output)
        with file_errors("--output", path):
            if path.is_file() and path.read_text(encoding="utf-8") != text:
                raise UsageError(
                    f"{path} is there and says something else",
                    remedy="name another file with --output, or delete this one",
                )
            write_whole(path, text)
    _, clamps = found.profile.fit(host_facts())
    document = {"origin": found.origin, "profile": found.profile.as_dict(), "clamped_here": clamps}
    if answered({**document, "path": path}):
        return
    for line in (*found.notes, *clamps):
        note(line)
    emit(text.rstrip("\n") if path is None else str(path))


def show_checks(which: list[str] | None, *, strict: bool) -> None:
    """Read profiles as a loader would on this host; exit code 2 where one is broken.

    Args:
        which: names or paths; ``None``: every profile that has a name here.
        strict: whether a profile that must be clamped is broken.
    """
    host = host_facts()
    reports = [_report(name, host, strict=strict) for name in which or profile_paths()]
    if not answered({"host": host.model_dump(mode="json"), "profiles": reports}):
        for report in reports:
            emit(f"{'ok   ' if report['ok'] else 'BAD  '}{report['profile']}")
            for line in (*report["notes"], *report["problems"]):
                emit(f"       {line}")
    if not all(report["ok"] for report in reports):
        raise typer.Exit(ProfileError.exit_code)


def show_diff(first: str, second: str | None, *, accept: bool, name: str | None) -> None:
    """Show in which fields two profiles differ, and take the second over.

    Args:
        first: profile that the other is held against; without a second, the profile offered.
        second: profile or run that is offered; ``None``: ``first`` is, against what is here.
        accept: whether the profile that is offered is kept.
        name: name to keep it under; ``None``: its own.
    """
    if name is not None:
        check_name(name)
    base, source = (None, first) if second is None else (first, second)
    whole = source.endswith((".yaml", ".yml")) or source in profile_paths() or not is_run(source)
    offer = _from_profile if whole else _from_run
    offered, before, said = offer(source, base, name)
    changes = diff(before, offered) if before else [("name", None, offered.name)]
    if not wants_json():
        if changes:
            _show_changes((base or "now", source), changes)
        for line in said:
            note(line)
    kept = None
    if accept and changes:
        kept = keep_whole(offered) if whole else keep_entry(offered, tuned_from=before)
    document = {
        "name": offered.name,
        "differences": [{"field": field, "a": a, "b": b} for field, a, b in changes],
        "evidence": said,
        "path": kept.path if kept is not None and kept.written else None,
        "notes": [] if kept is None else kept.notes,
    }
    if answered(document):
        return
    for line in () if kept is None else kept.notes:
        note(line)
    if not changes:
        note("no field differs")
    elif kept is None:
        note("nothing was written; --accept takes it over")
    elif kept.written:
        emit(str(kept.path))


def _show_changes(titles: tuple[str, str], changes: list[tuple[str, Any, Any]]) -> None:
    """A table of fields with two values each, long text cut."""

    def cell(value: Any) -> str:
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        shown = "-" if value is None else text
        return shown if len(shown) <= _CELL_CHARACTERS else shown[: _CELL_CHARACTERS - 1] + "…"

    rows = ((name, cell(before), cell(after)) for name, before, after in changes)
    emit_table(("field", *titles), rows)


def _row(name: str, path: Path, default: ResolvedProfile) -> dict[str, Any]:
    """One row of ``profile list``; a broken profile's says so."""
    origin = "shipped" if path.parent == shipped_profiles_dir() else str(path)
    row: dict[str, Any] = {"name": name, "origin": origin, "default": False}
    try:
        profile = find_profile(path).profile
    except ProfileError as error:
        return row | {"source": "broken", "for": error.what, "mixtures": [], "description": ""}
    return row | {
        "default": origin == default.origin and profile.name == default.profile.name,
        "source": profile.provenance.source,
        "for": profile.host.describe(),
        "mixtures": [
            "any" if entry.mixture is None else entry.mixture.describe()
            for entry in profile.all_entries
        ],
        "description": profile.description,
    }


def _report(name: str, host: HostFacts, *, strict: bool) -> dict[str, Any]:
    """One result of ``profile check``."""
    try:
        found = find_profile(name)
        _, clamps = found.profile.fit(host, strict=strict)
    except ProfileError as error:
        problem = f"{error.what} ({error.remedy})"
        return {"profile": name, "ok": False, "problems": [problem], "notes": []}
    return {"profile": name, "ok": True, "problems": [], "notes": [*found.notes, *clamps]}


def _from_profile(
    source: str, base: str | None, name: str | None
) -> tuple[Profile, Profile | None, list[str]]:
    """The profile offered, the one that it is held against, and what this host would clamp.

    Args:
        source: name or file of the profile.
        base: name or file of the other; ``None``: the user's own profile of that name, if any.
        name: name to keep it under; ``None``: its own.

    Raises:
        ProfileError: a profile cannot be read.
    """
    offered = find_profile(source).profile
    if name is not None:
        offered = offered.model_copy(update={"name": name})
    _, clamps = offered.fit(host_facts())
    if base is not None:
        return offered, find_profile(base).profile, clamps
    path = profile_paths().get(offered.name)
    own = path is not None and path.parent != shipped_profiles_dir()
    return offered, Profile.from_yaml(path) if own and path else None, clamps


def _from_run(
    source: str, base: str | None, name: str | None
) -> tuple[Profile, Profile | None, list[str]]:
    """The profile with what lasted of a run, the one before, and the evidence.

    Args:
        source: the run: its name, folder or record.
        base: the profile that it goes into; ``None``: the one that a loader would take.
        name: name to keep the profile under; ``None``: the profile's own, or NAME-tuned of a
            shipped one.

    Raises:
        UsageError: there is no such run, or it was on a host with more processors.
    """
    run, host = read_run(run_folder(source)), described_host()
    found = proven_knobs(run.own, run.name)
    if found.cpus and host.cpus % found.cpus:  # a rank has its share of its host's processors
        raise UsageError(
            f"{source} is of a run with {found.cpus} processors, and this host has {host.cpus}",
            remedy="accept it on the host of the run, and export the profile from there",
        )
    start = load_profile(base, host=host, mixture=found.mixture)
    before = start.profile
    evidence = [f"{one.describe()} ({one.run})" for one in found.paid]
    mine = start.origin != "shipped"
    own = before.name if mine else free_name(before.name, host)
    offered = before.model_copy(
        update={
            "name": name or own,
            "description": before.description if mine else f"Found on {host.describe()}.",
            "host": host.model_copy(update={"storage": before.host.storage}) if mine else host,
            "knobs": proposed(found, before.knobs),
            "mixture": before.mixture or found.mixture,
            "measurements": {},
            "provenance": Provenance(
                source="controller",
                detail=f"growths that paid and lasted, from profile {before.name}: "
                + ("; ".join(evidence) or "none"),
                measured_on=date.today().isoformat(),
            ),
        }
    )
    offered, clamps = offered.fit(host)
    if offered.knobs == before.knobs:
        nothing = f"nothing more lasted in {found.looked_at} decisions and changes"
        return before, before, [nothing, *clamps]
    return offered, before, [*evidence, *clamps]
