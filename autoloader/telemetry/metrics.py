"""Metrics of a loader, each declared once: by its field in ``telemetry.statistics``.

A field with a ``figure`` is a metric, by its path in ``Statistics``: ``ring.slots`` is
``ring_slots``. The
docstring of the class says of a field what it means, and behind the first full stop what to do
about its value. The same names stand in the Prometheus text (after ``autoloader_``), in Lightning's
loggers (after ``loader/``), in ``AutoLoader.metrics`` and in docs/reference/metrics.md, which is
made from here.

Not here: where metrics go (``exporter``, ``integrations.lightning.monitor``), measuring
(``process.observer``, ``process.delivery``).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from autoloader.host.frozen import frozen
from autoloader.telemetry.statistics import (
    CacheStatistics,
    ControllerStatistics,
    DatasetStatistics,
    RingStatistics,
    StageMoment,
    Statistics,
    figures,
)

Number = float | int | None
Values = Number | Mapping[str, Number]
"""One number, or one for each label value. ``None`` is not measured, and is left out."""

_LABELS = {"datasets": "dataset", "stages": "stage", "knobs": "knob", "limited_by": "limit"}
"""First part of a path → label that tells its values apart."""
_OWNERS = {
    "": Statistics,
    "ring": RingStatistics,
    "cache": CacheStatistics,
    "controller": ControllerStatistics,
    "stages": StageMoment,
    "datasets": DatasetStatistics,
}
"""Part of a path → class whose docstring tells its fields."""
_UNITS = {
    "_per_s": "samples/s",
    "_bytes": "bytes",
    "_ratio": "of 1",
    "_percent": "%",
    "_s": "s",
    "": "times",
}
"""Ending of a name → its unit."""


@frozen
class Metric:
    """One metric.

    Attributes:
        path: path of its field in ``Statistics``, such as "wait_ratio", "ring.slots".
        name, unit, counter, worst: see ``telemetry.statistics.Figure``.
    """

    path: str
    name: str = ""
    unit: str = ""
    counter: bool = False
    worst: Literal["", "highest", "lowest"] = ""

    def __post_init__(self) -> None:
        part, _, field = self.path.rpartition(".")
        part = "" if part == "controller" else _LABELS.get(part, part)
        derived = f"{part}_{field}" if part else "knob" if field == "knobs" else field
        name = self.name or derived
        unit = self.unit or next(unit for end, unit in _UNITS.items() if name.endswith(end))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "unit", unit)

    @property
    def meaning(self) -> str:
        """Meaning of the value: the first sentence that its class says of the field."""
        return _explained(self.path)[0]

    @property
    def advice(self) -> str:
        """Advice about the value: the further sentences that its class says of the field."""
        return _explained(self.path)[1]

    @property
    def label(self) -> str:
        """Label that tells its values apart: "dataset", "stage", "knob", "limit"; "": one value."""
        return _LABELS.get(self.path.partition(".")[0], "")

    @property
    def exported_name(self) -> str:
        """Name in Prometheus text."""
        return f"autoloader_{self.name}" + ("_total" if self.counter else "")

    def read(self, one: Statistics) -> Values:
        """Its value in a moment of a run."""
        *places, field = self.path.split(".")
        whole: Any = one
        for place in places:
            whole = getattr(whole, place)
        if isinstance(whole, Mapping):
            return {name: getattr(part, field) for name, part in whole.items()}
        if isinstance(whole, tuple):
            return {part.name: getattr(part, field) for part in whole}
        value = None if whole is None else getattr(whole, field)
        if isinstance(value, Mapping):
            return {name: one for name, one in value.items() if type(one) in (int, float)}
        return {value or "unknown": 1} if isinstance(value, str) else value


@functools.cache
def _explained(path: str) -> tuple[str, str]:
    """Meaning and advice of a field, from the docstring of its class, or of its property."""
    part, _, field = path.rpartition(".")
    owner = _OWNERS[part]
    found = getattr(owner, field, None)
    text = found.__doc__ if isinstance(found, property) else None
    if text is None:
        lines = rf"^ {{4}}{field}: (.*(?:\n {{8}}.*)*)"
        match = re.search(lines, inspect.getdoc(owner) or "", re.MULTILINE)
        text = match[1] if match else ""
    meaning, _, advice = " ".join(text.split()).replace("``", "`").partition(". ")
    return meaning.rstrip("."), advice.rstrip(".")


def _exported(owner: Any, part: str = "") -> Iterator[Metric]:
    """Metrics among the fields of a class of statistics, and of its parts."""
    declared = figures(owner)
    for field in owner.__dataclass_fields__:
        how = declared.get(field)
        if field in _OWNERS:
            yield from _exported(_OWNERS[field], f"{field}.")
        elif how is not None and how.metric:
            yield Metric(f"{part}{field}", how.name, how.unit, how.counter, how.worst)


METRICS: tuple[Metric, ...] = (
    *_exported(Statistics),
    Metric("ring.occupancy_ratio", worst="lowest"),
    Metric("cache.hit_ratio"),
)
"""All of them, the ones to look at first first; behind them those that are computed from others."""


def labelled(values: Values) -> Iterator[tuple[str, float]]:
    """(label's value, number) of those that were measured; the label's value is "" for one."""
    every = values.items() if isinstance(values, Mapping) else [("", values)]
    for name, value in every:
        if value is not None:
            yield name, value


def flat(statistics: Statistics) -> dict[str, float]:
    """Statistics of a loader by flat names: ``wait_ratio``, ``dataset_share/bridge``."""
    return {
        f"{metric.name}/{name}" if metric.label else metric.name: value
        for metric in METRICS
        for name, value in labelled(metric.read(statistics))
    }


COMPARED = tuple(metric for metric in METRICS if metric.worst)
"""What is told of several ranks together."""


def compared(moment: Statistics) -> dict[str, float]:
    """Figures of a rank that are compared with other ranks, by name."""
    return {metric.name: value for metric in COMPARED for _, value in labelled(metric.read(moment))}


def over_ranks(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Worst and mean over several ranks: ``wait_ratio/worst``, ``wait_ratio/mean``.

    Args:
        ranks: figures of each rank, by name; a single rank has nothing to be compared with.
    """
    if len(ranks) < 2:
        return {}
    found: dict[str, float] = {}
    for metric in COMPARED:
        every = [one[metric.name] for one in ranks if metric.name in one]
        if every:
            found[f"{metric.name}/worst"] = (max if metric.worst == "highest" else min)(every)
            found[f"{metric.name}/mean"] = fmean(every)
    return found
