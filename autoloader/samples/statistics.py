"""Statistics of a dataset's action and state, and how they are written down.

The plain form is the layout that Octo and OpenVLA checkpoints carry (``dataset_statistics.json``):
by dataset ``action`` and ``proprio`` (the state), each with ``mean``, ``std``, ``max``, ``min``,
``q01``, ``q99`` and ``mask``, beside ``num_transitions`` and ``num_trajectories``. ``p01`` and
``p99`` are read as quantiles too, ``state`` as ``proprio``. Files of other tools lack some of it:
mean and std alone are always there.

Not here: computing them, files (``autoloader.statistics``), what follows from them (``scaling``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

_KEYS = {
    "mean": ("mean",),
    "std": ("std",),
    "maximum": ("max",),
    "minimum": ("min",),
    "q01": ("q01", "p01"),
    "q10": ("q10",),
    "q50": ("q50",),
    "q90": ("q90",),
    "q99": ("q99", "p99"),
}
_REQUIRED = ("mean", "std")
_FIELDS = {"action": ("action",), "state": ("proprio", "state")}


@dataclass(frozen=True, slots=True)
class FieldStatistics:
    """Statistics of one field of one dataset, [width] each.

    Attributes:
        mean, std: of all rows; std is the population's.
        minimum, maximum, q01, q10, q50, q90, q99: exact; quantiles by linear interpolation.
        mask: the columns that are normalised, where the statistics say so.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    minimum: tuple[float, ...] | None = None
    maximum: tuple[float, ...] | None = None
    q01: tuple[float, ...] | None = None
    q99: tuple[float, ...] | None = None
    q10: tuple[float, ...] | None = None
    q50: tuple[float, ...] | None = None
    q90: tuple[float, ...] | None = None
    mask: tuple[bool, ...] | None = None

    def cut(self, width: int) -> FieldStatistics:
        """Those of the first ``width`` columns."""
        found = {own: getattr(self, own) for own in (*_KEYS, "mask")}
        return replace(
            self, **{own: column[:width] for own, column in found.items() if column is not None}
        )

    def plain(self) -> dict[str, Any]:
        """As a statistics file has it."""
        document: dict[str, Any] = {
            names[0]: list(column)
            for own, names in _KEYS.items()
            if (column := getattr(self, own)) is not None
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
        values = {
            own: _numbers(document, names)
            for own, names in _KEYS.items()
            if own in _REQUIRED or any(document.get(name) is not None for name in names)
        }
        mask = document.get("mask")
        widths = {len(column) for column in values.values()} | ({len(mask)} if mask else set())
        if len(widths) != 1:
            raise ValueError(f"its columns differ in number: {sorted(widths)}")
        return cls(**values, mask=tuple(map(bool, mask)) if mask else None)


@dataclass(frozen=True, slots=True)
class NormalizationStatistics:
    """Statistics of one dataset; ``transitions`` are samples of a pass, ``trajectories`` episodes.

    A field that the dataset does not have is ``None``. ``padded`` ones may have columns behind the
    data's own, which mean nothing.
    """

    action: FieldStatistics | None
    state: FieldStatistics | None
    transitions: int
    trajectories: int
    padded: bool = False

    def fitted(self, action: int, state: int) -> NormalizationStatistics:
        """Without padding, for fields of these widths."""
        if not self.padded:
            return self
        return NormalizationStatistics(
            self.action and self.action.cut(action),
            self.state and self.state.cut(state),
            self.transitions,
            self.trajectories,
        )

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
    def from_plain(cls, document: Any, *, padded: bool = False) -> NormalizationStatistics:
        """From a statistics file.

        Args:
            document: one dataset's entry.
            padded: whether there may be columns that mean nothing.

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
            padded=padded,
        )


def _numbers(document: Mapping[str, Any], names: tuple[str, ...]) -> tuple[float, ...]:
    raw = next((document[name] for name in names if document.get(name) is not None), None)
    if not isinstance(raw, (list, tuple)) or not raw:
        raise ValueError(f"{names[0]} is no list of numbers")
    values = tuple(float(one) for one in raw)
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{names[0]} holds a number that is not finite")
    return values
