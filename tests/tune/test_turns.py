"""Measurements of one host take turns."""

from pathlib import Path

import pytest
from doubles import ManualClock

from autoloader.errors import UsageError
from autoloader.spec.knobs import Knobs
from autoloader.tune.trial import Outcome, TrialResult, TrialWatch, by_turns, start_error


def measured(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
    return TrialResult(Outcome.COMPLETE, samples_per_s=timeout_s)


def test_measurements_of_one_host_take_turns(tmp_path: Path):
    lock = tmp_path / "lock"
    clock, looks = ManualClock(), []

    def measure(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        other = by_turns(lambda *_, **__: pytest.fail("both measure"), clock, 30.0, lock)
        late = other(knobs, timeout_s=1, watch=lambda *_: bool(looks.append(clock.now_s())) or True)
        assert late.outcome is Outcome.FAILED
        assert "--budget ran out: a measurement" in late.reason
        assert isinstance(start_error(late), UsageError)
        assert "a longer --budget" in start_error(late).remedy
        return TrialResult(Outcome.COMPLETE, samples_per_s=1.0)

    first = by_turns(measure, ManualClock(), 1e9, lock)
    first(Knobs(), timeout_s=1, watch=lambda progress, headroom: True)
    assert len(looks) > 1, "whoever looks on sees that time passes"
    assert clock.now_s() == pytest.approx(30.0, abs=1.0), "the study's time counts while it waits"


def test_a_timeout_begins_with_the_turn_and_ends_with_the_study(tmp_path: Path):
    clock = ManualClock(95.0)
    turns = by_turns(measured, clock, 100.0, tmp_path / "lock")
    assert turns(Knobs(), timeout_s=3, watch=lambda *_: True).samples_per_s == 3
    assert turns(Knobs(), timeout_s=9, watch=lambda *_: True).samples_per_s == 5


def test_a_host_without_room_for_the_lock_measures_all_the_same(tmp_path: Path):
    alone = by_turns(measured, ManualClock(), 1e9, tmp_path / "no" / "lock")
    assert alone(Knobs(), timeout_s=5, watch=lambda p, h: True).samples_per_s == 5.0
