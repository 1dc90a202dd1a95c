"""What a study seeks: the highest rate, or the least memory and threads that a step is fed with.

The first is for a loader that the trainer waits for. The second is what people want once the loader
outruns the trainer: its step is known (``--step-time``, ``--trace``), every measurement takes that
long a step, and of the settings with which the trainer waits at most 1 % of its time the cheapest
wins.

Not here: how finals are run (``finals``), what is drawn (``search_space``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from autoloader.bound.analyst import Analyst
from autoloader.knobs import Knobs
from autoloader.tune.finals import Contender, FinalsResult, Judge, result_of
from autoloader.tune.trial import TrialResult

MOST_WAIT_RATIO = 0.01
"""A trainer that waits this little of its time is fed."""

THREAD_BYTES = 32 * 2**20
"""What a thread counts for in memory: threads cost the trainer's own processors."""

_PROCESS_THREADS = 2
"""A decode process counts as so many threads beside those of its own."""

_GIB = 2.0**30
_UNFED = -1e6


class Objective(Protocol):
    """What is sought."""

    @property
    def prunes(self) -> bool:
        """Whether a running rate tells that a trial cannot win."""
        ...

    @property
    def judge(self) -> Judge:
        """Says who has won the finals."""
        ...

    def score(self, knobs: Knobs, result: TrialResult) -> float:
        """What the sampler maximises."""
        ...

    def nothing_to_gain(self, best: TrialResult, analyst: Analyst) -> bool:
        """Whether no setting can be told to be better than one with this result."""
        ...


@dataclass(frozen=True, slots=True)
class Fastest:
    """Samples a second."""

    prunes: bool = True
    judge: Judge = field(default_factory=Judge)

    def score(self, knobs: Knobs, result: TrialResult) -> float:  # noqa: ARG002
        return result.samples_per_s or 0.0

    def nothing_to_gain(self, best: TrialResult, analyst: Analyst) -> bool:
        return analyst.near(best.samples_per_s)


@dataclass(frozen=True, slots=True)
class LeastForStep:
    """The least memory and threads with which the trainer does not wait."""

    prunes: bool = False
    judge: Judge = field(default_factory=lambda: StepJudge())

    def score(self, knobs: Knobs, result: TrialResult) -> float:
        waits = wait_ratio(result)
        if waits is None or waits > MOST_WAIT_RATIO:
            return _UNFED * (1.0 if waits is None else waits)
        return -cost_bytes(knobs, result.peak_rss_bytes) / _GIB

    def nothing_to_gain(self, best: TrialResult, analyst: Analyst) -> bool:  # noqa: ARG002
        return False  # there may always be a cheaper one


class StepJudge(Judge):
    """Of those that fed the trainer in every round the cheapest; else the one that waits least."""

    def decided(self, start: Contender, finalists: Sequence[Contender]) -> bool:
        return all(
            finalist.out or len(finalist.rounds) >= _ROUNDS for finalist in (start, *finalists)
        )

    def behind(self, start: Contender, finalist: Contender) -> str:  # noqa: ARG002
        waits = most_wait(finalist)
        return "the trainer waits" if waits is not None and waits > MOST_WAIT_RATIO else ""

    def verdict(
        self, start: Contender, finalists: Sequence[Contender], *, rounds: int
    ) -> FinalsResult:
        measured = [c for c in (start, *finalists) if c.rounds and (c.is_start or not c.out)]
        if not measured:
            return result_of(start, start, 1.0, rounds)
        fed = [c for c in measured if (most_wait(c) or 0.0) <= MOST_WAIT_RATIO]
        if fed:
            winner = min(fed, key=lambda c: (cost_bytes(c.knobs, c.peak_rss_bytes), not c.is_start))
        else:
            winner = min(measured, key=lambda c: (most_wait(c) or 0.0, not c.is_start))
        ratios = winner.ratios_to(start)
        return result_of(
            start, winner, math.prod(ratios) ** (1 / len(ratios)) if ratios else 1.0, rounds
        )


_ROUNDS = 3


def wait_ratio(result: TrialResult) -> float | None:
    """Share of its time that the trainer waited, 0 to 1; ``None`` where it was not measured."""
    found: Mapping[str, Any] = result.measurement or {}
    return found.get("wait_ratio")


def most_wait(contender: Contender) -> float | None:
    """The most over its rounds; ``None`` before the first."""
    found = [wait_ratio(result) for result in contender.rounds.values()]
    return max((ratio for ratio in found if ratio is not None), default=None)


def threads_of(knobs: Knobs) -> int:
    """Threads that knobs ask for; what a reader does not use is left out."""
    if knobs.reader == "stream":
        return knobs.decode_threads + knobs.num_parallel_calls + knobs.parse_parallel_calls
    processes = _PROCESS_THREADS * (knobs.decode_processes - 1)
    return knobs.decode_threads + knobs.io_threads + processes


def cost_bytes(knobs: Knobs, peak_rss_bytes: int | None) -> float:
    """Memory at its peak, and threads as memory; infinite where the peak is not known."""
    if peak_rss_bytes is None:
        return math.inf
    return peak_rss_bytes + THREAD_BYTES * threads_of(knobs)
