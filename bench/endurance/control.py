"""What the controller costs: processor time of its two threads, and what it does to batches.

Processor time is fair on a loaded machine, where the clock's is not. Two consumers are measured:
one that takes whatever comes (the policy then has the most to do), and one at a tenth of that pace.
Whether it delays batches is asked of two loaders of one child, with and without a controller, that
take turns with the same knobs: the second has those that the first has come to.

Not here: whether its decisions are good (``bench.control``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from autoloader import AutoLoader
from autoloader.cli.demo import ensure_demo
from bench.control.memory import threads_cpu_s
from bench.control.trainer import endless
from bench.endurance.claims import HELD, Circumstances, Claim
from bench.paired import Estimate, estimate, paired_ratios

THREADS = ("loader-control", "loader-reflex")
WARM_S = 15.0
MEASURED_S = 45.0
MOST_RATIO = 0.01
PAIRS = 12
TURN_S = 3.0
SETTLES_S = 1.0


def control(given: Circumstances) -> list[Claim]:
    own: dict[str, Any] = {
        "output": "numpy",
        "profile": "local_dev",
        "knobs": {"reader": given.reader},
    }
    with AutoLoader(ensure_demo(), **own) as loader:
        batches = endless(loader)
        _waits(batches, WARM_S, 0.0)
        pace = loader.statistics().samples_per_s or 1.0
        slow_s = min(1.0, 10 * loader.plan.mixture.layout.batch_size / pace)
        claims = [
            _cost(loader, batches, f"{given.reader}, 29 datasets, a consumer that {kind}", step_s)
            for kind, step_s in (("takes all", 0.0), ("takes a tenth of that", slow_s))
        ]
        with AutoLoader(ensure_demo(), **{**own, **HELD}) as twin:
            return claims + _delays(given.reader, loader, batches, twin)


def _cost(loader: AutoLoader, batches: Iterator[Any], what: str, step_s: float) -> Claim:
    child = loader.statistics().worker_pids[0]
    before, began = threads_cpu_s(child, THREADS), time.monotonic()
    _waits(batches, MEASURED_S, step_s)
    after, passed = threads_cpu_s(child, THREADS), time.monotonic() - began
    spent = {name: (after[name] - before[name]) / passed for name in THREADS}
    ratio = sum(spent.values())
    return Claim(
        f"controller, {what}: of a core",
        f"{ratio:.2%} (policy {spent[THREADS[0]]:.2%}, reflex {spent[THREADS[1]]:.2%})",
        f"≤ {MOST_RATIO:.0%}",
        ratio <= MOST_RATIO,
    )


def _delays(
    reader: str, loader: AutoLoader, batches: Iterator[Any], twin: AutoLoader
) -> list[Claim]:
    streams = {"with": batches, "without": endless(twin)}
    waits: dict[str, list[np.ndarray]] = {name: [] for name in streams}
    for number in range(PAIRS):
        twin.retune(**loader.knobs.flat())
        for name in streams if number % 2 == 0 else reversed(streams):
            _waits(streams[name], SETTLES_S, 0.0)  # what the ring has kept is eaten
            waits[name].append(_waits(streams[name], TURN_S, 0.0))
    ratios = {
        "median": _ratio(waits, lambda turn: float(np.median(turn))),
        "longest": _ratio(waits, lambda turn: float(turn.max())),
    }
    return [
        Claim(
            f"{kind} wait for a batch in turns of {TURN_S:g} s, {reader}: with a controller, "
            "over the same knobs without",
            str(one),
            "1 within the interval, or above it",
            one.low <= 1.0,
        )
        for kind, one in ratios.items()
    ]


def _ratio(waits: dict[str, list[np.ndarray]], of: Any) -> Estimate:
    return estimate(paired_ratios(*([of(turn) for turn in turns] for turns in waits.values())))


def _waits(batches: Iterator[Any], seconds: float, step_s: float) -> np.ndarray:
    """Take batches for so long; what was waited for each, in seconds."""
    found, until = [], time.monotonic() + seconds
    while (asked := time.monotonic()) < until:
        next(batches)
        found.append(time.monotonic() - asked)
        if step_s:
            time.sleep(step_s)
    return np.array(found)
