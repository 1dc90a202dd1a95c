"""Runs one scenario with one reader: stage, trainer, sampler, script; keeps everything they said.

The clock of a script begins with the first batch. All times are of the monotonic clock, which all
processes of a machine share. A trainer that dies or hangs is a result, not an error: what it said
last is kept.

Not here: what is made of it (``bench.control.judge``).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.child import Player, last_words
from bench.control.memory import headroom_bytes
from bench.control.scenario import Reader, Scenario
from bench.control.stage import Stage

OPENING_S = 180.0
CLOSING_S = 30.0


class Trainer(Player):
    """Who takes batches on the stage.

    Args:
        job: of ``bench.control.driver``.
        stage: whose surroundings it has.
    """

    def __init__(self, job: Mapping[str, Any], stage: Stage) -> None:
        self.first_s: float | None = None
        self._begun = threading.Event()
        self._log = (stage.folder / "trainer.log").open("w+")
        decisions = {"AUTOLOADER_DECISIONS": job["decisions"]} if "decisions" in job else {}
        env = {**os.environ, **stage.environment, **decisions}
        told = json.dumps(job)
        super().__init__("bench.control.driver", told, env=env, hears=self._hear, log=self._log)

    def wait_for_first(self) -> bool:
        """Wait for the first batch; whether it came."""
        self._begun.wait(OPENING_S)
        return self.first_s is not None

    def stop(self) -> None:
        """Have it end and write its result."""
        self.say({"stop": True})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSING_S)

    def last_words(self) -> str:
        """The end of what it said on stderr."""
        return last_words(self._log, 12)

    def _hear(self, line: str | None) -> None:
        if line and "first" in (said := json.loads(line)):
            self.first_s = float(said["first"])
        self._begun.set()


def perform(
    scenario: Scenario, reader: Reader, spec: Path, *, rival: bool = False
) -> dict[str, Any]:
    """One run of a scenario; see the module.

    Args:
        scenario: what happens.
        reader: of the loader.
        spec: the mixture's file.
        rival: whether tf.data AUTOTUNE is in the loader's place.

    Returns:
        ``first_s``, ``events``, ``samples`` (of the sampler), ``decisions`` (lines of the log),
        ``result`` (of the driver; ``None`` where it did not live to write one), ``said``,
        ``alive`` (to the end of the script), ``oom_kills``.
    """
    with Stage(scenario, reader, spec) as stage:
        out, log = stage.folder / "result.json", stage.folder / "decisions.jsonl"
        job = {**job_of(scenario, reader, stage), "out": str(out), "rival": rival}
        with Trainer({**job, "decisions": str(log)}, stage) as trainer:
            seen = stage.folder / "samples.jsonl"
            asked = {"group": stage.run_group, "trainer": trainer.process.pid, "out": str(seen)}
            asked["neighbour"] = stage.neighbour_pid
            env = {**os.environ, "PYTHONPATH": stage.environment["PYTHONPATH"]}
            with Player("bench.control.sampler", json.dumps(asked), env=env):
                begun = trainer.wait_for_first()
                events = _play(scenario, stage, trainer) if begun else []
                stopped_s = time.monotonic()
                alive = trainer.process.poll() is None
                trainer.stop()
            lines = _lines(seen)
            return {
                "first_s": trainer.first_s,
                "stopped_s": stopped_s,
                "events": events,
                "samples": [json.loads(line) for line in lines if line.endswith("}\n")],
                "decisions": _lines(log),
                "result": json.loads(out.read_text()) if out.exists() else None,
                "said": trainer.last_words(),
                "alive": alive,
                "oom_kills": stage.oom_kills,
            }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True) if path.exists() else []


def job_of(scenario: Scenario, reader: Reader, stage: Stage) -> dict[str, Any]:
    """What a trainer on this stage is told."""
    return {
        "spec": str(stage.spec),
        "reader": reader,
        "group": stage.run_group,
        "binds": stage.binds,
        "ram_floor_bytes": scenario.floor_bytes,
        "budget_bytes": (scenario.limit_bytes or 0) - scenario.floor_bytes,
        "knobs": scenario.knobs_of(reader),
        "pace_s": scenario.pace_s,
        "validate_every": scenario.validate_every,
        "validate_batches": scenario.validate_batches,
    }


def turns(
    scenario: Scenario, reader: Reader, spec: Path, asked: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Static knobs in turn, or pairs, in what is left of the script at its end.

    Args:
        scenario: whose conditions.
        reader: of the loader.
        spec: the mixture's file.
        asked: see ``bench.control.turns``.

    Returns:
        What the driver found; ``None`` where it did not live to say.
    """
    left = scenario.lasting()
    with Stage(scenario, reader, spec) as stage:
        out = stage.folder / "result.json"
        job = {**job_of(scenario, reader, stage), "pace_s": left.pop("pace_s"), "out": str(out)}
        job |= asked
        with Trainer(job, stage) as trainer:
            if trainer.wait_for_first():
                for event in scenario.script:
                    if event.what.items() <= left.items():
                        stage.perform(event)
                trainer.say({"go": True})
            trainer.process.wait()
            found = json.loads(out.read_text()) if out.exists() else None
            if found is None:
                print(trainer.last_words(), file=sys.stderr)
            return found


def _play(scenario: Scenario, stage: Stage, trainer: Trainer) -> list[dict[str, Any]]:
    """Carry out the script; what happened, and when.

    What takes its time (a neighbour that fills memory) moves everything behind it.
    """
    assert trainer.first_s is not None
    happened: list[dict[str, Any]] = []
    late_s = 0.0
    for event in sorted(scenario.script, key=lambda one: one.at_s):
        if not _sleep(trainer, trainer.first_s + event.at_s + late_s):
            return happened
        at = time.monotonic()
        room = headroom_bytes(stage.run_group)
        if "pace_s" in event.what:
            trainer.say({"pace": event.pace_s})
            seen = {}
        else:
            seen = stage.perform(event)
        done = time.monotonic()
        late_s += done - at
        happened.append(
            {"at": at, "done": done, "what": event.what, "headroom_before": room, **seen}
        )
    _sleep(trainer, trainer.first_s + scenario.length_s + late_s)
    return happened


def _sleep(trainer: Trainer, until_s: float) -> bool:
    """Wait; whether the trainer lives on."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        trainer.process.wait(max(0.0, until_s - time.monotonic()))
        return False
    return True
