"""Profiles on disk: found by path, by name, or by host and mixture; and kept, so that none is lost.

Profiles with a name lie in the user's directory (``AUTOLOADER_CONFIG_DIR``, else the platform's
config directory for "autoloader"; below it ``profiles/NAME.yaml``). Those that ship with the
library are looked for after them.

Rules of keeping a profile:
    1. A file is written in one step: a reader sees the old one or the new one, and a full disk
       leaves the old one.
    2. What is written over is kept first, in the folder ``replaced`` beside it, and said.
    3. A tuned profile never has the name of a shipped one.
    4. A profile takes the place of one of its name, unless that one is for such mixtures too and
       was measured to be faster, which is said.

Not here: what a profile says (``profile``), finding better knobs (``tune``).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import re
import secrets
import shutil
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import platformdirs

from autoloader.controller.profile import (
    DEFAULT_PROFILE,
    FAR_DOUBLINGS,
    NAME_PATTERN,
    HostFacts,
    MixtureKind,
    Profile,
    host_facts,
)
from autoloader.errors import ProfileError, nearest
from autoloader.host.files import write_whole, written_by_others
from autoloader.host.frozen import frozen
from autoloader.host.units import expanded

logger = logging.getLogger(__name__)

CONFIG_DIR_VARIABLE = "AUTOLOADER_CONFIG_DIR"
REPLACED_FOLDER = "replaced"
"""Where the versions of before lie, beside the profile."""

TIE_RATIO = 0.02
"""Rates closer than this count as the same."""


class Untuned(str):
    """Note of a host without a saved profile; displays that say so elsewhere leave it out."""

    __slots__ = ()


@frozen
class ResolvedProfile:
    """A profile that was found.

    Attributes:
        profile: the profile, fitted to the host where ``load_profile`` gave it.
        origin: path of its file, or "shipped".
        notes: the choice with its reason, and every clamp; sentences for people.
    """

    profile: Profile
    origin: str
    notes: list[str] = field(default_factory=list)


def load_profile(
    which: str | Path | None = None,
    *,
    strict: bool = False,
    host: HostFacts | None = None,
    mixture: MixtureKind | None = None,
) -> ResolvedProfile:
    """Find a profile, and fit it to this host.

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
    chosen = found.profile
    fitted, clamps = chosen.fit(host, strict=strict)
    notes = list(found.notes)
    if which is not None or found.origin != "shipped":  # else the note says where knobs come from
        notes.append(f"the knobs of profile {chosen.name} are {_source(chosen, host)}")
    if mixture and chosen.mixture and not chosen.mixture.is_like(mixture):
        apart = chosen.mixture.doublings_to(mixture)
        far = "; that is another kind of mixture: tune it" if apart >= FAR_DOUBLINGS else ""
        notes.append(
            f"profile {chosen.name}: knobs for {chosen.mixture.describe()} ({apart:.1f} doublings "
            f"from this: {mixture.describe()}){far}"
        )
    return ResolvedProfile(fitted, found.origin, [*notes, *clamps])


def _source(profile: Profile, host: HostFacts) -> str:
    """Where knobs come from, in one clause: measured ones with their rate."""
    if profile.provenance.source != "measured":
        return profile.provenance.told
    told = profile.provenance.told
    if not profile.host.is_same(host):
        told = f"measured on another host ({profile.host.describe()})"
    rate, bound = (profile.measurements.get(f"{k}samples_per_s") for k in ("", "bound_"))
    if rate and bound:
        told += f": {rate:,.0f} samples/s, {rate / bound:.0%} of the bound"
    return told


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
    """Folder of the profiles that come with the library: in the package, or in the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_profiles"
    return installed if installed.is_dir() else package.parent / "profiles"


def user_profiles_dir() -> Path:
    """Folder of saved profiles; it need not exist."""
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


def _changed_ns(path: Path) -> int:
    """Time of a file's last change; 0 where it is gone, or the system refuses to tell."""
    with contextlib.suppress(OSError):
        return path.lstat().st_mtime_ns
    return 0


def _default_for(host: HostFacts, mixture: MixtureKind | None) -> ResolvedProfile:
    """The user's saved profile for ``host`` and the nearest mixture, else the shipped default."""
    notes, far = list[str](), list[str]()
    fitting: list[tuple[int, Path, Profile]] = []
    latest_first = sorted(
        _profiles_in(user_profiles_dir()), key=lambda path: (-_changed_ns(path), path.name)
    )
    for path in latest_first:
        there = (one for one in (path, path.parent) if os.path.exists(one))
        if why := next(filter(None, (written_by_others(one, one.stat()) for one in there)), ""):
            notes.append(f"skipped saved profile {path}: {why}")
            continue
        try:
            profile = Profile.from_yaml(path)
        except ProfileError as error:
            notes.append(f"skipped a broken saved profile: {error.what}")
            continue
        if not profile.host.is_same(host):
            continue
        apart = FAR_DOUBLINGS  # knobs for any mixture come behind those for one like this
        if mixture is not None and profile.mixture is not None:
            apart = profile.mixture.doublings_to(mixture)
            if apart >= FAR_DOUBLINGS:
                far.append(profile.name)
                continue
        fitting.append((math.ceil(apart), path, profile))
    if fitting:
        _, path, profile = min(fitting, key=lambda one: one[0])
        notes.append(f"profile {profile.name}: saved in {path}, made for a host like this one")
        return ResolvedProfile(profile, str(path), notes)
    why = (
        f"those of {', '.join(far)} are for other kinds of mixtures"
        if far
        else "not tuned here yet"
    )
    told = f"default knobs: {why} (fine to start; autoloader tune measures this machine)"
    notes.append(told if far else Untuned(told))
    return ResolvedProfile(_shipped_default(), "shipped", notes)


@functools.cache
def _shipped_default() -> Profile:
    """Profile of a host that was never tuned; read once, since its file takes 30 ms."""
    return Profile.from_yaml(shipped_profiles_dir() / f"{DEFAULT_PROFILE}.yaml")


class Kept(NamedTuple):
    """Outcome of keeping a profile.

    Attributes:
        path: path of its file.
        notes: what was replaced or kept; sentences for people.
    """

    path: Path
    notes: list[str]


def shipped_names() -> list[str]:
    """Names that no tuned profile may have."""
    return sorted(path.stem for path in shipped_profiles_dir().glob("*.yaml"))


def check_name(name: str) -> None:
    """Refuse a name that a tuned profile may not have.

    Raises:
        ProfileError: ``name`` is no name, or a shipped profile's.
    """
    if not re.match(NAME_PATTERN, name):
        raise ProfileError(
            f"--name {name!r} is not allowed as the name of a profile",
            remedy="use letters, digits, '_', '.' and '-', and begin with a letter or digit",
        )
    if name in shipped_names():
        raise ProfileError(
            f"--name {name}: a profile of this name ships with autoloader, and a tuned one would "
            "hide it",
            remedy=f"choose a name of your own, such as {name}-tuned",
        )


def profile_path(name: str, out: Path | None = None) -> Path:
    """Path of the profile of a name.

    Args:
        name: name of the profile.
        out: a ``.yaml`` file, or a directory that gets ``NAME.yaml``; ``None`` is the user's
            directory, where ``--profile NAME`` finds it first.
    """
    target = user_profiles_dir() if out is None else expanded(out)
    return target if target.suffix in {".yaml", ".yml"} else target / f"{name}.yaml"


def free_name(base: str, host: HostFacts, kind: MixtureKind | None, out: Path | None = None) -> str:
    """A name for what was tuned from the profile ``base``: NAME-tuned, or with a number behind it.

    The name of a profile for this host and such mixtures is taken: that one is replaced.
    """
    stem = base if base.endswith("-tuned") or base not in shipped_names() else f"{base}-tuned"
    name, number = stem, 1
    while (other := _existing(profile_path(name, out))) is not None:
        if other.host.is_same(host) and _is_for(other, kind):
            return name
        number += 1
        name = f"{stem}-{number}"
    return name


def keep_profile(profile: Profile, *, out: Path | None = None, tuned_from: Profile | None) -> Kept:
    """Keep a profile in the place of what there is of its name.

    Args:
        profile: profile that was found.
        out: place to write to, see ``profile_path``.
        tuned_from: profile that it was measured against; one for such mixtures that is not this
            one, and was measured to be faster, is left as it is.

    Raises:
        ProfileError: the name is a shipped one's, or the place cannot be written.
    """
    check_name(profile.name)
    path = profile_path(profile.name, out)
    before = _existing(path)
    if before is None:
        return _saved(profile, path)
    if alike := before.host.is_same(profile.host):
        profile = profile.having(description=before.description, cache=before.cache)
    if alike and _is_for(before, profile.mixture):
        if faster := _faster(before, profile, tuned_from):
            return Kept(path, [f"{path} stays as it is: {faster}"])
        return _saved(profile, path, f"the knobs of {before.name} for such mixtures were replaced")
    of = before.mixture.describe() if before.mixture else "any mixture"
    was = f"{before.name} was for another host or mixture: {before.host.describe()}; {of}"
    return _saved(profile, path, was)


def _saved(profile: Profile, target: Path, *said: str) -> Kept:
    """Write ``profile`` in one step; another one that was there is kept in ``replaced``."""
    text = profile.to_yaml()
    notes = [*said]

    def set_aside() -> None:
        if target.is_file() and target.read_text(encoding="utf-8", errors="replace") != text:
            notes.append(f"what {target} said before is kept in {_set_aside(target)}")

    try:
        write_whole(target, text, durable=True, before=set_aside)
    except OSError as error:
        raise ProfileError(
            f"{target}: the profile cannot be written: {error.strerror or error}",
            remedy="give another file with --output, or set the environment variable "
            f"{CONFIG_DIR_VARIABLE} to a folder that can be written",
        ) from error
    return Kept(target, notes)


def _set_aside(target: Path) -> Path:
    """A copy of the file that is about to be replaced, under the time of its last change."""
    folder = target.parent / REPLACED_FOLDER
    folder.mkdir(exist_ok=True)
    changed = datetime.fromtimestamp(target.stat().st_mtime)
    kept = folder / f"{target.stem}.{changed:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}{target.suffix}"
    shutil.copy2(target, kept)
    return kept


def _existing(path: Path) -> Profile | None:
    """The profile at ``path``; ``None`` where there is none, or one that cannot be read."""
    try:
        return Profile.from_yaml(path) if os.path.isfile(path) else None
    except ProfileError:
        return None


def _is_for(profile: Profile, kind: MixtureKind | None) -> bool:
    """True if a profile's knobs are for such mixtures; both may be for any."""
    if profile.mixture is None or kind is None:
        return profile.mixture is kind
    return profile.mixture.is_like(kind)


def _faster(old: Profile, new: Profile, tuned_from: Profile | None) -> str:
    """Why ``old`` is to stay; "" where ``new`` was held against it, or is no slower."""
    if tuned_from is not None and tuned_from.knobs == old.knobs:
        return ""
    before, now = old.measurements.get("samples_per_s"), new.measurements.get("samples_per_s")
    if before is None or now is None or now >= before * (1 - TIE_RATIO):
        return ""
    when = old.provenance.measured_on or "before"
    return (
        f"its knobs for such mixtures gave {before:.0f} samples/s on {when}, these {now:.0f}; "
        "start from it with --profile to compare them, or save with another --name"
    )
