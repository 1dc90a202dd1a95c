"""Static settings to hold the controller against: sixteen, a small grid and some drawn.

The conditions that a script leaves behind are often the same (a trainer that computes nothing on a
machine left alone), so a search is kept by reader, data and conditions, and serves every scenario
that ends in them.

Not here: measuring them (``bench.control.turns``), which is best for what (``judge``).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.control.runner import turns
from bench.control.scenario import Reader, Scenario

SETTINGS = 16
_WARM_S: Mapping[Reader, float] = {"indexed": 20.0, "stream": 3.0}
"""Before the first setting: frames that are held are decoded once."""

_GRID: Mapping[Reader, tuple[Mapping[str, int], ...]] = {
    "indexed": (
        {"ring_slots": 4, "decode_threads": 1, "io_threads": 1, "read_ahead": 1},
        {"ring_slots": 8, "decode_threads": 1, "io_threads": 1, "read_ahead": 3},
        {"ring_slots": 8, "decode_threads": 2, "io_threads": 1, "read_ahead": 3},
        {"ring_slots": 8, "decode_threads": 2, "io_threads": 4, "read_ahead": 3},
        {"ring_slots": 16, "decode_threads": 3, "io_threads": 2, "read_ahead": 6},
        {"ring_slots": 8, "decode_threads": 4, "io_threads": 4, "read_ahead": 3},
    ),
    "stream": (
        {"ring_slots": 4, "decode_threads": 1, "queue_samples": 1},
        {"ring_slots": 8, "decode_threads": 1, "queue_samples": 16},
        {"ring_slots": 8, "decode_threads": 2, "queue_samples": 16},
        {"ring_slots": 8, "decode_threads": 2, "queue_samples": 64},
        {"ring_slots": 16, "decode_threads": 3, "queue_samples": 64},
        {"ring_slots": 8, "decode_threads": 4, "queue_samples": 32},
    ),
}
_DRAWN: Mapping[Reader, Mapping[str, tuple[int, ...]]] = {
    "indexed": {
        "ring_slots": (4, 6, 8, 12, 16, 24),
        "decode_threads": (1, 2, 3, 4),
        "decode_processes": (1, 1, 2),
        "io_threads": (1, 2, 4, 8),
        "read_ahead": (1, 2, 3, 6, 12),
    },
    "stream": {
        "ring_slots": (4, 6, 8, 12, 16, 24),
        "decode_threads": (1, 2, 3, 4),
        "queue_samples": (4, 16, 32, 64, 128),
        "parse_parallel_calls": (1, 1, 1, 2),
        "stream_prefetch": (0, 1, 1, 2),
    },
}


def settings_for(reader: Reader, count: int = SETTINGS) -> list[dict[str, int]]:
    """The grid, and as many drawn ones as are wanted beside it; the same ones every time.

    Thread counts are multiplied where a machine has more than two processors.
    """
    drawn = random.Random(f"static {reader}")
    found = [dict(one) for one in _GRID[reader][:count]]
    while len(found) < count:
        one = {knob: drawn.choice(values) for knob, values in _DRAWN[reader].items()}
        if one not in found:
            found.append(one)
    factor = max(1, len(os.sched_getaffinity(0)) // 2)
    for one in found:
        for knob in ("decode_threads", "io_threads"):
            if knob in one:
                one[knob] = max(1, one[knob] * factor)
    return found


class Searches:
    """Every search of a run, each made once.

    Args:
        count: settings of each.
        factor: on the length of windows.
    """

    def __init__(self, *, count: int = SETTINGS, factor: float = 1.0) -> None:
        self._count = count
        self._factor = factor
        self.found: dict[str, dict[str, Any] | None] = {}

    def best(self, scenario: Scenario, reader: Reader, spec: Path) -> dict[str, Any] | None:
        """The best static setting's turn; ``None`` where the scenario has no search, or it failed.

        The one with the least waiting of the finals; of equals the faster.
        """
        if scenario.search is None:
            return None
        held = {"cache_bytes": _held_bytes(scenario)} if reader == "indexed" else {}
        key = json.dumps([reader, scenario.data, held, _conditions(scenario)], sort_keys=True)
        if key not in self.found:
            asked = {
                "turns": "search",
                "knobs": held,  # over the profile's; every setting begins from there
                "settings": [{**one, **held} for one in settings_for(reader, self._count)],
                "warm_s": _WARM_S[reader],
                "settle_s": scenario.search.settle_s,
                "window_s": scenario.search.window_s * self._factor,
            }
            self.found[key] = turns(scenario, reader, spec, asked)
        found = self.found[key]
        finals = (found or {}).get("finals") or (found or {}).get("settings") or []
        known = [one for one in finals if "wait_ratio" in one]
        return min(
            known, key=lambda one: (one["wait_a_batch_s"], -one["samples_per_s"]), default=None
        )


def _held_bytes(scenario: Scenario) -> int:
    """What static knobs hold of decoded frames: a third of what is above the floor."""
    if scenario.limit_bytes is None or "of" in _conditions(scenario):
        return 0
    return (scenario.limit_bytes - scenario.floor_bytes) // 3


def _conditions(scenario: Scenario) -> dict[str, Any]:
    """What static knobs would notice: what lasts, and memory where the script makes it short."""
    left = scenario.lasting()
    memory = {key for key in left if key.startswith(("neighbour_l", "neighbour_k", "limit"))}
    if memory:
        left |= {"floor": scenario.floor_bytes, "of": scenario.limit_bytes}
    return {**left, "slow_files": scenario.slow_files, "validates": scenario.validate_every}
