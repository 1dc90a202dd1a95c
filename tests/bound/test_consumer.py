"""The trainer's step is read from what a run has written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from autoloader.cli.tune import recorded_step_s
from autoloader.errors import UsageError
from autoloader.telemetry.batch_times import BatchTimes


def batch_log(path: Path, step_s: float, batches: int = 40) -> None:
    """A trainer that steps for ``step_s``, waits 10 ms for each batch, and pauses once."""
    log, now_s = BatchTimes(path, pipeline=0), 5.0
    log.start("train", ["a"], [1.0])
    for number in range(batches):
        log.note(now_s, now_s + 0.01, np.zeros(4, np.int64))
        now_s += 0.01 + step_s + (60.0 if number == 7 else 0.0)
    log.close()


def test_the_step_is_the_time_from_having_a_batch_to_asking_for_the_next(tmp_path: Path) -> None:
    batch_log(tmp_path / "log.jsonl", 0.08)
    assert recorded_step_s(tmp_path / "log.jsonl") == pytest.approx(0.08, abs=1e-4)
    assert recorded_step_s(tmp_path) == pytest.approx(0.08, abs=1e-4)


def test_a_decision_log_tells_it_too_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    seen = {"step_s": {"value": 0.1, "age_s": 0.0}, "wait_ratio": {"value": 0.2, "age_s": 0.0}}
    line = json.dumps({"kind": "decision", "run": "r", "pipeline": 0, "observation": seen})
    path = tmp_path / "decisions.jsonl"
    path.write_text("\n".join([line] * 30 + [line[:40]]))
    assert recorded_step_s(path) == pytest.approx(0.08)


def test_what_tells_no_step_is_refused_with_what_would(tmp_path: Path) -> None:
    batch_log(tmp_path / "short.jsonl", 0.08, batches=5)
    for run, why in (
        (tmp_path / "short.jsonl", "10 steps"),
        (tmp_path / "nothing", "no log"),
        (Path(__file__).parent, "no log"),
    ):
        with pytest.raises(UsageError, match=why) as caught:
            recorded_step_s(run)
        assert "--step-time" in caught.value.remedy
