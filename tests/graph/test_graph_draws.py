"""The keyed draws in TensorFlow are those in NumPy, bit for bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autoloader.pipeline.graph import draws as graph_draws
from autoloader.pipeline.graph.tensorflow import tf
from autoloader.samples import draws

KEYS = st.integers(0, 2**64 - 1)
PLACES = st.integers(-(2**63), 2**63 - 1)


def u64(values: object) -> object:
    return tf.constant(values, tf.uint64)


@settings(max_examples=60)
@given(st.lists(KEYS, min_size=1, max_size=30))
def test_hashes_agree(values: list[int]) -> None:
    found = graph_draws.splitmix64(u64(values)).numpy()
    assert found.tolist() == draws.splitmix64_array(np.array(values, np.uint64)).tolist()


@settings(max_examples=60)
@given(KEYS, st.lists(PLACES, min_size=1, max_size=4))
def test_keys_of_places_agree(key: int, parts: list[int]) -> None:
    assert int(graph_draws.fold(u64(key), *parts).numpy()) == draws.fold(key, *parts)


@settings(max_examples=60)
@given(KEYS, st.integers(0, 100), st.integers(0, 130))
def test_orders_agree(key: int, first: int, count: int) -> None:
    found = graph_draws.order(u64(key), first, first + count).numpy().tolist()
    assert found == draws.order(key, first, first + count).tolist()


@settings(max_examples=60)
@given(KEYS, st.integers(1, 7))
def test_choices_agree(key: int, count: int) -> None:
    assert int(graph_draws.choose(u64(key), count).numpy()) == draws.choose(key, count)
