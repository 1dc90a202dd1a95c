"""The bound against sums done by hand."""

import math

import pytest

from autoloader.tune.bound import Costs, Supplies, solve


def test_the_resource_that_takes_longest_limits_the_rate():
    assert solve(Costs(cpu_s=0.002), Supplies(cpus=4)) == (pytest.approx(2000), "cores")
    found = solve(Costs(0.002, one_thread_s=0.01), Supplies(4))
    assert found == (pytest.approx(100), "one thread")
    found = solve(Costs(0.002, disk_bytes=1e5), Supplies(4, disk_bytes_per_s=1e7))
    assert found == (pytest.approx(100), "disk")


def test_what_costs_nothing_has_no_bound():
    rate, limit = solve(Costs(0.0), Supplies(2))
    assert math.isinf(rate)
    assert limit is None
