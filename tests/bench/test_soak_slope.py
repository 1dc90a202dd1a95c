"""Growth over time as the soak tells it."""

import pytest

from bench.endurance.memory import growth_per_hour


def test_a_steady_growth_is_told_by_the_hour():
    low, middle, high = growth_per_hour([(float(second), 1000 * second) for second in range(100)])
    assert (low, middle, high) == pytest.approx((3.6e6, 3.6e6, 3.6e6))


def test_what_is_filled_at_the_beginning_is_no_growth():
    filling = [(float(second), 10**9 * second) for second in range(20)]
    assert growth_per_hour([*filling, *((float(s), 10**9) for s in range(20, 101))])[1] == 0.0


def test_one_peak_is_no_growth():
    series = [(float(second), 10**9 if second == 80 else 0) for second in range(100)]
    assert growth_per_hour(series)[1] == 0.0


def test_a_long_soak_needs_no_more_pairs_than_a_short_one():
    series = [(float(second), 7 * second) for second in range(20_000)]
    assert growth_per_hour(series)[1] == pytest.approx(7 * 3600)


def test_too_short_a_soak_is_refused():
    with pytest.raises(ValueError, match="longer"):
        growth_per_hour([(1.0, 5)])
