"""Draws a contact sheet: a row a dataset, with frames, language and histograms of the action.

matplotlib draws it, without a display. An HTML page is the drawing as SVG, with its words as text.

Not here: taking samples (``cli.peek``).
"""

from __future__ import annotations

import html
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROW_INCHES = 1.9
_BINS = 40
_GAP = 4
"""Pixels between frames."""


@dataclass
class Panel:
    """What is shown of one dataset.

    Attributes:
        strips: a picture for each sample shown: its cameras below each other, its frames in a row.
        texts: the language of each.
        before, after: [n, width] actions as they are read, and as they reach the model.
        samples: how many the histogram is of.
    """

    strips: list[NDArray[np.uint8]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    before: list[NDArray[np.float32]] = field(default_factory=list)
    after: list[NDArray[np.float32]] = field(default_factory=list)
    samples: int = 0

    def add_sample(self, images: Mapping[str, NDArray[np.uint8]], text: str) -> None:
        """Frames by camera, [F, H, W, 3] each, and the language."""
        self.strips.append(strip(list(images.values())))
        self.texts.append(text)

    def add_actions(self, rows: NDArray[np.float32], *, normalised: bool) -> None:
        """Rows [n, width] of one sample."""
        (self.after if normalised else self.before).append(rows.copy())
        self.samples += normalised


def strip(cameras: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Cameras [F, H, W, 3] below each other, their frames in a row; white in between."""
    rows = []
    for frames in cameras:
        padded = np.pad(frames, ((0, 0), (0, _GAP), (0, _GAP), (0, 0)), constant_values=255)
        rows.append(np.concatenate(list(padded), axis=1))
    width = max(row.shape[1] for row in rows)
    filled = [
        np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255)
        for row in rows
    ]
    return np.concatenate(filled)


def draw_sheet(panels: Mapping[str, Panel], out: Path, *, title: str, normalised: bool) -> None:
    """Write the sheet to ``out``; its suffix says what kind of file.

    Args:
        panels: by dataset, in the order of the rows.
        out: a .png, .html, .svg or .pdf file.
        title: above it all.
        normalised: whether actions are shown before and after normalisation, or once.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = max(len(panel.strips) for panel in panels.values())
    histograms = 2 if normalised else 1
    figure = Figure(
        figsize=(3.2 * shown + 2.6 * histograms, _ROW_INCHES * len(panels) + 0.6),
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    grid = figure.subplots(
        len(panels), shown + histograms, squeeze=False,
        width_ratios=[3.2] * shown + [2.6] * histograms,
    )  # fmt: skip
    for axes, (name, panel) in zip(grid, panels.items(), strict=True):
        for number in range(shown):
            _draw_strip(axes[number], panel, number, name)
        if normalised:
            _draw_histogram(axes[shown], panel.before, f"action by column, {panel.samples} samples")
            _draw_histogram(axes[shown + 1], panel.after, "normalised")
        else:
            _draw_histogram(axes[shown], panel.after, f"action by column, {panel.samples} samples")
    if out.suffix == ".html":
        with rc_context({"svg.fonttype": "none"}):
            drawing = io.StringIO()
            figure.savefig(drawing, format="svg")
        out.write_text(_page(title, drawing.getvalue()), encoding="utf-8")
    else:
        figure.savefig(out, format=out.suffix[1:], dpi=100)


def _draw_strip(axes: Any, panel: Panel, number: int, name: str) -> None:
    axes.set_axis_off()
    if number < len(panel.strips):
        axes.imshow(panel.strips[number], interpolation="nearest")
        words = textwrap.shorten(panel.texts[number] or "(no language)", 60, placeholder=" …")
        words = words.replace("$", r"\$")  # no formulas
        axes.set_title(f"{name}\n{words}" if number == 0 else f"\n{words}", fontsize=7, loc="left")


def _draw_histogram(axes: Any, rows: Sequence[NDArray[np.float32]], title: str) -> None:
    axes.set_title(title, fontsize=7, loc="left")
    axes.tick_params(labelsize=6)
    axes.set_yticks([])
    found = np.concatenate(rows) if rows else np.empty((0, 0), np.float32)
    for column in range(found.shape[1]):
        values = found[:, column][np.isfinite(found[:, column])]
        if len(values):
            counts, edges = np.histogram(values, min(_BINS, 4 + len(values) // 4))
            axes.stairs(counts, edges, linewidth=0.8)


def _page(title: str, drawing: str) -> str:
    picture = drawing[drawing.index("<svg") :]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title></head>\n<body>\n{picture}</body></html>\n"
    )
