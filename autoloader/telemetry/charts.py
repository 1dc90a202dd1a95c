"""Charts as SVG elements, and pages: matplotlib draws, Jinja fills, CSS colours.

Colours are names of CSS variables (``base.html.jinja`` has them for light and dark). matplotlib
knows hexadecimal colours only, so each name has one that stands for it until the SVG is written.

Not here: what is drawn (``cli.report``, ``tune.report``, ``bench.report``).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

from autoloader.host.extras import needs
from autoloader.host.frozen import frozen
from autoloader.host.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 640, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 14, 28
_COLOURS = (
    "text", "quiet", "rule", "a", "b", "c", "d", "limit", "good", "bad", "below", "parked",
)  # fmt: skip
"""CSS variables of colours, as ``base.html.jinja`` sets them."""
_STYLES = {"c": (0, (2, 3)), "limit": (0, (6, 3))}
_DAY_S = 86_400
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200)

Point = tuple[float, float]


@frozen
class Line:
    """One line over time.

    Attributes:
        label: label in the legend.
        points: (seconds since the run began, value); ``None`` is a gap.
        colour: CSS variable of its colour.
        steps: whether a value holds until the next point.
    """

    label: str
    points: Sequence[Point | None]
    colour: str = "a"
    steps: bool = False


@frozen
class Mark:
    """An event in a chart over time, linked to a row of the page.

    Attributes:
        at_s: seconds since the run began.
        link: place on the page, such as "#move-A3".
        text: description in one line.
        colour: CSS variable of its colour.
    """

    at_s: float
    link: str
    text: str
    colour: str


@frozen
class Timeline:
    """Parts that all charts of one run share.

    Attributes:
        end_s: end of the time axis, seconds.
        marks: events, drawn in each chart.
        shades: (from, to, CSS variable) of periods that stand out.
        name: prefix of ids, different for each run on a page.
    """

    end_s: float
    marks: tuple[Mark, ...] = ()
    shades: tuple[tuple[float, float, str], ...] = ()
    name: str = ""


def over_time(
    key: str,
    title: str,
    unit: str,
    lines: Sequence[Line],
    timeline: Timeline,
    *,
    top: float = 0.0,
    foot: float = 0.0,
    legend: bool = False,
) -> str:
    """A chart of lines over time.

    Args:
        key: name of the chart on its page.
        title: description for people who do not see it.
        unit: unit of the values: "%", "GiB", or "" for plain numbers.
        lines: lines of the chart.
        timeline: marks, shades and the time axis.
        top: least end of the value axis; two charts with equal ends compare.
        foot: beginning of the value axis, unless a value lies below.
        legend: whether the chart itself names the lines.
    """
    figure, axes = _figure(HEIGHT)
    values = [point[1] for line in lines for point in line.points if point is not None]
    ticks = scale(min([foot, *values]), max([top, *values]))
    _value_axis(axes, ticks, lambda value: f"{number(value)} {unit}".rstrip())
    _time_axis(axes, timeline)
    for line in lines:
        _draw(axes, line)
    if legend:
        axes.legend(frameon=False, fontsize=10.5, labelcolor=_hex("text"), loc="upper left")
    return _svg(figure, title, f"{timeline.name}{key}", timeline.marks)


def rows_over_time(
    key: str, title: str, rows: Mapping[str, Sequence[Point]], timeline: Timeline
) -> str:
    """A chart with a row for each series, values written where they change.

    Args:
        key: name of the chart on its page.
        title: description for people who do not see it.
        rows: label → (seconds, value) of each change and the first value.
        timeline: marks, shades and the time axis.
    """
    figure, axes = _figure(_TOP + 50 * len(rows) + _BOTTOM)
    axes.set_ylim(len(rows), 0)
    axes.set_yticks([])
    _time_axis(axes, timeline)
    for place, (label, points) in enumerate(rows.items()):
        base, high = place + 0.9, max(value for _, value in points) or 1.0
        drawn = [(at_s, base - 0.27 * value / high) for at_s, value in points]
        _draw(axes, Line(label, [*drawn, (timeline.end_s, drawn[-1][1])], steps=True))
        axes.text(0, base - 0.62, label, weight="bold", size=10.5, color=_hex("text"))
        last_s = -math.inf
        for (at_s, value), (_, at) in zip(points, drawn, strict=True):
            if at_s - last_s > 0.045 * timeline.end_s:
                last_s = at_s
                axes.text(at_s, at - 0.06, number(value), size=10.5, color=_hex("text"))
    return _svg(figure, title, f"{timeline.name}{key}", timeline.marks)


def scatter(
    key: str,
    title: str,
    dots: Sequence[tuple[float, float, str]],
    *,
    x_name: str,
    y_name: str,
    front: Sequence[Point] = (),
    level: tuple[float, str] | None = None,
) -> str:
    """A chart of points over two axes; the upward axis begins at zero.

    Args:
        key: name of the chart on its page.
        title: description for people who do not see it.
        dots: (x, y, CSS variable of its colour) of each point of the chart.
        x_name: name of the axis to the right.
        y_name: name of the upward axis.
        front: points that a line joins.
        level: a value of y with a line of its own, and its name.
    """
    figure, axes = _figure(300, bottom=36)
    highest = max([y for _, y, _ in dots] + ([level[0]] if level else []))
    _value_axis(axes, scale(0.0, highest), number)
    axes.margins(x=0.06)
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
    axes.set_xlabel(x_name, size=10.5, color=_hex("quiet"))
    axes.set_title(y_name, loc="left", size=10.5, color=_hex("quiet"), pad=3)
    if len(front) > 1:
        axes.plot(*zip(*front, strict=True), color=_hex("a"), linewidth=1.2)
    for x, y, colour in dots:
        axes.plot(x, y, "o", color=_hex(colour), markersize=5)
    if level is not None:
        axes.axhline(level[0], color=_hex("limit"), linewidth=1, linestyle=_STYLES["limit"])
        axes.annotate(
            level[1], (1, level[0]), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", ha="right", size=10.5, color=_hex("quiet"),
        )  # fmt: skip
    return _svg(figure, title, key)


def scale(low: float, high: float) -> list[float]:
    """Two to seven round values that enclose ``low`` and ``high``."""
    from matplotlib.ticker import MaxNLocator

    top = high if math.isfinite(high - low) and high > low else low + 1.0
    return list(map(float, MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, top)))


def number(value: float) -> str:
    """A number with at most three figures, for an axis."""
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def clock(seconds: float) -> str:
    """A time since the beginning: "12 s", "3:20 min", "2:05 h", "3 d 4 h"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    if whole < _DAY_S:
        return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
    return f"{whole // _DAY_S} d {whole % _DAY_S // 3600} h"


def _hex(colour: str) -> str:
    """The hexadecimal colour that stands for a CSS variable."""
    return f"#0a0b{_COLOURS.index(colour):02x}"


def _figure(height: int, bottom: int = _BOTTOM) -> tuple[Figure, Axes]:
    """An empty figure of this height in pixels, and its axes."""
    with needs("a chart", extra="report"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    figure.subplots_adjust(_LEFT / WIDTH, bottom / height, 1 - _RIGHT / WIDTH, 1 - _TOP / height)
    axes = figure.subplots()
    axes.set_facecolor("none")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_hex("rule"))
    axes.tick_params(length=0, labelsize=10.5, labelcolor=_hex("quiet"), pad=4)
    return figure, axes


def _value_axis(axes: Axes, ticks: Sequence[float], text: Callable[[float], str]) -> None:
    """Set the values' axis, with a grid."""
    axes.set_ylim(ticks[0], ticks[-1])
    axes.set_yticks(ticks, [text(tick) for tick in ticks])
    axes.grid(axis="y", color=_hex("rule"), linewidth=0.8)
    axes.set_axisbelow(True)


def _time_axis(axes: Axes, timeline: Timeline) -> None:
    """Set the axis of a run's time."""
    end_s = max(timeline.end_s, 1e-9)
    axes.set_xlim(0, end_s)
    axes.tick_params(axis="x", pad=9)
    step = next((one for one in _STEPS_S if one >= end_s / 6), 0)
    step = step or _DAY_S * max(1, round(end_s / 6 / _DAY_S))
    ticks = [n * step for n in range(int(end_s // step) + 1) if n * step < 0.96 * end_s]
    axes.set_xticks(ticks, [clock(tick) for tick in ticks])
    for begin, end, colour in timeline.shades:
        axes.axvspan(begin, max(end, begin + end_s / WIDTH), color=_hex(colour), linewidth=0)
    x = [at for mark in timeline.marks for at in (mark.at_s, mark.at_s, math.nan)]
    draw = partial(axes.plot, transform=axes.get_xaxis_transform())
    up = [0, 1, math.nan] * len(timeline.marks)
    draw(x, up, color=_hex("quiet"), linewidth=0.8, linestyle=(0, (1, 3)))
    for mark in timeline.marks:
        draw(mark.at_s, 1, "o", color=_hex(mark.colour), markersize=6, url=mark.link)


def _draw(axes: Axes, line: Line) -> None:
    """Draw a line; ``None`` among its points is a gap."""
    gap = (math.nan, math.nan)
    x, y = zip(*(gap if point is None else point for point in line.points), strict=True)
    style = _STYLES.get(line.colour, "-"), "steps-post" if line.steps else "default"
    axes.plot(
        x, y, color=_hex(line.colour), linewidth=1.5, solid_joinstyle="round", linestyle=style[0],
        drawstyle=style[1], label=line.label,
    )  # fmt: skip


def _svg(figure: Figure, title: str, key: str, marks: Sequence[Mark] = ()) -> str:
    """The drawing as an element: text as text, colours as CSS variables, links in place."""
    from matplotlib import rc_context

    for artist in figure.findobj():
        artist.set_clip_on(False)
    written = io.StringIO()
    about = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": key}):
        figure.savefig(written, format="svg", transparent=True, metadata=about)
    text = written.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:xmlns(?::\w+)?|width|height|version)="[^"]*"', "", text, count=5)
    text = re.sub(r' id="(?!m[0-9a-f]{10})[^"]*"', "", text)  # of groups; markers keep theirs
    text = text.replace("xlink:href", "href").replace(' target="_blank"', "")
    text = re.sub(r'(id="|href="#)(m[0-9a-f]+)"', rf'\1{key}-\2"', text)
    text = re.sub(r"#0a0b([0-9a-f]{2})", lambda one: f"var(--{_COLOURS[int(one[1], 16)]})", text)
    text = re.sub(r" font-family: [^;\"]*;?| transform=\"rotate\(-0 [^\"]*\"", "", text)
    while (less := re.sub(r"<g>\s*</g>|<defs>\s*</defs>", "", text)) != text:
        text = less
    text = re.sub(r' (?:d|x|y|style)="[^"]+"', lambda found: _short(found[0]), text)
    text = re.sub(r"\s*\n\s*", " ", text).strip()
    for mark in marks:
        link, told = f'<a href="{mark.link}"', escape(mark.text)
        text = text.replace(f"{link}>", f'{link} class="mark"><title>{told}</title>', 1)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def _short(attribute: str) -> str:
    """Numbers with one decimal, and no spaces that a path does without."""
    return re.sub(r"(\d\.\d)\d+", r"\1", re.sub(r"\s*\n?([MLz]) ?", r"\1", attribute))


def render(package: str, template: str, **values: Any) -> str:
    """A page from the template of a package; texts are escaped, charts are passed through ``safe``.

    Raises:
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    with needs("a page", extra="report"):
        import jinja2

    folders = [jinja2.PackageLoader(one, "") for one in (package, "autoloader.telemetry")]
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.ChoiceLoader(folders),
    )
    environment.filters.update(code=_code, number=number, clock=clock, size=format_bytes)
    return environment.get_template(template).render(**values)


def _code(text: str) -> Any:
    """Text with `backticks` as code."""
    from markupsafe import Markup
    from markupsafe import escape as escaped

    return Markup(re.sub("`(.*?)`", r"<code>\1</code>", escaped(text), flags=re.S))  # noqa: S704  (escaped)
