"""The charts of one run: each a question, an SVG and its legend.

Not here: drawing (``telemetry.pictures.charts``), the page (``page``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoloader.cli.run_report.findings import mover
from autoloader.cli.run_report.run import Run, held_bytes
from autoloader.host.units import GIB
from autoloader.telemetry.pictures.charts import (
    Line,
    Mark,
    Point,
    Timeline,
    number,
    over_time,
    rows_over_time,
)
from autoloader.telemetry.statistics import Move, Snapshot
from autoloader.telemetry.verdict import value_words

MOST_MARKS = 60
"""Of moves in a drawing: more would hide what they mark."""
_MOST_KNOBS = 8
_MOVER_COLOURS = {"reflex": "bad", "person": "d"}


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Attributes:
        key: name of the chart, equal for the same chart of another run.
        title: what it shows.
        legend: (CSS variable, label) of its lines.
        svg: SVG element.
    """

    key: str
    title: str
    legend: tuple[tuple[str, str], ...]
    svg: str


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the axes go at least, so that drawings of two runs compare."""

    seconds: float = 0.0
    samples_per_s: float = 0.0
    wait_percent: float = 0.0
    slots: float = 0.0
    gib: float = 0.0
    least_gib: float = 0.0
    held_gib: float = 0.0


def reach_of(runs: Sequence[Run]) -> Reach:
    """What encloses all of several runs."""
    moments = [moment for run in runs for moment in run.own.moments]
    rates = [
        max(m.consumer.samples_per_s or 0.0, _shown_bound(run, m) or 0.0)
        for run in runs
        for m in run.own.moments
        if m.phase == "running"
    ]
    waits = [m.consumer.wait_ratio or 0.0 for m in moments if m.phase == "running"]
    floors = [m.memory.floor_bytes for m in moments]
    memory = [m.memory.headroom_bytes for m in moments if m.memory.headroom_bytes is not None]
    most, least = max([*floors, *memory]), min([*floors, *memory])
    return Reach(
        seconds=max(run.length_s for run in runs),
        samples_per_s=max(rates, default=0.0),
        wait_percent=100 * max(waits, default=0.0),
        slots=max(m.ring.slots for m in moments),
        gib=most / GIB,
        # What happens near a floor far from zero would be a flat line.
        least_gib=least / GIB if least > most / 2 else 0.0,
        held_gib=max(held_bytes(m) or 0 for m in moments) / GIB,
    )


def said(number: int, move: Move) -> str:
    """A move in one line."""
    moved = ", ".join(
        f"{knob} {value_words(knob, a)}→{value_words(knob, b)}"
        for knob, (a, b) in list(move.changes.items())[:4]
    )
    return f"{number}: {mover(move)}: {move.why}" + (f": {moved}" if moved else "")


def charts(run: Run, reach: Reach, letter: str) -> tuple[Chart, ...]:
    """The charts of the run ``letter`` of a page, those that have something to show."""
    frame = _timeline(run, reach, letter)
    found = [
        _chart(
            "throughput",
            _throughput_title(run),
            "",
            [
                Line("training took", _series(run, lambda m: m.consumer.samples_per_s), "a"),
                Line("the loader could give", _series(run, lambda m: _shown_bound(run, m)), "c"),
            ],
            frame,
            reach.samples_per_s,
        ),
        _chart(
            "waits",
            "Share of its time that training waited for data",
            "%",
            [Line("waited", _series(run, lambda m: _percent(m.consumer.wait_ratio)), "b")],
            frame,
            max(5.0, reach.wait_percent),
        ),
        _chart(
            "memory",
            "Memory: what the machine could still give, and the floor",
            "GiB",
            [
                Line("headroom", _all(run, lambda m: _gib(m.memory.headroom_bytes)), "a"),
                Line("RAM floor", _all(run, lambda m: _gib(m.memory.floor_bytes)), "limit", True),
            ],
            frame,
            reach.gib,
            reach.least_gib,
        ),
        _chart(
            "held",
            "Memory: what the loader held, with its ring",
            "GiB",
            [Line("the loader", _all(run, lambda m: _gib(held_bytes(m))), "d")],
            frame,
            reach.held_gib,
        ),
        _knobs(run, frame),
        _chart(
            "ring",
            "Batches ready in the ring, of its slots",
            "",
            [
                Line("ready", _series(run, lambda m: float(m.ring.filled)), "a"),
                Line("slots", _all(run, lambda m: float(m.ring.slots)), "limit", True),
            ],
            frame,
            reach.slots,
        ),
        _cache(run, frame),
    ]
    return tuple(one for one in found if one is not None)


def _chart(
    key: str,
    title: str,
    unit: str,
    lines: list[Line],
    frame: Timeline,
    top: float,
    foot: float = 0.0,
) -> Chart | None:
    drawn = [line for line in lines if any(point is not None for point in line.points)]
    if not drawn:
        return None
    legend = tuple((line.colour, line.label) for line in drawn)
    svg = over_time(key, title, unit, drawn, frame, top=top, foot=foot)
    return Chart(key, title, legend, svg)


def _throughput_title(run: Run) -> str:
    if any(_shown_bound(run, moment) for moment in run.own.moments):
        return "Samples a second: what training took, and what the slowest stage could give"
    far = "" if run.bound_per_s is None else f" (the loader could give {number(run.bound_per_s)})"
    return f"Samples a second that training took{far}"


def _cache(run: Run, frame: Timeline) -> Chart | None:
    if not any(one.cache and one.cache.budget_bytes for one in run.own.moments):
        return None
    lines = [
        Line("hit ratio", _all(run, lambda m: _percent(m.cache.hit_ratio if m.cache else None)))
    ]
    return _chart(
        "cache", "Frames shown from the cache instead of decoded", "%", lines, frame, 10.0
    )


def _knobs(run: Run, frame: Timeline) -> Chart | None:
    changes: dict[str, list[Point]] = {}
    for moment in run.own.moments:
        for knob, value in moment.knobs.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                in_gib = knob.endswith("_bytes")
                shown = value / GIB if in_gib else float(value)
                series = changes.setdefault(f"{knob}, GiB" if in_gib else knob, [])
                if not series or series[-1][1] != shown:
                    series.append((max(0.0, moment.at_s - run.begin_s), shown))
    moved = sorted(
        (knob for knob in changes if len(changes[knob]) > 1), key=lambda k: -len(changes[k])
    )
    if not moved:
        return None
    rows = {knob: changes[knob] for knob in sorted(moved[:_MOST_KNOBS])}
    left_out = len(moved) - len(rows)
    title = "Knobs that moved" + (f" (and {left_out} more)" if left_out else "")
    return Chart("knobs", title, (), rows_over_time("knobs", title, rows, frame))


def _timeline(run: Run, reach: Reach, letter: str) -> Timeline:
    shades = [(one.begin_s, one.end_s, "below") for one in run.below_floor]
    begin: float | None = None
    for moment in [*run.own.moments, None]:
        parked = moment is not None and moment.phase == "parked"
        at_s = run.length_s if moment is None else moment.at_s - run.begin_s
        if parked and begin is None:
            begin = at_s
        elif not parked and begin is not None:
            shades.append((begin, at_s, "parked"))
            begin = None
    moves = list(enumerate(run.moves, start=1))
    if len(moves) > MOST_MARKS:  # the reflex's are what a reader looks for
        reflex = [one for one in moves if one[1].by == "reflex"]
        moves = sorted({one[0]: one for one in (reflex + moves)[:MOST_MARKS]}.values())
    marks = tuple(
        Mark(
            max(0.0, move.at_s - run.begin_s),
            f"#move-{letter}{number}",
            said(number, move),
            _MOVER_COLOURS.get(move.by, "a"),
        )
        for number, move in moves
    )
    return Timeline(max(reach.seconds, run.length_s), marks, tuple(shades[:100]), letter)


def _series(run: Run, read: Callable[[Snapshot], float | None]) -> list[Point | None]:
    """A line that pauses where training does."""
    return _all(run, lambda m: read(m) if m.phase == "running" else None)


def _all(run: Run, read: Callable[[Snapshot], float | None]) -> list[Point | None]:
    found: list[Point | None] = []
    for moment in run.own.moments:
        value = read(moment)
        found.append(None if value is None else (max(0.0, moment.at_s - run.begin_s), value))
    return found


def _shown_bound(run: Run, moment: Snapshot) -> float | None:
    """The bound, where it does not squeeze what training took into the lowest tenth."""
    took = run.samples_per_s
    if moment.bound_per_s is None or (took and moment.bound_per_s > 10 * took):
        return None
    return moment.bound_per_s


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * ratio


def _gib(count: int | None) -> float | None:
    return None if count is None else count / GIB
