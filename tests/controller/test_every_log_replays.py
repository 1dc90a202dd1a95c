"""Every decision that the suite's loaders logged is derived again, after all other tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoloader.cli.app import main
from autoloader.controller.decisions import DecisionLog, replay
from autoloader.testing import SCENARIOS, simulate


@pytest.mark.runs_last
def test_every_log_of_the_suite_replays_with_identical_decisions(decision_logs: Path) -> None:
    plant = SCENARIOS["steady"].plant("indexed")
    log = DecisionLog(decision_logs / "simulated.jsonl")  # so that there is one at least
    trace = simulate(plant, 20.0, log=log)
    log.close()
    decisions, different = 0, []
    for path in sorted(decision_logs.rglob("*.jsonl")):
        with path.open() as lines:
            found = replay(lines, origin=str(path))
        decisions += found.decisions
        different += [(path.name, one) for one in found.differences]
    assert different == []
    assert decisions >= len(trace.decisions)
    assert main(["replay", str(decision_logs)]) == 0
