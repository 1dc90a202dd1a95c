"""Profiles of earlier versions, read as they were meant; those of later ones, refused.

Each step takes a document of one schema version to the next and changes nothing else, so that a
file of any age goes through all the steps behind its version.

    1 → 2: what a profile was measured on (``measurements.datasets`` and ``batch``) is its
           ``mixture`` as well. A *measured* profile no longer pins the reader ``indexed``: it was
           written so by whatever study ended there, and ``auto`` takes it for local files.

Not here: knobs of earlier versions (``Knobs.from_saved``), what a profile is (``model``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autoloader.errors import ProfileError

SCHEMA_VERSION = 2


def migrated(raw: Mapping[str, Any], *, origin: str) -> dict[str, Any]:
    """The document as this version would have written it.

    Raises:
        ProfileError: the version is missing, is none, or is later than this one's.
    """
    version = raw.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        found = repr(version) if "schema_version" in raw else "this field is required and not there"
        raise ProfileError(
            f"{origin}: schema_version: {found}",
            remedy=f"write `schema_version: {SCHEMA_VERSION}`, or 1 for a file of before",
        )
    if version > SCHEMA_VERSION:
        raise ProfileError(
            f"{origin}: schema_version: {version} was written by a newer autoloader; this one "
            f"reads 1 to {SCHEMA_VERSION}",
            remedy="update autoloader on this host, or export the profile with this version there",
        )
    document = dict(raw)
    for step in _STEPS[version - 1 :]:
        document = step(document)
    return document


def _with_mixture(raw: dict[str, Any]) -> dict[str, Any]:
    """1 → 2."""
    found = {**raw, "schema_version": 2}
    measurements, provenance = raw.get("measurements"), raw.get("provenance")
    if isinstance(measurements, Mapping):
        kind = {
            name: measurements[name]
            for name in ("datasets", "batch")
            if isinstance(measurements.get(name), int) and not isinstance(measurements[name], bool)
        }
        if kind and "mixture" not in raw:
            found["mixture"] = kind
    measured = isinstance(provenance, Mapping) and provenance.get("source") == "measured"
    knobs = raw.get("knobs")
    if measured and isinstance(knobs, Mapping) and knobs.get("reader") == "indexed":
        found["knobs"] = {**knobs, "reader": "auto"}
    return found


_STEPS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (_with_mixture,)
"""The step from each version to the next, the first from 1 to 2."""
