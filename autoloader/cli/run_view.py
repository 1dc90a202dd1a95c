"""Draws running loaders as lines of text: one in full, or several with a line each.

Theory of operation. A frame is a list of styled lines that fit the given width and height; nothing
is laid out by the terminal, so that a frame costs little and reads the same over ssh. What is worst
comes first, and what does not fit is counted.

Not here: finding runs (``telemetry.runtime``), what their numbers mean (``telemetry.verdict``),
showing frames one after the other (``cli.top``).
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from autoloader.controller.states import STATE_MEANING, State
from autoloader.errors import printable
from autoloader.host.units import format_bytes, format_seconds
from autoloader.spec.knobs import UNUSED_KNOBS
from autoloader.telemetry.statistics import DatasetStatistics, Move, Snapshot, StageMoment
from autoloader.telemetry.verdict import (
    LITTLE_RATIO,
    changes_words,
    cost_words,
    limit_words,
    value_words,
)

_LABEL = 8
_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN_BLOCKS = ".:-=+*#@"
_NOT_MEASURED = "-"
_LATE_S = 5.0
_FEW_MOVES, _MANY_MOVES = 3, 8
_FEW_RANKS, _MANY_RANKS = 3, 16
_MOST_STAGES = 4
_MINUTE = 60
_TALL = 20
"""Lines left below the head from which on more of everything is shown."""
_MOVERS = {"policy": "control"}
"""Who moved knobs, as the lines above call it."""
_VERDICTS = {"paid": "it paid", "nothing": "taken back: no gain", "lost": "taken back: slower"}
_KNOB_LINES = 2
_FIRST = ("ring_slots", "decode_threads")
_RUNS = {"run": 40, "samples/s": -10, "waits": -8, "limited by": -18}
"""Columns of a table, each with its characters; a negative number aligns to the right."""
_STAGES = {"stage": 24, "workers": -8, "a sample": -10, "busy": -7, "possible/s": -12}
_RANKS = {"rank": 24, "samples/s": -10, "waits": -8, "ring": -8, "batches": -10}
_DATASETS = {
    "dataset": 24, "share": -9, "weight": -9, "queue": -7, "stalls": -8, "bad records": -13,
}  # fmt: skip
_UNTUNED = ("reader", "min_ready_datasets")
"""Knobs that never move while a run lasts."""


@dataclass(frozen=True, slots=True)
class Frame:
    """How much room there is, and when it is drawn.

    Attributes:
        width, height: in characters.
        now_s: Unix time.
        blocks: eight characters, from low to high.
    """

    width: int = 80
    height: int = 24
    now_s: float = 0.0
    blocks: str = _BLOCKS

    @classmethod
    def of(cls, width: int, height: int, encoding: str) -> Frame:
        """A frame for now, in characters that the encoding has."""
        try:
            _BLOCKS.encode(encoding or "ascii")
        except (LookupError, UnicodeEncodeError):
            return cls(width, height, time.time(), _PLAIN_BLOCKS)
        return cls(width, height, time.time())

    def fit(self, lines: Sequence[Text]) -> list[Text]:
        """The lines, none wider than the frame."""
        for line in lines:
            line.truncate(self.width, overflow="ellipsis")
        return list(lines)


def draw_list(groups: Sequence[Sequence[Snapshot]], frame: Frame) -> list[Text]:
    """Several runs, a line each: the one that waits most first."""
    rows = [_titles(_RUNS)]
    for group in sorted(groups, key=lambda one: -(worst(one).consumer.wait_ratio or 0.0)):
        moment = worst(group)
        rate = sum(one.consumer.samples_per_s or 0.0 for one in in_use(group))
        name, limit = f"{printable(moment.script)} {moment.run}", moment.limited_by or moment.phase
        waits = _percent(moment.consumer.wait_ratio)
        rows.append(Text(_row(_RUNS, name, _number(rate), waits, limit)))
    rows.append(Text("`autoloader top RUN` shows one of them", "dim"))
    return frame.fit(rows[: frame.height])


def draw_run(group: Sequence[Snapshot], frame: Frame) -> list[Text]:
    """One run in full.

    Args:
        group: the loaders of a node's ranks, or of one trainer.
        frame: the room.
    """
    moment = worst(group)
    head = [*_head(group, moment, frame), *_flow(moment, frame), *_stages(moment.stages, moment)]
    head += _knobs(moment, frame)
    room = frame.height - len(head)
    ranks = _ranks(group, _MANY_RANKS if room > _TALL else _FEW_RANKS)
    moves = list(_moves(moment.moves, frame, _MANY_MOVES if room > _TALL else _FEW_MOVES))
    room -= len(ranks) + len(moves)
    return frame.fit([*head, *moves, *ranks, *_datasets(moment.datasets, room)][: frame.height])


def worst(group: Sequence[Snapshot]) -> Snapshot:
    """The loader whose trainer waits most, of those that are in use."""
    return max(in_use(group), key=lambda one: (one.consumer.wait_ratio or 0.0, one.at_s))


def in_use(group: Sequence[Snapshot]) -> list[Snapshot]:
    """Those that are not parked; where all are, all of them."""
    return [one for one in group if one.phase != "parked"] or list(group)


def _head(group: Sequence[Snapshot], moment: Snapshot, frame: Frame) -> Iterator[Text]:
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
    limit = moment.limited_by
    style = "bold green" if limit in ("training", "gpu") else "bold yellow"
    yield Text(limit_words(moment), "bold red" if limit == "memory" else style)
    yield Text(cost_words(moment))
    if moment.state:
        text = f"{moment.state}: {moment.why}"
        meaning = STATE_MEANING.get(State(moment.state), "") if moment.state in _STATES else ""
        if meaning and len(text) + len(meaning) + 3 <= frame.width - _LABEL:
            text += f" ({meaning})"
        short = moment.state in (State.SHRINK, State.EMERGENCY)
        yield _line("control", text, "red" if short else "")
    else:
        yield _line("control", "off: knobs stay as they are")


_STATES = {state.value for state in State}


def _flow(moment: Snapshot, frame: Frame) -> Iterator[Text]:
    consumer, memory, ring, cache = moment.consumer, moment.memory, moment.ring, moment.cache
    rate = f"{_number(consumer.samples_per_s)} samples/s"
    if moment.bound_per_s:
        share = "" if moment.bound_ratio is None else f" ({_percent(moment.bound_ratio)})"
        rate += f" of {_number(moment.bound_per_s)} possible{share}"
    if consumer.step_s:
        rate += f", a batch every {consumer.step_s * 1e3:.0f} ms"
    yield _line("rate", rate)
    wide = min(_MINUTE, max(8, frame.width - 46))
    waits = _line("waits", "")
    for ratio in moment.lately.wait_ratios[-wide:]:
        high = ratio is not None and ratio >= LITTLE_RATIO
        block = _NOT_MEASURED if ratio is None else _block(ratio, 1.0, frame.blocks)
        waits.append(block, "dim" if ratio is None else "yellow" if high else "green")
    known_yet = consumer.wait_ratio is not None
    told = f"{_percent(consumer.wait_ratio)} of the last seconds" if known_yet else "not measured"
    waits.append(f" {told}")
    yield waits
    headrooms = moment.lately.headrooms_bytes[-wide:]
    known = [one for one in headrooms if one is not None]
    enough = memory.floor_bytes + memory.margin_bytes
    low = min([*known, memory.floor_bytes]) - memory.margin_bytes
    line = _line("memory", "")
    for one in headrooms:
        height = None if one is None else one - low
        style = "red" if one is not None and one < enough else "green"
        line.append(_block(height, max([*known, enough]) - low, frame.blocks), style)
    line.append(f" {_size(memory.headroom_bytes)} free, floor {_size(memory.floor_bytes)}")
    yield line
    ready = f"{ring.filled} of {ring.slots} batches ready"
    if ring.filled > ring.slots:  # it has just been made smaller
        ready = f"{ring.filled} batches ready, {ring.slots} from now on"
    text = f"{ready}, {_size(ring.allocated_bytes)}"
    text += f"; loader {_size(memory.loader_bytes)}"
    if moment.idle_cpus is not None:
        text += f"; {moment.idle_cpus:.1f} idle CPUs"
    if moment.gpu_busy_ratio is not None:
        text += f"; GPU {_percent(moment.gpu_busy_ratio)}"
    yield _line("ring", text)
    if cache is not None and cache.budget_bytes:
        held = f"{_size(cache.held_bytes)} of {_size(cache.budget_bytes)}"
        yield _line("cache", f"{held}, {_percent(cache.hit_ratio)} of the frames come from it")


def _stages(stages: Sequence[StageMoment], moment: Snapshot) -> Iterator[Text]:
    known = sorted(stages, key=lambda one: one.bound_per_s or float("inf"))
    if not known:
        return
    yield _titles(_STAGES)
    for one in known[:_MOST_STAGES]:
        service = "" if one.service_s is None else f"{one.service_s * 1e3:.2f} ms"
        busy, bound = _percent(one.busy_ratio), _number(one.bound_per_s)
        row = _row(_STAGES, printable(one.name), str(one.workers), service, busy, bound)
        limits = one.name == moment.limited_by
        yield Text(row + ("  ← limits" if limits else ""), "bold yellow" if limits else "")


def _knobs(moment: Snapshot, frame: Frame) -> Iterator[Text]:
    """The values in force, two lines at most; those that moved come first, with what they were."""
    moved = {knob: pair[0] for move in moment.moves for knob, pair in move.changes.items()}
    unused = (*_UNTUNED, *UNUSED_KNOBS.get(str(moment.knobs.get("reader")), ()))
    names = [knob for knob in moment.knobs if knob.rpartition(".")[2] not in unused]
    lines = [_line("knobs", "")]
    for knob in sorted(names, key=lambda knob: (knob not in moved, knob not in _FIRST)):
        word = f"{printable(knob)} {value_words(knob, moment.knobs[knob])}"
        if knob in moved:
            word += f" (was {value_words(knob, moved[knob])})"
        if len(lines[-1].plain) + len(word) + 2 > frame.width:
            if len(lines) == _KNOB_LINES:
                break
            lines.append(_line("", ""))
        gap = "  " if len(lines[-1].plain) > _LABEL else ""
        lines[-1].append(f"{gap}{word}", "bold" if knob in moved else "")
    yield from lines


def _moves(moves: Sequence[Move], frame: Frame, most: int) -> Iterator[Text]:
    if not moves:
        return
    yield Text("what was done, the latest first", "dim")
    for move in list(reversed(moves))[:most]:
        changes = changes_words(move.changes) if move.changes else ""
        ago = format_seconds(frame.now_s - move.at_s)
        style = {"reflex": "red", "person": "cyan"}.get(move.by, "")
        by = f"{_MOVERS.get(move.by, move.by):<8}"
        line = Text().append(f"{ago:>7} ago  ", "dim").append(by, style)
        text = f"{changes}: {printable(move.why)}" if changes else printable(move.why)
        if move.verdict in _VERDICTS:
            text += f" ({_VERDICTS[move.verdict]})"
        first, *more = textwrap.wrap(text, max(20, frame.width - len(line.plain))) or [""]
        yield line.append(first)
        for rest in more:
            yield Text().append(" " * len(f"{ago:>7} ago  {by}") + rest)


def _ranks(group: Sequence[Snapshot], most: int) -> list[Text]:
    """The ranks of this node, worst wait first; none where there is only one."""
    ranks = {one.rank: one for one in in_use(group)}
    if len(ranks) == 1:
        return []
    rows = sorted(ranks.values(), key=lambda one: -(one.consumer.wait_ratio or 0.0))
    found = [_titles(_RANKS)]
    for one in rows[:most]:
        rank, ready = f"{one.rank} of {one.world_size}", f"{one.ring.filled}/{one.ring.slots}"
        rate, waits = _number(one.consumer.samples_per_s), _percent(one.consumer.wait_ratio)
        found.append(Text(_row(_RANKS, rank, rate, waits, ready, str(one.consumer.batches))))
    if len(rows) > most:
        found.append(Text(f"and {len(rows) - most} more, which wait less", "dim"))
    return found


def _datasets(datasets: Mapping[str, DatasetStatistics], room: int) -> list[Text]:
    """Datasets, those in trouble first, in so many lines."""
    if room < 2:
        return []
    rows = sorted(datasets.items(), key=lambda one: _trouble(one[1]), reverse=True)
    found = [_titles(_DATASETS)]
    shown = rows if len(rows) < room else rows[: max(1, room - 2)]
    for name, one in shown:
        shares, counts = (one.share, one.weight), (one.queue, one.stalls, one.quarantined)
        row = _row(_DATASETS, printable(name), *map(_percent, shares), *map(str, counts))
        found.append(Text(row, "red" if one.stalls or one.quarantined else ""))
    if len(shown) < len(rows):
        found.append(Text(f"and {len(rows) - len(shown)} more, all well", "dim"))
        if any(one.stalls or one.quarantined for _, one in rows[len(shown) :]):
            found[-1] = Text(f"and {len(rows) - len(shown)} more", "dim")
    return found


def _trouble(one: DatasetStatistics) -> tuple[bool, float, float]:
    bad = bool(one.stalls or one.quarantined or one.interruptions)
    return bad, one.quarantined + one.stalls, one.weight


def _line(label: str, text: str, style: str = "") -> Text:
    return Text().append(f"{label:<{_LABEL}}", "dim").append(text, style)


def _titles(columns: Mapping[str, int]) -> Text:
    return Text(_row(columns, *columns), "dim")


def _row(columns: Mapping[str, int], *cells: str) -> str:
    """A line of a table, each cell cut to its column's width."""
    found = ""
    for text, width in zip(cells, columns.values(), strict=True):
        room = abs(width)
        cut = text if len(text) <= room else text[: room - 1] + "…"
        found += cut.rjust(room) if width < 0 else f"{cut:<{room}} "
    return found


def _block(value: float | None, most: float, blocks: str) -> str:
    if value is None or most <= 0:
        return " "
    return blocks[min(len(blocks) - 1, max(0, int(value / most * len(blocks))))]


def _size(count: int | None) -> str:
    return "?" if count is None else format_bytes(count)


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _percent(ratio: float | None) -> str:
    return "?" if ratio is None else f"{ratio * 100:.1f} %"
