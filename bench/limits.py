"""What share of each limit a contender reaches: decoding alone, copying alone, reading alone.

Shares are taken round by round, as all ratios are, and their median is told. They stand beside
every throughput figure, so that it says how much is left to gain.

Not here: the limits themselves (``bench.peers``), how they are shown (``bench.report``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.paired import paired_ratios
from bench.peers import LIMITS


def limit_shares(
    kinds: Mapping[str, str], turns: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, dict[str, float]]:
    """Contender → short name of a limit → share of it, 1 being all of it.

    Args:
        kinds: contender → its kind; the first of a limit's kind is that limit.
        turns: contender → what each of its turns gave, in the order of the rounds.
    """
    rates = {
        name: [float(turn["samples_per_s"]) for turn in own]
        for name, own in turns.items()
        if own and "samples_per_s" in own[0]
    }
    limits: dict[str, str] = {}
    for name in rates:
        if kinds.get(name) in LIMITS:
            limits.setdefault(LIMITS[kinds[name]], name)
    return {
        name: {
            short: statistics.median(paired_ratios(own, rates[limit]))
            for short, limit in limits.items()
            if len(own) == len(rates[limit])
        }
        for name, own in rates.items()
    }
