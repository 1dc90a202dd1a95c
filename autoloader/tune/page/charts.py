"""Small charts as SVG text: points, and bars with a line.

Colours come from the page's style sheet by class, so that light and dark both work. Numbers are
rounded to tenths of a pixel; every text is escaped.

Not here: what is drawn (``story``), the page (``html``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 10, 34


@dataclass(frozen=True, slots=True)
class Point:
    """A mark at (x, y); ``kind`` is its class in the style sheet, ``title`` its tooltip."""

    x: float
    y: float
    title: str = ""
    kind: str = "dot"


def scatter(
    points: Sequence[Point],
    *,
    x_name: str,
    y_name: str,
    x_text: Callable[[float], str],
    x_ticks: Sequence[float] | None = None,
    line: Sequence[Point] = (),
    level: tuple[float, str] | None = None,
    size: tuple[int, int] = (640, 300),
) -> str:
    """Points over two axes that begin where the data do.

    Args:
        points: what to draw.
        x_name: name of the axis to the right.
        y_name: name of the axis up.
        x_text: a value of x for its axis.
        x_ticks: values to mark on it; ``None``: round ones.
        line: points to join, such as a front.
        level: a y to draw a line at, and its name.
        size: width and height in pixels.
    """
    if not points:
        return ""
    width, height = size
    ys = [one.y for one in points] + ([level[0]] if level else [])
    to_x = _scale([one.x for one in points], _LEFT, width - _RIGHT)
    to_y = _scale(ys, height - _BOTTOM, _TOP)
    parts = [_frame(width, height)]
    for value in _ticks(ys):
        parts.append(_text(_LEFT - 6, to_y(value) + 4, f"{value:,.0f}", "end"))
        parts.append(_line(_LEFT, to_y(value), width - _RIGHT, to_y(value), "grid"))
    parts += [
        _text(to_x(value), height - _BOTTOM + 15, x_text(value), "middle")
        for value in (_ticks([one.x for one in points]) if x_ticks is None else x_ticks)
    ]
    if level is not None:
        parts.append(_line(_LEFT, to_y(level[0]), width - _RIGHT, to_y(level[0]), "level"))
        parts.append(_text(width - _RIGHT, to_y(level[0]) - 4, level[1], "end"))
    if len(line) > 1:
        path = " ".join(f"{to_x(p.x):.1f},{to_y(p.y):.1f}" for p in line)
        parts.append(f'<polyline class="front" points="{path}"/>')
    for one in points:
        radius = 6 if one.kind != "dot" else 4
        parts.append(
            f'<circle class="{escape(one.kind)}" cx="{to_x(one.x):.1f}" cy="{to_y(one.y):.1f}" '
            f'r="{radius}"><title>{escape(one.title)}</title></circle>'
        )
    parts.append(_text((_LEFT + width) / 2, height - 4, x_name, "middle"))
    parts.append(_text(4, _TOP + 4, y_name, "start"))
    return _svg(width, height, parts, f"{y_name} against {x_name}")


def bars(
    values: Sequence[tuple[str, float, str]],
    *,
    floor: float,
    floor_name: str,
    text: Callable[[float], str],
) -> str:
    """Horizontal bars of (name, value, class) from zero, with a line at ``floor``."""
    if not values:
        return ""
    width, row = 640, 18
    height = row * len(values) + 26
    most = max([floor, *(value for _, value, _ in values)]) * 1.08 or 1.0
    left = 120

    def at(value: float) -> float:
        return left + max(0.0, value) / most * (width - left - 70)

    parts = []
    for place, (name, value, kind) in enumerate(values):
        y = place * row + 2
        parts.append(_text(left - 6, y + 12, name, "end"))
        parts.append(
            f'<rect class="bar {escape(kind)}" x="{left}" y="{y}" height="{row - 5}" '
            f'width="{at(value) - left:.1f}"/>'
        )
        parts.append(_text(at(value) + 5, y + 12, text(value), "start"))
    parts.append(_line(at(floor), 0, at(floor), height - 18, "level"))
    parts.append(_text(at(floor), height - 5, floor_name, "middle"))
    return _svg(width, height, parts, f"bars, with {floor_name}")


def _scale(values: Sequence[float], low: float, high: float) -> Callable[[float], float]:
    least, most = min(values), max(values)
    room = (most - least) * 0.06 or abs(most) * 0.1 or 1.0
    least, most = least - room, most + room
    return lambda value: low + (value - least) / (most - least) * (high - low)


def _ticks(values: Sequence[float], count: int = 4) -> list[float]:
    """Round numbers between the least and the most."""
    least, most = min(values), max(values)
    if most <= least:
        return [least]
    step = 10.0 ** math.floor(math.log10((most - least) / count))
    step *= next(factor for factor in (1, 2, 5, 10) if (most - least) / (step * factor) <= count)
    first = math.ceil(least / step)
    return [number * step for number in range(first, math.floor(most / step) + 1)]


def _svg(width: int, height: int, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _frame(width: int, height: int) -> str:
    low = height - _BOTTOM
    return _line(_LEFT, low, width - _RIGHT, low, "axis") + _line(_LEFT, _TOP, _LEFT, low, "axis")


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
