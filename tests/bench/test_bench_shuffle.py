"""How the bench tells how well a stream is shuffled."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.shuffle import rank_correlation, shuffle_quality


def _batches(rows: list[tuple[int, int, int]], size: int) -> list[np.ndarray]:
    return [np.array(rows[at : at + size], np.int64) for at in range(0, len(rows), size)]


def test_storage_order_correlates_wholly_and_stays_within_episodes():
    rows = [(0, episode, step) for episode in range(4) for step in range(10)]
    found = shuffle_quality(_batches(rows, 10))
    assert found["distinct_episodes"] == 1.0
    assert found["storage_correlation"] == pytest.approx(1.0)
    assert found["same_episode_ratio"] == pytest.approx(36 / 39)


def test_a_random_order_correlates_with_nothing():
    rows = [(d, episode, step) for d in range(2) for episode in range(30) for step in range(50)]
    order = np.random.default_rng(3).permutation(len(rows))
    found = shuffle_quality(_batches([rows[at] for at in order], 50))
    assert abs(found["storage_correlation"]) < 0.05
    assert found["same_episode_ratio"] < 0.06
    assert 25 < found["distinct_episodes"] <= 50


def test_datasets_are_held_against_their_own_storage_only():
    rows = [(step % 2, 0, step) for step in range(40)]
    assert shuffle_quality(_batches(rows, 8))["storage_correlation"] == pytest.approx(1.0)


def test_what_cannot_be_told_is_absent():
    assert shuffle_quality([]) == {}
    assert shuffle_quality(_batches([(0, 3, 1)], 1)) == {"distinct_episodes": 1.0}


@given(st.permutations(range(20)))
def test_reversing_the_order_turns_the_correlation_round(order: list[int]):
    places = np.array([(at // 5, at % 5) for at in order])
    forwards, backwards = rank_correlation(places), rank_correlation(places[::-1])
    assert forwards is not None
    assert backwards is not None
    assert forwards == pytest.approx(-backwards)
    assert -1.0000001 <= forwards <= 1.0000001
