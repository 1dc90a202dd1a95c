"""The report as one HTML file that needs nothing beside it, and as plain text.

Not here: what it tells (``story``), drawing (``telemetry.charts``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from autoloader.errors import printable
from autoloader.host.files import write_whole
from autoloader.host.units import GIB, MIB, format_bytes
from autoloader.telemetry.charts import Dot, bars, render, scatter
from autoloader.tune.page.story import LEAST_TRIALS, Figures, Story, TrialFate

logger = logging.getLogger(__name__)

_MOST_SLICES = 9
_BAR = 30


def page(story: Story) -> str:
    """The whole page."""
    influence = story.influence()
    slices = story.slices()
    return render(
        "autoloader.tune.page",
        "study.html.jinja",
        story=story,
        pareto=_pareto(story),
        slices=[
            (knob, share, _slice(knob, slices[knob]))
            for knob, share in list(influence.items())[:_MOST_SLICES]
        ],
        headroom=_headroom(story),
        knobs=sorted(set(slices) | set(story.changed)),
        least_trials=LEAST_TRIALS,
        rate=_rate,
        bytes=_size,
    )


def write_page(story: Story, path: Path) -> Path | None:
    """Write the page in one step; ``None`` where that fails, which is logged and ends nothing."""
    try:
        write_whole(path, page(story))
    except OSError as error:
        logger.warning("no report: %s cannot be written: %s", path, error.strerror or error)
        return None
    return path


def _pareto(story: Story) -> str:
    """Rate against memory of all trials that know both; "" where there are none."""
    front = story.front()
    dots = [
        Dot(
            (one.peak_rss_bytes or 0) / MIB,
            one.samples_per_s or 0.0,
            "b" if one.label == "start" else "a" if one in front else "quiet",
        )
        for one in story.complete
        if one.peak_rss_bytes is not None
    ]
    if not dots:
        return ""
    best = story.best
    if not story.start_stays and best.samples_per_s and best.peak_rss_bytes:
        dots.append(Dot(best.peak_rss_bytes / MIB, best.samples_per_s, "good"))
    bound = story.bound_samples_per_s
    near = bound is not None and bound < 2 * max(one.y for one in dots)
    return scatter(
        "pareto",
        "rate against memory of all trials",
        dots,
        x_name="peak memory of the loader, MiB",
        y_name="samples/s",
        front=[((one.peak_rss_bytes or 0) / MIB, one.samples_per_s or 0.0) for one in front],
        level=(bound, "bound") if bound is not None and near else None,
    )


def _slice(knob: str, values: list[tuple[object, float]]) -> str:
    """Rate against one knob."""
    words: list[str] = []
    if not all(isinstance(value, (int, float)) for value, _ in values):
        words = sorted({str(value) for value, _ in values})
    dots = [
        Dot(float(words.index(str(value)) if words else str(value)), rate) for value, rate in values
    ]
    return scatter(
        f"knob-{knob}",
        f"rate against {knob}",
        dots,
        x_name=knob,
        y_name="samples/s",
        x_words=words,
        size=(320, 200),
    )


def _headroom(story: Story) -> str:
    """Least headroom of each trial beside the floor; "" where none was read."""
    known = [
        (
            f"{one.number} {one.label}",
            one.min_headroom_bytes / GIB,
            "bad" if one.outcome in ("infeasible", "failed") else "a",
        )
        for one in story.trials
        if one.min_headroom_bytes is not None
    ]
    if not known:
        return ""
    floor = (story.floor_bytes / GIB, "RAM floor")
    return bars(
        "headroom", "least headroom of each trial", known, text="{:.2f} GiB".format, level=floor
    )


def plain_text(story: Story) -> str:
    """The whole report: no colours, no boxes, lines of at most 100 characters but for reasons."""
    return "\n".join(printable(line) for line in _lines(story))


def _lines(story: Story) -> Iterator[str]:
    yield f"study {story.study}"
    yield story.verdict
    yield from story.notes
    yield ""
    yield f"start  {_figures_of(story.start)}"
    yield f"best   {_figures_of(story.best)}"
    for knob, (before, after) in story.changed.items():
        yield f"  {knob}: {before} → {after}"
    if story.ratios:
        yield "  best over start, in turn: " + ", ".join(f"{one:.2f}" for one in story.ratios)
    yield ""
    yield "-- bound"
    if story.bound_lines:
        yield from story.bound_lines
    elif story.bound_samples_per_s is None:
        yield "not known: no measurement told what a sample costs"
    else:
        yield f"at most {story.bound_samples_per_s:,.0f} samples/s"
    yield ""
    yield "-- rate against memory: settings that none beats in both"
    for one in story.front():
        yield f"{one.number:4}  {_figures(one)}"
    yield ""
    yield from _influence(story)
    yield ""
    yield f"-- trials; the RAM floor is {format_bytes(story.floor_bytes)}"
    for one in story.trials:
        busy = f", others used {one.busy:.1f} cpus" if one.busy is not None else ""
        reason = f": {one.reason}" if one.reason else ""
        yield f"{one.number:4}  {one.label:6}  {one.outcome:10}  {_figures(one)}{busy}{reason}"
    yield ""
    yield f"host  {story.host}"
    for name, value in story.facts:
        yield f"{name}  {value}"


def _influence(story: Story) -> Iterator[str]:
    found, count = story.influence(), len(story.complete)
    if not found:
        yield f"-- knobs: {count} complete trials tell nothing; {LEAST_TRIALS} are needed"
        return
    yield f"-- knobs: share of the ranks of {count} complete trials that goes with each alone"
    for knob, share in found.items():
        yield f"{knob:28} {share:4.0%} {'#' * round(share * _BAR)}".rstrip()


def _figures(one: TrialFate) -> str:
    return (
        f"{_rate(one.samples_per_s):>8} samples/s, peak {_size(one.peak_rss_bytes):>10}, "
        f"headroom {_size(one.min_headroom_bytes):>10}"
    )


def _figures_of(one: Figures) -> str:
    """Figures of one knob set, in a line."""
    return (
        f"{_rate(one.samples_per_s)} samples/s, peak {_size(one.peak_rss_bytes)}, "
        f"least headroom {_size(one.min_headroom_bytes)}"
    )


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}"


def _size(count: int | None) -> str:
    return "–" if count is None else format_bytes(count)
