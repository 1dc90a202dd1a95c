"""Records of runs: the page of one (``autoloader report``), its decisions again (``replay``).

The page is one HTML file that needs no network, of one run or of two side by side. Its sentences
say what limited the run, what memory did, what the controller did and why. Its charts have equal
axes for two runs.

Exit codes of ``replay``: 0 every decision is the same, 1 some differ, 2 a log cannot be read.

Not here: a run's figures (``recorded_run``), drawing (``telemetry.charts``), the words around the
figures (``report.html.jinja``), the decision log and the policy (``controller``).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import typer

from autoloader.cli.output import (
    answered,
    check_writable,
    emit,
    emit_document,
    note,
    note_some,
    write_output,
)
from autoloader.cli.recorded_run import (
    Run,
    cost_of,
    find_run,
    kept_runs,
    read_run,
    runs_folder,
    why_no_run,
)
from autoloader.controller.decisions import Replayed
from autoloader.controller.decisions import replay as replay_log
from autoloader.controller.states import State
from autoloader.errors import UsageError
from autoloader.host.frozen import frozen
from autoloader.host.units import GIB, format_bytes
from autoloader.spec.knobs import STAGES
from autoloader.telemetry.charts import (
    Line,
    Mark,
    Point,
    Timeline,
    clock,
    number,
    over_time,
    render,
    rows_over_time,
)
from autoloader.telemetry.run_record import files_of
from autoloader.telemetry.statistics import FAULTS, Move, Statistics
from autoloader.telemetry.verdict import LITTLE_RATIO, MOSTLY_RATIO, changes_words, value_words

DIFFERENT = 1
"""Exit code where decisions differ."""
_SHOWN = 20
"""Differences of a log that are shown."""
_REMEDY = (
    "name a decision log (decisions.jsonl); a run writes one into the folder that the environment "
    "variable AUTOLOADER_RUN_DIR names"
)


def show_page(run: str, other: str | None, output: Path | None) -> None:
    """Write the page of a run.

    Args:
        run: folder or name of the run.
        other: a run to put beside it, maybe of the trainer alone; ``None``: no other.
        output: the page; ``None``: RUN.html in the working directory.
    """
    folder = find_run(run)
    shown = [read_run(folder)] + ([] if other is None else [read_run(find_run(other))])
    ideal = next((one for one in shown if one.replays), None)
    target = output or Path(f"{shown[0].name}.html")
    text = page(*shown, ideal=ideal)
    check_writable(target)
    write_output(target, text)
    found = [(one, findings(one, ideal)) for one in shown]
    rows = [
        {
            "run": one.own.last.run,
            "record": str(one.own.path),
            "state": one.state,
            "length_s": one.length_s,
            "samples_per_s": one.samples_per_s,
            "wait_ratio": one.wait_ratio,
            "limits": one.limits,
            "moves": [asdict(move) for move in one.own.moves],
            "findings": [asdict(finding) for finding in told],
        }
        for one, told in found
    ]
    if answered({"page": str(target), "runs": rows}):
        return
    on_page = {rank.path for one in shown for rank in one.ranks}
    every = files_of(folder) if os.path.isdir(folder) else ()
    if others := [one for one in every if one not in on_page]:
        note_some(f"another loader of this run, not on the page: {one}" for one in others)
    for one, told in found:
        note(
            f"{one.name} ({one.own.last.script}): {'it runs' if one.state == 'runs' else one.state}"
        )
        for finding in told:
            note(f"{finding.question} {finding.answer}")
    emit(str(target))


def list_runs() -> None:
    """Show the runs that the cache directory keeps."""
    kept = runs_folder()
    rows = [
        {
            "name": one.name,
            "script": one.own.last.script,
            "state": one.state,
            "began": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.begin_s)),
            "length_s": one.length_s,
            "samples_per_s": one.samples_per_s,
            "wait_ratio": one.wait_ratio,
        }
        for one in reversed(kept_runs())
    ]
    if answered({"ring": str(kept), "runs": rows}):
        return
    if rows:
        emit_document({"runs": rows})
    else:
        note(f"{kept} keeps no run: {why_no_run()}")


def show_replay(logs: Sequence[Path]) -> None:
    """Derive the decisions of logs again and show which differ; exit code 1 where some do.

    Args:
        logs: decision logs, and folders of such.
    """
    found = {log: _replayed(log) for named in logs for log in _below(named)}
    differences = [(log, one) for log, of in found.items() for one in of.differences]
    document = {
        "logs": len(found),
        "decisions": sum(one.decisions for one in found.values()),
        "changes": sum(one.changes for one in found.values()),
        "differences": [{"log": str(log), **asdict(one)} for log, one in differences],
    }
    if not answered(document):
        for log, one in found.items():
            where = f"{log}: " if len(found) > 1 else ""
            differ = f"{len(one.differences)} differences" if one.differences else "all the same"
            emit(f"{where}{one.decisions} decisions, {one.changes} of them changes: {differ}")
            for of in one.differences[:_SHOWN]:
                emit(
                    f"{where}  line {of.line}: {of.field}: recorded {of.recorded}, now {of.derived}"
                )
            if len(one.differences) > _SHOWN:
                emit(f"{where}  ... and {len(one.differences) - _SHOWN} more")
    if differences:
        raise typer.Exit(DIFFERENT)


def _below(named: Path) -> list[Path]:
    """Decision logs at or below a path; ``UsageError`` where there is none."""
    found = sorted(named.rglob("*.jsonl")) if os.path.isdir(named) else [named]
    if not found:
        raise UsageError(f"there is no *.jsonl below {named}", remedy=_REMEDY)
    return found


def _replayed(log: Path) -> Replayed:
    """Outcome of the replay of one decision log."""
    try:
        with log.open(encoding="utf-8") as lines:
            return replay_log(lines, origin=str(log))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{log} cannot be read: {getattr(error, 'strerror', None) or error}", remedy=_REMEDY
        ) from error


LEAST_SHARE = 0.01
"""Least share of the time of a state that is told."""
_REMEDIES = {name: one.remedy for name, one in STAGES.items()} | {
    "memory": "The loader had to stay small for the RAM floor. More memory, a lower `ram_floor`, "
    "or a quieter neighbour would let it grow."
}
MOVERS = {"policy": "the controller", "reflex": "the memory reflex", "person": "a person"}
_LIMITS = {name: one.work for name, one in STAGES.items()} | {
    "training": "the training step itself",
    "gpu": "the GPU",
    "memory": "memory: the loader had to stay small",
    "": "unknown",
}
_MOST_CHANGES = 4


@frozen
class Finding:
    """One question and its answer.

    Attributes:
        answer: the answer in one sentence.
        more: further sentences of the answer.
        level: "good", "notice" or "bad".
        question: question that a reader has; ``findings`` fills it in.
    """

    answer: str
    more: tuple[str, ...] = ()
    level: str = "good"
    question: str = ""


def findings(run: Run, ideal: Run | None = None) -> tuple[Finding, ...]:
    """Answer the questions of a reader, in their order.

    Args:
        run: run that the findings are about.
        ideal: a run of the same trainer with ``replay_one_batch``, where there is one.
    """
    every = {
        "What limits this run?": _limit(run),
        "Would a perfect loader help?": _cost(run, ideal),
        "Was memory short?": _memory(run),
        "What did the controller do, and why?": _controller(run),
        "Do all ranks fare alike?": _ranks(run),
        "Is the data sound?": _records(run),
        "How did it end?": _end(run),
    }
    return tuple(replace(found, question=one) for one, found in every.items() if found is not None)


def percent(ratio: float | None) -> str:
    """A ratio as a percentage, for people."""
    if ratio is None:
        return "–"
    return f"{100 * ratio:.1f} %" if ratio < 0.0995 else f"{100 * ratio:.0f} %"


def _limit(run: Run) -> Finding:
    """Finding: what limited the run."""
    if run.replays:
        return Finding("The trainer itself: it was given one batch again and again.")
    waited = run.wait_ratio
    if waited is None:
        return Finding("Nothing was measured: no batch was taken for long enough.")
    if waited < LITTLE_RATIO or not run.waits:
        pace = "the GPU" if next(iter(run.limits), "") == "gpu" else "the training step"
        return Finding(
            f"Not the loader: training waited for data {percent(waited)} of its time. "
            f"What sets the pace is {pace}.",
            _bound(run),
        )
    worst, share = next(iter(run.waits.items()))
    loader = waited >= MOSTLY_RATIO
    stage, _, dataset = worst.partition(":")
    what = _LIMITS.get(stage, stage) + (f" (dataset {dataset})" if dataset else "")
    who = "The loader:" if loader else "Mostly the training step, and a little the loader:"
    return Finding(
        f"{who} training waited for data {percent(waited)} of its time, and "
        f"{percent(share)} of that waiting was for {what}.",
        (*_bound(run), _REMEDIES.get(stage, "")),
        "bad" if loader else "notice",
    )


def _bound(run: Run) -> tuple[str, ...]:
    """Words about the rate of the training and the rate that the loader could give."""
    took, bound = run.samples_per_s, run.bound_per_s
    if took is None:
        return ()
    if bound is None or bound <= took:
        return (f"Training took {took:,.0f} samples/s.",)
    return (f"Training took {took:,.0f} samples/s; the loader could give {bound:,.0f}.",)


def _cost(run: Run, ideal: Run | None) -> Finding | None:
    """Finding: time that the loader cost, against ``ideal`` where it is known."""
    if run.replays:
        return None
    cost = None if ideal is None else cost_of(run, ideal)
    waited = run.wait_ratio
    if ideal is not None and cost is not None:
        apart = waited is not None and cost - waited >= 0.05
        return Finding(
            f"The loader costs you {percent(cost)}: {run.samples_per_s:,.0f} samples/s with it, "
            f"{ideal.samples_per_s:,.0f} with one batch that is handed out again and again.",
            (
                f"Training waited {percent(waited)} of its time. The rest is what its step was "
                "slower: the loader, or others on the machine, took processors that it wanted.",
            )
            * apart,
            level="good" if cost < 0.02 else "notice",
        )
    if waited is None:
        return None
    return Finding(
        f"The loader costs you {percent(waited)} by the time spent waiting.",
        (
            "A run with `AutoLoader(…, replay_one_batch=True)` measures it whole, with what the "
            "loader takes of the processors: `autoloader report RUN IDEAL`.",
        ),
        level="good" if waited < LITTLE_RATIO else "notice",
    )


def _memory(run: Run) -> Finding | None:
    """Finding: whether the RAM floor held; ``None``: headroom was never read."""
    floor = run.own.last.floor_bytes
    least = run.least_headroom_bytes
    if least is None:
        return None
    holds = f"The loader held {format_bytes(run.most_bytes or 0)} at most, without cached frames."
    if not run.below_floor:
        return Finding(
            f"No: the least headroom was {format_bytes(least)}, and the floor is "
            f"{format_bytes(floor)}.",
            (holds,) * bool(run.most_bytes),
        )
    told = []
    for one in run.below_floor[:5]:
        who = "it was so from the start"
        if one.lost_bytes > 0:
            own = format_bytes(abs(one.own_bytes))
            who = f"others took {format_bytes(one.lost_bytes - one.own_bytes)}"
            who += (
                f" while the loader gave {own} back"
                if one.own_bytes < 0
                else f" and the loader {own}"
            )
        told.append(
            f"At {clock(one.begin_s)}, for {clock(one.end_s - one.begin_s)}: "
            f"down to {format_bytes(one.least_bytes)}; {who}."
        )
    if len(run.below_floor) > 5:
        told.append(f"And {len(run.below_floor) - 5} times more.")
    below_s = sum(one.end_s - one.begin_s for one in run.below_floor)
    times = "once" if len(run.below_floor) == 1 else f"{len(run.below_floor)} times"
    return Finding(
        f"Yes: headroom was below the floor of {format_bytes(floor)} {times}, for "
        f"{clock(below_s)} in all; the least headroom was {format_bytes(least)}.",
        (*told, *(holds,) * bool(run.most_bytes)),
        "bad",
    )


def _controller(run: Run) -> Finding:
    """Finding: what the controller did, and why."""
    states = _states(run)
    if not run.own.moves:
        why = f" Its last word: {run.own.last.why}." if run.own.last.why else ""
        none = "Nothing: no knob moved." if run.own.last.state else "There was none; nothing moved."
        return Finding(none + why, states)
    by = Counter(move.by for move in run.changes)
    parts = [f"{MOVERS.get(who, who)} {count} ×" for who, count in by.most_common()]
    times = "once" if len(run.changes) == 1 else f"{len(run.changes)} times"
    grouped = Counter((move.by, move.why) for move in run.own.moves)
    more = []
    for (who, why), count in grouped.most_common(5):
        moved = [one for one in run.own.moves if (one.by, one.why) == (who, why)]
        knobs = sorted({knob for one in moved for knob in one.changes})
        shown = "; ".join(_changes(moved, knob) for knob in knobs[:4]) + " …" * (len(knobs) > 4)
        when = f"At {clock(moved[0].at_s - run.begin_s)}" if count == 1 else f"{count} ×"
        more.append(f"{when}, {MOVERS.get(who, who)}: {why}" + (f": {shown}." if shown else "."))
    answer = f"Knobs moved {times}: {', '.join(parts)}." if parts else "No knob moved."
    return Finding(answer, (*more, *states))


def _states(run: Run) -> tuple[str, ...]:
    """Share of the time in each state, and the reflex's actions."""
    meanings = {one.value: one.meaning for one in State}
    found = [
        f"{percent(share)} of its time in {name}: {meanings.get(name, 'of a later version')}."
        for name, share in run.states.items()
        if share >= LEAST_SHARE
    ]
    control = run.own.last.controller
    if control is not None and control.drops:
        found.append(f"The memory reflex dropped what was read ahead {control.drops} ×.")
    return tuple(found)


def _changes(moves: list[Move], knob: str) -> str:
    """All changes of a knob, one after the other; of many the first and the last."""
    changes = [move.changes[knob] for move in moves if knob in move.changes]
    if len(changes) > _MOST_CHANGES:
        changes = [(changes[0][0], changes[-1][1])]
    told = (f"{value_words(knob, before)}→{value_words(knob, after)}" for before, after in changes)
    return f"{knob} {', '.join(told)}"


def _ranks(run: Run) -> Finding | None:
    """Finding: which rank waited most; ``None`` with one rank."""
    waits = run.rank_waits()
    if len(waits) < 2:
        return None
    worst, waited = next(iter(waits.items()))
    mean = fmean(waits.values())
    return Finding(
        f"Rank {worst} waited most: {percent(waited)} of its time; the mean of {len(waits)} ranks "
        f"is {percent(mean)}. This page is about rank {worst}."
    )


def _records(run: Run) -> Finding | None:
    """Finding: quarantined records and stalls; ``None``: there were none."""
    datasets = run.own.last.datasets.items()
    bad = [f"{name} {one.quarantined}" for name, one in datasets if one.quarantined]
    stalls = [f"{name} {one.stalls} ×" for name, one in datasets if one.stalls]
    parts = []
    if bad:
        total = sum(one.quarantined for _, one in datasets)
        parts.append(f"{total} bad records were left out ({', '.join(bad)}).")
    if stalls:
        parts.append(f"The mixture waited 5 s and more for {', '.join(stalls)}.")
    return Finding(" ".join(parts), level="notice") if parts else None


def _end(run: Run) -> Finding | None:
    """Finding: restarts, and how the run ended; ``None``: well, and without restarts."""
    last = run.own.last
    restarts = len({one.worker_pid for one in run.own.moments}) - 1
    parts = []
    if restarts > 0:
        parts.append(f"The loader's child was started again {restarts} ×.")
    if run.state == "killed":
        parts.append(
            f"The record stops after {clock(run.length_s)} without an end: the run was killed, or "
            f"its machine was lost or is another one. It was {last.phase} then."
        )
    elif run.state == "runs":
        parts.append(f"It has not ended: it is {last.phase}.")
    return Finding(" ".join(parts), level="notice") if parts else None


MOST_MARKS = 60
"""Most moves that a drawing marks: more marks would hide the lines."""
_MOST_ROWS = 8
_FAR = 4
"""Times the rate of training above which the bound is not drawn."""
_MOVER_COLOURS = {"reflex": "bad", "person": "d"}


def page(run: Run, other: Run | None = None, *, ideal: Run | None = None) -> str:
    """Give the page as HTML.

    Args:
        run: run that the page is about.
        other: a run to put beside it.
        ideal: a run of the same trainer that was given one batch again and again.
    """
    every = list(zip("AB", [run] if other is None else [run, other], strict=False))
    sides = [
        {
            "run": one,
            "letter": letter,
            "began": time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(one.begin_s)),
            "findings": findings(one, ideal),
        }
        for letter, one in every
    ]
    return render(
        "autoloader.cli",
        "report.html.jinja",
        sides=sides,
        drawn=list(charts(every)),
        number=number,
        percent=percent,
        size=format_bytes,
        movers=MOVERS,
        value_words=value_words,
        fault_columns=[name for name, one in FAULTS.items() if one.column],
    )


class _Plot(NamedTuple):
    """One chart over time, for any run.

    Attributes:
        key: name of the chart.
        title: subject of the chart.
        unit: unit of its values; statistics have ratios and bytes.
        lines: label → CSS variable, and path of the figure in ``Statistics``.
        pauses: whether lines but limits are broken while training takes no batches.
        top: least end of the value axis.
    """

    key: str
    title: str
    unit: str
    lines: Mapping[str, tuple[str, str]]
    pauses: bool = False
    top: float = 0.0

    def of(self, run: Run) -> list[Line]:
        """Lines of a run, without the lines that have no value."""
        scale, found = {"%": 100.0, "GiB": 1 / GIB, "": 1.0}[self.unit], []
        for label, (colour, path) in self.lines.items():
            points: list[Point | None] = []
            for moment in run.own.moments:
                broken = self.pauses and colour != "limit" and moment.phase != "running"
                value = None if broken else _figure(run, moment, path)
                at_s = max(0.0, moment.at_s - run.begin_s)
                points.append(None if value is None else (at_s, scale * value))
            if any(points):
                found.append(Line(label, points, colour, steps=colour == "limit"))
        return found


def _figure(run: Run, moment: Statistics, path: str) -> float | None:
    """A figure of a moment; ``None`` where it is not known, or would hide others."""
    value: float | None = attrgetter(path)(moment)
    took = run.samples_per_s
    if path == "bound_per_s" and took and value and value > _FAR * took:
        return None  # training's line would lie flat
    return value if path != "cache.hit_ratio" or moment.cache.budget_bytes else None


_PLOTS = (
    _Plot("throughput", "Samples a second: what training took, what the loader could give", "",
          {"training took": ("a", "samples_per_s"),
           f"the loader could give (where below {_FAR} ×)": ("c", "bound_per_s")}, pauses=True),
    _Plot("waits", "Share of its time that training waited for data", "%",
          {"waited": ("b", "wait_ratio")}, pauses=True, top=5.0),
    _Plot("memory", "Memory: what the machine could still give, and the floor", "GiB",
          {"headroom": ("a", "headroom_bytes"), "RAM floor": ("limit", "floor_bytes")}),
    _Plot("held", "Memory: what the loader held, without cached frames", "GiB",
          {"the loader": ("d", "held_bytes")}),
    _Plot("ring", "Batches ready in the ring, of its slots", "",
          {"ready": ("a", "ring.filled"), "slots": ("limit", "ring.slots")}, pauses=True),
    _Plot("cache", "Frames shown from the cache instead of decoded", "%",
          {"hit ratio": ("a", "cache.hit_ratio")}, top=10.0),
)  # fmt: skip


def _in_one_line(number: int, move: Move) -> str:
    moved = changes_words(dict(list(move.changes.items())[:4])) if move.changes else ""
    return f"{number}: {MOVERS.get(move.by, move.by)}: {move.why}" + (f": {moved}" if moved else "")


def charts(sides: Sequence[tuple[str, Run]]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield (letter, chart) in reading order; ``None`` where a run has nothing to show.

    A chart has a key, a title, (CSS variable, label) of its lines as legend, and its SVG element.

    Args:
        sides: letter and run of each side of the page.
    """
    end_s = max(run.length_s for _, run in sides)
    frames = [_timeline(run, end_s, letter) for letter, run in sides]
    for plot in _PLOTS:
        drawn = [plot.of(run) for _, run in sides]
        values = [one[1] for lines in drawn for line in lines for one in line.points if one]
        top = max([plot.top, *values])
        # Near a floor far from zero, lines on an axis from zero would be flat.
        foot = min(values) if plot.key == "memory" and min(values) > top / 2 else 0.0
        if values:
            for (letter, _), frame, lines in zip(sides, frames, drawn, strict=True):
                legend = tuple((line.colour, line.label) for line in lines)
                svg = over_time(plot.key, plot.title, plot.unit, lines, frame, foot=foot, top=top)
                chart = {"key": plot.key, "title": plot.title, "legend": legend, "svg": svg}
                yield letter, chart if lines else None
        if plot.key == "held":
            rows = [_knobs(run, frame) for (_, run), frame in zip(sides, frames, strict=True)]
            if any(rows):
                yield from zip((letter for letter, _ in sides), rows, strict=True)


def _knobs(run: Run, frame: Timeline) -> dict[str, Any] | None:
    """Chart data of the knobs that moved; ``None``: none did."""
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
        (one for one in changes if len(changes[one]) > 1), key=lambda k: -len(changes[k])
    )
    if not moved:
        return None
    rows = {knob: changes[knob] for knob in sorted(moved[:_MOST_ROWS])}
    left_out = len(moved) - len(rows)
    title = "Knobs that moved" + (f" (and {left_out} more)" if left_out else "")
    svg = rows_over_time("knobs", title, rows, frame)
    return {"key": "knobs", "title": title, "legend": (), "svg": svg}


def _timeline(run: Run, end_s: float, letter: str) -> Timeline:
    """Time axis of a run, with stretches below the floor and parked ones shaded."""
    shades = [(one.begin_s, one.end_s, "below") for one in run.below_floor]
    for stretch, after in run.stretches(lambda moment: moment.phase == "parked"):
        end_at_s = run.own.last.at_s if after is None else after.at_s
        shades.append((stretch[0].at_s - run.begin_s, end_at_s - run.begin_s, "parked"))
    moves = list(enumerate(run.own.moves, start=1))[-MOST_MARKS:]
    marks = tuple(
        Mark(
            max(0.0, move.at_s - run.begin_s),
            f"#move-{letter}{number}",
            _in_one_line(number, move),
            _MOVER_COLOURS.get(move.by, "a"),
        )
        for number, move in moves
    )
    return Timeline(end_s, marks, tuple(shades[:100]), letter)
