"""Public facts about datasets by name: fields, control frequency, published weightings.

The facts are data (``open_x.yaml`` beside this file). Not here: whether a directory has what its
entry says, and what to propose where there is no entry (``cli.init``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ruamel.yaml import YAML

from autoloader.spec.recipes import own_name

PAIR_OFFSETS = (3, 5, 10)
"""Frames that the two of a pair may lie apart; the distance nearest to one second is taken."""


@dataclass(frozen=True, slots=True)
class KnownDataset:
    """One entry, as a spec writes its fields.

    Attributes:
        images: camera → path of its feature.
        action, state: terms, or ``None`` where the dataset has none (or none is known).
        language: features with an instruction; one is drawn for each episode and pass.
        hz: control frequency in Hz; ``None``: not known.
        note: remark for people; "": there is none.
    """

    images: Mapping[str, str]
    action: tuple[Any, ...] | None
    state: tuple[Any, ...] | None
    language: tuple[str, ...]
    hz: float | None
    note: str


@dataclass(frozen=True, slots=True)
class KnownMix:
    """A published weighting.

    Attributes:
        about: one line for people.
        weights: dataset name → weight; shares are in proportion to weight × samples.
        pairs: whether samples are pairs of frames, with the actions between them summed.
    """

    about: str
    weights: Mapping[str, float]
    pairs: bool


def known_dataset(name: str) -> tuple[str, KnownDataset] | None:
    """(name of the entry, entry) for a TFDS name; ``None`` where there is no entry."""
    document = _open_x()["datasets"]
    own = name if name in document else _aliases().get(name, own_name(name))
    if own not in document:
        return None
    entry = document[own]
    language = entry.get("language", "language_instruction")
    return own, KnownDataset(
        images={camera: f"observation/{entry[camera]}" for camera in _cameras(entry)},
        action=tuple(entry["action"]) if "action" in entry else None,
        state=tuple(_observed(term) for term in entry["state"]) if "state" in entry else None,
        language=(language,) if isinstance(language, str) else tuple(language),
        hz=entry.get("hz"),
        note=entry.get("note", ""),
    )


def known_mixes() -> dict[str, KnownMix]:
    """The published weightings, by the name that ``--mix`` takes."""
    return {
        name: KnownMix(entry["about"], entry["weights"], entry.get("pairs", False))
        for name, entry in _open_x()["mixes"].items()
    }


def pair_offset(hz: float | None) -> int:
    """Frames in about a second: one of ``PAIR_OFFSETS``; 5 where the frequency is not known."""
    if hz is None:
        return 5
    return min(PAIR_OFFSETS, key=lambda offset: abs(offset - hz))


def _cameras(entry: Mapping[str, Any]) -> list[str]:
    return [camera for camera in ("primary", "wrist") if camera in entry]


def _observed(term: Any) -> Any:
    """A term below ``observation/``."""
    if isinstance(term, str):
        return f"observation/{term}"
    return {**term, "path": f"observation/{term['path']}"} if "path" in term else term


@cache
def _open_x() -> Mapping[str, Any]:
    """``open_x.yaml``, parsed once: "datasets" and "mixes". Callers share it and change nothing."""
    text = resources.files(__package__).joinpath("open_x.yaml").read_text(encoding="utf-8")
    document: Mapping[str, Any] = YAML(typ="safe", pure=True).load(text)
    return document


@cache
def _aliases() -> Mapping[str, str]:
    """Name under the key ``also`` → name of the entry that has the same features."""
    return {
        other: name for name, entry in _open_x()["datasets"].items()
        for other in entry.get("also", ())
    }  # fmt: skip
