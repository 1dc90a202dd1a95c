"""``autoloader profile``: list, show, compare, check, export and accept host profiles.

Not here: what a profile is and where it is found (``autoloader.controller.profile``), what of a run
lasts (``process.lasting``, ``cli.run_report.run``).
"""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from autoloader.cli.options import JsonFlag
from autoloader.cli.output import (
    emit,
    emit_document,
    emit_json,
    emit_table,
    file_errors,
    note,
)
from autoloader.cli.report import run_folder
from autoloader.cli.run_report.run import lasting_of, read_run
from autoloader.controller.profile import (
    HostFacts,
    Profile,
    Provenance,
    ResolvedProfile,
    check_name,
    described_host,
    diff,
    find_profile,
    free_name,
    host_facts,
    keep_entry,
    keep_whole,
    load_profile,
    profile_path,
    profile_paths,
    shipped_profiles_dir,
)
from autoloader.errors import ProfileError, UsageError
from autoloader.host.files import write_whole
from autoloader.process.lasting import Lasting, lasting, proposed

profile = typer.Typer(
    help="Host profiles: a machine, its limits, and the knobs that suit it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_CELL_CHARACTERS = 48
_LISTED = ("name", "default", "origin", "source", "for", "mixtures")
Which = Annotated[str, typer.Argument(metavar="PROFILE", help="A name, or a path to a YAML file.")]


@profile.command("list")
def list_profiles(as_json: JsonFlag = False) -> None:
    """List every profile that has a name here, and tell the one taken when none is named."""
    host = host_facts()
    default = load_profile(host=host)
    rows = [_row(name, path, default) for name, path in profile_paths().items()]
    if as_json:
        emit_json({"host": host.model_dump(mode="json"), "profiles": rows})
        return
    emit_document({"profiles": rows}, {"profiles": _LISTED})
    note(f"this host: {host.describe()}")


@profile.command("show")
def show(which: Which, as_json: JsonFlag = False) -> None:
    """Print a profile in full; what would be clamped on this host goes to stderr."""
    found = find_profile(which)
    _, clamps = found.profile.fit(host_facts())
    if as_json:
        emit_json(
            {"origin": found.origin, "profile": found.profile.as_dict(), "clamped_here": clamps}
        )
        return
    for line in (*found.notes, *clamps):
        note(line)
    emit(found.profile.to_yaml().rstrip("\n"))


@profile.command("diff")
def show_diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A name or a path.")],
    second: Annotated[str, typer.Argument(metavar="B", help="A name or a path.")],
    as_json: JsonFlag = False,
) -> None:
    """Fields in which two profiles differ."""
    a, b = find_profile(first), find_profile(second)
    differences = diff(a.profile, b.profile)
    if as_json:
        rows = [{"field": name, "a": left, "b": right} for name, left, right in differences]
        emit_json({"a": a.origin, "b": b.origin, "differences": rows})
        return
    if not differences:
        note("no field differs")
        return
    _show_changes((first, second), differences)


@profile.command("check")
def check(
    which: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROFILE]...", help="Names or paths; default: all there are."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="A profile that this host must clamp is a fault.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Read profiles as a loader would on this host; exit 2 when one is broken."""
    host = host_facts()
    reports = [_report(name, host, strict=strict) for name in which or profile_paths()]
    broken = [report for report in reports if not report["ok"]]
    if as_json:
        emit_json({"host": host.model_dump(mode="json"), "profiles": reports})
    else:
        for report in reports:
            emit(f"{'ok   ' if report['ok'] else 'BAD  '}{report['profile']}")
            for line in (*report["notes"], *report["problems"]):
                emit(f"       {line}")
    if broken:
        raise typer.Exit(ProfileError.exit_code)


@profile.command("export")
def export(
    which: Which,
    out: Annotated[
        Path | None, typer.Option(help="File or folder to write; default: NAME.yaml here.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Another name for it.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that differs.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write a profile as a file for teammates, in this version's format."""
    profile = find_profile(which).profile
    if name is not None:
        profile = profile.model_copy(update={"name": check_name(name)})
    target = profile_path(profile.name, out or Path())
    text = profile.to_yaml()
    with file_errors("--out", target):
        if target.is_file() and target.read_text(encoding="utf-8") != text and not force:
            raise UsageError(
                f"{target} is there and says something else",
                remedy="name another file with --out, or write over it with --force",
            )
        write_whole(target, text)
    if as_json:
        emit_json({"path": str(target), "name": profile.name})
    else:
        emit(str(target))


@profile.command("accept")
def accept(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A teammate's profile (.yaml), or a run: its name as `autoloader report` lists "
            'it, "last", its folder, or its decision log.',
        ),
    ],
    base: Annotated[
        str | None,
        typer.Option("--profile", help="The profile that a run's findings go into."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name to keep it under.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a profile that this host must clamp.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Take over a profile, or what a run's controller found to last, once a person agrees."""
    if name is not None:
        check_name(name)
    whole = source.endswith((".yaml", ".yml"))
    if whole:
        offered, before, said = _teammates(Path(source), name, host_facts(), strict=strict)
    else:
        offered, before, said = _from_run(source, base, name)
    changes = diff(before, offered) if before else [("name", None, offered.name)]
    if not as_json and changes:
        _show_changes(("now", "then"), changes)
    for line in () if as_json else said:
        note(line)
    accepted = yes
    if changes and not (yes or as_json):
        terminal = sys.stdin is not None and sys.stdin.isatty()
        accepted = terminal and typer.confirm("Accept?", err=True)
    kept = None
    if changes and accepted:
        kept = keep_whole(offered) if whole else keep_entry(offered, tuned_from=before)
    if as_json:
        emit_json(
            {
                "name": offered.name,
                "changes": [{"field": f, "before": a, "after": b} for f, a, b in changes],
                "evidence": said,
                "path": str(kept.path) if kept is not None and kept.written else None,
                "notes": [] if kept is None else kept.notes,
            }
        )
        return
    for line in () if kept is None else kept.notes:
        note(line)
    if not changes:
        note("nothing would change")
    elif kept is None:
        note("not accepted: nothing was written; --yes accepts without asking")
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
    try:
        found = find_profile(name)
        _, clamps = found.profile.fit(host, strict=strict)
    except ProfileError as error:
        problem = f"{error.what} ({error.remedy})"
        return {"profile": name, "ok": False, "problems": [problem], "notes": []}
    return {"profile": name, "ok": True, "problems": [], "notes": [*found.notes, *clamps]}


def _teammates(
    source: Path, name: str | None, host: HostFacts, *, strict: bool
) -> tuple[Profile, Profile | None, list[str]]:
    """The profile in a file, the one of its name here, and what this host would clamp.

    Raises:
        ProfileError: it cannot be read; or ``strict``, and something would be clamped.
    """
    found = Profile.from_yaml(source)
    offered = found if name is None else found.model_copy(update={"name": name})
    _, clamps = offered.fit(host, strict=strict)
    path = profile_paths().get(offered.name)
    if path is None or path.parent == shipped_profiles_dir():
        return offered, None, clamps
    return offered, Profile.from_yaml(path), clamps


def _from_run(
    source: str, base: str | None, name: str | None
) -> tuple[Profile, Profile | None, list[str]]:
    """The profile with what lasted of a run, the one before, and the evidence.

    Args:
        source: the run: its name, folder, record or decision log.
        base: the profile that it goes into; ``None``: the one that a loader would take.
        name: to keep it under; ``None``: the profile's own, or NAME-tuned of a shipped one.

    Raises:
        UsageError: there is no such run, or it was on a host with more processors.
    """
    found, host = _found_in(source), described_host()
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


def _found_in(source: str) -> Lasting:
    """Knobs that lasted, by the run's decision log or else its record."""
    path = Path(source)
    try:
        if path.is_file():
            with path.open(encoding="utf-8") as lines:
                is_record = '"facts"' in lines.readline()
                lines.seek(0)
                if not is_record:
                    return lasting(lines, origin=source)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{source} cannot be read: {error}",
            remedy="name a profile (.yaml), or a run that `autoloader report` lists",
        ) from error
    return lasting_of(read_run(run_folder(source)))
