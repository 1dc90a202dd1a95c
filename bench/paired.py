"""Statistics of measurements made in turn: ratios of pairs, their median and its interval.

The interval of a median is read off the sorted ratios (order statistics, no assumption about their
distribution): with n pairs, the k-th smallest and k-th largest bound the median with probability
1 − 2·P(Bin(n, ½) < k). The largest k with at least 95 % is taken. Six pairs are the fewest that can
give 95 %; with fewer, smallest and largest are given with the confidence they really have.

Not here: what is measured (``bench.window``), what it is held against (``bench.figures``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its interval.

    Attributes:
        median: of the values.
        low, high: bounds of the interval.
        confidence: with which the interval covers the true median, 0 to 1; 0 for a single value.
        count: values behind it.
    """

    median: float
    low: float
    high: float
    confidence: float
    count: int

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} – {self.high:.3f}, {self.confidence:.0%})"


def estimate(values: Sequence[float]) -> Estimate:
    """Median and interval of ``values``.

    Raises:
        ValueError: there are none, or one is no number.
    """
    if not values or any(not math.isfinite(value) for value in values):
        raise ValueError(f"{list(values)} has no median")
    ordered = sorted(values)
    rank, confidence = interval_rank(len(ordered))
    return Estimate(
        statistics.median(ordered), ordered[rank - 1], ordered[-rank], confidence, len(ordered)
    )


def interval_rank(count: int, confidence: float = CONFIDENCE) -> tuple[int, float]:
    """(k, confidence): the k-th smallest and largest of ``count`` bound the median.

    k is 1 where even the outermost two do not reach ``confidence``; the confidence is the true one.
    """
    rank, reached = 1, _covered(count, 1)
    while 2 * (rank + 1) <= count and _covered(count, rank + 1) >= confidence:
        rank += 1
        reached = _covered(count, rank)
    return rank, reached


def _covered(count: int, rank: int) -> float:
    below = sum(math.comb(count, i) for i in range(rank))
    return max(0.0, 1.0 - 2.0 * below / 2.0**count)


def paired_ratios(of: Sequence[float], against: Sequence[float]) -> list[float]:
    """``of[i] / against[i]`` for measurements made one after the other.

    Raises:
        ValueError: there are not equally many, or a divisor is not above zero.
    """
    if len(of) != len(against):
        raise ValueError(f"{len(of)} measurements cannot be paired with {len(against)}")
    if any(divisor <= 0 for divisor in against):
        raise ValueError("a measurement of zero cannot be divided by")
    return [one / other for one, other in zip(of, against, strict=True)]


def in_turn(names: Sequence[str], rounds: int) -> list[list[str]]:
    """The order of each round: forwards, then backwards, so that a steady drift cancels out."""
    return [list(names) if number % 2 == 0 else list(reversed(names)) for number in range(rounds)]
