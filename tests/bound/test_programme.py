"""The bound against sums done by hand."""

import math

import pytest

from autoloader.tune.bound import solve


def test_the_resource_that_takes_longest_limits_the_rate():
    assert solve({"cores": 0.0005, "one thread": 0.0}) == (pytest.approx(2000), "cores")
    assert solve({"cores": 0.0005, "one thread": 0.01}) == (pytest.approx(100), "one thread")
    found = solve({"cores": 0.0005, "one thread": 0.0, "disk": 0.01})
    assert found == (pytest.approx(100), "disk")


def test_what_costs_nothing_has_no_bound():
    rate, limit = solve({"cores": 0.0, "one thread": 0.0})
    assert math.isinf(rate)
    assert limit is None
