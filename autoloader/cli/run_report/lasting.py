"""What of a run's record lasted: growths that paid and were in force at the end.

The record is kept of every run, where a decision log is asked for; its rates are the trainer's.

Not here: what lasting means (``process.control.lasting``), asking the person (``cli.profile``).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from autoloader.cli.run_report.run import Run
from autoloader.controller.profile import MixtureKind
from autoloader.process.control.lasting import Lasting, Paid, at_least, gathered
from autoloader.telemetry.statistics import Move, Snapshot

_AROUND_S = 30.0
"""Rates so long before and after a change are told beside it."""


def lasting_of(run: Run) -> Lasting:
    """What lasted of a run's training loader."""
    last = run.own.last
    facts = run.facts
    kind = facts.get("mixture")
    paid = []
    for move in run.moves:
        grown = _growth(move)
        if grown and _in_force(grown, move.at_s, run.own.moments):
            paid.append(
                Paid(
                    grown,
                    _rate(run.own.moments, move.at_s - _AROUND_S, move.at_s),
                    _rate(run.own.moments, move.at_s, move.at_s + 2 * _AROUND_S),
                    last.at_s - move.at_s,
                    run.name,
                )
            )
    return gathered(
        [paid],
        reader=str(last.knobs.get("reader", "")),
        cpus=int(facts.get("cpus") or 0),
        mixture=None if kind is None else MixtureKind.model_validate(kind),
        looked_at=len(run.moves),
    )


def _growth(move: Move) -> dict[str, int]:
    """What a change of the policy added, where it was judged to pay; else nothing."""
    if move.by != "policy" or move.verdict != "paid":
        return {}
    after = {key: new for key, (_, new) in move.changes.items()}
    grew = all(
        isinstance(new, int) and (old is None or new > old) for old, new in move.changes.values()
    )
    return after if grew and "cache_bytes" not in after else {}


def _in_force(grown: dict[str, int], since_s: float, moments: Iterable[Snapshot]) -> bool:
    """Whether no moment since then had less; the moment of the change itself may be older."""
    later = [one for one in moments if one.at_s > since_s + 1 and one.knobs]
    return bool(later) and all(
        at_least(one.knobs.get(key), to) for one in later for key, to in grown.items()
    )


def _rate(moments: Iterable[Snapshot], begin_s: float, end_s: float) -> float | None:
    rates = [
        one.consumer.samples_per_s
        for one in moments
        if begin_s <= one.at_s <= end_s and one.consumer.samples_per_s is not None
    ]
    return statistics.median(rates) if rates else None
