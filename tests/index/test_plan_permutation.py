"""The computed permutation: a permutation for every size and key, and as mixed as a drawn one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from autoloader.samples.draws import permute, splitmix64_array

KEYS = st.integers(0, 2**64 - 1)


def image(size: int, key: int, numbers: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    numbers = np.arange(size, dtype=np.int64) if numbers is None else numbers
    sizes = np.full(len(numbers), size, dtype=np.int64)
    return permute(numbers, sizes, np.full(len(numbers), key, dtype=np.uint64))


def images_of_many_keys(size: int, keys: int) -> NDArray[np.int64]:
    """[keys, size]: one permutation a row."""
    key = np.repeat(splitmix64_array(np.arange(keys, dtype=np.uint64)), size)
    numbers = np.tile(np.arange(size, dtype=np.int64), keys)
    return permute(numbers, np.full(len(numbers), size), key).reshape(keys, size)


def excess(counts: NDArray[np.int64], freedom: int) -> float:
    """Standard deviations that the chi-square of equal chances lies above its mean."""
    expected = counts.sum() / counts.size
    chi = float(((counts - expected) ** 2 / expected).sum())
    return (chi - freedom) / math.sqrt(2 * freedom)


@given(st.one_of(st.integers(1, 40), st.integers(1, 3000)), KEYS)
def test_the_images_of_all_numbers_are_all_numbers(size: int, key: int):
    assert sorted(image(size, key).tolist()) == list(range(size))


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_order_of_a_handful_comes_equally_often(size: int):
    orders = math.factorial(size)
    permutations = images_of_many_keys(size, 100 * orders)
    _, counts = np.unique(permutations, axis=0, return_counts=True)
    assert len(counts) == orders
    assert excess(counts, orders - 1) < 4


@pytest.mark.parametrize("size", [7, 16, 100])
def test_every_number_has_every_image_and_every_distance_to_the_next_equally_often(size: int):
    permutations = images_of_many_keys(size, 200_000 // size)
    for number in (0, size // 2, size - 1):
        assert excess(np.bincount(permutations[:, number], minlength=size), size - 1) < 4
    distance = np.diff(permutations, axis=1).ravel() % size
    assert excess(np.bincount(distance, minlength=size)[1:], size - 2) < 4


def test_two_passes_have_nothing_in_common():
    size = 10_000
    first, second = image(size, 11), image(size, 12)
    assert np.count_nonzero(first == second) <= 8  # 1 is expected
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(size)
