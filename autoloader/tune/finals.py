"""The end of a study: start and finalists measured in turn, so that luck cannot win.

In each round every contender is measured once, the order reversed from round to round, so that a
drift of the machine meets all alike. What counts is the ratio to the start *within* a round. Its
mean over the rounds has an interval of 95 % (Student's, of the logarithms). Rounds go on until each
finalist's interval lies above 1, or ends below 1.02, or time is up. A finalist that cannot be 2 %
faster than the start is measured no more.

A finalist beats the start when its whole interval lies above 1. Among those within 2 % of the best,
the one with the least memory wins, the start included: a difference below 2 % is noise (field
record, A).

A round in which other processes took part of the processors is marked, and counts only where there
are too few quiet ones.

Not here: who becomes a finalist (``ledger``), how one is measured (``trial``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoloader.host.clock import Clock
from autoloader.host.frozen import frozen
from autoloader.spec.knobs import Knobs, used_knobs
from autoloader.tune.trial import Outcome, TrialResult

TIE_RATIO = 0.02
"""Rates closer than this are told apart by memory."""

UNDECIDED_RATIO = 0.2
"""An interval that allows a larger gain than this says that the rounds were too few."""

LEAST_ROUNDS = 2
"""Rounds that an interval needs."""

_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t, 97.5 %, for 1 to 15 degrees of freedom; beyond, the last is a little too careful."""


@dataclass(slots=True)
class Contender:
    """A knob set in the finals; ``rounds`` maps the number of a round to its result there."""

    knobs: Knobs
    is_start: bool = False
    rounds: dict[int, TrialResult] = field(default_factory=dict)
    out: str = ""

    @property
    def samples_per_s(self) -> float | None:
        """Median over its rounds; ``None`` before the first."""
        rates = [r.samples_per_s for r in self.rounds.values() if r.samples_per_s is not None]
        return statistics.median(rates) if rates else None

    @property
    def peak_rss_bytes(self) -> int | None:
        """The highest peak over its rounds; ``None`` where it was never read."""
        found = [r.peak_rss_bytes for r in self.rounds.values()]
        return max((count for count in found if count is not None), default=None)

    @property
    def min_headroom_bytes(self) -> int | None:
        """The lowest headroom over its rounds; ``None`` where it was never read."""
        found = [r.min_headroom_bytes for r in self.rounds.values()]
        return min((count for count in found if count is not None), default=None)

    def ratios_to(self, other: Contender) -> list[float]:
        """Its rate over ``other``'s, for each round in which both were measured.

        Of rounds in which a neighbour was busy only where fewer than three were quiet.
        """
        found = [
            (mine.busy or theirs.busy, mine.samples_per_s / theirs.samples_per_s)
            for number, mine in sorted(self.rounds.items())
            if (theirs := other.rounds.get(number)) is not None
            and mine.samples_per_s is not None
            and theirs.samples_per_s
        ]
        quiet = [ratio for busy, ratio in found if not busy]
        return quiet if len(quiet) > LEAST_ROUNDS else [ratio for _, ratio in found]


@frozen
class FinalsResult:
    """Winner of the finals, and its lead.

    Attributes:
        start: the start, with its rounds.
        winner: the winner; the start itself when nobody beat it.
        rounds: number of rounds that were measured.
        reason: why the start won; "" if it did not.
        at_most: most by which a finalist can be faster than the start, as a ratio above 0; ``None``
            if the start did not win, or if this was not measured.
    """

    start: Contender
    winner: Contender
    rounds: int = 0
    reason: str = ""
    at_most: float | None = None

    @property
    def ratios(self) -> tuple[float, ...]:
        """The winner's paired ratios to the start, one a round; empty if the start won."""
        return () if self.winner.is_start else tuple(self.winner.ratios_to(self.start))

    @property
    def speedup(self) -> float:
        """Their geometric mean; 1.0 if the start won."""
        return _mean_of(self.ratios)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of 95 % for the speedup; ``None`` if the start won."""
        return interval_of(self.ratios)


def _settled(start: Contender, finalist: Contender) -> bool:
    """True if more rounds with this finalist would tell nothing new."""
    ratios = finalist.ratios_to(start)
    found = interval_of(ratios)
    return found is not None and len(ratios) > LEAST_ROUNDS and found[0] > 1.0


def _behind(start: Contender, finalist: Contender) -> str:
    """Why a finalist need not be measured again; "" where it must."""
    found = interval_of(finalist.ratios_to(start))
    faster = found is None or found[1] >= 1 + TIE_RATIO
    return "" if faster else f"less than {TIE_RATIO:.0%} faster than the start"


def _winner(start: Contender, finalists: Sequence[Contender]) -> Contender:
    means = [
        (_mean_of(ratios), finalist)
        for finalist in finalists
        if not finalist.out
        and (found := interval_of(ratios := finalist.ratios_to(start)))
        and found[0] > 1.0
    ]
    field_of = [(1.0, start), *means]
    best = max(ratio for ratio, _ in field_of)

    def rank(pair: tuple[float, Contender]) -> tuple[float, bool, float]:
        memory = pair[1].peak_rss_bytes
        return math.inf if memory is None else memory, not pair[1].is_start, -pair[0]

    return min((pair for pair in field_of if pair[0] >= best * (1 - TIE_RATIO)), key=rank)[1]


def compare(
    start: Knobs,
    finalists: Sequence[Contender],
    measure: Callable[[Contender, int, float], TrialResult],
    *,
    rounds: int,
    each_s: float,
    deadline_s: float,
    clock: Clock,
) -> FinalsResult:
    """Measure ``start`` and ``finalists`` in turn and judge.

    Args:
        start: the knobs in force before the study.
        finalists: distinct settings, none equal to the start.
        measure: measures one contender: (contender, round, timeout in seconds).
        rounds: the most there are.
        each_s: seconds of one measurement, as far as is known.
        deadline_s: no measurement goes on after this time, and no round begins that would.
        clock: the clock of the deadline.
    """
    first = Contender(start, is_start=True)
    done = 0
    while done < rounds:
        standing = [c for c in (first, *finalists) if not c.out]
        settled = done >= LEAST_ROUNDS and all(_settled(first, c) for c in standing[1:])
        if len(standing) < 2 or first.out or settled:
            break
        if clock.now_s() + each_s * len(standing) > deadline_s:
            break
        for contender in standing if done % 2 == 0 else reversed(standing):
            began_s = clock.now_s()
            result = measure(contender, done, max(deadline_s - began_s, 0.1))
            took_s = clock.now_s() - began_s
            left_s = deadline_s - clock.now_s()
            if contender.is_start and result.outcome is Outcome.FAILED and left_s > took_s:
                # It ran before, and without it there is nothing to compare with.
                result = measure(contender, done, left_s)
            if result.outcome is Outcome.COMPLETE:
                contender.rounds[done] = result
                each_s = max(each_s, took_s)
            elif clock.now_s() < deadline_s:  # else it was ended, and may be good
                contender.out = result.reason or result.outcome.value
        done += 1
        for finalist in finalists:
            if done >= LEAST_ROUNDS and not finalist.out:
                finalist.out = _behind(first, finalist)
    winner = _winner(first, finalists)
    if not winner.is_start:
        return FinalsResult(first, winner, done)
    most = [interval[1] for c in finalists if (interval := interval_of(c.ratios_to(first)))]
    if not most:
        return FinalsResult(first, first, done, "nothing was compared with it")
    at_most = max(0.0, max(most) - 1)
    reason = f"nothing that was compared with it can be more than {at_most:.1%} faster"
    if at_most > UNDECIDED_RATIO:
        reason = f"{done} rounds did not show that anything is faster; a longer --budget may"
    return FinalsResult(first, first, done, reason, at_most)


def changed_knobs(start: Knobs, winner: Knobs) -> dict[str, tuple[Any, Any]]:
    """``{knob: (start's, winner's)}`` of what differs and the winner's reader uses."""
    used = used_knobs(start.flat() | winner.flat())
    return {key: values for key, values in start.changed(winner).items() if key in used}


def _mean_of(ratios: Sequence[float]) -> float:
    """The geometric mean; 1.0 of none."""
    return statistics.geometric_mean(ratios) if ratios else 1.0


def interval_of(ratios: Sequence[float]) -> tuple[float, float] | None:
    """The interval of 95 % for the geometric mean of paired ratios; ``None`` for fewer than two."""
    if len(ratios) < LEAST_ROUNDS:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    t = _T_95[min(len(logs) - 1, len(_T_95)) - 1]
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean - half), math.exp(mean + half)
