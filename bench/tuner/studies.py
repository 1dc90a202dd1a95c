"""Runs studies as people do, and measures knob sets in turn.

Not here: what the rows ask (``bench.tuner.rows``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from autoloader.clock import SystemClock
from autoloader.knobs import Knobs
from autoloader.probes.headroom import HeadroomProbe
from autoloader.tune.finals import Contender
from autoloader.tune.ladder import LadderReport, Rung, climb
from autoloader.tune.report import LiveWatcher
from autoloader.tune.trial import TrialRunner, measure_command


@dataclass(frozen=True, slots=True)
class Row:
    """What all rows are told.

    Attributes:
        spec: the mixture.
        budget_s: of each study.
        batches: of each measurement.
        floor_bytes: the RAM floor.
        folder: for studies and profiles.
    """

    spec: Path
    budget_s: float
    batches: int
    floor_bytes: int
    folder: Path

    def command(self, *more: str, name: str = "study") -> list[str]:
        """The command line of a study."""
        return [
            *(sys.executable, "-m", "autoloader.tune", "--json", "--spec", str(self.spec)),
            *("--budget", f"{self.budget_s:g}s", "--batches", str(self.batches)),
            *("--ram-floor", str(self.floor_bytes), "--study", name),
            *("--out", str(self.folder / name), *more),
        ]

    def bench(self, row: str, *more: str) -> list[str]:
        """The command line of another row, for a process of its own."""
        return [
            *(sys.executable, "-m", "bench.tuner", row, "--spec", str(self.spec)),
            *("--batches", str(self.batches), "--ram-floor", str(self.floor_bytes), *more),
        ]

    def environment(self) -> dict[str, str]:
        """Nothing is written to the folders of whoever runs this."""
        return {
            **os.environ,
            "AUTOLOADER_CONFIG_DIR": str(self.folder / "config"),
            "XDG_DATA_HOME": str(self.folder / "data"),
        }

    def study(self, *more: str, name: str = "study") -> dict[str, Any]:
        """Run a study to its end; what ``tune --json`` answers, or its error."""
        done = subprocess.run(
            self.command(*more, name=name),
            env=self.environment(),
            stdout=subprocess.PIPE,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout or b"{}")
        answer["exit_code"] = done.returncode
        return answer

    def measurer(self, step_time_s: float = 0.0) -> TrialRunner:
        """Measures one knob set, as a trial of a study does."""
        headroom = HeadroomProbe()
        return TrialRunner(
            measure_command(
                self.spec,
                profile="local_dev",
                split="train",
                warmup=8,
                batches=self.batches,
                floor_bytes=self.floor_bytes,
                step_time_s=step_time_s,
            ),
            floor_bytes=self.floor_bytes,
            headroom=lambda: headroom.read().headroom_bytes,
        )

    def in_turn(
        self, base: Knobs, others: Sequence[Knobs], budget_s: float, step_time_s: float = 0.0
    ) -> LadderReport:
        """Measure sets in turn with ``base``, as a ladder does."""
        clock, measure = SystemClock(), self.measurer(step_time_s)
        rungs = [Rung("set", number, Contender(one)) for number, one in enumerate(others)]
        watcher = LiveWatcher(Console(stderr=True), clock, budget_s)
        return climb(base, rungs, measure, clock=clock, budget_s=budget_s, watcher=watcher)


def knobs_of(answer: Mapping[str, Any], which: str = "best") -> Knobs:
    """The knobs of ``tune --json``'s start or best."""
    return Knobs.build(answer[which]["knobs"])


@contextmanager
def watched_headroom(period_s: float = 0.05) -> Iterator[list[int]]:
    """The least headroom meanwhile, read twenty times a second, as a list of one."""
    import threading

    probe, done = HeadroomProbe(), threading.Event()
    least = [probe.read().headroom_bytes]

    def watch() -> None:
        while not done.wait(period_s):
            least[0] = min(least[0], probe.read().headroom_bytes)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield least
    finally:
        done.set()
        thread.join()


def busy_now() -> str:
    """The machine's load, for beside any figure."""
    return f"load {os.getloadavg()[0]:.1f} at {time.strftime('%H:%M:%S')}"


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder that is gone afterwards."""
    return tempfile.TemporaryDirectory(prefix="autoloader-bench-tuner-")
