"""What became of tf.data AUTOTUNE on the same stage; what the loader is held against there.

The neighbour takes as many bytes as it took beside the loader: had it to leave as much as it left
there, it would make room for whoever holds more.

Not here: the rival's process (``bench.control.rival``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.control.judge import Check
from bench.control.memory import MIB
from bench.control.runner import perform
from bench.control.scenario import Event, Reader, Scenario


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
    record = perform(same, reader, spec, module="bench.control.rival")
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
