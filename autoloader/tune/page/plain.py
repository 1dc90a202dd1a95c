"""The report as plain text: no colours, no boxes, a line of at most 100 characters but for reasons.

Not here: what it tells (``story``).
"""

from __future__ import annotations

from collections.abc import Iterator

from autoloader.errors import printable
from autoloader.tune.page.html import figures_text
from autoloader.tune.page.story import LEAST_TRIALS, Story, TrialFate
from autoloader.units import format_bytes

_BAR = 30


def plain_text(story: Story) -> str:
    """The whole report."""
    return "\n".join(printable(line) for line in _lines(story))


def _lines(story: Story) -> Iterator[str]:
    yield f"study {story.study}"
    yield story.verdict
    yield from story.notes
    yield ""
    yield f"start  {figures_text(story.start)}"
    yield f"best   {figures_text(story.best)}"
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
    rate = "–" if one.samples_per_s is None else f"{one.samples_per_s:,.0f}"
    peak = "–" if one.peak_rss_bytes is None else format_bytes(one.peak_rss_bytes)
    room = "–" if one.min_headroom_bytes is None else format_bytes(one.min_headroom_bytes)
    return f"{rate:>8} samples/s, peak {peak:>10}, headroom {room:>10}"
