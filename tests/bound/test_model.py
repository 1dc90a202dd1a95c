"""From traces to a bound, what limits it, and what would lift it."""

import json
from dataclasses import asdict

import pytest

from autoloader.tune.bound import Analyst, Bound
from autoloader.tune.measurement import StageCost, Trace


def trace(
    decode_s: float = 0.0008,
    other_s: float = 0.0002,
    *,
    disk_bytes: float = 0.0,
    disk_busy_ratio: float = 0.0,
) -> Trace:
    stages = {"decode": StageCost(decode_s, 0.0, 0.0, 2), "other": StageCost(other_s, 0.0, 0.0, 3)}
    return Trace(1000, 10.0, stages, 1e-5, 4e4, disk_bytes, disk_busy_ratio)


def bound_of(traces: list[Trace], cpus: float) -> Bound | None:
    analyst = Analyst(cpus)
    for one in traces:
        analyst.learn({"trace": asdict(one)})
    return analyst.bound()


def test_the_bound_is_what_the_cheapest_run_would_give_on_busy_cpus():
    found = bound_of([trace(0.002), trace(0.0008)], 4)
    assert found.samples_per_s == pytest.approx(4000)
    assert found.limited_by == "cores"
    assert bound_of([], 4) is None


def test_a_rate_is_never_more_than_the_bound():
    analyst = Analyst(4)
    analyst.learn({"trace": asdict(trace()), "samples_per_s": 5000.0})
    assert "100% of the bound of 5000 samples/s" in analyst.bound().near(5000.0)


def test_lifts_are_told_with_what_they_give_the_best_first():
    found = bound_of([trace()], 2)
    told = {one.change: one.samples_per_s for one in found.lifts}
    assert told["2 more cores"] == pytest.approx(4000)
    assert told["frames stored at half the width and height"] == pytest.approx(2 / 0.0004)
    assert list(told.values()) == sorted(told.values(), reverse=True)
    assert "50% of the bound of 2000 samples/s, limited by cores" in found.describe(1000.0)
    assert "2 more cores: +2000" in found.describe(None)
    json.dumps(asdict(found), allow_nan=False)
    assert "1.00 ms of a processor: decode 0.80, other 0.20" in found.describe_costs()


def test_files_that_were_waited_for_are_told_where_the_disk_s_rate_is_not_known():
    found = bound_of([trace(disk_bytes=1e5, disk_busy_ratio=0.9)], 2)
    assert found.limited_by == "cores"
    assert "files were waited for 90% of the time" in found.describe(None)
    assert "waited" not in bound_of([trace()], 2).describe(None)


def test_a_disk_s_rate_is_known_only_where_all_that_may_be_asked_is_asked():
    slow = asdict(trace(disk_bytes=1e5, disk_busy_ratio=1.0))
    analyst = Analyst(2, most_io_threads=8)
    limits = []
    for knobs in (
        {"reader": "indexed", "io_threads": 2},
        {"reader": "stream", "io_threads": 8},
        {"reader": "indexed", "io_threads": 8},
    ):
        analyst.learn({"trace": slow, "knobs": knobs})
        bound = analyst.bound()
        limits.append(bound.limited_by)
    assert limits == ["cores", "cores", "disk"]


def test_near_the_bound_is_within_what_noise_could_explain():
    analyst = Analyst(2)
    assert not analyst.near(1999.0), "nothing is known yet"
    analyst.learn({"trace": asdict(trace())})
    analyst.learn({"samples_per_s": 3.0})
    assert analyst.near(1950.0)
    assert not analyst.near(1800.0)
    assert not analyst.near(None)
