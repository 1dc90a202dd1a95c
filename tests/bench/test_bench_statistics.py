"""The bench's statistics: medians, their intervals, pairs, turns."""

import math
import random

import pytest

from bench.paired import estimate, in_turn, interval_rank, paired_ratios


def test_the_median_of_an_even_number_lies_between_the_middle_two():
    assert estimate([4.0, 1.0, 3.0, 2.0]).median == 2.5


def test_six_pairs_are_the_fewest_that_give_95_percent():
    assert interval_rank(5)[1] < 0.95
    assert interval_rank(6) == (1, pytest.approx(1 - 2 / 64))


@pytest.mark.parametrize(("count", "rank"), [(8, 1), (9, 2), (12, 3), (20, 6), (100, 40)])
def test_interval_ranks_are_those_of_the_binomial_table(count: int, rank: int):
    assert interval_rank(count)[0] == rank


def test_the_interval_covers_the_true_median_as_often_as_it_says():
    rng = random.Random(7)
    hits = 0
    for _ in range(4000):
        found = estimate([rng.lognormvariate(0.0, 0.6) for _ in range(9)])
        hits += found.low <= 1.0 <= found.high
    assert hits / 4000 == pytest.approx(interval_rank(9)[1], abs=0.015)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_values_without_a_median_are_refused(values: list[float]):
    with pytest.raises(ValueError, match="no median"):
        estimate(values)


def test_ratios_are_taken_pair_by_pair_so_that_common_drift_cancels():
    slower_and_slower = [1.0 / (1 + i) for i in range(6)]
    twice = [2 * value for value in slower_and_slower]
    assert estimate(paired_ratios(twice, slower_and_slower)).low == pytest.approx(2.0)
    assert estimate(paired_ratios(twice, slower_and_slower)).high == pytest.approx(2.0)


def test_rounds_run_forwards_and_backwards_in_turn():
    assert in_turn(["a", "b", "c"], 3) == [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]]
