"""What ``autoloader profile accept`` offers: a teammate's profile, or what of a run lasted.

Not here: asking and keeping (``profile``), what lasts (``actuation.lasting``, ``report.lasting``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autoloader.cli.report import run_folder
from autoloader.errors import UsageError

if TYPE_CHECKING:
    from autoloader.actuation.lasting import Lasting
    from autoloader.profile import HostFacts, Profile


def teammates(
    source: Path, name: str | None, host: HostFacts, *, strict: bool
) -> tuple[Profile, Profile | None, list[str]]:
    """The profile in a file, the one of its name here, and what this host would clamp.

    Raises:
        ProfileError: it cannot be read; or ``strict``, and something would be clamped.
    """
    from autoloader.profile import Profile, profile_paths, shipped_profiles_dir

    found = Profile.from_yaml(source)
    offered = found if name is None else found.model_copy(update={"name": name})
    _, clamps = offered.fit(host, strict=strict)
    path = profile_paths().get(offered.name)
    mine = path is not None and path.parent != shipped_profiles_dir()
    return offered, Profile.from_yaml(path) if mine and path is not None else None, clamps


def from_run(
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
    from datetime import date

    from autoloader.actuation.lasting import proposed
    from autoloader.profile import (
        Provenance,
        described_host,
        free_name,
        load_profile,
    )

    found = _found_in(source)
    host = described_host()
    _check_run(found, source, host)
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
        return (
            before,
            before,
            [f"nothing more lasted in {found.looked_at} decisions and changes", *clamps],
        )
    return offered, before, [*evidence, *clamps]


def _found_in(source: str) -> Lasting:
    """What lasted, as the run's decision log says it or else its record."""
    from autoloader.actuation.lasting import lasting
    from autoloader.report.lasting import lasting_of
    from autoloader.report.run import read_run

    path = Path(source)
    try:
        if path.is_file() and not _is_record(path):
            with path.open(encoding="utf-8") as lines:
                return lasting(lines, origin=source)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{source} cannot be read: {error}",
            remedy="name a profile (.yaml), or a run that `autoloader report` lists",
        ) from error
    return lasting_of(read_run(run_folder(source)))


def _is_record(path: Path) -> bool:
    """Whether a file is the record of a run, and not its decision log."""
    with path.open(encoding="utf-8") as lines:
        return '"facts"' in lines.readline()


def _check_run(found: Lasting, source: str, host: HostFacts) -> None:
    """Refuse what another machine found; a rank has its share of its host's processors.

    Raises:
        UsageError: no share of this host's processors is as many as the run had.
    """
    if found.cpus and host.cpus % found.cpus:
        raise UsageError(
            f"{source} is of a run with {found.cpus} processors, and this host has {host.cpus}",
            remedy="accept it on the host of the run, and export the profile from there",
        )
