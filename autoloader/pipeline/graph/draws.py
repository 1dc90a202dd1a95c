"""The keyed draws of ``samples.draws``, as TensorFlow operations; a test holds both together.

Not here: what is drawn (``pipeline.graph.reader``, ``integrations.tfdata``).
"""

from __future__ import annotations

from typing import Any

from autoloader.pipeline.graph.tensorflow import tf
from autoloader.samples.draws import GOLDEN, MIX_1, MIX_2


def _u64(value: int) -> Any:
    return tf.constant(value, tf.uint64)


def splitmix64(values: Any) -> Any:
    """Hash of each element of a uint64 tensor."""
    shift, xor = tf.bitwise.right_shift, tf.bitwise.bitwise_xor
    z = values + _u64(GOLDEN)
    z = xor(z, shift(z, _u64(30))) * _u64(MIX_1)
    z = xor(z, shift(z, _u64(27))) * _u64(MIX_2)
    return xor(z, shift(z, _u64(31)))


def fold(key: Any, *parts: Any) -> Any:
    """A key below ``key`` (uint64) for each int64 part, mixed in one after the other."""
    for part in parts:
        key = splitmix64(
            tf.bitwise.bitwise_xor(key, tf.bitcast(tf.cast(part, tf.int64), tf.uint64))
        )
    return key


def order(key: Any, first: Any, stop: Any) -> Any:
    """First … stop−1 [n] int64 in the order of their hashes under ``key``; ties by number."""
    return ordered(key, tf.range(tf.cast(first, tf.int64), tf.cast(stop, tf.int64)))


def ordered(key: Any, numbers: Any) -> Any:
    """``numbers`` [n] int64, which ascend, in the order of their hashes under ``key``."""
    hashes = splitmix64(tf.bitwise.bitwise_xor(tf.bitcast(numbers, tf.uint64), key))
    signed = tf.bitcast(tf.bitwise.bitwise_xor(hashes, _u64(1 << 63)), tf.int64)
    return tf.gather(numbers, tf.argsort(signed, stable=True))


def choose(key: Any, count: int) -> Any:
    """One of 0 … count−1, as an int32 scalar."""
    return tf.cast(splitmix64(key) % _u64(count), tf.int32)
