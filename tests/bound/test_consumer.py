"""The trainer's step is read from the record of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoloader.cli.recorded_run import Run
from autoloader.cli.tune import recorded_step_s
from autoloader.errors import UsageError
from autoloader.telemetry.run_record import PipelineRecord
from autoloader.telemetry.statistics import Statistics


def run_of(steps: list[tuple[float | None, float | None]]) -> Run:
    """A run whose moments have these (seconds from batch to batch, share of it that is waiting)."""
    moments = tuple(
        Statistics(
            run="vm-1", pipeline=1, split="train", at_s=float(at_s), started_at_s=0.0,
            phase="running", step_s=step_s, wait_ratio=waited,
        )
        for at_s, (step_s, waited) in enumerate(steps)
    )  # fmt: skip
    return Run("vm-1", PipelineRecord(Path("x"), {}, moments))


def test_the_step_is_the_part_of_the_time_that_training_does_not_wait() -> None:
    assert recorded_step_s(run_of([(0.1, 0.2)] * 30)) == pytest.approx(0.08)
    pause = [(60.0, 0.0), (None, None)]
    assert recorded_step_s(run_of([(0.1, 0.2)] * 20 + pause)) == pytest.approx(0.08)


def test_a_record_that_tells_no_step_is_refused_with_what_would() -> None:
    for steps in ([(0.1, 0.2)] * 5, [(None, None)] * 40):
        with pytest.raises(UsageError, match="vm-1") as caught:
            recorded_step_s(run_of(steps))
        assert "--step-time" in caught.value.remedy
