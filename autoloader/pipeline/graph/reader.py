"""The stream reader: a dataset's episodes through tf.data; damage is found, named, stepped over.

tf.data drops the rest of a shard at the first broken record and does not say which record an
error came from. Here every pass is held against the record counts of its shards: what never came
is looked for in the file itself, read on its own where it is whole, and quarantined with its
reason where it is not. So a record comes exactly once, or is named.

Where a remote file system does not answer, the stream is interrupted: whoever reads opens it again.

Theory of operation. tf.data gives records (``pipeline.graph.records``). As many threads as
``parse_parallel_calls`` says walk them, in order, into the samples that they give; a user's
function runs there too. The record is freed then: only frames that some sample shows are copied
out of it.

Not here: the graph (``pipeline.graph.records``), what a record gives (``index.records``), how much
damage is borne (``decode.quarantine``).
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

from autoloader.errors import SourceError
from autoloader.formats.descriptors import OUT_OF_DESCRIPTORS, too_many_open
from autoloader.formats.files import unreadable
from autoloader.formats.tfrecord import MalformedRecordError, Record, read_records
from autoloader.host.threads import LoaderThread
from autoloader.index.records import RecordSamples
from autoloader.pipeline.graph import files, records, user_functions
from autoloader.pipeline.graph.records import PASSES
from autoloader.pipeline.graph.tensorflow import tf
from autoloader.samples.block import (
    EmptyEpisode,
    Place,
    ReaderStart,
    SampleBlock,
    SourceInterruptedError,
)
from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve import ResolvedDataset
from autoloader.spec.knobs import ResolvedDatasetKnobs
from autoloader.storage.faults import UnreachableError


class StreamReader:
    """Reads one dataset; see ``samples.block.EpisodeStream``.

    Args:
        dataset: what to read.
        layout: widths to pad to.
        ordered: whether the order of episodes must not depend on timing.
    """

    def __init__(
        self, dataset: ResolvedDataset, layout: BatchLayout, *, ordered: bool = False
    ) -> None:
        self._dataset = dataset
        self._ordered = ordered
        self._number = next(records.numbers)
        self._samples = RecordSamples(dataset, layout)
        if dataset.transform is not None:
            user_functions.enter()
        if dataset.remote:
            files.enter()

    def open(
        self, start: ReaderStart, knobs: ResolvedDatasetKnobs
    ) -> Iterator[SampleBlock | EmptyEpisode]:
        """See ``EpisodeStream.open``."""
        while True:
            yield from self._stretch(start, knobs)
            start = ReaderStart(start.pass_ + PASSES, (0,) * len(self._dataset.slices))

    def _stretch(
        self, start: ReaderStart, knobs: ResolvedDatasetKnobs
    ) -> Iterator[SampleBlock | EmptyEpisode]:
        """``PASSES`` passes."""
        walked = _Walked(
            self._dataset.index,
            records.records(
                self._dataset, start, knobs, number=self._number, ordered=self._ordered
            ),
            self._walk,
            knobs.parse_parallel_calls,
        )
        try:
            yield from self._held(walked, start)
        finally:
            walked.close()

    def _held(self, walked: _Walked, start: ReaderStart) -> Iterator[SampleBlock | EmptyEpisode]:
        """What was walked, held against the record counts."""
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
                raise self._unreadable(error) from error
            failures = 0
            while item.place.pass_ > got.pass_:
                yield from self._missing(got)
                got = _Pass(self._dataset, got.pass_ + 1, (0,) * len(self._dataset.slices))
            if isinstance(item, EmptyEpisode) and item.reason is not None:
                continue  # damaged: looked at with the missing ones
            got.note(item.place)
            yield item
        yield from self._missing(got)
        if got.pass_ < start.pass_ + PASSES - 1:
            raise self._failed(reason or "its files hold no record any more")

    def _walk(self, place: Place, payload: bytes) -> SampleBlock | EmptyEpisode:
        """What one record gives, on any thread."""
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
                        yield self._alone(place(found.number), found)
            except OSError as error:
                raise self._of_file(error, path) from error
            for record in left:
                yield EmptyEpisode(place(record), behind)

    def _alone(self, place: Place, found: Record) -> SampleBlock | EmptyEpisode:
        """What a record gives that the stream did not give."""
        if found.payload is None:
            return EmptyEpisode(place, found.reason)
        return self._walk(place, found.payload)

    def _unreadable(self, error: Any) -> Exception:
        """What one of TensorFlow's errors ends the stream with."""
        if not self._dataset.remote:
            reason = _reason(error)
            if os.strerror(errno.EMFILE) in reason:
                path = reason.partition(";")[0]
                return too_many_open(None, path, dataset=self._dataset.name)
            return self._failed(reason)
        if failed := records.failures.pop(self._number, None):
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
            remedy="check that its files are whole and readable, or take the dataset out",
            dataset=name,
        )


_Answer: TypeAlias = "Future[SampleBlock | EmptyEpisode]"


class _Walked:
    """What the records of a stream give, in their order.

    Args:
        dataset: its index.
        records: (pass, shard and record; its bytes) of each, as tensors; asked on after an error.
        walk: makes samples of a record.
        calls: threads that walk; 1: the caller's own.
    """

    def __init__(
        self,
        dataset: int,
        records: Iterator[Any],
        walk: Callable[[Place, bytes], SampleBlock | EmptyEpisode],
        calls: int,
    ) -> None:
        self._dataset = dataset
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

    def __iter__(self) -> _Walked:
        return self

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
        place, payload = next(self._records)
        return Place(self._dataset, *place.numpy().tolist()), payload.numpy()

    def close(self) -> None:
        """Walk no more than the records that were read ahead; does not wait."""
        for _ in self._threads:
            self._tasks.put(None)


class _Pass:
    """Which records of one pass have come."""

    def __init__(self, dataset: ResolvedDataset, pass_: int, skip: tuple[int, ...]) -> None:
        self.pass_ = pass_
        self._dataset = dataset
        self._first = [piece.start + done for piece, done in zip(dataset.slices, skip, strict=True)]
        self._came: list[set[int]] = [set() for _ in dataset.slices]

    def note(self, place: Place) -> None:
        self._came[place.shard].add(place.record)

    def missing(self) -> dict[int, list[int]]:
        """Shard → records that have not come, in order."""
        found = {}
        for shard, piece in enumerate(self._dataset.slices):
            wanted = range(self._first[shard], piece.stop)
            if len(self._came[shard]) < len(wanted):
                found[shard] = [record for record in wanted if record not in self._came[shard]]
        return found


def _reason(error: Any) -> str:
    words = re.sub(r"\{\{.*?\}\}|\[Op:.*$", "", " ".join(str(error.message).split()))
    words = re.sub(r"Error in user-defined function passed to .*?: Iterator::\S+: ", "", words)
    return words.strip()[:300]
