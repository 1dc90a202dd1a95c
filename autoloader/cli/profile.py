"""``autoloader profile``: list, show, compare and check host profiles.

Not here: what a profile is and where it is found (``autoloader.profile``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoloader.cli.options import JsonFlag
from autoloader.cli.output import emit, emit_json, emit_table, note
from autoloader.errors import ProfileError

if TYPE_CHECKING:
    from autoloader.profile import HostFacts, ResolvedProfile

profile_app = typer.Typer(
    help="Host profiles: a machine, its limits, and the knobs that suit it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_CELL_CHARACTERS = 48
Which = Annotated[str, typer.Argument(metavar="PROFILE", help="A name, or a path to a YAML file.")]


@profile_app.command("list")
def list_profiles(as_json: JsonFlag = False) -> None:
    """Every profile that has a name here; * marks the one taken when none is named."""
    from autoloader.profile import load_profile, profile_paths

    host = _this_host()
    default = load_profile(host=host)
    rows = [_row(name, path, default) for name, path in profile_paths().items()]
    if as_json:
        emit_json({"host": host.model_dump(mode="json"), "profiles": rows})
        return
    emit_table(
        ("", "name", "from", "numbers", "for"),
        (
            ("*" if row["default"] else "", row["name"], row["origin"], row["source"], row["for"])
            for row in rows
        ),
    )
    note(f"this host: {host.describe()}")


@profile_app.command("show")
def show(which: Which, as_json: JsonFlag = False) -> None:
    """Print a profile in full; what would be clamped on this host goes to stderr."""
    from autoloader.profile import find_profile

    found = find_profile(which)
    _, clamps = found.profile.fit(_this_host())
    if as_json:
        emit_json(
            {"origin": found.origin, "profile": found.profile.as_dict(), "clamped_here": clamps}
        )
        return
    for line in (*found.notes, *clamps):
        note(line)
    emit(found.profile.to_yaml().rstrip("\n"))


@profile_app.command("diff")
def show_diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A name or a path.")],
    second: Annotated[str, typer.Argument(metavar="B", help="A name or a path.")],
    as_json: JsonFlag = False,
) -> None:
    """Fields in which two profiles differ."""
    from autoloader.profile import diff, find_profile

    a, b = find_profile(first), find_profile(second)
    differences = diff(a.profile, b.profile)
    if as_json:
        rows = [{"field": name, "a": left, "b": right} for name, left, right in differences]
        emit_json({"a": a.origin, "b": b.origin, "differences": rows})
        return
    if not differences:
        note("no field differs")
        return
    shown = [(name, _cell(left), _cell(right)) for name, left, right in differences]
    emit_table(("field", first, second), shown)


@profile_app.command("check")
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
    from autoloader.profile import profile_paths

    host = _this_host()
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


def _this_host() -> HostFacts:
    from autoloader.probes.headroom import HeadroomProbe
    from autoloader.profile import host_facts

    return host_facts(HeadroomProbe().cgroup_limit_bytes())


def _row(name: str, path: Path, default: ResolvedProfile) -> dict[str, Any]:
    from autoloader.profile import find_profile, shipped_profiles_dir

    origin = "shipped" if path.parent == shipped_profiles_dir() else str(path)
    row: dict[str, Any] = {"name": name, "origin": origin, "default": False}
    try:
        profile = find_profile(path).profile
    except ProfileError as error:
        return row | {"source": "broken", "for": error.what, "description": ""}
    return row | {
        "default": origin == default.origin and profile.name == default.profile.name,
        "source": profile.provenance.source,
        "for": profile.host.describe(),
        "description": profile.description,
    }


def _report(name: str, host: HostFacts, *, strict: bool) -> dict[str, Any]:
    from autoloader.profile import load_profile

    try:
        found = load_profile(name, strict=strict, host=host)
    except ProfileError as error:
        problem = f"{error.what} ({error.remedy})"
        return {"profile": name, "ok": False, "problems": [problem], "notes": []}
    return {"profile": name, "ok": True, "problems": [], "notes": found.notes}


def _cell(value: Any) -> str:
    """A field's value in a table, long text cut."""
    if value is None:
        return "-"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _CELL_CHARACTERS else text[: _CELL_CHARACTERS - 1] + "…"
