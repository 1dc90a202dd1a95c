"""The page: one HTML file that needs no network, of one run or of two side by side.

Not here: what is said (``findings``), what is drawn (``charts``), the words around it
(``page.html.jinja``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from autoloader.cli.run_report.charts import Chart, charts, reach_of
from autoloader.cli.run_report.findings import Finding, findings, mover, percent, verdict
from autoloader.cli.run_report.run import Run, cost_of
from autoloader.host.units import format_bytes
from autoloader.telemetry.pictures.charts import clock, number
from autoloader.telemetry.pictures.pages import render
from autoloader.telemetry.verdict import value_words

MOST_MOVES = 150
MOST_BAD = 100
_MOST_KNOBS = 60
_MOST_DATASETS = 120


@dataclass(frozen=True, slots=True)
class Moved:
    """A row of the table of moves."""

    number: int
    at: str
    by: str
    why: str
    changes: tuple[tuple[str, str, str], ...]
    outcome: str
    mover: str


@dataclass(frozen=True, slots=True)
class Side:
    """One run, as the page shows it."""

    run: Run
    letter: str
    began: str
    length: str
    findings: tuple[Finding, ...]
    charts: tuple[Chart, ...]
    moves: tuple[Moved, ...]
    moves_left_out: int
    limits: tuple[tuple[str, float], ...]
    facts: tuple[tuple[str, str], ...]


def page(run: Run, other: Run | None = None, ideal: Run | None = None) -> str:
    """The page as HTML.

    Args:
        run: what it is about.
        other: a run to put beside it.
        ideal: a run of the same trainer that was given one batch again and again.
    """
    if ideal is None and other is not None and other.replays and not run.replays:
        ideal = other
    every = [run] if other is None else [run, other]
    reach = reach_of(every)
    ideals = [None if one.replays else ideal for one in every]
    if other is not None and run.replays and not other.replays:
        ideals[1] = run
    sides = [
        Side(
            run=one,
            letter="AB"[place],
            began=time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(one.begin_s)),
            length=clock(one.length_s),
            findings=findings(one, ideals[place]),
            charts=charts(one, reach, "AB"[place]),
            moves=_moves(one),
            moves_left_out=max(0, len(one.moves) - MOST_MOVES),
            limits=tuple(one.limits.items())[:6],
            facts=_facts(one),
        )
        for place, one in enumerate(every)
    ]
    return render(
        "autoloader.cli.run_report",
        "page.html.jinja",
        sides=sides,
        figures=_figures(every),
        drawn=_drawn(sides),
        percent=percent,
        most_bad=MOST_BAD,
        most_datasets=_MOST_DATASETS,
    )


def _drawn(sides: list[Side]) -> list[tuple[str, Chart | None]]:
    """(side's letter, drawing) in reading order; of two runs the same drawing side by side."""
    keys = dict.fromkeys(one.key for side in sides for one in side.charts)
    return [
        (side.letter, next((one for one in side.charts if one.key == key), None))
        for key in keys
        for side in sides
    ]


def _moves(run: Run) -> tuple[Moved, ...]:
    return tuple(
        Moved(
            place,
            clock(max(0.0, move.at_s - run.begin_s)),
            move.by,
            move.why,
            tuple(
                (k, value_words(k, a), value_words(k, b))
                for k, (a, b) in list(move.changes.items())[:12]
            ),
            verdict(move),
            mover(move),
        )
        for place, move in enumerate(run.moves[:MOST_MOVES], start=1)
    )


def _figures(runs: list[Run]) -> list[tuple[str, list[str]]]:
    """The table of figures: what, and its value in each run; with two, their relation too."""
    rows: list[tuple[str, list[str]]] = []

    def row(label: str, values: list[Any], show: Any) -> None:
        shown = ["–" if value is None else show(value) for value in values]
        if len(values) == 2:
            a, b = values
            shown.append(f"× {b / a:.2f}" if a and b is not None else "–")
        rows.append((label, shown))

    row("samples/s, while training ran", [one.samples_per_s for one in runs], number)
    row("waited for data, share of the time", [one.wait_ratio for one in runs], percent)
    row("samples/s that the loader could give", [one.bound_per_s for one in runs], number)
    row("least headroom", [one.least_headroom_bytes for one in runs], format_bytes)
    row("most that the loader held", [one.most_bytes for one in runs], format_bytes)
    row("times that knobs moved", [len(one.changes) for one in runs], number)
    row("frames from the cache", [one.hit_ratio for one in runs], percent)
    row("bad records", [len(one.own.bad) for one in runs], number)
    row("batches taken", [one.own.last.consumer.batches for one in runs], number)
    if len(runs) == 2 and runs[0].replays != runs[1].replays:
        real, ideal = (runs[1], runs[0]) if runs[0].replays else (runs[0], runs[1])
        cost = cost_of(real, ideal)
        rows.append(("the loader costs", [percent(cost)] if cost is not None else ["–"]))
    return rows


def _facts(run: Run) -> tuple[tuple[str, str], ...]:
    facts, last = run.facts, run.own.last
    cameras = facts.get("cameras") or {}
    plain = {
        "script": last.script,
        "run": last.run,
        "host": facts.get("host"),
        "autoloader": f"{facts.get('autoloader', '?')}, Python {facts.get('python', '?')}",
        "rank": f"{last.rank} of {last.world_size}",
        "reader": f"{facts.get('reader', '?')} ({facts.get('reader_reason', '')})",
        "profile": facts.get("profile"),
        "RAM floor": format_bytes(last.memory.floor_bytes),
        "batch": f"{facts.get('batch_size', '?')} samples"
        + (f", {format_bytes(facts['batch_bytes'])}" if facts.get("batch_bytes") else ""),
        "cameras": ", ".join(f"{name} {h}×{w}" for name, (h, w) in cameras.items()),
        "epoch": f"{facts['epoch_samples']:,} samples" if facts.get("epoch_samples") else "endless",
        "one batch again and again": "yes" if run.replays else "",
        "spec": facts.get("spec_digest"),
        "noted at the start": "; ".join(facts.get("notes") or ()),
        "knobs at the end": ", ".join(
            f"{knob}={value_words(knob, value)}"
            for knob, value in list(last.knobs.items())[:_MOST_KNOBS]
        ),
        "record": str(run.own.path),
    }
    return tuple((label, str(value)) for label, value in plain.items() if value)
