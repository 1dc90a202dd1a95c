"""Runs scenarios: contenders in turn, each turn in a fresh process, and keeps what each gave.

Theory of operation. A round gives every contender one turn; rounds run forwards and backwards in
turn, so that slow drift cancels out. Nothing of the bench runs beside a turn but this process,
which sleeps and reads the turn's memory once a second. Before a turn it waits (``patience_s`` at
most) until others use little of the machine; a turn during which they used more than
``QUIET_CPUS`` is taken again, up to ``retakes`` times, and the least disturbed one counts. How
much others used is in every turn's record. A contender that fails takes no further turns; what the
others gave stands.

Not here: the turn itself (``bench.window``), figures (``bench.figures``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.child import ChildFailedError, answer
from bench.data import drop_from_cache
from bench.figures import QUIET_CPUS
from bench.host import load
from bench.paired import in_turn
from bench.peers import interpreter, missing
from bench.processes import MemoryOverTime
from bench.scenario import ContenderSpec, Scenario

Told = Callable[[str], None]
"""Called with each turn that begins."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A scenario's turns by contender, in the order of the rounds; who failed, and why."""

    turns: dict[str, list[dict[str, Any]]]
    failed: dict[str, str]


@dataclass(frozen=True, slots=True)
class Patience:
    """What is done about other load: see the module."""

    patience_s: float = 10.0
    retakes: int = 1


def run_scenario(
    scenario: Scenario,
    data: Mapping[str, Path],
    *,
    pairs: int | None = None,
    patience: Patience = Patience(),
    told: Told = lambda _: None,
) -> Ran:
    """Every contender's turns.

    Args:
        scenario: what to run.
        data: mixture name → its ``mix.yaml``.
        pairs: rounds; default the scenario's.
        patience: what is done about other load.
        told: of progress.

    Raises:
        ChildFailedError: contenders give different frames.
    """
    contenders = {one.name: one for one in scenario.contenders}
    ran = Ran({name: [] for name in contenders}, {})
    for order in in_turn(list(contenders), pairs or scenario.pairs):
        for name in order:
            told(f"{scenario.name}: {name}")
            if name in ran.failed:
                continue
            one = contenders[name]
            try:
                turn = _calm_turn(scenario, one, data[scenario.data_of(one)], patience)
                ran.turns[name].append(turn)
            except ChildFailedError as error:
                ran.failed[name] = str(error)
                del ran.turns[name]
    _check_alike(scenario, ran.turns)
    return ran


def _calm_turn(
    scenario: Scenario, contender: ContenderSpec, spec: Path, patience: Patience
) -> dict[str, Any]:
    best: dict[str, Any] | None = None
    for _ in range(1 + patience.retakes):
        _wait_for_quiet(patience.patience_s)
        if contender.cold:
            drop_from_cache(spec)
        turn = _turn(scenario, contender, spec)
        if best is None or turn["others_cpus"] < best["others_cpus"]:
            best = turn
        if turn["others_cpus"] <= QUIET_CPUS:
            break
    assert best is not None
    return best


def _wait_for_quiet(patience_s: float) -> None:
    give_up = time.monotonic() + patience_s
    while True:
        before = load()
        time.sleep(0.5)
        after = load()
        elapsed_s = after["monotonic_s"] - before["monotonic_s"]
        quiet = (after["busy_cpu_s"] - before["busy_cpu_s"]) / elapsed_s <= QUIET_CPUS
        if quiet or time.monotonic() >= give_up:
            return


def _turn(scenario: Scenario, contender: ContenderSpec, spec: Path) -> dict[str, Any]:
    job = {
        "kind": contender.kind,
        "spec": str(spec),
        "settings": dict(contender.settings),
        "warmup_batches": scenario.warmup_of(contender),
        "window_s": scenario.window_s,
        "count_samples": scenario.count_samples,
        "cpus": contender.cpus,
        "started_s": time.monotonic(),
    }
    python = interpreter(contender.kind)
    if python is None:
        raise ChildFailedError(missing(contender.kind))
    memory = MemoryOverTime()
    try:
        turn = answer("bench.window", json.dumps(job), python=python, beside=memory)
    except ChildFailedError as error:
        raise ChildFailedError(f"{contender.name}: {error}") from error
    return {**turn, "peak_bytes": memory.peak_bytes, "memory": memory.samples}


def _check_alike(scenario: Scenario, turns: Mapping[str, list[dict[str, Any]]]) -> None:
    """Contenders of one scenario must give frames of one shape; batches may differ in size."""
    shapes = {
        name: tuple(own[0]["frames_shape"][1:])
        for name, own in turns.items()
        if "frames_shape" in own[0]
    }
    if len(set(shapes.values())) > 1:
        raise ChildFailedError(f"{scenario.name}: contenders give different frames: {shapes}")
