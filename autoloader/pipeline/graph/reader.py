"""The stream reader: a dataset's episodes through tf.data; damage is found, named, stepped over.

A record is an episode. One traced function for each form (side by side, ordered, remote) serves all
datasets: files, key, place and knobs are its tensor inputs. So opening 29 streams of one form costs
one trace. An element is one number for pass, shard and record, and the record's bytes: a map for
each shard would cost more than reading a small record. tf.data's autotuning is off: the knobs set
the parallelism.

tf.data's parallel interleave opens inputs ahead and buffers several records of each, whatever its
knobs say. With ``num_parallel_calls`` 1 the plain one is used, which holds one record at a time.

Within a shard records keep their order; only the interleave over shards may reorder
(``deterministic=False`` there and nowhere else, and not where strict order is asked for). A pass
is drained before the next begins.

tf.data drops the rest of a shard at the first broken record and does not say which record an
error came from. So every pass is compared with the record counts of its shards. A record that never
came is looked for in the file itself: it is read on its own where it is whole, and quarantined with
its reason where it is not. So in each pass a record comes exactly once, or is named.

As many threads as ``parse_parallel_calls`` says make samples of the records, in order ("walk"
them); a user's function runs there too. Frames that some sample shows are copied, and the record is
freed. Where a remote file system does not answer, the stream raises ``SourceInterruptedError``. The
dataset's thread (``pipeline.read.streams``) opens the stream again at its cursor.

Not here: what a record gives (``index.records``), how much damage is borne
(``decode.message``).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from autoloader.errors import SourceError
from autoloader.formats.files import (
    OUT_OF_DESCRIPTORS,
    no_descriptor_left,
    opened,
    source_bytes,
    unreadable,
)
from autoloader.formats.records import MalformedRecordError, read_records, walk_records
from autoloader.host.allocator import MOST_REUSED_BYTES, reuse_freed
from autoloader.host.threads import LoaderThread, free_in_forks
from autoloader.index.records import RecordSamples
from autoloader.pipeline.graph import files, user_functions
from autoloader.pipeline.graph.tensorflow import drawn_order, fold, tf
from autoloader.samples.block import (
    EmptyEpisode,
    Place,
    ReaderStart,
    SampleBlock,
    SourceInterruptedError,
)
from autoloader.samples.draws import PURPOSE_SHARDS
from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve import ResolvedDataset
from autoloader.spec.knobs import Knobs
from autoloader.storage.faults import UnreachableError
from autoloader.storage.store import while_wanted

PASSES = 256
"""Passes of one tf.data iterator; then the next one is made. An iterator without end would spin for
ever over files that were emptied while it ran."""
_lock = free_in_forks(threading.Lock())
_traced: dict[tuple[bool, bool, bool], Any] = {}
_numbers = itertools.count()
"""Numbers of the tf.data iterators of this process."""
_open: set[int] = set()
"""Numbers of the iterators that somebody reads."""
_failures: dict[int, tuple[str, OSError]] = {}
"""Number of an iterator → remote shard and error of its last failed read; TensorFlow keeps the
words alone."""

_STRUCTURE = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string))
RECORDS = 2**32
"""More than the records of any shard: an element's number is that of its pass and shard, times
this, plus that of its record."""


def _trace(side_by_side: bool, ordered: bool, remote: bool) -> Any:
    """Trace the function that makes the streams of one form."""
    number, vector = tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64)
    paths, key = tf.TensorSpec([None], tf.string), tf.TensorSpec([], tf.uint64)
    signature = [paths, *[vector] * 3, key, *[number] * 4]
    variant = partial(_variant, side_by_side=side_by_side, ordered=ordered, remote=remote)
    function = tf.function(variant, input_signature=signature, autograph=False)
    function.get_concrete_function()
    return function


def numbered_records(
    path: Any, first: Any, stop: Any, base: Any, buffer_bytes: int | None = 0
) -> Any:
    """(``base`` + its number, its bytes) of the records [first, stop) of a file.

    Not by ``enumerate``, which has each shard's graph rewritten: 2.5 ms. Without a buffer a record
    of any size takes two reads, straight to where it stays. ``take`` is there for ``skip``, which
    ends the process where it alone comes upon damage.

    Args:
        path: path or URL of the file.
        first: number of the first record.
        stop: number of the record behind the last.
        base: number to count from.
        buffer_bytes: bytes read ahead; ``None``: TensorFlow's own choice.
    """
    numbers = tf.data.Dataset.range(base + first, base + stop)
    records = tf.data.TFRecordDataset(path, buffer_size=buffer_bytes)
    return tf.data.Dataset.zip((numbers, records.take(stop).skip(first)))


def _remote_records(path: Any, first: Any, stop: Any, base: Any, stream: Any) -> Any:
    """``numbered_records`` of a remote file, read by this package.

    TensorFlow's reader would need ``_whole_records`` before it, which fetches the file once more.
    """

    def read(name: bytes, start: int, end: int, base: int, of: int) -> Iterator[tuple[int, bytes]]:
        def wanted() -> bool:
            return int(of) in _open

        found = read_records(name.decode(), start, end)
        try:
            # TensorFlow reads ahead until it frees the stream's iterator, which waits for the read.
            while wanted():
                with while_wanted(wanted):
                    if (record := next(found, None)) is None:
                        return
                if record.number is not None and record.payload is not None:
                    yield base + record.number, record.payload
        except OSError as error:
            _failures[int(of)] = name.decode(), error
            raise

    return tf.data.Dataset.from_generator(
        read, args=(path, first, stop, base, stream), output_signature=_STRUCTURE
    )


def _whole_records(path: bytes, most: int) -> np.int64:
    """Count the records of a local file, ``most`` at most, that end within it.

    TensorFlow makes room for a record before it reads it: a length beyond all memory ends the
    process. ``StreamReader._missing`` names records that are left out. Of a file that cannot be
    read, TensorFlow raises the error.
    """
    name = path.decode()
    with contextlib.suppress(OSError):
        found = os.stat(name)  # noqa: PTH116
        return np.int64(_records_within(name, found.st_size, found.st_mtime_ns, most))
    return np.int64(most)


@lru_cache(maxsize=2**16)
def _records_within(name: str, size: int, mtime_ns: int, most: int) -> int:
    """``_whole_records`` of a file that is walked once as long as it stays as it is."""
    with opened(name) as file:
        walk = walk_records(file, source_bytes(file))
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
    """A tf.data dataset of ``PASSES`` passes over the records, as a variant tensor."""

    def records_of_pass(pass_: Any) -> Any:
        done = starts + tf.where(tf.equal(pass_, first_pass), skip, tf.zeros_like(skip))
        shards = drawn_order(fold(key, PURPOSE_SHARDS, pass_), 0, tf.size(paths, out_type=tf.int64))
        left = tf.boolean_mask(shards, tf.gather(done < stops, shards))

        def records_of_shard(shard: Any) -> Any:
            path, stop = paths[shard], stops[shard]
            base = RECORDS * ((pass_ - first_pass) * tf.size(paths, out_type=tf.int64) + shard)
            if remote:
                return _remote_records(path, done[shard], stop, base, number)
            whole = tf.numpy_function(_whole_records, [path, stop], tf.int64)
            return numbered_records(path, done[shard], whole, base)

        return tf.data.Dataset.from_tensor_slices(left).interleave(
            records_of_shard,
            cycle_length=cycle,
            block_length=1,
            num_parallel_calls=calls if side_by_side else None,
            deterministic=ordered if side_by_side else None,
        )

    stream = tf.data.Dataset.range(first_pass, first_pass + PASSES).flat_map(records_of_pass)
    return tf.data.experimental.to_variant(stream)


class StreamReader:
    """Reads the episodes of one dataset by tf.data; a ``samples.block.EpisodeStream``.

    Args:
        dataset: resolved dataset that is read.
        layout: layout of the mixture's batches, to whose widths actions and states are padded.
        ordered: whether the order of episodes must not depend on timing.
    """

    def __init__(
        self, dataset: ResolvedDataset, layout: BatchLayout, *, ordered: bool = False
    ) -> None:
        self._dataset = dataset
        self._ordered = ordered
        self._samples = RecordSamples(dataset, layout)
        reuse_freed(MOST_REUSED_BYTES)  # a record is copied whole; mapped anew, at twice the price
        if dataset.transform is not None:
            user_functions.enter()
        if dataset.remote:
            files.enter()

    def open(self, start: ReaderStart, knobs: Knobs) -> Iterator[SampleBlock | EmptyEpisode]:
        """Episodes from ``start`` on, without end; in each pass every record once.

        Args:
            start: the pass, and the number of records of each slice that are done.
            knobs: the dataset's knobs of its stream.

        Raises:
            SourceError: while iterating: the source cannot be read at all.
            SourceInterruptedError: while iterating: the source does not answer now.
        """
        while True:
            yield from self._passes(start, knobs)
            start = ReaderStart(start.pass_ + PASSES, (0,) * len(self._dataset.slices))

    def _passes(self, start: ReaderStart, knobs: Knobs) -> Iterator[SampleBlock | EmptyEpisode]:
        """Episodes of ``PASSES`` passes, by one tf.data iterator."""
        number = next(_numbers)
        walked = _Walked(
            partial(self._place, start.pass_),
            self._records(start, knobs, number),
            self._walk,
            knobs.parse_parallel_calls,
        )
        _open.add(number)
        try:
            yield from self._held(walked, start, number)
        finally:
            _open.discard(number)
            walked.close()
            _failures.pop(number, None)

    def _place(self, first_pass: int, number: int) -> Place:
        """Place of an element's record, in a stream that began at ``first_pass``."""
        number, record = divmod(number, RECORDS)
        passes, shard = divmod(number, len(self._dataset.slices))
        return Place(self._dataset.index, first_pass + passes, shard, record)

    def _records(self, start: ReaderStart, knobs: Knobs, number: int) -> Iterator[Any]:
        """The dataset's records from ``start`` on, for ``PASSES`` passes.

        Args:
            start: pass, and records of each shard to skip.
            knobs: the dataset's knobs of its stream.
            number: number of the tf.data iterator, by which ``_failures`` has its last error.
        """
        dataset = self._dataset
        with _lock:
            # Both forms at once: a retune that needs the other one must not wait for its trace.
            for side_by_side in (False, True):
                form = (side_by_side, self._ordered, dataset.remote)
                if form not in _traced:
                    _traced[form] = _trace(*form)
        slices = dataset.slices
        with tf.device("/CPU:0"):
            variant = _traced[knobs.num_parallel_calls > 1, self._ordered, dataset.remote](
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

    def _held(
        self, walked: _Walked, start: ReaderStart, number: int
    ) -> Iterator[SampleBlock | EmptyEpisode]:
        """Samples of the walked records, compared with the record counts."""
        got = _Pass(self._dataset, start.pass_, start.skip)
        reason, failures = "", 0
        while True:
            try:
                item = next(walked)
            except StopIteration:
                break
            except tf.errors.DataLossError as error:
                reason = _reason(error)
                failures += 1
                if failures > max(2, 2 * self._dataset.records):
                    raise self._failed(reason) from error
                continue
            except tf.errors.OpError as error:
                raise self._unreadable(error, number) from error
            failures = 0
            while item.place.pass_ > got.pass_:
                yield from self._missing(got)
                got = _Pass(self._dataset, got.pass_ + 1, (0,) * len(self._dataset.slices))
            if isinstance(item, EmptyEpisode) and item.reason is not None:
                continue  # damaged: looked at with the missing ones
            got.came[item.place.shard].add(item.place.record)
            yield item
        yield from self._missing(got)
        if got.pass_ < start.pass_ + PASSES - 1:
            raise self._failed(reason or "its files hold no records any more")

    def _walk(self, place: Place, payload: bytes) -> SampleBlock | EmptyEpisode:
        """Samples of one record, on any thread."""
        try:
            return self._samples.of(place, payload) or EmptyEpisode(place, None)
        except MalformedRecordError as error:
            return EmptyEpisode(place, str(error) or "it is damaged")

    def _missing(self, got: _Pass) -> Iterator[SampleBlock | EmptyEpisode]:
        """Records of a pass that the stream did not give: read on their own, or quarantined."""
        for shard, missing in got.missing().items():
            place = partial(Place, self._dataset.index, got.pass_, shard)
            path, behind = self._dataset.slices[shard].path, "the shard ends before this record"
            left = dict.fromkeys(missing)
            try:
                for found in read_records(path, missing[0], missing[-1] + 1):
                    if found.number is None:
                        behind = found.reason
                    elif found.number in left:
                        del left[found.number]
                        if found.payload is None:
                            yield EmptyEpisode(place(found.number), found.reason)
                        else:
                            yield self._walk(place(found.number), found.payload)
            except OSError as error:
                raise self._of_file(error, path) from error
            for record in left:
                yield EmptyEpisode(place(record), behind)

    def _unreadable(self, error: Any, number: int) -> Exception:
        """Error of the tf.data iterator ``number`` for one of TensorFlow's errors."""
        if not self._dataset.remote:
            reason = _reason(error)
            if os.strerror(errno.EMFILE) in reason:
                path = reason.partition(";")[0]
                return no_descriptor_left(None, path, dataset=self._dataset.name)
            return self._failed(reason)
        if failed := _failures.pop(number, None):
            path, why = failed
            return self._of_file(why, path)
        path = self._dataset.directory.path
        return self._of_file(files.as_os_error(error, path), path)

    def _of_file(self, error: OSError, path: str) -> Exception:
        if isinstance(error, UnreachableError):
            return SourceInterruptedError(f"{path}: {error.strerror or error}")
        if self._dataset.remote or error.errno in OUT_OF_DESCRIPTORS:
            return unreadable(error, path, dataset=self._dataset.name)
        return self._failed(f"{path}: {error.strerror or error}")

    def _failed(self, reason: str) -> SourceError:
        name = self._dataset.name
        return SourceError(
            f"dataset {name!r} cannot be read from {self._dataset.directory.path}: {reason}",
            remedy="check that its files are whole and readable, or remove the dataset",
        )


_Answer: TypeAlias = "Future[SampleBlock | EmptyEpisode]"


class _Walked:
    """Samples of the records of a stream, in their order.

    Args:
        place: function that tells a record's place by its number.
        records: (number, bytes) of each record, as tensors; asked on after an error.
        walk: function that makes samples of a record.
        calls: number of threads that call ``walk``; 1: the caller's own thread.
    """

    def __init__(
        self,
        place: Callable[[int], Place],
        records: Iterator[Any],
        walk: Callable[[Place, bytes], SampleBlock | EmptyEpisode],
        calls: int,
    ) -> None:
        self._place = place
        self._records = records
        self._walk = walk
        self._ahead: deque[_Answer] = deque()
        self._tasks: SimpleQueue[tuple[_Answer, Place, bytes] | None] = SimpleQueue()
        # Daemons: a user's function that hangs must not hold the end of the process.
        self._threads = [
            LoaderThread(self._work, f"autoloader-walk-{number}")
            for number in range(calls if calls > 1 else 0)
        ]
        for thread in self._threads:
            thread.start()

    def __next__(self) -> SampleBlock | EmptyEpisode:
        if not self._threads:
            return self._walk(*self._record())
        while len(self._ahead) < len(self._threads):
            answer: _Answer = Future()
            self._ahead.append(answer)
            try:
                self._tasks.put((answer, *self._record()))
            except (StopIteration, tf.errors.OpError) as error:
                answer.set_exception(error)
                break
        return self._ahead.popleft().result()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            answer, place, payload = task
            try:
                answer.set_result(self._walk(place, payload))
            except BaseException as error:  # noqa: BLE001 raised by whoever takes the answer
                answer.set_exception(error)

    def _record(self) -> tuple[Place, bytes]:
        number, payload = next(self._records)
        return self._place(int(number)), payload.numpy()

    def close(self) -> None:
        """Walk no more than the records that were read ahead; does not wait."""
        for _ in self._threads:
            self._tasks.put(None)


class _Pass:
    """Records of one pass that have come, by shard."""

    def __init__(self, dataset: ResolvedDataset, pass_: int, skip: tuple[int, ...]) -> None:
        self.pass_ = pass_
        self._dataset = dataset
        self._first = [piece.start + done for piece, done in zip(dataset.slices, skip, strict=True)]
        self.came: list[set[int]] = [set() for _ in dataset.slices]

    def missing(self) -> dict[int, list[int]]:
        """Shard → records that have not come, in order."""
        found = {}
        for shard, piece in enumerate(self._dataset.slices):
            wanted = range(self._first[shard], piece.stop)
            if len(self.came[shard]) < len(wanted):
                found[shard] = [record for record in wanted if record not in self.came[shard]]
        return found


def _reason(error: Any) -> str:
    """Words of one of TensorFlow's errors, without its own names."""
    words = re.sub(r"\{\{.*?\}\}|\[Op:.*$", "", " ".join(str(error.message).split()))
    words = re.sub(r"Error in user-defined function passed to .*?: Iterator::\S+: ", "", words)
    return words.strip()[:300]
