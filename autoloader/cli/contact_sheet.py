"""Draws a contact sheet: a row a dataset, with labelled frames, histograms and removed steps.

matplotlib draws it, without a display. An HTML page is the drawing as SVG, with its words as text.

Not here: taking samples (``cli.peek``), the histograms (``cli.histograms``).
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

from autoloader.cli.depth_colours import Scale, draw_scale
from autoloader.cli.episode_looks import DatasetLook
from autoloader.cli.histograms import MOST_DRAWN, Column, draw_columns, stage_rows

_GAP = 4
"""Pixels between frames."""
_STRIP, _CELL, _STAGE, _EPISODES = 3.2, 0.62, 0.5, 2.6
"""Inches: of a sample's frames, a histogram's width and height, the removed steps."""
_MARGIN, _TITLE = 0.35, 0.7


@dataclass
class Shown:
    """One sample's frames.

    Attributes:
        cameras: camera → [F, H, W, 3] uint8.
        labels: of the F frames: "t", "t+5", "goal t+9".
        absent: cameras that the dataset lacks, or whose frames are all padding.
        t: where the sample stands.
        text: its language.
        scales: depth camera → what its colours stand for.
    """

    cameras: Mapping[str, NDArray[np.uint8]]
    labels: Sequence[str]
    absent: frozenset[str]
    t: int
    text: str
    scales: Mapping[str, Scale] = field(default_factory=dict)


@dataclass
class Panel:
    """What is shown of one dataset.

    Attributes:
        shown: samples whose frames are drawn.
        fields: "action" and "state" → columns.
        look: its first episodes.
        samples: how many reached the model's stage of the histograms.
        black: cameras whose every frame is black though the dataset has them.
        silent: "language" and text features that the dataset has, and that say nothing.
    """

    shown: list[Shown] = field(default_factory=list)
    fields: dict[str, list[Column]] = field(default_factory=dict)
    look: DatasetLook = field(default_factory=DatasetLook)
    samples: int = 0
    black: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    def blocks(self) -> list[tuple[str, float]]:
        """(what, inches wide) of the blocks in its row."""
        found: list[tuple[str, float]] = [("frames", _STRIP)] * len(self.shown)
        for name, columns in self.fields.items():
            found.append((name, _CELL * min(len(columns), MOST_DRAWN) + 0.3))
        if self.look.episodes:
            found.append(("episodes", _EPISODES))
        return found

    def height(self) -> float:
        """Inches of its row."""
        found = [1.2]
        for one in self.shown:
            picture = strip(list(one.cameras.values()))
            found.append((_STRIP - 0.6) * picture.shape[0] / picture.shape[1] + 0.3)
        found += [_STAGE * stage_rows(columns) + 0.3 for columns in self.fields.values()]
        return min(max(found), 8.0) + _TITLE


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


def draw_sheet(panels: Mapping[str, Panel], out: Path, *, title: str) -> None:
    """Write the sheet to ``out``; its suffix says what kind of file.

    Args:
        panels: by dataset, in the order of the rows.
        out: a .png, .html, .svg or .pdf file.
        title: above it all.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [panel.height() for panel in panels.values()]
    widths = [sum(inches for _, inches in panel.blocks()) for panel in panels.values()]
    size = (max(widths) + 2 * _MARGIN, sum(heights) + _MARGIN)
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    figure.text(_MARGIN / size[0], 1 - 0.25 / size[1], title, fontsize=10, va="top")
    top = size[1] - _MARGIN
    for (name, panel), height in zip(panels.items(), heights, strict=True):
        left, drawn = _MARGIN, 0
        for what, width in panel.blocks():
            legend = 0.3 if what == "episodes" else 0.0
            place = [left, top - height + 0.2 + legend, width - 0.2, height - _TITLE - legend]
            axes = figure.add_axes((place[0] / size[0], place[1] / size[1],
                                    place[2] / size[0], place[3] / size[1]))  # fmt: skip
            if what == "frames":
                _draw_frames(axes, panel, drawn, name)
                drawn += 1
            elif what == "episodes":
                _draw_episodes(axes, panel.look)
            else:
                draw_columns(axes, panel.fields[what], f"{name}: {what}, {panel.samples} samples")
            left += width
        top -= height
    if out.suffix == ".html":
        with rc_context({"svg.fonttype": "none"}):
            drawing = io.StringIO()
            figure.savefig(drawing, format="svg")
        out.write_text(_page(title, drawing.getvalue()), encoding="utf-8")
    else:
        figure.savefig(out, format=out.suffix[1:], dpi=130)


def _draw_frames(axes: Any, panel: Panel, number: int, name: str) -> None:
    one = panel.shown[number]
    axes.set_axis_off()
    axes.imshow(strip(list(one.cameras.values())), interpolation="nearest")
    words = textwrap.shorten(one.text or "(no language)", 60, placeholder=" …")
    words = words.replace("$", r"\$")  # no formulas
    axes.set_title(f"{name}, t = {one.t}\n{words}", fontsize=7, loc="left", pad=10)
    down = 0
    for camera, frames in one.cameras.items():
        _, height, width, _ = frames.shape
        said = camera
        if camera in one.absent:
            said += " (none)"
        elif camera in panel.black:
            said += " (BLACK)"
        colour = "#d1495b" if camera in panel.black else "black"
        axes.text(-_GAP, down + height / 2, said, fontsize=5, rotation=90, ha="right",
                  va="center", color=colour)  # fmt: skip
        if camera in one.scales:
            right = len(frames) * (width + _GAP)
            draw_scale(axes, (right, down, max(4, width / 12), height), one.scales[camera])
        for at, label in enumerate(one.labels if down == 0 else ()):
            axes.text(at * (width + _GAP) + width / 2, -_GAP, label, fontsize=5, ha="center",
                      va="bottom")  # fmt: skip
        down += height + _GAP


def _draw_episodes(axes: Any, look: DatasetLook) -> None:
    removed = look.removed()
    axes.set_title("steps of its first episodes; removed ones in colour", fontsize=7, loc="left")
    axes.tick_params(labelsize=5)
    colours = {rule: f"C{number + 1}" for number, rule in enumerate(removed)}
    for row, episode in enumerate(look.episodes):
        axes.broken_barh([(0, episode.steps)], (row + 0.1, 0.8), color="#cfd8dc")
        for rule, steps in episode.removed.items():
            axes.broken_barh([(step, 1) for step in steps], (row + 0.1, 0.8), color=colours[rule])
    for rule, colour in colours.items():
        axes.plot([], [], color=colour, linewidth=3, label=f"{rule}: {removed[rule]}")
    axes.set_ylim(len(look.episodes), 0)
    axes.set_yticks([])
    if colours:
        axes.legend(
            fontsize=5, loc="upper right", bbox_to_anchor=(1, -0.06), ncols=2, frameon=False
        )


def _page(title: str, drawing: str) -> str:
    picture = drawing[drawing.index("<svg") :]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title></head>\n<body>\n{picture}</body></html>\n"
    )
