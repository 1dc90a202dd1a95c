"""What the controller is held against: static settings, the best of them in pairs, a rival.

Sixteen settings are a small grid and some drawn.
The conditions that a script leaves behind are often the same (a trainer that computes nothing on a
machine left alone), so a search is kept by reader, data and conditions, and serves every scenario
that ends in them. Where a trainer waits for every batch, how long is a question of the minute it is
asked in: so both are asked in the same minute, the controlled and the static loader, which live in
one child and take turns.

The rival is tf.data AUTOTUNE on the same stage. The neighbour takes as many bytes as it took beside
the loader: had it to leave as much as it left there, it would make room for whoever holds more.

Not here: measuring them (``bench.control.turns``), which is best for what (``judge``).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.checks import Check
from bench.control.judge import WAIT_FACTOR
from bench.control.memory import MIB
from bench.control.runner import perform, turns
from bench.control.scenario import Event, Reader, Scenario
from bench.paired import Estimate, estimate, paired_ratios

SETTINGS = 16
AT_LEAST = 0.95
_WARM_S: Mapping[Reader, float] = {"indexed": 20.0, "stream": 3.0}
"""Before the first setting: frames that are held are decoded once."""

_GRID: Mapping[Reader, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]] = {
    "indexed": (
        ("ring_slots", "decode_threads", "io_threads", "read_ahead"),
        ((4, 1, 1, 1), (8, 1, 1, 3), (8, 2, 1, 3), (8, 2, 4, 3), (16, 3, 2, 6), (8, 4, 4, 3)),
    ),
    "stream": (
        ("ring_slots", "decode_threads", "queue_samples"),
        ((4, 1, 1), (8, 1, 16), (8, 2, 16), (8, 2, 64), (16, 3, 64), (8, 4, 32)),
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
    knobs, rows = _GRID[reader]
    found = [dict(zip(knobs, row, strict=True)) for row in rows[:count]]
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


def measure_pairs(
    scenario: Scenario, reader: Reader, spec: Path, best: Mapping[str, Any], *, pairs: int
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


def rival_check(scenario: Scenario, reader: Reader, spec: Path, beside: Mapping[str, Any]) -> Check:
    """Whether AUTOTUNE, with the loader's budget as ``ram_budget``, stays above the floor.

    Args:
        scenario: what the loader went through.
        reader: whose limits count where they differ.
        spec: the mixture's file.
        beside: the loader's record.
    """
    took = max((one["neighbour"] for one in beside["samples"]), default=0)
    script = tuple(_of_bytes(event, took) for event in scenario.script)
    same = scenario.model_copy(update={"script": script})
    record = perform(same, reader, spec, rival=True)
    name, wanted = "tf.data AUTOTUNE on the same stage", "killed, or below the floor"
    if record["first_s"] is None:
        return Check(name, "gave no batch: " + record["said"][-200:], wanted, None)
    samples = [one for one in record["samples"] if one["at"] >= record["first_s"]]
    deepest = max(scenario.floor_bytes - one["room"] for one in samples)
    most = max(one["trainer"] for one in samples) / MIB
    below = sum(one["room"] < scenario.floor_bytes for one in samples) / 20
    if record["oom_kills"]:
        return Check(name, f"killed for memory; it held {most:.0f} MiB", wanted, True)
    found = f"held {most:.0f} MiB; below the floor for {below:.1f} s"
    if deepest > 0:
        found += f", by {deepest / MIB:.0f} MiB"
    return Check(name, found, wanted, deepest > 0)


def _of_bytes(event: Event, took: int) -> Event:
    if event.neighbour_leaves is None and event.neighbour_keeps is None:
        return event
    return Event(at_s=event.at_s, neighbour_takes=took)
