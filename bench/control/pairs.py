"""The controlled loader against the best static knobs, pair by pair, in one run.

Where a trainer waits for every batch, how long is a question of the minute it is asked in: so
both are asked in the same minute. Controlled and static loader live in one child and take turns.

Not here: the turns (``bench.control.turns``), the interval (``bench.paired``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.control.judge import WAIT_FACTOR, Check
from bench.control.runner import turns
from bench.control.scenario import Reader, Scenario
from bench.paired import Estimate, estimate, paired_ratios

AT_LEAST = 0.95


def measure_pairs(
    scenario: Scenario,
    reader: Reader,
    spec: Path,
    best: Mapping[str, Any],
    *,
    pairs: int,
) -> list[Mapping[str, Any]]:
    """Turns of the controlled loader and of the best static knobs; empty where none was had."""
    asked = {
        "turns": "paired",
        "best": best["knobs"],
        "climb_s": scenario.climb_s,
        "pairs": pairs,
        "settle_s": 1.5,
        "window_s": 3.0,
    }
    found = turns(scenario, reader, spec, asked)
    return found["pairs"] if found else []


def paired_checks(scenario: Scenario, pairs: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Rate and waiting of the controlled loader, over those of the static one.

    The rate has its own bound where nothing disturbs; beside a disturbance waiting alone counts.
    """
    if not pairs:
        return [Check("against the best static knobs", "no pair was measured", "", None)]
    rate, wait = (_ratio(pairs, key) for key in ("samples_per_s", "wait_a_batch_s"))
    return [
        Check(
            "samples/s, the best static knobs' = 1",
            str(rate),
            "" if scenario.script else f"lower bound ≥ {AT_LEAST}",
            None if scenario.script else rate.low >= AT_LEAST,
        ),
        Check(
            "waiting for a batch, the best static knobs' = 1",
            str(wait),
            f"≤ {WAIT_FACTOR}",
            wait.median <= WAIT_FACTOR,
        ),
    ]


def _ratio(pairs: Sequence[Mapping[str, Any]], key: str) -> Estimate:
    controlled, static = ([pair[name][key] for pair in pairs] for name in ("controlled", "static"))
    return estimate(paired_ratios(controlled, static))
