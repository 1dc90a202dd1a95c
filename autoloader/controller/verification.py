"""Whether a change paid: rates before against rates after, by a fair test for noise. Pure.

Theory of operation. Rates of a loader are not normal: a page cache miss or a neighbour's burst
makes some far too small. So the test is of ranks (Mann–Whitney, one-sided, exact, ties by
midranks): with five rates before and three after, all of them better, chance alone would do that
once in 56 times. A change that takes memory or threads must be seen to pay; one that gives them
back must only not be seen to hurt.

Not here: what follows from the verdict (``policy``).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from enum import Enum

SIGNIFICANCE = 0.02
MINIMUM_RATES = 4
"""Rates that must be known before a change is begun."""
FIRST_LOOK = 3
LAST_LOOK = 8
LEAST_GAIN_RATIO = 0.01
LEAST_LOSS_RATIO = 0.02


class Verdict(str, Enum):
    """What became of a change."""

    UNDECIDED = "undecided"
    PAID = "paid"
    NOTHING = "nothing"
    LOST = "lost"


def judge(before: Sequence[float], after: Sequence[float], *, growing: bool) -> Verdict:
    """The verdict on a change.

    Args:
        before: rates with the old knobs.
        after: rates with the new ones, once settled.
        growing: it took memory or threads.
    """
    if len(after) < FIRST_LOOK or not before:
        return Verdict.UNDECIDED
    was, is_ = statistics.median(before), statistics.median(after)
    if is_ < was * (1 - LEAST_LOSS_RATIO) and chance_of_more(after, before) <= SIGNIFICANCE:
        return Verdict.LOST
    if is_ > was * (1 + LEAST_GAIN_RATIO) and chance_of_more(before, after) <= SIGNIFICANCE:
        return Verdict.PAID
    if not growing:
        return Verdict.PAID if len(after) >= LAST_LOOK - FIRST_LOOK else Verdict.UNDECIDED
    return Verdict.NOTHING if len(after) >= LAST_LOOK else Verdict.UNDECIDED


def chance_of_more(low: Sequence[float], high: Sequence[float]) -> float:
    """How likely ranks of ``high`` at least as high as these are, were both of one kind.

    Exact, by counting the subsets of all ranks whose sum is as large; ranks are doubled, so that
    midranks of ties are whole numbers.
    """
    every = sorted([*low, *high])
    ranks = {value: every.index(value) * 2 + every.count(value) + 1 for value in set(every)}
    observed = sum(ranks[value] for value in high)
    counts: list[dict[int, int]] = [{0: 1}, *({} for _ in high)]
    for value in every:
        rank = ranks[value]
        for size in range(len(high), 0, -1):
            for total, ways in counts[size - 1].items():
                counts[size][total + rank] = counts[size].get(total + rank, 0) + ways
    whole = counts[len(high)]
    return sum(ways for total, ways in whole.items() if total >= observed) / sum(whole.values())
