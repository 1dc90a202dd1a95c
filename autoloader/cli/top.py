"""``autoloader top``: what a running loader does, why, and what limits it.

It reads what the loader writes anyway, and asks it nothing: no lock, no message, no signal.

A frame is a list of styled lines that fit the given width and height. The terminal lays nothing
out, so a frame costs little and reads the same over ssh. The worst comes first, and rows that do
not fit are counted.

Not here: finding runs (``telemetry.run_record``), what their numbers mean (``telemetry.verdict``).
"""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autoloader.cli.output import answered, emit, emit_rendered
from autoloader.controller.states import State
from autoloader.errors import UsageError, printable
from autoloader.host.units import format_bytes, format_seconds
from autoloader.spec.knobs import UNTUNED_KNOBS, used_knobs
from autoloader.telemetry import verdict
from autoloader.telemetry.run_record import living_runs
from autoloader.telemetry.statistics import FAULTS, DatasetStatistics, Move, Statistics

_NONE = "no loader of yours runs on this machine"
_PERIOD_S = 2.0
"""Seconds between two looks."""
_LABEL = 8
_LATE_S = 5.0
_MOST_MOVES, _MOST_RANKS, _MOST_STAGES = 4, 8, 4
_GAUGE = 24
"""Characters of a gauge."""
_VERDICTS = {"paid": "it paid", "nothing": "taken back: no gain", "lost": "taken back: slower"}
_KNOB_LINES = 2
_FIRST = ("ring_slots", "decode_threads")
_RUNS = {"run": 40, "samples/s": -10, "waits": -8, "limited by": -18}
"""Columns of a table, each with its characters; a negative number aligns to the right."""
_STAGES = {"stage": 24, "workers": -8, "a sample": -10, "busy": -7, "possible/s": -12}
_RANKS = {"rank": 24, "samples/s": -10, "waits": -8, "ring": -8, "batches": -10}
_COLUMNS = {name: one.column for name, one in FAULTS.items() if one.column}
_DATASETS = {"dataset": 24, "share": -9, "weight": -9, "queue": -7} | {
    title: -len(title) - 2 for title in _COLUMNS.values()
}


def show_runs(run: str | None, *, once: bool) -> None:
    """Show running loaders, once or until the user ends it.

    Args:
        run: name, script or process id of a run; ``None``: all runs.
        once: whether they are shown once.

    Raises:
        UsageError: no such run is there.
    """
    groups = _groups(run)
    if answered({"runs": [one.as_dict() for group in groups for one in group]}):
        return
    if not once and Console().is_terminal:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(run)
    elif groups:
        emit_rendered(lambda console: _print(console, _frame(console, groups)))
    else:
        emit(_NONE)


def _groups(run: str | None) -> list[list[Statistics]]:
    """Give the runs that are meant, each with all its loaders on this machine.

    Raises:
        UsageError: a run is named, and is not there.
    """
    groups: dict[str, list[Statistics]] = {}
    for moment in living_runs():
        groups.setdefault(moment.node or moment.run, []).append(moment)
    if run is None:
        return list(groups.values())
    named = [group for group in groups.values() if any(_is_named(one, run) for one in group)]
    if not named:
        there = printable(", ".join(f"{one.run} ({one.script})" for (one, *_) in groups.values()))
        first = (
            "name one of these, or leave RUN out to see all" if there else "start your run first"
        )
        raise UsageError(
            f"no running loader is called {run!r}; running: {there or 'none'}",
            remedy=f"{first}; loaders of other users and other machines are not seen",
        )
    return named


def _is_named(moment: Statistics, run: str) -> bool:
    """True if a process id, or a part of a name, means the run."""
    if run.isdecimal():
        return int(run) in (moment.trainer_pid, moment.worker_pid)
    return run in moment.run or run in moment.script


def _frame(console: Console, groups: Sequence[Sequence[Statistics]]) -> list[Text]:
    frame = Frame(console.width, console.height, time.time())
    return draw_run(groups[0], frame) if len(groups) == 1 else draw_list(groups, frame)


def _print(console: Console, lines: Sequence[Text]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def _follow(run: str | None) -> None:
    """Show frames until interrupted, or until the run that was named has ended."""
    console, last = Console(), list[Text]()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                groups = _groups(run)
            except UsageError:
                if not last:
                    raise
                break
            lines = _frame(console, groups) if groups else [Text(_NONE)]
            last = lines if groups else last
            live.update(Text("\n", no_wrap=True).join(lines), refresh=True)
            time.sleep(_PERIOD_S)
    _print(console, last)
    console.print("the run has ended", style="bold")


class Frame(NamedTuple):
    """Room for the lines, and the time at which they are drawn.

    Attributes:
        width, height: size of the terminal in characters.
        now_s: Unix time of drawing, seconds.
    """

    width: int
    height: int
    now_s: float

    def fit(self, lines: Sequence[Text]) -> list[Text]:
        """Cut the lines to the frame's width and height."""
        for line in lines:
            line.truncate(self.width, overflow="ellipsis")
        return list(lines[: self.height])


def draw_list(groups: Sequence[Sequence[Statistics]], frame: Frame) -> list[Text]:
    """Draw several runs, a line each: the run that waits most comes first."""
    rows = []
    for group in sorted(groups, key=lambda one: -_wait(worst(one))):
        moment = worst(group)
        rate = sum(one.samples_per_s or 0.0 for one in in_use(group))
        name = f"{moment.script} {moment.run}"
        phase = "not known yet" if moment.phase == "running" else moment.phase
        limit = verdict.limit_name(moment) or phase
        rows.append((name, _number(rate), _percent(moment.wait_ratio), limit))
    return frame.fit([*_table(_RUNS, rows), Text("`autoloader top RUN` shows one of them", "dim")])


def draw_run(group: Sequence[Statistics], frame: Frame) -> list[Text]:
    """Draw one run in full.

    Args:
        group: the loaders of a node's ranks, or of one trainer.
        frame: room for the lines.
    """
    moment = worst(group)
    head = [*_head(group, moment, frame), *_flow(moment), *_stages(moment)]
    head += _knobs(moment, frame)
    head += [*_moves(moment.moves, frame), *_ranks(group)]
    return frame.fit([*head, *_datasets(moment.datasets, frame.height - len(head))])


def worst(group: Sequence[Statistics]) -> Statistics:
    """The loader in use whose trainer waits most."""
    return max(in_use(group), key=lambda one: (_wait(one), one.at_s))


def _wait(one: Statistics) -> float:
    return one.wait_ratio or 0.0


def in_use(group: Sequence[Statistics]) -> list[Statistics]:
    """Loaders that are not parked; all of them where all are parked."""
    return [one for one in group if one.phase != "parked"] or list(group)


def _head(group: Sequence[Statistics], moment: Statistics, frame: Frame) -> Iterator[Text]:
    """Lines with the name, place and state of a run."""
    title = Text().append(printable(moment.script) or "a loader", "bold")
    title.append(f"  {moment.run}  {moment.split}", "dim")
    splits = sorted({one.split for one in group} - {moment.split})
    if splits:
        title.append(f"  ({', '.join(splits)} paused)", "dim")
    title.append(f"  up {format_seconds(frame.now_s - moment.started_at_s)}", "dim")
    if moment.restarts:
        title.append(f"  {moment.restarts} restarts", "bold red")
    yield title
    late_s = frame.now_s - moment.at_s
    if late_s > _LATE_S:
        yield Text(f"silent for {format_seconds(late_s)}: its process does not run", "bold red")
    limit = verdict.limit_name(moment)
    style = "bold green" if limit in ("training", "gpu") else "bold yellow"
    style = "bold red" if limit == "memory" else style
    for words, how in ((verdict.limit_words(moment), style), (verdict.cost_words(moment), "")):
        yield from (Text(line, how) for line in textwrap.wrap(words, max(20, frame.width)))
    if moment.state:
        short = moment.state in (State.SHRINK, State.EMERGENCY)
        yield _line("control", f"{moment.state}: {moment.why}", "red" if short else "")
    else:
        yield _line("control", "off: knobs stay as they are")


def _flow(moment: Statistics) -> Iterator[Text]:
    """Lines with the rate, the waiting and the fill of ring and cache."""
    ring, cache = moment.ring, moment.cache
    rate = f"{_number(moment.samples_per_s)} samples/s"
    if moment.bound_per_s:
        share = "" if moment.bound_ratio is None else f" ({_percent(moment.bound_ratio)})"
        rate += f" of {_number(moment.bound_per_s)} possible{share}"
    if moment.step_s:
        rate += f", a batch every {moment.step_s * 1e3:.0f} ms"
    yield _line("rate", rate)
    ratio = moment.wait_ratio
    told = "not measured" if ratio is None else f"{_percent(ratio)} of the last seconds"
    yield _gauge("waits", ratio, 1.0, told, bad=(ratio or 0.0) >= verdict.LITTLE_RATIO)
    free, floor = moment.headroom_bytes, moment.floor_bytes
    most = max(free or 0, 2 * floor, moment.most_headroom_bytes or 0)
    told = f"{_size(free)} free, floor {_size(floor)}"
    short = free is not None and free < floor + moment.margin_bytes
    yield _gauge("memory", free, most, told, mark=floor, bad=short)
    ready = f"{ring.filled} of {ring.slots} batches ready"
    if ring.filled > ring.slots:  # it has just been made smaller
        ready = f"{ring.filled} batches ready, {ring.slots} from now on"
    text = f"{ready}, {_size(ring.allocated_bytes)}"
    text += f"; its processes {_size(moment.loader_bytes)}"
    if moment.idle_cpus is not None:
        text += f"; {moment.idle_cpus:.1f} idle CPUs"
    if moment.gpu_busy_ratio is not None:
        text += f"; GPU {_percent(moment.gpu_busy_ratio)}"
    yield _line("ring", text)
    if cache.budget_bytes:
        held = f"{_size(cache.held_bytes)} of {_size(cache.budget_bytes)}"
        yield _line("cache", f"{held}, {_percent(cache.hit_ratio)} of the frames come from it")


def _gauge(
    label: str, value: float | None, most: float, told: str, *, mark: float = 0.0, bad: bool
) -> Text:
    """A bar from zero to ``most`` with a line at ``mark``, and words behind it."""
    filled = 0 if value is None else round(_GAUGE * min(value / (most or 1), 1.0))
    bar = "#" * filled + "-" * (_GAUGE - filled)
    if mark:
        at = min(_GAUGE - 1, int(_GAUGE * mark / most))
        bar = f"{bar[:at]}|{bar[at + 1 :]}"
    return _line(label, "[").append(bar, "red" if bad else "green").append(f"] {told}")


def _stages(moment: Statistics) -> list[Text]:
    """Draw the slowest stages; the stage that limits the run is marked."""
    known = sorted(moment.stages, key=lambda one: one.bound_per_s or float("inf"))[:_MOST_STAGES]
    rows = [
        (
            one.name,
            one.workers,
            "" if one.service_s is None else f"{one.service_s * 1e3:.2f} ms",
            _percent(one.busy_ratio),
            _number(one.bound_per_s),
        )
        for one in known
    ]
    lines = _table(_STAGES, rows) if rows else []
    for one, line in zip(known, lines[1:], strict=False):
        if one.name == moment.limited_by:
            line.append("  ← limits")
            line.stylize("bold yellow")
    return lines


def _knobs(moment: Statistics, frame: Frame) -> Iterator[Text]:
    """Values in force, two lines at most; moved knobs come first, with their former values."""
    moved = {knob: pair[0] for move in moment.moves for knob, pair in move.changes.items()}
    names = [knob for knob in used_knobs(moment.knobs) if knob not in UNTUNED_KNOBS]
    lines = [_line("knobs", "")]
    for knob in sorted(names, key=lambda knob: (knob not in moved, knob not in _FIRST)):
        word = f"{printable(knob)} {verdict.value_words(knob, moment.knobs[knob])}"
        if knob in moved:
            word += f" (was {verdict.value_words(knob, moved[knob])})"
        if len(lines[-1].plain) + len(word) + 2 > frame.width:
            if len(lines) == _KNOB_LINES:
                break
            lines.append(_line("", ""))
        gap = "  " if len(lines[-1].plain) > _LABEL else ""
        lines[-1].append(f"{gap}{word}", "bold" if knob in moved else "")
    yield from lines


def _moves(moves: Sequence[Move], frame: Frame) -> Iterator[Text]:
    """Lines about the last moves of knobs, the latest first."""
    if moves:
        yield Text("what was done, the latest first", "dim")
    for move in list(reversed(moves))[:_MOST_MOVES]:
        by = "control" if move.by == "policy" else move.by
        line = Text().append(f"{format_seconds(frame.now_s - move.at_s):>7} ago  ", "dim")
        line.append(f"{by:<8}", {"reflex": "red", "person": "cyan"}.get(move.by, ""))
        text = f"{verdict.changes_words(move.changes)}: " if move.changes else ""
        text += printable(move.why)
        if move.verdict in _VERDICTS:
            text += f" ({_VERDICTS[move.verdict]})"
        indent = len(line.plain)
        first, *more = textwrap.wrap(text, max(20, frame.width - indent)) or [""]
        yield line.append(first)
        yield from (Text(" " * indent + rest) for rest in more)


def _ranks(group: Sequence[Statistics]) -> list[Text]:
    """Draw the ranks of this node, the worst wait first; nothing for a single rank."""
    ranks = {one.rank: one for one in in_use(group)}
    if len(ranks) == 1:
        return []
    rows = [
        (
            f"{one.rank} of {one.world_size}",
            _number(one.samples_per_s),
            _percent(one.wait_ratio),
            f"{one.ring.filled}/{one.ring.slots}",
            one.batches,
        )
        for one in sorted(ranks.values(), key=lambda one: -_wait(one))
    ]
    return _table(_RANKS, rows, _MOST_RANKS, "which wait less")


def _datasets(datasets: Mapping[str, DatasetStatistics], room: int) -> list[Text]:
    """Draw datasets in ``room`` lines, datasets with faults first."""
    if room < 2:
        return []
    found = sorted(datasets.items(), key=lambda one: _trouble(one[1]), reverse=True)
    rows = [
        (name, _percent(one.share), _percent(one.weight), one.queue, *_shown(one))
        for name, one in found
    ]
    bad = sum(any(_shown(one)) for _, one in found)
    most = len(rows) if len(rows) < room else max(1, room - 2)
    lines = _table(_DATASETS, rows, most, "all well" if bad <= most else "")
    for line in lines[1 : 1 + min(bad, most)]:
        line.stylize("red")
    return lines


def _shown(one: DatasetStatistics) -> list[int]:
    """Counts of faults that have a column."""
    return [getattr(one, name) for name in _COLUMNS]


def _trouble(one: DatasetStatistics) -> tuple[bool, float, float]:
    return any(getattr(one, name) for name in FAULTS), sum(_shown(one)), one.weight


def _line(label: str, text: str, style: str = "") -> Text:
    return Text().append(f"{label:<{_LABEL}}", "dim").append(text, style)


def _table(
    columns: Mapping[str, int],
    rows: Iterable[Sequence[object]],
    most: int | None = None,
    others: str = "",
) -> list[Text]:
    """Lines of a table, its titles first, each cell cut to its column's width.

    Args:
        columns: titles, with their characters.
        rows: cells of each line.
        most: number of rows that are shown; ``None``: all.
        others: words about the rows that are only counted.
    """
    lines = []
    for cells in (tuple(columns), *rows):
        line = ""
        for cell, width in zip(cells, columns.values(), strict=True):
            text, room = printable(str(cell)), abs(width)
            cut = text if len(text) <= room else text[: room - 1] + "…"
            line += cut.rjust(room) if width < 0 else f"{cut:<{room}} "
        lines.append(Text(line))
    lines[0].stylize("dim")
    if most is not None and len(lines) - 1 > most:
        told = f"and {len(lines) - 1 - most} more" + (f", {others}" if others else "")
        lines[1 + most :] = [Text(told, "dim")]
    return lines


def _size(count: int | None) -> str:
    return "?" if count is None else format_bytes(count)


def _number(value: float | None) -> str:
    """A number for people, with three digits or whole; "?" for ``None``."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _percent(ratio: float | None) -> str:
    return "?" if ratio is None else f"{ratio * 100:.1f} %"
