"""The end of a study: start and finalists measured in turn, so that luck cannot win.

In each round every contender is measured once, the order reversed from round to round, so that a
drift of the machine meets all alike. What counts is the ratio to the start *within* a round; a
contender's figure is the median over its rounds, and it may lose none of two or three pairs, one of
four to seven. Among those within 2 % of the best, the one with the least memory wins, the start
included: a difference below 2 % is noise (field record, A).

Not here: who becomes a finalist (``study``), how one is measured (``trial``).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoloader.clock import Clock
from autoloader.knobs import Knobs
from autoloader.tune.trial import Outcome, TrialResult

TIE_RATIO = 0.02
"""Rates closer than this are told apart by memory (design §8)."""

LEAST_ROUNDS = 2
"""Rounds that are run even when the budget is spent, as far as the hard limit lets them."""


@dataclass(slots=True)
class Contender:
    """One knob set in the finals; ``rounds`` maps a round to what it measured there."""

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
        """Its rate over ``other``'s, for each round in which both were measured."""
        return [
            mine.samples_per_s / theirs.samples_per_s
            for number, mine in sorted(self.rounds.items())
            if (theirs := other.rounds.get(number)) is not None
            and mine.samples_per_s is not None
            and theirs.samples_per_s
        ]


@dataclass(frozen=True, slots=True)
class FinalsResult:
    """Who won, and by how much.

    Attributes:
        start: the start, with its rounds.
        winner: the winner; the start itself when nobody beat it.
        ratios: the winner's paired ratios to the start, one a round; empty if the start won.
        speedup: median of ``ratios``; 1.0 if the start won.
        rounds: rounds measured.
    """

    start: Contender
    winner: Contender
    ratios: tuple[float, ...]
    speedup: float
    rounds: int


def compare(
    start: Knobs,
    finalists: Sequence[Knobs],
    measure: Callable[[Contender, int, float], TrialResult],
    *,
    rounds: int,
    soft_deadline_s: float,
    hard_deadline_s: float,
    clock: Clock,
) -> FinalsResult:
    """Measure ``start`` and ``finalists`` in turn and judge.

    Args:
        start: the knobs in force before the study.
        finalists: distinct knob sets, none equal to the start.
        measure: measures one contender: (contender, round, timeout in seconds).
        rounds: how many are wanted.
        soft_deadline_s: no round beyond the second begins that would likely pass this time.
        hard_deadline_s: no measurement goes on after this time.
        clock: the clock of both deadlines.
    """
    first = Contender(start, is_start=True)
    contenders = [first, *(Contender(knobs) for knobs in finalists)]
    done = 0
    longest_s = 0.0
    while finalists and done < rounds:
        began_s = clock.now_s()
        enough = done >= LEAST_ROUNDS
        if began_s + longest_s > (soft_deadline_s if enough else hard_deadline_s):
            break
        standing = [c for c in contenders if not c.out]
        if len(standing) < 2 or first.out:
            break
        for contender in standing if done % 2 == 0 else reversed(standing):
            left_s = hard_deadline_s - clock.now_s()
            if left_s <= 0:
                break
            result = measure(contender, done, left_s)
            if result.outcome is Outcome.COMPLETE:
                contender.rounds[done] = result
            else:
                contender.out = result.reason or result.outcome.value
        done += 1
        longest_s = max(longest_s, clock.now_s() - began_s)
    return judge(first, contenders[1:], rounds=done)


def judge(start: Contender, finalists: Sequence[Contender], *, rounds: int) -> FinalsResult:
    """The verdict over what was measured; pure.

    One pair is luck: a finalist needs two paired rounds, must not have failed in any, and must
    beat the start by its median and in nearly every pair.
    """
    medians = [
        (statistics.median(ratios), finalist)
        for finalist in finalists
        if not finalist.out and _beats(ratios := finalist.ratios_to(start))
    ]
    field_of = [(1.0, start), *medians]
    best = max(ratio for ratio, _ in field_of)
    close = [(ratio, c) for ratio, c in field_of if ratio >= best * (1 - TIE_RATIO)]
    ratio, winner = min(
        close,
        key=lambda pair: (
            pair[1].peak_rss_bytes if pair[1].peak_rss_bytes is not None else float("inf"),
            not pair[1].is_start,
            -pair[0],
        ),
    )
    if winner.is_start:
        return FinalsResult(start, start, (), 1.0, rounds)
    return FinalsResult(start, winner, tuple(winner.ratios_to(start)), ratio, rounds)


def _beats(ratios: Sequence[float]) -> bool:
    """Whether paired ratios above 1 are more than luck; see the module's text."""
    lost = sum(ratio <= 1.0 for ratio in ratios)
    return (
        len(ratios) >= LEAST_ROUNDS and lost <= len(ratios) // 4 and statistics.median(ratios) > 1.0
    )
