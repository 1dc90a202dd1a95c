"""Measurements of one host take turns."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles import ManualClock

from autoloader.spec.knobs import Knobs
from autoloader.tune.trial import HostTurns, Outcome, TrialResult, TrialWatch


def test_measurements_of_one_host_take_turns(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    inside: list[str] = []

    def measure(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        inside.append("in")
        assert inside == ["in"]
        other = HostTurns(lambda *_, **__: pytest.fail("both measure"), ManualClock(), lock)

        class GivesUpError(Exception):
            pass

        def gives_up(progress: object, headroom: object) -> bool:
            raise GivesUpError

        with pytest.raises(GivesUpError):
            other(knobs, timeout_s=1, watch=gives_up)
        inside.clear()
        return TrialResult(Outcome.COMPLETE, samples_per_s=1.0)

    first = HostTurns(measure, ManualClock(), lock)
    for _ in range(2):
        first(Knobs(), timeout_s=1, watch=lambda progress, headroom: True)


def test_a_host_without_room_for_the_lock_measures_all_the_same(tmp_path: Path) -> None:
    def measure(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        return TrialResult(Outcome.COMPLETE, samples_per_s=5.0)

    alone = HostTurns(measure, ManualClock(), tmp_path / "no" / "lock")
    assert alone(Knobs(), timeout_s=1, watch=lambda p, h: True).samples_per_s == 5.0
