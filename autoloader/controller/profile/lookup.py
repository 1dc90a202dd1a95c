"""Finds profiles by path, by name, or by the host and the mixture they were saved for.

Profiles with a name lie in the user's directory (``AUTOLOADER_CONFIG_DIR``, else the platform's
config directory for "autoloader"; below it ``profiles/NAME.yaml``). Those that ship with the
library are looked for after them.

Not here: what a profile says (``model``), writing one (``keeping``), finding better knobs
(``tune``).
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from autoloader.controller.profile.facts import HostFacts, host_facts
from autoloader.controller.profile.kinds import FAR_DOUBLINGS, MixtureKind
from autoloader.controller.profile.model import DEFAULT_PROFILE, Profile
from autoloader.errors import ProfileError, nearest
from autoloader.host.files import written_by_others
from autoloader.host.units import expanded

logger = logging.getLogger(__name__)

CONFIG_DIR_VARIABLE = "AUTOLOADER_CONFIG_DIR"


@dataclass(frozen=True, slots=True)
class ResolvedProfile:
    """A profile that was found.

    Attributes:
        profile: the profile, fitted to the host where ``load_profile`` gave it; of several kinds
            of mixtures it holds the nearest alone then.
        origin: path of its file, or "shipped".
        notes: which was taken and why, and every clamp; sentences for people.
        entry: place of its knobs among those of its file; 0 for the file's own.
    """

    profile: Profile
    origin: str
    notes: list[str] = field(default_factory=list)
    entry: int = 0


def load_profile(
    which: str | Path | None = None,
    *,
    strict: bool = False,
    host: HostFacts | None = None,
    mixture: MixtureKind | None = None,
) -> ResolvedProfile:
    """Find a profile, take its knobs for the nearest kind of mixture, and fit it to this host.

    Args:
        which: a path to a YAML file; a name (the user's directory before the shipped ones); or
            ``None`` for the user's saved profile that matches the host and comes nearest to the
            mixture, the latest of equals, else the shipped default.
        strict: refuse a profile that would have to be clamped.
        host: the host to fit to; by default ``host_facts()``.
        mixture: the kind of mixture that will be read; ``None``: not known.

    Raises:
        ProfileError: nothing of that name, a broken file, or ``strict`` and a clamp.
    """
    host = host or host_facts()
    found = find_profile(which) if which is not None else _default_for(host, mixture)
    chosen, entry, choice = found.profile.for_mixture(mixture)
    fitted, clamps = chosen.fit(host, strict=strict)
    said = [] if chosen.provenance.source == "measured" else [_unmeasured(chosen)]
    return ResolvedProfile(
        fitted, found.origin, [*found.notes, *said, *choice, *clamps], entry=entry
    )


def _unmeasured(profile: Profile) -> str:
    return f"the knobs of profile {profile.name} are {profile.provenance.told}"


def find_profile(which: str | Path) -> ResolvedProfile:
    """The profile at a path or of a name, as its file says it (nothing clamped).

    Raises:
        ProfileError: nothing there, or a broken file.
    """
    if isinstance(which, Path) or "/" in which or which.endswith((".yaml", ".yml")):
        path = expanded(which)
        return ResolvedProfile(Profile.from_yaml(path), str(path), [f"profile from {path}"])
    known = profile_paths()
    if which not in known:
        raise ProfileError(
            f"there is no profile {which!r} in {user_profiles_dir()} nor among the shipped ones",
            remedy=nearest(which, known) + " (a path to a YAML file is fine too)",
        )
    path = known[which]
    profile = Profile.from_yaml(path)
    if path.parent == shipped_profiles_dir():
        return ResolvedProfile(profile, "shipped", [f"profile {which}: shipped"])
    return ResolvedProfile(profile, str(path), [f"profile {which} from {path}"])


def profile_paths() -> dict[str, Path]:
    """Every profile that has a name here, the user's hiding shipped ones; sorted by name."""
    found: dict[str, Path] = {}
    for directory in (shipped_profiles_dir(), user_profiles_dir()):
        found.update((path.stem, path) for path in _profiles_in(directory))
    return dict(sorted(found.items()))


def shipped_profiles_dir() -> Path:
    """Where the profiles lie that come with the library: in the package, or in the checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "_profiles"
    return installed if installed.is_dir() else package.parent / "profiles"


def user_profiles_dir() -> Path:
    """Where profiles are saved; need not exist."""
    configured = os.environ.get(CONFIG_DIR_VARIABLE)
    base = (
        expanded(configured)
        if configured
        else platformdirs.user_config_path("autoloader", appauthor=False)
    )
    return base / "profiles"


def _profiles_in(directory: Path) -> list[Path]:
    """Its profiles; none where it is not there, or cannot be entered."""
    try:
        return list(directory.glob("*.yaml")) if directory.is_dir() else []
    except OSError as error:
        logger.info("no profiles from %s: %s", directory, error.strerror or error)
        return []


def _default_for(host: HostFacts, mixture: MixtureKind | None) -> ResolvedProfile:
    """The user's saved profile for ``host`` and the nearest mixture, else the shipped default."""
    notes: list[str] = []
    far: list[str] = []
    fitting: list[tuple[float, int, Path, Profile]] = []
    latest_first = sorted(
        _profiles_in(user_profiles_dir()),
        key=lambda path: (-path.lstat().st_mtime_ns, path.name),
    )
    for age, path in enumerate(latest_first):
        whys = [written_by_others(one, one.stat()) for one in (path, path.parent) if one.exists()]
        if why := next(filter(None, whys), ""):
            notes.append(f"skipped saved profile {path}: {why}")
            continue
        try:
            profile = Profile.from_yaml(path)
        except ProfileError as error:
            notes.append(f"skipped a broken saved profile: {error.what}")
            continue
        if not profile.host.matches(host):
            continue
        _, apart = profile.nearest(mixture)
        if apart is not None and apart >= FAR_DOUBLINGS:
            far.append(profile.name)
        else:
            # Knobs for any mixture come behind those for one like this.
            fitting.append(
                (math.ceil(FAR_DOUBLINGS if apart is None else apart), age, path, profile)
            )
    if fitting:
        _, _, path, profile = min(fitting, key=lambda one: one[:2])
        notes.append(f"profile {profile.name}: saved in {path}, made for a host like this one")
        return ResolvedProfile(profile, str(path), notes)
    path = shipped_profiles_dir() / f"{DEFAULT_PROFILE}.yaml"
    others = f", and {', '.join(far)} is for other kinds of mixtures" if far else ""
    notes.append(
        f"no saved profile matches this host ({host.describe()}){others}: "
        f"using the shipped default {DEFAULT_PROFILE}"
    )
    return ResolvedProfile(Profile.from_yaml(path), "shipped", notes)
