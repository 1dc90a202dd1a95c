"""Draws a run in SVG: rates turn by turn, memory over time, figures with intervals and targets.

Not here: the page around them (``bench.report``), a mixture's plots (``bench.mixture_run``).
"""

from __future__ import annotations

import io
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_TARGET = re.compile(r"[≥≤] ([\d.]+)")


def rates_svg(turns: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Samples/s of every contender: each turn a dot, the median a bar; empty where not timed."""
    timed = {
        name: [float(turn["samples_per_s"]) for turn in own]
        for name, own in turns.items()
        if "samples_per_s" in own[0]
    }
    if not timed:
        return ""
    figure, axes = _axes(len(timed), "samples/s: each turn, and the median")
    for row, rates in enumerate(timed.values()):
        axes.barh(row, statistics.median(rates), color="#9ecae1")
        axes.plot(rates, [row] * len(rates), "o", color="#08519c", markersize=3)
    axes.set_yticks(range(len(timed)), list(timed))
    return _svg(figure)


def figures_svg(figures: Sequence[Mapping[str, Any]]) -> str:
    """Ratios with their intervals, 1 and the targets marked; empty where there are none."""
    ratios = [one for one in figures if one["unit"] == "×"]
    if not ratios:
        return ""
    figure, axes = _axes(len(ratios), "ratio, its interval, its target (|)")
    axes.axvline(1.0, color="#bbbbbb", linewidth=1)
    for row, one in enumerate(ratios):
        value = one["value"]
        colour = {None: "#555555", True: "#238b45", False: "#cb181d"}[one["met"]]
        axes.plot([value["low"], value["high"]], [row, row], color=colour, linewidth=2)
        axes.plot([value["median"]], [row], "o", color=colour)
        if target := _TARGET.match(one["target"]):
            axes.plot([float(target[1])], [row], "|", color="black", markersize=14)
    axes.set_yticks(range(len(ratios)), [one["title"] for one in ratios])
    return _svg(figure)


def memory_svg(turns: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Memory of each contender's first turn over its time; empty where none was sampled."""
    sampled = {name: own[0]["memory"] for name, own in turns.items() if own[0].get("memory")}
    if not sampled:
        return ""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, samples in sampled.items():
        seconds, held = zip(*samples, strict=True)
        axes.plot(seconds, [one / 2**20 for one in held], label=name)
    axes.set_title("memory, MiB, from process start to end", loc="left", fontsize=10)
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return _svg(figure)


def _axes(rows: int, title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(10, 1.0 + 0.35 * rows), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=10)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    """The drawing as an element of a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]
