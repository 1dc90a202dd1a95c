"""The front of every stream: a dataset's shards, pass after pass, interleaved into records.

One traced function (one more for each other form) serves all datasets: files, key, place and knobs
are its tensor inputs, so that opening 29 streams costs one trace. An element is a place (pass,
shard, record) and the record's bytes. tf.data's autotuning is off: the knobs set the parallelism.

tf.data's parallel interleave opens inputs ahead and buffers several records of each, whatever its
knobs say; with ``num_parallel_calls`` 1 the plain one is used, which holds one record at a time.

Within a shard records keep their order; only the interleave over shards may reorder
(``deterministic=False`` there and nowhere else, and not where strict order is asked for). A pass
is drained before the next begins.

Not here: what a record holds (``index.records``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from autoloader.formats.files import opened, source_bytes
from autoloader.formats.tfrecord import read_records, walk_records
from autoloader.pipeline.graph import draws
from autoloader.pipeline.graph.tensorflow import tf
from autoloader.samples.block import ReaderStart
from autoloader.samples.draws import PURPOSE_SHARDS
from autoloader.samples.resolve import ResolvedDataset
from autoloader.spec.knobs import ResolvedDatasetKnobs

PASSES = 256
"""Passes of one stream; then it ends and is opened anew. A stream without end would spin for ever
over files that were emptied while it ran."""
_lock = threading.Lock()
_traced: dict[tuple[bool, bool, bool], Any] = {}
numbers = itertools.count()
"""Numbers of the streams of this process."""
failures: dict[int, tuple[str, OSError]] = {}
"""Number of a stream → remote shard and error of its last failed read; TensorFlow keeps the words
alone."""

_STRUCTURE = (tf.TensorSpec([3], tf.int64), tf.TensorSpec([], tf.string))


def records(
    dataset: ResolvedDataset,
    start: ReaderStart,
    knobs: ResolvedDatasetKnobs,
    *,
    number: int,
    ordered: bool = False,
) -> Iterator[Any]:
    """The records of ``dataset`` from ``start`` on, for ``PASSES`` passes.

    Args:
        dataset: the dataset that the records are of.
        start: pass, and records of each shard to skip.
        knobs: the dataset's knobs of its stream.
        number: number of the stream, by which ``failures`` names what could not be read.
        ordered: whether shards read side by side take turns, however late one is.
    """
    with _lock:
        # Both forms at once: a retune that needs the other one must not wait for its trace.
        for side_by_side in (False, True):
            form = (side_by_side, ordered, dataset.remote)
            if form not in _traced:
                _traced[form] = _trace(*form)
    slices = dataset.slices
    with tf.device("/CPU:0"):
        variant = _traced[knobs.num_parallel_calls > 1, ordered, dataset.remote](
            tf.constant([piece.path for piece in slices]),
            tf.constant([piece.start for piece in slices], tf.int64),
            tf.constant([piece.stop for piece in slices], tf.int64),
            tf.constant(start.skip, tf.int64),
            tf.constant(dataset.key, tf.uint64),
            tf.constant(start.pass_, tf.int64),
            tf.constant(knobs.cycle_length, tf.int64),
            tf.constant(knobs.num_parallel_calls, tf.int64),
            tf.constant(number, tf.int64),
        )
        stream = tf.data.experimental.from_variant(variant, _STRUCTURE)
        if knobs.stream_prefetch:
            stream = stream.prefetch(knobs.stream_prefetch)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_warm_start = False
        return iter(stream.with_options(options))


def _trace(side_by_side: bool, ordered: bool, remote: bool) -> Any:
    number = tf.TensorSpec([], tf.int64)
    vector = tf.TensorSpec([None], tf.int64)
    signature = [
        tf.TensorSpec([None], tf.string),
        vector,
        vector,
        vector,
        tf.TensorSpec([], tf.uint64),
        number,
        number,
        number,
        number,
    ]

    def variant(*inputs: Any) -> Any:
        return _variant(*inputs, side_by_side=side_by_side, ordered=ordered, remote=remote)

    function = tf.function(variant, input_signature=signature, autograph=False)
    function.get_concrete_function()
    return function


def numbered_records(path: Any, first: Any, stop: Any, pass_: Any, shard: Any) -> Any:
    """(place, record bytes) of the records [first, stop) of a file."""
    found = tf.data.TFRecordDataset(path).take(stop).skip(first)
    return found.enumerate(start=first).map(
        lambda record, raw: (tf.stack([pass_, shard, record]), raw)
    )


def _remote_records(path: Any, first: Any, stop: Any, pass_: Any, shard: Any, stream: Any) -> Any:
    """The same of a remote file: read here, as ``_whole_records`` would fetch it once more."""

    def read(name: bytes, start: int, end: int, of: int) -> Iterator[tuple[int, bytes]]:
        try:
            for found in read_records(name.decode(), start, end):
                if found.number is not None and found.payload is not None:
                    yield found.number, found.payload
        except OSError as error:
            failures[int(of)] = name.decode(), error
            raise

    signature = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string))
    found = tf.data.Dataset.from_generator(
        read, args=(path, first, stop, stream), output_signature=signature
    )
    return found.map(lambda record, raw: (tf.stack([pass_, shard, record]), raw))


def _whole_records(path: bytes, most: int) -> np.int64:
    """How many of the first records of a local file end within it.

    TensorFlow makes room for a record before it reads it: a length beyond all memory ends the
    process. What is left out is named where it is missed (``pipeline.graph.reader``). Where a file
    cannot be read TensorFlow says so.
    """
    name = path.decode()
    with contextlib.suppress(OSError):
        found = os.stat(name)  # noqa: PTH116
        return np.int64(_records_within(name, found.st_size, found.st_mtime_ns, most))
    return np.int64(most)


@lru_cache(maxsize=2**16)
def _records_within(name: str, size: int, mtime_ns: int, most: int) -> int:
    """See ``_whole_records``; a file is walked once as long as it stays as it is."""
    del size, mtime_ns
    with opened(name) as file:
        walk = walk_records(file, source_bytes(file), verify=False)
        ends = (number for number, (_, _, lost) in enumerate(walk) if lost or number >= most)
        return next(ends, most)


def _variant(
    paths: Any,
    starts: Any,
    stops: Any,
    skip: Any,
    key: Any,
    first_pass: Any,
    cycle: Any,
    calls: Any,
    number: Any,
    *,
    side_by_side: bool,
    ordered: bool,
    remote: bool,
) -> Any:
    def records_of_pass(pass_: Any) -> Any:
        done = starts + tf.where(tf.equal(pass_, first_pass), skip, tf.zeros_like(skip))
        shards = draws.order(
            draws.fold(key, PURPOSE_SHARDS, pass_), 0, tf.size(paths, out_type=tf.int64)
        )
        left = tf.boolean_mask(shards, tf.gather(done < stops, shards))

        def records_of_shard(shard: Any) -> Any:
            if remote:
                return _remote_records(
                    paths[shard], done[shard], stops[shard], pass_, shard, number
                )
            whole = tf.numpy_function(_whole_records, [paths[shard], stops[shard]], tf.int64)
            return numbered_records(paths[shard], done[shard], whole, pass_, shard)

        return tf.data.Dataset.from_tensor_slices(left).interleave(
            records_of_shard,
            cycle_length=cycle,
            block_length=1,
            num_parallel_calls=calls if side_by_side else None,
            deterministic=ordered if side_by_side else None,
        )

    stream = tf.data.Dataset.range(first_pass, first_pass + PASSES).flat_map(records_of_pass)
    return tf.data.experimental.to_variant(stream)
