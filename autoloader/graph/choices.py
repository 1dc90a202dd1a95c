"""Which dataset gives the next sample of an in-graph mixture, as a tf.data dataset of indices.

Theory of operation. ``choose`` follows the low-discrepancy schedule of ``sampling.schedule``: all
blocks in the order in which they are due. A chunk is what is due within ``_CHUNK`` units of time
(about as many blocks), computed whole in the graph, so that no Python runs while samples flow and
any position is reached by arithmetic. ``sample`` draws each block's dataset by a keyed hash of the
block's number, so that its shares are exact in expectation only, and any position is reached too.

Not here: the schedule in NumPy (``sampling.schedule``, ``sampling.order``; tested equal), shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.graph import draws
from autoloader.graph.tensorflow import tf
from autoloader.sampling.draws import PURPOSE_CHOICE, dataset_key, fold
from autoloader.sampling.order import MixtureOrder

_CHUNK = 1024


def scheduled_choices(order: MixtureOrder, position: int) -> Any:
    """Indices by the mixture's schedule, from sample ``position`` on, without end."""
    length = order.block_length
    if order.pass_samples is None:
        return _Due(order.shares, order.phases, None, length).rows(position)
    full = [count // length for count in order.pass_samples]
    left = [count % length for count in order.pass_samples]
    parts = [
        _Due(counts, order.phases, counts, size)
        for counts, size in ((full, length), (left, 1))
        if sum(counts)
    ]
    epoch = sum(order.pass_samples)
    within, rest = position % epoch, None
    for part in parts:
        samples = part.blocks * part.block_length
        if within < samples:
            rows = part.rows(within)
            rest = rows if rest is None else rest.concatenate(rows)
        within = max(0, within - samples)
    whole = parts[0].rows(0)
    for part in parts[1:]:
        whole = whole.concatenate(part.rows(0))
    whole = whole.repeat()
    return whole if rest is None else rest.concatenate(whole)


def drawn_choices(order: MixtureOrder, seed: int, position: int) -> Any:
    """Indices drawn by share, from sample ``position`` on, without end."""
    key = tf.constant(fold(dataset_key(seed, ""), PURPOSE_CHOICE), tf.uint64)
    bounds = tf.constant(np.cumsum(order.shares), tf.float64)
    last = len(order.shares) - 1
    length = order.block_length

    def chunk(first: Any) -> Any:
        blocks = tf.bitcast(tf.range(first, first + _CHUNK), tf.uint64)
        hashes = draws.splitmix64(tf.bitwise.bitwise_xor(blocks, key))
        top = tf.bitcast(tf.bitwise.right_shift(hashes, tf.constant(11, tf.uint64)), tf.int64)
        units = tf.cast(top, tf.float64) * 2.0**-53
        drawn = tf.searchsorted(bounds, units, side="right", out_type=tf.int64)
        return tf.repeat(tf.minimum(drawn, last), length)

    start = position // (_CHUNK * length) * _CHUNK
    firsts = tf.data.Dataset.range(start, 2**62, _CHUNK)
    return _flat(firsts, chunk).skip(position - start * length)


class _Due:
    """One ``Schedule`` and the samples of its blocks; ``blocks`` are all of a finite one."""

    def __init__(
        self,
        shares: Sequence[float],
        phases: Sequence[float],
        finite: Sequence[int] | None,
        block_length: int,
    ) -> None:
        weights = np.asarray(shares, dtype=np.float64)
        self._live = np.flatnonzero(weights > 0)
        self._weights = weights[self._live] / weights.sum()
        self._phases = np.asarray(phases, dtype=np.float64)[self._live]
        limit = np.full(len(weights), 2**62) if finite is None else np.asarray(finite)
        self._limit = limit[self._live].astype(np.int64)
        self.blocks = 0 if finite is None else int(self._limit.sum())
        self.block_length = block_length

    def rows(self, position: int) -> Any:
        """Index of each sample from ``position`` of this schedule on."""
        block = position // self.block_length
        start = max(0, block - len(self._live) - 1) // _CHUNK
        while (before := int(self._counts_at(float(start * _CHUNK)).sum())) > block:
            start -= 1
        stop = self.blocks // _CHUNK + 2 if self.blocks else 2**40
        chunks = _flat(tf.data.Dataset.range(start, stop), self._chunk)
        return chunks.skip(position - before * self.block_length)

    def _counts_at(self, v: float) -> NDArray[np.int64]:
        """Blocks due before time v, per live dataset, as ``Schedule`` counts them."""
        k = np.maximum(np.ceil(v * self._weights - self._phases), 0).astype(np.int64)
        k += (k + self._phases) / self._weights < v
        k -= (k > 0) & ((k - 1 + self._phases) / self._weights >= v)
        return np.asarray(np.minimum(k, self._limit), dtype=np.int64)

    def _counts(self, v: Any) -> Any:
        weights, phases = tf.constant(self._weights), tf.constant(self._phases)

        def due(k: Any) -> Any:
            return (tf.cast(k, tf.float64) + phases) / weights

        k = tf.cast(tf.maximum(tf.math.ceil(v * weights - phases), 0.0), tf.int64)
        k = k + tf.cast(due(k) < v, tf.int64)
        k = k - tf.cast((k > 0) & (due(k - 1) >= v), tf.int64)
        return tf.minimum(k, tf.constant(self._limit))

    def _chunk(self, number: Any) -> Any:
        """Index of each sample due within chunk ``number``."""
        low = tf.cast(number * _CHUNK, tf.float64)
        before, after = self._counts(low), self._counts(low + _CHUNK)
        each = after - before
        dataset = tf.repeat(tf.range(len(self._live)), each)
        first = tf.gather(tf.cumsum(each, exclusive=True), dataset)
        k = tf.range(tf.reduce_sum(each)) - first + tf.gather(before, dataset)
        phases = tf.gather(tf.constant(self._phases), dataset)
        weights = tf.gather(tf.constant(self._weights), dataset)
        due = (tf.cast(k, tf.float64) + phases) / weights
        ordered = tf.gather(dataset, tf.argsort(due, stable=True))
        indices = tf.gather(tf.constant(self._live, tf.int64), ordered)
        return tf.repeat(indices, self.block_length)


def _flat(numbers: Any, chunk: Any) -> Any:
    plain = tf.autograph.experimental.do_not_convert(chunk)
    return numbers.map(plain).prefetch(1).unbatch()
