"""Statistics of a dataset's action and state, and how they are written down.

The plain form is the layout that Octo and OpenVLA checkpoints carry (``dataset_statistics.json``):
by dataset ``action`` and ``proprio`` (the state), each with ``mean``, ``std``, ``max``, ``min``,
``q01``, ``q99`` and ``mask``, beside ``num_transitions`` and ``num_trajectories``. ``p01`` and
``p99`` are read as quantiles too, ``state`` as ``proprio``.

Not here: computing them, files (``autoloader.statistics``), what follows from them (``scaling``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_KEYS = {
    "mean": ("mean",),
    "std": ("std",),
    "maximum": ("max",),
    "minimum": ("min",),
    "q01": ("q01", "p01"),
    "q99": ("q99", "p99"),
}
_FIELDS = {"action": ("action",), "state": ("proprio", "state")}


@dataclass(frozen=True, slots=True)
class FieldStatistics:
    """Statistics of one field of one dataset, [width] each.

    Attributes:
        mean, std: of all rows; std is the population's.
        minimum, maximum, q01, q99: exact; quantiles by linear interpolation.
        mask: the columns that are normalised, where the statistics say so.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    minimum: tuple[float, ...]
    maximum: tuple[float, ...]
    q01: tuple[float, ...]
    q99: tuple[float, ...]
    mask: tuple[bool, ...] | None = None

    def plain(self) -> dict[str, Any]:
        """As a statistics file has it."""
        document: dict[str, Any] = {
            names[0]: list(getattr(self, own)) for own, names in _KEYS.items()
        }
        if self.mask is not None:
            document["mask"] = list(self.mask)
        return document

    @classmethod
    def from_plain(cls, document: Any) -> FieldStatistics:
        """From a statistics file.

        Raises:
            ValueError: something is missing, no finite number, or of another width.
        """
        if not isinstance(document, Mapping):
            raise ValueError(f"{type(document).__name__} where mean, std, ... should be")  # noqa: TRY004
        values = {own: _numbers(document, names) for own, names in _KEYS.items()}
        mask = document.get("mask")
        widths = {len(column) for column in values.values()} | ({len(mask)} if mask else set())
        if len(widths) != 1:
            raise ValueError(f"its columns differ in number: {sorted(widths)}")
        return cls(**values, mask=tuple(map(bool, mask)) if mask else None)


@dataclass(frozen=True, slots=True)
class NormalizationStatistics:
    """Statistics of one dataset; ``transitions`` are samples of a pass, ``trajectories`` episodes.

    A field that the dataset does not have is ``None``.
    """

    action: FieldStatistics | None
    state: FieldStatistics | None
    transitions: int
    trajectories: int

    def plain(self) -> dict[str, Any]:
        """As a statistics file has it."""
        document = {
            names[0]: found.plain()
            for own, names in _FIELDS.items()
            if (found := getattr(self, own)) is not None
        }
        return {
            **document,
            "num_transitions": self.transitions,
            "num_trajectories": self.trajectories,
        }

    @classmethod
    def from_plain(cls, document: Any) -> NormalizationStatistics:
        """From a statistics file.

        Raises:
            ValueError: it is no such entry; says why.
        """
        if not isinstance(document, Mapping):
            raise ValueError(f"{type(document).__name__} where action and proprio should be")  # noqa: TRY004
        fields: dict[str, FieldStatistics | None] = {}
        for own, names in _FIELDS.items():
            there = next((document[name] for name in names if document.get(name)), None)
            fields[own] = None if there is None else FieldStatistics.from_plain(there)
        return cls(
            action=fields["action"],
            state=fields["state"],
            transitions=int(document.get("num_transitions") or 0),
            trajectories=int(document.get("num_trajectories") or 0),
        )


def _numbers(document: Mapping[str, Any], names: tuple[str, ...]) -> tuple[float, ...]:
    raw = next((document[name] for name in names if name in document), None)
    if not isinstance(raw, (list, tuple)) or not raw:
        raise ValueError(f"{names[0]} is no list of numbers")
    values = tuple(float(one) for one in raw)
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{names[0]} holds a number that is not finite")
    return values
