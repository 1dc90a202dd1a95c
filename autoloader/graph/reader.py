"""The stream reader: a dataset's episodes through tf.data; damage is found, named, stepped over.

tf.data drops the rest of a shard at the first broken record and does not say which record an
error came from. Here every pass is held against the record counts of its shards: what never came
is looked for in the file itself, read on its own where it is whole, and quarantined with its
reason where it is not. So a record comes exactly once, or is named.

Where a remote file system does not answer, the stream is interrupted: whoever reads opens it again.

Not here: the graph (``graph.episodes``), how much damage is borne (``decode.quarantine``).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from autoloader.catalog.descriptors import OUT_OF_DESCRIPTORS, too_many_open
from autoloader.catalog.files import unreadable
from autoloader.catalog.tfrecord import MalformedRecordError, Record, read_records
from autoloader.errors import SourceError
from autoloader.graph import files
from autoloader.graph.episodes import EpisodeGraph
from autoloader.graph.records import PASSES
from autoloader.graph.tensorflow import tf
from autoloader.knobs import ResolvedDatasetKnobs
from autoloader.remote.faults import UnreachableError
from autoloader.samples.block import (
    EmptyEpisode,
    Place,
    ReaderStart,
    SampleBlock,
    SourceInterruptedError,
)
from autoloader.samples.layout import BatchLayout
from autoloader.samples.record import samples_of_record
from autoloader.samples.resolve import ResolvedDataset

_RECORD_ERRORS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, UnicodeDecodeError)
"""What a bad record makes TensorFlow raise; the last, because its message may quote the bytes."""


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
        self._layout = layout
        self._stream = EpisodeGraph(dataset, layout, ordered=ordered)
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
        elements = self._stream.open(start, knobs)
        got = _Pass(self._dataset, start.pass_, start.skip)
        reason, failures = "", 0
        while True:
            try:
                element = next(elements)
            except StopIteration:
                break
            except _RECORD_ERRORS as error:
                reason = _reason(error)
                failures += 1
                if failures > max(2, 2 * self._dataset.records):
                    raise self._failed(reason) from error
                continue
            except tf.errors.OpError as error:
                raise self._unreadable(error) from error
            failures = 0
            place = self._stream.place_of(element)
            while place.pass_ > got.pass_:
                yield from self._missing(got, reason)
                got = _Pass(self._dataset, got.pass_ + 1, (0,) * len(self._dataset.slices))
            samples = self._stream.samples_of(element)
            if samples is None and not int(element["steps"]):
                continue  # no step, or none of the features: looked at with the missing ones
            got.note(place)
            yield samples or EmptyEpisode(place, None)
        yield from self._missing(got, reason)
        if got.pass_ < start.pass_ + PASSES - 1:
            raise self._failed(reason or "its files hold no record any more")

    def _missing(self, got: _Pass, reason: str) -> Iterator[SampleBlock | EmptyEpisode]:
        """Records of a pass that the stream did not give: read on their own, or quarantined."""
        for shard, records in got.missing().items():
            place = partial(Place, self._dataset.index, got.pass_, shard)
            path, behind = self._dataset.slices[shard].path, "the shard ends before this record"
            left = dict.fromkeys(records)
            try:
                for found in read_records(path, records[0], records[-1] + 1):
                    if found.number is None:
                        behind = found.reason
                    elif found.number in left:
                        del left[found.number]
                        yield self._alone(place(found.number), found, reason)
            except OSError as error:
                raise self._of_file(error, path) from error
            for record in left:
                yield EmptyEpisode(place(record), behind)

    def _alone(self, place: Place, found: Record, reason: str) -> SampleBlock | EmptyEpisode:
        """What a record gives that the stream did not give; ``reason`` is what that said last."""
        if found.payload is None:
            return EmptyEpisode(place, found.reason)
        try:
            samples = samples_of_record(self._dataset, self._layout, place, found.payload)
        except MalformedRecordError as error:
            return EmptyEpisode(place, str(error) or reason)
        return samples or EmptyEpisode(place, None)

    def _unreadable(self, error: Any) -> Exception:
        """What one of TensorFlow's errors ends the stream with."""
        if not self._dataset.remote:
            reason = _reason(error)
            if os.strerror(errno.EMFILE) in reason:
                path = reason.partition(";")[0]
                return too_many_open(None, path, dataset=self._dataset.name)
            return self._failed(reason)
        named = re.search(r"[a-z0-9]+://\S+", str(error.message))
        path = named[0] if named else self._dataset.directory.path
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
    if isinstance(error, UnicodeDecodeError):
        return "the record is no tf.train.Example"
    words = re.sub(r"\{\{.*?\}\}|\[Op:.*$", "", " ".join(str(error.message).split()))
    words = re.sub(r"Error in user-defined function passed to .*?: Iterator::\S+: ", "", words)
    return words.strip()[:300]
