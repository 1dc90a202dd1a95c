"""Draws a batch log: shares over the whole run, and single batches in windows of five.

Not here: what is worked out of it (``bench.mixture_analysis.findings``).
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bench.mixture_analysis.findings import Findings
from bench.mixture_analysis.recorded import Recorded

STRETCHES = 120
"""Into how many stretches a run is cut for its shares over time."""

WINDOW, EVERY = 5, 100
"""Consecutive batches of a window, and batches from one window to the next."""

MOST_WINDOWS = 24


def draw_over_time(run: Recorded, found: Findings, path: Path) -> None:
    """``mixture_over_time.svg``: shares in stretches of batches; below, who leads each batch."""
    edges = np.linspace(0, run.batches, min(STRETCHES, run.batches) + 1).astype(int)
    sums = np.add.reduceat(run.counts, edges[:-1], axis=0)
    shares = sums / sums.sum(axis=1, keepdims=True)
    rows = len(run.datasets)
    figure = Figure(figsize=(13, 6.5 + 0.09 * rows), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1 + 0.09 * rows))
    # Each stretch's shares hold over the whole of it.
    at = np.repeat(edges, 2)[1:-1]
    above.stackplot(at, np.repeat(shares, 2, axis=0).T, labels=run.datasets, colors=_colours(rows))
    ends = np.cumsum(run.weights)[:-1]
    above.hlines(ends, 0, run.batches, color="black", linewidth=0.4, linestyle=":")
    above.set(ylim=(0, 1), xlim=(0, run.batches), ylabel="share (dotted: by weight)")
    above.set_title(f"{run.name}: {run.batches} batches", loc="left", fontsize=10)
    _legend(figure, above)
    below.plot(found.leading, "|", color="#444444", markersize=3)
    below.set(xlabel="batch", ylabel="most above its weight", ylim=(rows - 0.5, -0.5))
    figure.savefig(path)


def draw_windows(run: Recorded, path: Path) -> None:
    """``mixture_windows.svg``: the samples of five batches on end, at every hundredth batch."""
    begins = range(0, max(1, run.batches - WINDOW + 1), EVERY)
    if len(begins) > MOST_WINDOWS:
        spread = np.linspace(0, len(begins) - 1, MOST_WINDOWS).astype(int)
        shown = [begins[one] for one in spread.tolist()]
    else:
        shown = list(begins)
    figure = Figure(figsize=(max(6.0, 0.9 * len(shown) + 4), 6), layout="constrained")
    axes = figure.subplots()
    colours = _colours(len(run.datasets))
    places = [
        (window * (WINDOW + 1) + step, begin + step)
        for window, begin in enumerate(shown)
        for step in range(WINDOW)
        if begin + step < run.batches
    ]
    at = np.array([place for place, _ in places])
    counts = run.counts[[batch for _, batch in places]]
    base = np.zeros(len(places), np.int64)
    for dataset, name in enumerate(run.datasets):
        axes.bar(at, counts[:, dataset], 0.9, base, color=colours[dataset], label=name)
        base += counts[:, dataset]
    middles = [window * (WINDOW + 1) + (WINDOW - 1) / 2 for window in range(len(shown))]
    axes.set_xticks(middles, [str(begin) for begin in shown])
    axes.set(xlabel=f"first of {WINDOW} batches on end", ylabel="samples")
    axes.set_title(run.name, loc="left", fontsize=10)
    _legend(figure, axes)
    figure.savefig(path)


def _colours(count: int) -> NDArray[np.float64]:
    """[count, 4], neighbours in pairs of one hue; they repeat after forty."""
    palette = np.concatenate(
        [matplotlib.colormaps[name](np.arange(20)) for name in ("tab20", "tab20b")]
    )
    found: NDArray[np.float64] = palette[np.arange(count) % len(palette)]
    return found


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", fontsize=7, ncols=1)
