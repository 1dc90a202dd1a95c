"""What the regression gate lets through, from counts and ratios that are made up."""

import itertools
import operator
from typing import Any

import pytest

from bench.gate import settling
from bench.gate.baseline import (
    LIMITS,
    Baseline,
    Count,
    counted_baseline,
    judge_counts,
    judge_ratios,
    load_baseline,
    timed_baseline,
)
from bench.gate.turns import COUNTINGS, SHORT

COUNTS = dict.fromkeys(LIMITS, 0.25)


def _baseline(**limit: Any) -> Baseline:
    return Baseline(counted={"some": {"figure": Count(**limit)}})


@pytest.mark.parametrize(
    ("found", "passed", "better"),
    [(89.0, True, True), (91.0, True, False), (109.0, True, False), (111.0, False, False)],
)
def test_a_count_may_be_off_by_its_tolerance_and_be_better(
    found: float, passed: bool, better: bool
):
    baseline = _baseline(value=100.0, tolerance=0.1)
    (verdict,) = judge_counts(baseline, {"some": {"figure": found}})
    assert (verdict.passed, verdict.better) == (passed, better)


def test_what_was_not_counted_fails():
    (verdict,) = judge_counts(_baseline(value=1.0), {"some": {}})
    assert (verdict.passed, verdict.found) == (False, "not counted")


def test_a_baseline_lets_the_counts_through_that_it_was_written_from():
    baseline = Baseline(counted=counted_baseline({"some": COUNTS}, {"some": 0.15}))
    assert all(one.passed for one in judge_counts(baseline, {"some": COUNTS}))


def _figure(low: float, median: float, high: float, *, more_is_better: bool = True) -> Any:
    value = {"median": median, "low": low, "high": high, "confidence": 0.97, "count": 6}
    return {
        "scenario": "mixture",
        "title": "rate",
        "unit": "×",
        "more_is_better": more_is_better,
        "gate": "interval",
        "value": value,
    }


@pytest.mark.parametrize(
    ("low", "high", "passed", "better"),
    [
        (1.0, 1.4, False, False),
        (1.2, 1.6, True, False),
        (1.7, 1.9, True, False),
        (2.2, 2.6, True, True),
    ],
)
def test_a_ratio_fails_when_its_whole_interval_is_on_the_worse_side(
    low: float, high: float, passed: bool, better: bool
):
    baseline = Baseline(counted={}, timed=timed_baseline({"figures": [_figure(1.5, 1.8, 2.1)]}))
    (verdict,) = judge_ratios(baseline, [_figure(low, (low + high) / 2, high)])
    assert (verdict.passed, verdict.better) == (passed, better)


@pytest.mark.parametrize("met", [True, False])
def test_a_ratio_that_differs_from_host_to_host_is_held_to_the_target_of_its_own_run(met: bool):
    figure = {**_figure(0.4, 0.5, 0.6), "gate": "target", "target": "≤ 0.5", "met": met}
    assert timed_baseline({"figures": [figure]}) == {}
    (verdict,) = judge_ratios(Baseline(counted={}), [figure])
    assert (verdict.passed, verdict.wanted) == (met, "≤ 0.5")


def test_the_shipped_baseline_has_every_counting_and_figure():
    baseline = load_baseline()
    assert set(baseline.counted) == set(COUNTINGS)
    assert set(SHORT) <= set(COUNTINGS)
    for own in baseline.counted.values():
        assert set(own) == set(LIMITS)


def test_processes_that_never_come_to_rest_are_not_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settling, "LOOK_S", 0)
    monkeypatch.setattr(settling, "MOST_LOOKS", 20)
    restless = itertools.count()
    with pytest.raises(TimeoutError, match="did not come to rest in 20 looks"):
        settling.calm(lambda: next(restless), operator.eq, ())
    later = itertools.chain(range(12), itertools.repeat(12))
    assert settling.calm(lambda: next(later), operator.eq, ()) == 12


def test_windows_in_which_a_busy_machine_made_no_batch_do_not_decide(
    monkeypatch: pytest.MonkeyPatch,
):
    windows, seen = iter([10, 44, 10, 44, 44, 47, 10, 44, 44]), [0]
    monkeypatch.setattr(settling, "LOOK_S", 0)
    monkeypatch.setattr(settling, "page_faults", lambda pid: 0)
    monkeypatch.setattr(settling, "wants_processor", lambda pid: False)
    monkeypatch.setattr(settling, "forget_touched", lambda pid: seen.append(next(windows)))
    monkeypatch.setattr(settling, "touched_bytes", lambda pid: seen[-1])
    assert settling.touched_per_batch(iter(range(9)), [1]) == 44
