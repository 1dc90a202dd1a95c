"""Lines over time as SVG: small, readable in both themes, and walked through by keyboard.

Colours and fonts are the page's (CSS classes), so a drawing holds none. Marks are links to the
page's rows, which is what makes them reachable by the Tab key.

Not here: which lines (``charts``), the page (``page``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 12, 24
_POINTS = 320
"""Of a line at most: what a screen can show."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        label: for the legend.
        points: (seconds since the run began, value); ``None`` is a gap.
        style: the CSS class that says its colour: "a" to "d", or "limit".
        steps: whether the value holds until the next point.
    """

    label: str
    points: Sequence[Point | None]
    style: str = "a"
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened.

    Attributes:
        at_s: when, seconds since the run began.
        number: of the page's row that tells of it.
        text: what, in one line.
        style: the CSS class: who did it.
    """

    at_s: float
    number: int
    text: str
    style: str


@dataclass(frozen=True, slots=True)
class Frame:
    """What several drawings have in common.

    Attributes:
        end_s: of the time axis.
        marks: drawn in each.
        shades: (from, to, CSS class) of times that stand out.
    """

    end_s: float
    marks: tuple[Mark, ...] = ()
    shades: tuple[tuple[float, float, str], ...] = ()

    def x(self, at_s: float) -> float:
        """Where a time lies."""
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * at_s / max(self.end_s, 1e-9)


def drawing(
    title: str,
    unit: str,
    lines: Iterable[Line],
    frame: Frame,
    top: float = 0.0,
    foot: float = 0.0,
) -> str:
    """A drawing of lines over time.

    Args:
        title: what it shows, for those who do not see it.
        unit: of the values: "%", "GiB", or "" for plain numbers.
        lines: what is drawn.
        frame: of the page.
        top: the value that the axis reaches at least; two drawings with the same compare.
        foot: where it begins, unless a value lies below.

    Returns:
        An ``<svg>`` element.
    """
    drawn = [line for line in lines if any(line.points)]
    highest = max((p[1] for line in drawn for p in line.points if p is not None), default=0.0)
    lowest = min((p[1] for line in drawn for p in line.points if p is not None), default=foot)
    ticks = scale(min(foot, lowest), max(top, highest))
    low, high = ticks[0], ticks[-1]

    def y(value: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    parts += _shades(frame, _TOP, HEIGHT - _BOTTOM)
    for tick in ticks:
        at = f"{y(tick):.1f}"
        parts.append(f'<path class="grid" d="M{_LEFT} {at}H{WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text class="tick end" x="{_LEFT - 6}" y="{y(tick) + 3.5:.1f}">'
            f"{number(tick)}{' ' + unit if unit else ''}</text>"
        )
    parts += _times(frame)
    for line in drawn:
        parts.append(f'<path class="line {line.style}" d="{_path(line, frame, y)}"/>')
    parts += _marks(frame, HEIGHT - _BOTTOM)
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True, slots=True)
class Row:
    """A knob over time.

    Attributes:
        label: its name.
        values: (seconds since the run began, value), one for each change and the first.
    """

    label: str
    values: Sequence[Point]


def rows_drawing(title: str, rows: Sequence[Row], frame: Frame) -> str:
    """A drawing with a row for each of several knobs, their values written where they change."""
    each = 50
    height = _TOP + each * len(rows) + _BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    parts += _shades(frame, _TOP, height - _BOTTOM)
    for number_, row in enumerate(rows):
        base = _TOP + each * (number_ + 1) - 6
        high = max(value for _, value in row.values) or 1.0
        points: list[Point | None] = [*row.values, (frame.end_s, row.values[-1][1])]

        def y(value: float, base: float = base, high: float = high) -> float:
            return base - (each - 34) * value / high

        line = Line(row.label, points, steps=True)
        parts.append(
            f'<text class="tick name" x="{_LEFT}" y="{base - each + 15}">{escape(row.label)}'
        )
        parts.append(f'</text><path class="line a" d="{_path(line, frame, y)}"/>')
        last_x = -1e9
        for at_s, value in row.values:
            if frame.x(at_s) - last_x > 26:
                last_x = frame.x(at_s)
                parts.append(
                    f'<text class="tick value" x="{last_x + 2:.1f}" y="{y(value) - 3:.1f}">'
                    f"{number(value)}</text>"
                )
    parts += _times(frame, height)
    parts += _marks(frame, height - _BOTTOM)
    return "".join([*parts, "</svg>"])


def _path(line: Line, frame: Frame, y: object) -> str:
    assert callable(y)
    found, before, pen_up = [], 0.0, True
    for point in thinned(line.points):
        if point is None:
            pen_up = True
            continue
        x, at = frame.x(point[0]), y(point[1])
        if pen_up:
            found.append(f"M{x:.1f} {at:.1f}")
        elif line.steps:
            found.append(f"H{x:.1f}" + (f"V{at:.1f}" if at != before else ""))
        else:
            found.append(f"L{x:.1f} {at:.1f}")
        before, pen_up = at, False
    return "".join(found)


def thinned(points: Sequence[Point | None], most: int = _POINTS) -> list[Point | None]:
    """The points, or as many as can be seen: the lowest and the highest of each stretch."""
    if len(points) <= most:
        return list(points)
    found: list[Point | None] = []
    each = math.ceil(2 * len(points) / most)
    for start in range(0, len(points), each):
        part = points[start : start + each]
        there = [point for point in part if point is not None]
        if len(there) < len(part):
            found.append(None)
        if there:
            ends = {min(there, key=lambda p: p[1]), max(there, key=lambda p: p[1])}
            found.extend(sorted(ends))
    return found


def scale(low: float, high: float) -> list[float]:
    """Three to six round values that enclose ``low`` and ``high``."""
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low, low + 1.0]
    step = 10.0 ** math.floor(math.log10(span / 4))
    step = next(s for s in (step, 2 * step, 2.5 * step, 5 * step, 10 * step) if span / s <= 4)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def number(value: float) -> str:
    """Three figures, for an axis."""
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.3g}"


def clock(seconds: float) -> str:
    """A time since the beginning: "12 s", "3:20 min", "2:05 h", "3 d 4 h"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    if whole < 86_400:
        return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def _times(frame: Frame, height: int = HEIGHT) -> list[str]:
    steps = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200)
    wanted = frame.end_s / 6
    step = next((s for s in steps if s >= wanted), 86_400 * max(1, round(wanted / 86_400)))
    found = []
    for n in range(int(frame.end_s // step) + 1):
        x = frame.x(n * step)
        if x < WIDTH - 30:
            found.append(
                f'<text class="tick" x="{x:.1f}" y="{height - 8}">{clock(n * step)}</text>'
            )
    return found


def _shades(frame: Frame, top: float, bottom: float) -> list[str]:
    return [
        f'<rect class="{style}" x="{frame.x(begin):.1f}" y="{top}" height="{bottom - top:.0f}" '
        f'width="{max(1.0, frame.x(end) - frame.x(begin)):.1f}"/>'
        for begin, end, style in frame.shades
    ]


def _marks(frame: Frame, bottom: float) -> list[str]:
    return [
        f'<a href="#move-{mark.number}" class="mark {mark.style}" aria-label="{escape(mark.text)}">'
        f"<title>{escape(mark.text)}</title>"
        f'<path d="M{frame.x(mark.at_s):.1f} {_TOP}V{bottom:.0f}"/>'
        f'<circle cx="{frame.x(mark.at_s):.1f}" cy="{_TOP}" r="3.5"/></a>'
        for mark in frame.marks
    ]
