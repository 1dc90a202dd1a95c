"""Finds profiles by path, by name, or by the host they were saved for; and saves them.

Profiles with a name lie in the user's directory (``AUTOLOADER_CONFIG_DIR``, else the platform's
config directory for "autoloader"; below it ``profiles/NAME.yaml``). Those that ship with the
library are looked for after them.

Not here: what a profile says (``model``), finding better knobs (``tune``).
"""

from __future__ import annotations

import logging
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from autoloader.errors import ProfileError, nearest
from autoloader.profile.facts import HostFacts, host_facts
from autoloader.profile.model import DEFAULT_PROFILE, Profile
from autoloader.units import expanded

logger = logging.getLogger(__name__)

CONFIG_DIR_VARIABLE = "AUTOLOADER_CONFIG_DIR"


@dataclass(frozen=True, slots=True)
class ResolvedProfile:
    """A profile that was found.

    Attributes:
        profile: the profile, fitted to the host where ``load_profile`` gave it.
        origin: path of its file, or "shipped".
        notes: which was taken and why, and every clamp; sentences for people.
    """

    profile: Profile
    origin: str
    notes: list[str] = field(default_factory=list)


def load_profile(
    which: str | Path | None = None, *, strict: bool = False, host: HostFacts | None = None
) -> ResolvedProfile:
    """Find a profile and fit it to this host.

    Args:
        which: a path to a YAML file; a name (the user's directory before the shipped ones); or
            ``None`` for the user's latest saved profile that matches the host, else the shipped
            default.
        strict: refuse a profile that would have to be clamped.
        host: the host to fit to; by default ``host_facts()``.

    Raises:
        ProfileError: nothing of that name, a broken file, or ``strict`` and a clamp.
    """
    host = host or host_facts()
    found = find_profile(which) if which is not None else _default_for(host)
    fitted, notes = found.profile.fit(host, strict=strict)
    return ResolvedProfile(fitted, found.origin, [*found.notes, *notes])


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
    package = Path(__file__).resolve().parents[1]
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


def save_profile(profile: Profile, out: Path | None = None) -> Path:
    """Write ``profile`` in one step (a reader sees the old file or the new one) and say where.

    Args:
        profile: what to write.
        out: a ``.yaml`` file, or a directory that gets ``NAME.yaml``; ``None`` is the user's
            directory, where ``--profile NAME`` finds it first.

    Raises:
        ProfileError: the place cannot be written.
    """
    target = user_profiles_dir() if out is None else expanded(out)
    if target.suffix not in {".yaml", ".yml"}:
        target = target / f"{profile.name}.yaml"
    temporary: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(profile.to_yaml())
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ProfileError(
            f"{target}: the profile cannot be written: {error}",
            remedy=f"name a writable place with --out, or set {CONFIG_DIR_VARIABLE}",
        ) from error
    return target


def _profiles_in(directory: Path) -> list[Path]:
    """Its profiles; none where it is not there, or cannot be entered."""
    try:
        return list(directory.glob("*.yaml")) if directory.is_dir() else []
    except OSError as error:
        logger.info("no profiles from %s: %s", directory, error.strerror or error)
        return []


def _default_for(host: HostFacts) -> ResolvedProfile:
    """The user's latest saved profile that matches ``host``, else the shipped default."""
    notes: list[str] = []
    directory = user_profiles_dir()
    for path in sorted(
        _profiles_in(directory), key=lambda path: (-path.lstat().st_mtime_ns, path.name)
    ):
        try:
            profile = Profile.from_yaml(path)
        except ProfileError as error:
            notes.append(f"skipped a broken saved profile: {error.what}")
            continue
        if profile.host.matches(host):
            notes.append(f"profile {profile.name}: saved in {path}, made for a host like this one")
            return ResolvedProfile(profile, str(path), notes)
    path = shipped_profiles_dir() / f"{DEFAULT_PROFILE}.yaml"
    notes.append(
        f"no saved profile matches this host ({host.describe()}): "
        f"using the shipped default {DEFAULT_PROFILE}"
    )
    return ResolvedProfile(Profile.from_yaml(path), "shipped", notes)
