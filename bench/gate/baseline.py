"""``bench/baseline.json``: what was counted and measured, and how far a new run may be off.

A count passes while it is not worse than its value by more than ``tolerance`` (a share of it) and
``slack`` (in its own unit). A ratio was measured with an interval; it passes while the new run's
interval reaches the old one: what lies wholly on its worse side fell outside of its noise. Where
the two sides of a ratio differ from host to host (``gate: target``), the new run alone decides, by
the target of its scenario.
Better is never a failure; it is told, so that the baseline can be written anew.

Not here: counting (``bench.gate.counted``), measuring (``bench.runner``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from bench.scenario import Strict

PLACE = Path(__file__).parents[1] / "baseline.json"


class Count(Strict):
    """One counted figure.

    Attributes:
        tolerance: share of the value
        slack: in the figure's own unit
    """

    value: float
    tolerance: float = Field(0.0, ge=0)
    slack: float = Field(0.0, ge=0)
    worse: Literal["more", "other"] = "more"


class Ratio(Strict):
    """One measured figure of a scenario: its median, and the bounds of its interval."""

    value: float
    low: float
    high: float
    worse: Literal["more", "less"]


class Baseline(Strict):
    """The file.

    ``counted``: name of a counting → figure → its limit. ``timed``: scenario → title → ratio.
    ``host``: what the ratios were measured on.
    """

    schema_version: Literal[1] = 1
    counted: Mapping[str, Mapping[str, Count]]
    timed: Mapping[str, Mapping[str, Ratio]] = Field(default_factory=dict)
    host: Mapping[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one figure.

    Attributes:
        where, figure: its place in the baseline.
        found, wanted: in words.
        passed: whether it is within its limit.
        better: whether it is better than its limit on the other side.
    """

    where: str
    figure: str
    found: str
    wanted: str
    passed: bool
    better: bool = False


# What the figures of ``bench.gate.counted`` are allowed. Tolerances are several times what differs
# from run to run of one machine under load, and well below what they are there to catch.
LIMITS: Mapping[str, Mapping[str, Any]] = {
    "decodes_per_sample": {"tolerance": 0.03},
    "bytes_read_per_sample": {},
    "read_calls_per_sample": {},
    # An array of a batch that lies outside the ring is a copy.
    "batch_bytes_copied": {},
    # What else a batch touches is up to a fifth of a copy more or less from one to the next.
    "copies_per_batch": {"slack": 0.5},
    "threads": {"worse": "other"},
    "held_bytes": {"tolerance": 0.3},
    # Half a decoded frame.
    "growth_bytes_per_batch": {"slack": 55_000.0},
    "restarts": {},
}


def load_baseline(path: Path = PLACE) -> Baseline:
    """The file, checked."""
    return Baseline.model_validate_json(path.read_text())


def counted_baseline(
    counts: Mapping[str, Mapping[str, float]], edges: Mapping[str, float]
) -> dict[str, dict[str, Count]]:
    """Limits around what was counted.

    Args:
        counts: name of a counting → figure → value.
        edges: name of a counting → what part of its reading may fall to either side of its ends
            (a planned run more or less, where eight are counted).
    """
    return {
        name: {figure: _limit(figure, value, edges[name]) for figure, value in own.items()}
        for name, own in counts.items()
    }


def timed_baseline(run: Mapping[str, Any]) -> dict[str, dict[str, Ratio]]:
    """Ratios of a bench run's document, with the intervals they had."""
    found: dict[str, dict[str, Ratio]] = {}
    for figure in run["figures"]:
        by_interval = figure["unit"] == "×" and figure["gate"] == "interval"
        if by_interval and figure["value"]["count"] > 1:
            value = figure["value"]
            ratio = Ratio(
                value=value["median"],
                low=value["low"],
                high=value["high"],
                worse="less" if figure["more_is_better"] else "more",
            )
            found.setdefault(figure["scenario"], {})[figure["title"]] = ratio
    return found


def _limit(figure: str, value: float, edge: float) -> Count:
    if figure in ("bytes_read_per_sample", "read_calls_per_sample"):
        return Count(value=round(value, 4), tolerance=edge)
    # What falls to either side of nothing by chance is nothing.
    limits = LIMITS[figure]
    nothing = figure == "growth_bytes_per_batch" or value <= limits.get("slack", 0.0)
    return Count(value=0.0 if nothing else round(value, 4), **limits)


def judge_counts(baseline: Baseline, counts: Mapping[str, Mapping[str, float]]) -> list[Verdict]:
    """Every counted figure against its limit; one that was not counted fails."""
    verdicts = []
    for name, own in counts.items():
        for figure, limit in baseline.counted[name].items():
            value = own.get(figure)
            low = limit.value * (1 - limit.tolerance) - limit.slack
            high = limit.value * (1 + limit.tolerance) + limit.slack
            exact = limit.worse == "other"
            passed = value is not None and value <= high and (value >= low or not exact)
            better = value is not None and value < low and not exact
            wanted = f"{limit.value:,.4g}" if exact else f"≤ {high:,.4g}"
            found = "not counted" if value is None else f"{value:,.4g}"
            verdicts.append(Verdict(name, figure, found, wanted, passed, better))
    return verdicts


def judge_ratios(baseline: Baseline, figures: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Every measured ratio against the interval it had; one that was not measured fails.

    Figures with ``gate: target`` are held to their scenario's target.
    """
    measured = {(one["scenario"], one["title"]): one for one in figures}
    verdicts = []
    for scenario, titles in baseline.timed.items():
        for title, limit in titles.items():
            less = limit.worse == "less"
            wanted = f"≥ {limit.low:.3f}" if less else f"≤ {limit.high:.3f}"
            figure = measured.get((scenario, title))
            if figure is None:
                verdicts.append(Verdict(scenario, title, "not measured", wanted, passed=False))
                continue
            value = figure["value"]
            below, above = value["high"] < limit.low, value["low"] > limit.high
            worse, better = (below, above) if less else (above, below)
            verdicts.append(Verdict(scenario, title, _told(value), wanted, not worse, better))
    verdicts += [
        Verdict(scenario, title, _told(one["value"]), one["target"], one["met"])
        for (scenario, title), one in measured.items()
        if one["gate"] == "target"
    ]
    return verdicts


def _told(value: Mapping[str, float]) -> str:
    return f"{value['median']:.3f} ({value['low']:.3f} – {value['high']:.3f})"
