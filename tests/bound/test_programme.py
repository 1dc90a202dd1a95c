"""The bound against sums done by hand, and what relaxing each resource does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autoloader.tune.bound import CacheStep, Costs, Supplies, solve

GIB = 2**30


def test_processors_alone_give_cores_over_seconds() -> None:
    found = solve(Costs(cpu_s=0.002), Supplies(cpus=4))
    assert found.samples_per_s == pytest.approx(2000)
    assert found.limited_by == "cores"


def test_memory_for_frames_is_filled_with_the_steps_that_save_most() -> None:
    costs = Costs(0.002, cache=(CacheStep(GIB, 0.0010), CacheStep(GIB, 0.0004)))
    found = [
        solve(costs, Supplies(2, cache_bytes=ratio * GIB)).samples_per_s
        for ratio in (0, 0.5, 1, 2, 9)
    ]
    assert found == pytest.approx([2 / (0.002 - saved) for saved in (0, 5e-4, 1e-3, 14e-4, 14e-4)])


def test_no_frame_is_held_where_it_lifts_nothing() -> None:
    costs = Costs(0.002, cache=(CacheStep(GIB, 0.001),))
    found = solve(replace(costs, one_thread_s=0.01), Supplies(8, cache_bytes=GIB))
    assert found.limited_by == "one thread"
    assert found.cache_bytes == pytest.approx(0, abs=1)


def test_what_costs_nothing_has_no_bound() -> None:
    found = solve(Costs(0.0), Supplies(2))
    assert math.isinf(found.samples_per_s)
    assert found.limited_by is None
