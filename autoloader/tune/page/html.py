"""The report as one HTML file that needs nothing beside it: no script, no font, no network.

Not here: what it tells (``story``), the charts (``charts``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from pathlib import Path

from autoloader.host.files import write_whole
from autoloader.tune.page.charts import Point, bars, scatter
from autoloader.tune.page.story import LEAST_TRIALS, Figures, Story, TrialFate
from autoloader.units import GIB, MIB, format_bytes

logger = logging.getLogger(__name__)

_MOST_SLICES = 9
_MOST_MARKS = 5

_STYLE = """
:root { --ink: #1b1f24; --soft: #667; --line: #d5d9de; --paper: #fff; --a: #2563c9; --b: #d9622b;
  --bad: #b3261e; --good: #1a7f4b; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa3ad; --line: #343b44;
  --paper: #14181d; --a: #79a8ff; --b: #ff9d6e; --bad: #ff8a80; --good: #6fd39b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p.lead { font-size: 1.15rem; } small, .soft { color: var(--soft); }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; } svg text { fill: var(--soft);
  font-size: 11px; } .axis { stroke: var(--soft); } .grid { stroke: var(--line); }
.level { stroke: var(--bad); stroke-dasharray: 4 3; } .front { fill: none; stroke: var(--a); }
circle.dot { fill: var(--soft); fill-opacity: .7; } circle.on { fill: var(--a); }
circle.start { fill: var(--b); } circle.best { fill: var(--good); } .bar { fill: var(--a); }
.bar.infeasible, .bar.failed { fill: var(--bad); } .infeasible, .failed { color: var(--bad); }
.slices { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; }
figcaption { color: var(--soft); font-size: .85rem; }
"""


def page(story: Story) -> str:
    """The whole page."""
    parts = [
        f"<h1>Study {escape(story.study)}</h1>",
        f'<p class="lead">{escape(story.verdict)}</p>',
        *(f"<p>{escape(note)}</p>" for note in story.notes),
        "<h2>Start and best</h2>",
        _start_and_best(story),
        "<h2>The bound</h2>",
        _bound(story),
        "<h2>Rate against memory</h2>",
        _pareto(story),
        "<h2>Which knobs mattered</h2>",
        _influence(story),
        "<h2>Headroom and the floor</h2>",
        _headroom(story),
        "<h2>Each trial</h2>",
        _trials(story),
        "<h2>Where it was measured</h2>",
        _table((), ((name, value) for name, value in (("host", story.host), *story.facts))),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Study {escape(story.study)}</title><style>{_STYLE}</style></head>\n<body>"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def write_page(story: Story, path: Path) -> Path | None:
    """Write the page in one step; ``None`` where that fails, which is logged and ends nothing."""
    try:
        write_whole(path, page(story))
    except OSError as error:
        logger.warning("no report: %s cannot be written: %s", path, error.strerror or error)
        return None
    return path


def _start_and_best(story: Story) -> str:
    rows = [
        ("samples/s", *(_rate(one.samples_per_s) for one in (story.start, story.best))),
        ("loader's peak memory", *(_size(one.peak_rss_bytes) for one in (story.start, story.best))),
        ("least headroom", *(_size(one.min_headroom_bytes) for one in (story.start, story.best))),
        *((knob, str(before), str(after)) for knob, (before, after) in story.changed.items()),
    ]
    ratios = ", ".join(f"{ratio:.2f}" for ratio in story.ratios)
    told = f"<p><small>Measured in turn; best over start: {ratios}</small></p>" if ratios else ""
    return _table(("", "start", "best"), rows) + told


def _bound(story: Story) -> str:
    if story.bound_samples_per_s is None and not story.bound_lines:
        return "<p>Not known: no measurement told what a sample costs.</p>"
    told = [f"At most {_rate(story.bound_samples_per_s)} samples/s."] * (not story.bound_lines)
    return "".join(f"<p>{escape(line)}</p>" for line in (*told, *story.bound_lines))


def _pareto(story: Story) -> str:
    known = [one for one in story.complete if one.peak_rss_bytes is not None]
    if not known:
        return "<p>No trial was measured to its end.</p>"
    front = story.front()
    points = [
        _point(one, "start" if one.label == "start" else "on" if one in front else "dot")
        for one in known
    ]
    best = story.best
    if not story.start_stays and best.samples_per_s and best.peak_rss_bytes:
        points.append(Point(best.peak_rss_bytes / MIB, best.samples_per_s, "best", "best"))
    bound = story.bound_samples_per_s
    top = max(one.y for one in points)
    near = bound is not None and bound < 2 * top
    return (
        scatter(
            points,
            x_name="peak memory of the loader, MiB",
            y_name="samples/s",
            x_text=lambda value: f"{value:,.0f}",
            line=[_point(one, "on") for one in front],
            level=(bound, "bound") if bound is not None and near else None,
        )
        + "<p><small>The line joins settings that none beats in both. Orange: the start; green: "
        "the best, as the finals measured it.</small></p>"
    )


def _influence(story: Story) -> str:
    found = story.influence()
    count = len(story.complete)
    if not found:
        return f"<p>{count} complete trials tell nothing of it; {LEAST_TRIALS} are needed.</p>"
    slices = story.slices()
    figures = []
    for knob in list(found)[:_MOST_SLICES]:
        values = sorted({str(value) for value, _ in slices[knob]})
        points = [
            Point(
                float(value)
                if isinstance(value, (int, float))
                else float(values.index(str(value))),
                rate,
                f"{value}: {rate:.0f}",
            )
            for value, rate in slices[knob]
        ]
        numbers = all(isinstance(value, (int, float)) for value, _ in slices[knob])
        places = sorted({one.x for one in points})
        chart = scatter(
            points,
            x_name=knob,
            y_name="samples/s",
            x_text=(lambda v: f"{v:g}") if numbers else partial(_word, values),
            x_ticks=places if not numbers or len(places) <= _MOST_MARKS else None,
            size=(290, 190),
        )
        caption = f"{escape(knob)}: {found[knob]:.0%}"
        figures.append(f"<figure>{chart}<figcaption>{caption}</figcaption></figure>")
    return (
        f"<p><small>Share of the ranks of {count} complete trials that goes with the knob alone. "
        "A hint and no proof: other knobs moved too.</small></p>"
        f'<div class="slices">{"".join(figures)}</div>'
    )


def _word(words: Sequence[str], place: float) -> str:
    return words[round(place)]


def _headroom(story: Story) -> str:
    known = [
        (f"{one.number} {one.label}", one.min_headroom_bytes / GIB, one.outcome)
        for one in story.trials
        if one.min_headroom_bytes is not None
    ]
    if not known:
        return "<p>Headroom could not be read.</p>"
    floor = story.floor_bytes / GIB
    return bars(known, floor=floor, floor_name="RAM floor", text=lambda value: f"{value:.2f} GiB")


def _trials(story: Story) -> str:
    names = sorted(set(story.slices()) | set(story.changed))
    header = ("#", "role", "outcome", "samples/s", "peak", "headroom", *names, "reason")
    rows = []
    for one in story.trials:
        outcome = f'<span class="{escape(one.outcome)}">{escape(one.outcome)}</span>'
        if one.busy is not None:
            outcome += f" <small>(others used {one.busy:.1f} cpus)</small>"
        plain = [
            _rate(one.samples_per_s),
            _size(one.peak_rss_bytes),
            _size(one.min_headroom_bytes),
            *(str(one.used_knobs.get(name, "–")) for name in names),
        ]
        cells = [f"<td>{one.number}</td><td>{escape(one.label)}</td><td>{outcome}</td>"]
        cells += [f'<td class="n">{escape(text)}</td>' for text in plain]
        told = escape(one.reason)
        if one.stderr and one.stderr != one.reason:
            told += f"<details><summary>stderr</summary><pre>{escape(one.stderr)}</pre></details>"
        rows.append("".join([*cells, f"<td>{told}</td>"]))
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def _point(one: TrialFate, kind: str) -> Point:
    title = f"trial {one.number}: {_rate(one.samples_per_s)} samples/s"
    return Point((one.peak_rss_bytes or 0) / MIB, one.samples_per_s or 0.0, title, kind)


def figures_text(one: Figures) -> str:
    """One knob set's figures, in a line."""
    return (
        f"{_rate(one.samples_per_s)} samples/s, peak {_size(one.peak_rss_bytes)}, "
        f"least headroom {_size(one.min_headroom_bytes)}"
    )


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}"


def _size(count: int | None) -> str:
    return "–" if count is None else format_bytes(count)
