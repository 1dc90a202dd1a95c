"""What became of tf.data AUTOTUNE on the same stage; what the loader is held against there.

Not here: the rival's process (``bench.control.rival``).
"""

from __future__ import annotations

from pathlib import Path

from bench.control.judge import Check
from bench.control.memory import MIB
from bench.control.runner import perform
from bench.control.scenario import Reader, Scenario

_outcomes: dict[str, Check] = {}


def rival_check(scenario: Scenario, reader: Reader, spec: Path) -> Check:
    """Whether AUTOTUNE, with the loader's budget as ``ram_budget``, stays above the floor.

    It has no reader to choose, so one outcome serves both where nothing depends on the reader.
    """
    key = f"{scenario.name} {[event.limit and event.limit[reader] for event in scenario.script]}"
    if key not in _outcomes:
        _outcomes[key] = _run(scenario, reader, spec)
    return _outcomes[key]


def _run(scenario: Scenario, reader: Reader, spec: Path) -> Check:
    record = perform(scenario, reader, spec, module="bench.control.rival")
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
