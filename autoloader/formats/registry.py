"""Public facts about datasets by name: fields, control frequency, published weightings.

The facts are data (``open_x.yaml`` beside this file). Not here: whether a directory has what its
entry says, and what to propose where there is no entry (``process.draft``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cache
from typing import Any

from autoloader.host.frozen import frozen
from autoloader.spec.reading import packaged
from autoloader.spec.recipes import own_name

PAIR_OFFSETS = (3, 5, 10)
"""Frames that the two of a pair may lie apart; the distance nearest to one second is taken."""


@frozen
class KnownDataset:
    """One entry, as a spec writes its fields.

    Attributes:
        images: camera → path of its feature.
        action, state: terms, or ``None`` where the dataset has none (or none is known).
        language: features with an instruction; one is drawn for each episode and pass.
        hz: control frequency in Hz; ``None``: not known.
        note: remark for people; "": there is none.
        also: names of other datasets with the same fields.
    """

    images: Mapping[str, str] = field(default_factory=dict)
    action: tuple[Any, ...] | None = None
    state: tuple[Any, ...] | None = None
    language: tuple[str, ...] = ("language_instruction",)
    hz: float | None = None
    note: str = ""
    also: tuple[str, ...] = ()


@frozen
class KnownMix:
    """A published weighting.

    Attributes:
        about: one line for people.
        weights: dataset name → weight; shares are in proportion to weight × samples.
        pairs: whether samples are pairs of frames, with the actions between them summed.
    """

    about: str
    weights: Mapping[str, float]
    pairs: bool = False


@frozen
class _Registry:
    datasets: Mapping[str, KnownDataset]
    mixes: Mapping[str, KnownMix]


def known_dataset(name: str) -> tuple[str, KnownDataset] | None:
    """(name of the entry, entry) for a TFDS name; ``None`` where there is no entry."""
    known = _registry().datasets
    own = name if name in known else _aliases().get(name, own_name(name))
    return (own, known[own]) if own in known else None


def known_mixes() -> dict[str, KnownMix]:
    """The published weightings, by the name that ``--mix`` takes."""
    return dict(_registry().mixes)


def pair_offset(hz: float | None) -> int:
    """Frames in about a second: one of ``PAIR_OFFSETS``; 5 where the frequency is not known."""
    if hz is None:
        return 5
    return min(PAIR_OFFSETS, key=lambda offset: abs(offset - hz))


@cache
def _registry() -> _Registry:
    """``open_x.yaml``, parsed once. Callers share it and change nothing."""
    return packaged(__package__, "open_x.yaml", _Registry)


@cache
def _aliases() -> Mapping[str, str]:
    """Name under the key ``also`` → name of the entry that has the same features."""
    return {other: name for name, one in _registry().datasets.items() for other in one.also}
