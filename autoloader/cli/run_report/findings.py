"""Sentences about a run: its limit, its memory, the controller's actions and their reasons.

Not here: figures (``run``), the page (``page``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean

from autoloader.cli.run_report.run import Run, cost_of
from autoloader.controller.states import STATE_MEANING
from autoloader.host.units import format_bytes
from autoloader.telemetry.pictures.charts import clock
from autoloader.telemetry.statistics import Move
from autoloader.telemetry.verdict import LITTLE_RATIO, MOSTLY_RATIO, value_words

LEAST_SHARE = 0.01
"""Of the time, that a state must have had to be told."""
_REMEDIES = {
    "decode": "More processors decode more; smaller images, `mixing.chain` and `cache_bytes` leave "
    "less to decode. `autoloader plan` shows what each would give.",
    "read": "The storage answers too slowly. A faster disk, more `io_threads` and `read_ahead`, or "
    "a profile with a local `cache` disk help.",
    "memory": "The loader had to stay small for the RAM floor. More memory, a lower `ram_floor`, "
    "or a quieter neighbour would let it grow.",
}
MOVERS = {"policy": "the controller", "reflex": "the memory reflex", "person": "a person"}
_LIMITS = {
    "training": "the training step itself",
    "gpu": "the GPU",
    "memory": "memory: the loader had to stay small",
    "decode": "decoding images",
    "read": "reading from storage",
    "": "unknown",
}
_MOST_CHANGES = 4
VERDICTS = {
    "paid": "it paid",
    "nothing": "it gave nothing and was taken back",
    "lost": "it cost speed and was taken back",
    "refused": "there was no room for it any more",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer.

    Attributes:
        question: question that a reader has.
        answer: the answer in one sentence.
        more: further sentences of the answer.
        level: "good", "notice" or "bad".
    """

    question: str
    answer: str
    more: tuple[str, ...] = ()
    level: str = "good"


def findings(run: Run, ideal: Run | None = None) -> tuple[Finding, ...]:
    """The answers, in the order in which they are asked.

    Args:
        run: run that the findings are about.
        ideal: a run of the same trainer with ``replay_one_batch``, where there is one.
    """
    return tuple(
        one
        for one in (
            _limit(run),
            _cost(run, ideal),
            _memory(run),
            _controller(run),
            _ranks(run),
            _records(run),
            _end(run),
        )
        if one is not None
    )


def percent(ratio: float | None) -> str:
    """Of 1, for people."""
    if ratio is None:
        return "–"
    return f"{100 * ratio:.1f} %" if ratio < 0.0995 else f"{100 * ratio:.0f} %"


def _limit(run: Run) -> Finding:
    question = "What limits this run?"
    if run.replays:
        return Finding(question, "The trainer itself: it was given one batch again and again.")
    waited = run.wait_ratio
    if waited is None:
        return Finding(question, "Nothing was measured: no batch was taken for long enough.")
    if waited < LITTLE_RATIO or not run.waits:
        pace = "the GPU" if next(iter(run.limits), "") == "gpu" else "the training step"
        return Finding(
            question,
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
        question,
        f"{who} training waited for data {percent(waited)} of its time, and "
        f"{percent(share)} of that waiting was for {what}.",
        (*_bound(run), _REMEDIES.get(stage, "")),
        "bad" if loader else "notice",
    )


def _bound(run: Run) -> tuple[str, ...]:
    took, bound = run.samples_per_s, run.bound_per_s
    if took is None:
        return ()
    if bound is None or bound < took:
        return (f"Training took {took:,.0f} samples/s.",)
    return (f"Training took {took:,.0f} samples/s; the loader could give {bound:,.0f}.",)


def _cost(run: Run, ideal: Run | None) -> Finding | None:
    question = "Would a perfect loader help?"
    if run.replays:
        return None
    cost = None if ideal is None else cost_of(run, ideal)
    waited = run.wait_ratio
    if ideal is not None and cost is not None:
        apart = waited is not None and cost - waited >= 0.05
        return Finding(
            question,
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
        question,
        f"The loader costs you {percent(waited)} by the time spent waiting.",
        (
            "A run with `replay_one_batch=True` (`--ideal-loader`) measures it whole, with what "
            "the loader takes of the processors: `autoloader report RUN IDEAL`.",
        ),
        level="good" if waited < LITTLE_RATIO else "notice",
    )


def _memory(run: Run) -> Finding | None:
    question = "Was memory short?"
    floor = run.own.last.memory.floor_bytes
    least = run.least_headroom_bytes
    if least is None:
        return None
    holds = f"The loader held {format_bytes(run.most_bytes)} at most." if run.most_bytes else ""
    if not run.below_floor:
        return Finding(
            question,
            f"No: the least headroom was {format_bytes(least)}, and the floor is "
            f"{format_bytes(floor)}.",
            (holds,),
        )
    told = []
    for one in run.below_floor[:5]:
        others = one.lost_bytes - one.own_bytes
        who = (
            f"others took {format_bytes(others)}"
            + (
                f" while the loader gave {format_bytes(-one.own_bytes)} back"
                if one.own_bytes < 0
                else f" and the loader {format_bytes(one.own_bytes)}"
            )
            if one.lost_bytes > 0
            else "it was so from the start"
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
        question,
        f"Yes: headroom was below the floor of {format_bytes(floor)} {times}, for "
        f"{clock(below_s)} in all; the least headroom was {format_bytes(least)}.",
        (*told, holds),
        "bad",
    )


def _controller(run: Run) -> Finding:
    question = "What did the controller do, and why?"
    states = _states(run)
    if not run.moves:
        why = f" Its last word: {run.own.last.why}." if run.own.last.why else ""
        none = "Nothing: no knob moved." if run.own.last.state else "There was none; nothing moved."
        return Finding(question, none + why, states)
    by = Counter(move.by for move in run.changes)
    parts = [f"{MOVERS.get(who, who)} {count} ×" for who, count in by.most_common()]
    times = "once" if len(run.changes) == 1 else f"{len(run.changes)} times"
    grouped = Counter((move.by, move.why) for move in run.moves)
    more = []
    for (who, why), count in grouped.most_common(5):
        moved = [one for one in run.moves if (one.by, one.why) == (who, why)]
        knobs = sorted({knob for one in moved for knob in one.changes})
        shown = "; ".join(_changes(moved, knob) for knob in knobs[:4]) + (
            " …" if len(knobs) > 4 else ""
        )
        when = f"At {clock(moved[0].at_s - run.begin_s)}" if count == 1 else f"{count} ×"
        more.append(f"{when}, {MOVERS.get(who, who)}: {why}" + (f": {shown}." if shown else "."))
    answer = f"Knobs moved {times}: {', '.join(parts)}." if parts else "No knob moved."
    return Finding(question, answer, (*more, *states))


def _states(run: Run) -> tuple[str, ...]:
    """Share of the time in each state, and the reflex's actions."""
    meanings = {one.value: meaning for one, meaning in STATE_MEANING.items()}
    found = [
        f"{percent(share)} of its time in {name}: {meanings.get(name, 'of a later version')}."
        for name, share in run.states.items()
        if share >= LEAST_SHARE
    ]
    control = run.own.last.control
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
    waits = run.rank_waits()
    if len(waits) < 2:
        return None
    worst, waited = next(iter(waits.items()))
    mean = fmean(waits.values())
    return Finding(
        "Do all ranks fare alike?",
        f"Rank {worst} waited most: {percent(waited)} of its time; the mean of {len(waits)} ranks "
        f"is {percent(mean)}. This page is about rank {worst}.",
    )


def _records(run: Run) -> Finding | None:
    datasets = run.own.last.datasets.items()
    bad = [f"{name} {one.quarantined}" for name, one in datasets if one.quarantined]
    stalls = [f"{name} {one.stalls} ×" for name, one in datasets if one.stalls]
    parts = []
    if bad:
        total = sum(one.quarantined for _, one in datasets)
        parts.append(f"{total} bad records were left out ({', '.join(bad)}).")
    if stalls:
        parts.append(f"The mixture waited 5 s and more for {', '.join(stalls)}.")
    return Finding("Is the data sound?", " ".join(parts), level="notice") if parts else None


def _end(run: Run) -> Finding | None:
    last = run.own.last
    restarts = len({one.worker_pid for one in run.own.moments}) - 1
    parts = []
    if restarts > 0:
        parts.append(f"The loader's child was started again {restarts} ×.")
    if not run.own.ended:
        parts.append(
            f"The record stops after {clock(run.length_s)} without an end: the run goes on, was "
            f"killed, or lost its machine. It was {last.phase} then."
        )
    return Finding("How did it end?", " ".join(parts), level="notice") if parts else None
