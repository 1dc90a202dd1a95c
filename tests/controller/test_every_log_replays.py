"""Every decision that the suite's loaders logged is derived again, after all other tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoloader.cli.app import main
from autoloader.controller.decisions import DecisionLog
from autoloader.testing import SCENARIOS, simulate


@pytest.mark.runs_last
def test_every_log_of_the_suite_replays_with_identical_decisions(
    decision_logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant = SCENARIOS["steady"].plant("indexed")
    log = DecisionLog(decision_logs / "simulated.jsonl")  # so that there is one at least
    trace = simulate(plant, 20.0, log=log)
    log.close()
    status = main(["replay", str(decision_logs), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["differences"] == []
    assert status == 0
    assert found["decisions"] >= len(trace.decisions)
