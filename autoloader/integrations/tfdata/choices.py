"""Which dataset gives the next sample of a mixture in a graph, as a tf.data dataset of indices.

Theory of operation. Turns follow the low-discrepancy schedule of ``sampling.schedule``: all blocks
in the order in which they are due. A chunk is what is due within ``_CHUNK`` units of time (about as
many blocks), computed whole in the graph, so that no Python runs while samples flow. Drawn turns
are keyed hashes of the block's number, so that their shares are exact in expectation only.

Not here: the schedule in NumPy (``sampling.schedule``; tested equal), shares.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autoloader.pipeline.graph import draws
from autoloader.pipeline.graph.tensorflow import tf
from autoloader.sampling.mixture import MixtureOrder

_CHUNK = 1024


def turns(order: MixtureOrder) -> Any:
    """Index of each sample's dataset, without end."""
    chunk = _scheduled(order) if order.draw_key is None else _drawn(order, order.draw_key)
    plain = tf.autograph.experimental.do_not_convert(chunk)
    return tf.data.Dataset.range(2**40).map(plain).prefetch(1).unbatch()


def _drawn(order: MixtureOrder, key: int) -> Any:
    bounds = np.cumsum(order.shares)

    def chunk(number: Any) -> Any:
        first = number * _CHUNK
        blocks = tf.bitcast(tf.range(first, first + _CHUNK), tf.uint64)
        hashes = draws.splitmix64(tf.bitwise.bitwise_xor(blocks, tf.constant(key, tf.uint64)))
        top = tf.bitcast(tf.bitwise.right_shift(hashes, tf.constant(11, tf.uint64)), tf.int64)
        units = tf.cast(top, tf.float64) * 2.0**-53
        drawn = tf.searchsorted(tf.constant(bounds), units, side="right", out_type=tf.int64)
        return tf.repeat(tf.minimum(drawn, len(bounds) - 1), order.block_length)

    return chunk


def _scheduled(order: MixtureOrder) -> Any:
    live = np.flatnonzero(order.shares)
    weights, phases = np.asarray(order.shares)[live], np.asarray(order.phases)[live]

    def due(k: Any) -> Any:
        return (tf.cast(k, tf.float64) + phases) / weights

    def counts(v: Any) -> Any:
        """Blocks due before time v, per live dataset, as ``Schedule`` counts them."""
        k = tf.cast(tf.maximum(tf.math.ceil(v * weights - phases), 0.0), tf.int64)
        k = k + tf.cast(due(k) < v, tf.int64)
        return k - tf.cast((k > 0) & (due(k - 1) >= v), tf.int64)

    def chunk(number: Any) -> Any:
        low = tf.cast(number * _CHUNK, tf.float64)
        before, after = counts(low), counts(low + _CHUNK)
        each = after - before
        dataset = tf.repeat(tf.range(len(live)), each)
        first = tf.gather(tf.cumsum(each, exclusive=True), dataset)
        k = tf.range(tf.reduce_sum(each)) - first + tf.gather(before, dataset)
        own = tf.gather(tf.constant(phases), dataset), tf.gather(tf.constant(weights), dataset)
        ordered = tf.gather(
            dataset, tf.argsort((tf.cast(k, tf.float64) + own[0]) / own[1], stable=True)
        )
        return tf.repeat(tf.gather(tf.constant(live, tf.int64), ordered), order.block_length)

    return chunk
