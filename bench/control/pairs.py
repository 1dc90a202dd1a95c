"""The controlled loader against the best static knobs, pair by pair, in one run.

Not here: the turns (``bench.control.turns``), the interval (``bench.paired``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.control.judge import Check
from bench.control.runner import turns
from bench.control.scenario import Reader, Scenario
from bench.paired import estimate, paired_ratios

CLIMB_S = 60.0
AT_LEAST = 0.95


def paired_check(
    scenario: Scenario,
    reader: Reader,
    spec: Path,
    best: Mapping[str, Any] | None,
    *,
    pairs: int,
) -> Check:
    """samples/s of the controlled loader, a minute after its start, over the best static knobs'."""
    name, wanted = "against the best static knobs, paired", f"lower bound ≥ {AT_LEAST}"
    if best is None:
        return Check(name, "no static setting was measured", wanted, None)
    asked = {
        "turns": "paired",
        "best": best["knobs"],
        "climb_s": CLIMB_S,
        "pairs": pairs,
        "settle_s": 2.0,
        "window_s": 4.0,
    }
    found = turns(scenario, reader, spec, asked)
    if not found or not found["pairs"]:
        return Check(name, "no pair was measured", wanted, None)
    one = estimate(
        paired_ratios(
            [pair["controlled"] for pair in found["pairs"]],
            [pair["static"] for pair in found["pairs"]],
        )
    )
    text = f"{one.median:.3f} ({one.low:.3f} – {one.high:.3f}, {one.confidence:.0%})"
    return Check(name, text, wanted, one.low >= AT_LEAST)
