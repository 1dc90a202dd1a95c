"""One record whose bytes are in memory: read as an index takes it, and the samples that it gives.

The stream reader has records and no index. A record becomes an index of one episode, with the same
columns and frame ranges as in an index file. So both readers make samples by the same code.

Not here: the tables of a whole file (``formats.tables``), finding a record's bytes
(``pipeline.graph.reader``), what a sample is (``index.planned``).
"""

from __future__ import annotations

import threading
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.formats import tables
from autoloader.formats.frames import Encoded
from autoloader.formats.records import FeatureValue, MalformedRecordError, parse_example
from autoloader.host.threads import free_in_forks
from autoloader.index.dataset import DatasetIndex, FeatureNumbers
from autoloader.index.planned import RunPlanner
from autoloader.index.valid import valid_t
from autoloader.samples import draws
from autoloader.samples.block import Place, SampleBlock, episode_key
from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema
from autoloader.samples.transforms.fields import stored_texts
from autoloader.samples.transforms.rlds import Spans, spans_of
from autoloader.samples.transforms.transform import VALID_KEY
from autoloader.samples.windows import valid_range
from autoloader.sampling.plan import PlannedSamples

MAX_FRAME_BYTES = 2**31 - 1

_planning = free_in_forks(threading.Lock())
"""A mixture drains its queues evenly, so many readers wake together: planning one at a time, they
leave the interpreter to the decode pool in between."""


class RecordSamples:
    """Makes the samples of a dataset's records, for any number of threads.

    Args:
        dataset: the dataset of the records.
        layout: widths to pad to.
    """

    def __init__(self, dataset: ResolvedDataset, layout: BatchLayout) -> None:
        self._dataset = dataset
        self._planner = RunPlanner([dataset], layout, [], [False])
        self._schema = RecordSchema.of(dataset)
        self._numbers = FeatureNumbers(self._schema)

    def of(self, place: Place, payload: bytes) -> SampleBlock | None:
        """The samples of the record at ``place``; ``None`` where it has none.

        Their frames are copied out of ``payload``.

        Raises:
            MalformedRecordError: the record is no Example with the features that the spec names.
        """
        record = RecordIndex(self._dataset, self._schema, self._numbers, payload, place)
        t = record.drawn()
        if not len(t):
            return None
        none = np.zeros(len(t), np.int64)
        planned = PlannedSamples(none.astype(np.int32), none - 1, none + place.pass_, none, t)
        with _planning:
            block, reads = self._planner.run(planned, [record])
        block.columns["ledger"][:, -1] = len(t)
        for camera in self._dataset.cameras:
            ranges = reads.ranges[camera]
            starts, sizes = ranges.offset.tolist(), ranges.length.tolist()
            frames: list[Encoded | None] = [
                None if file < 0 else payload[start : start + size]
                for file, start, size in zip(ranges.file.tolist(), starts, sizes, strict=True)
            ]
            block.frames[camera] = frames
            block.nbytes += int(ranges.length[ranges.file >= 0].sum())
        block.nbytes += sum(column.nbytes for column in block.columns.values())
        return block


class RecordIndex(DatasetIndex):
    """The index of one record, and the tables that it consists of.

    Args:
        dataset: dataset that the record belongs to.
        schema: features that are indexed.
        numbers: numbers of the indexed features.
        payload: bytes of the record, in which its frames lie.
        place: place of the record.
    """

    path = ""

    def __init__(
        self,
        dataset: ResolvedDataset,
        schema: RecordSchema,
        numbers: FeatureNumbers,
        payload: bytes,
        place: Place,
    ) -> None:
        self.dataset = dataset
        self._place = place
        self.numbers = numbers
        steps, self.sections, texts = read_record(schema, payload)
        self.steps = np.array([steps], np.int32)
        self.slice_of = np.array([place.shard], np.int32)
        self.record_of = np.array([place.record], np.int64)
        self.rows, self._first = np.zeros(1, np.int64), np.arange(2)
        self.tables = {place.shard: self}
        self.sections[tables.Section.FIRST_ROWS, tables.NO_FEATURE] = np.zeros(1, np.int64)
        self._texts: list[bytes] = []
        for number, own in texts.items():
            self.sections[tables.Section.TEXT_IDS, number] += np.int32(len(self._texts))
            self._texts += own

    def drawn(self) -> NDArray[np.int64]:
        """[n] the t that samples are of, in the order in which they come."""
        dataset = self.dataset
        ruled = dataset.keep is not None or dataset.transform is not None
        allowed = valid_t(self) if ruled else None
        if allowed is None:
            t = np.arange(*valid_range(dataset.sample, int(self.strided[0])), dtype=np.int64)
        else:
            t = allowed.numbers(0)
        t = draws.ordered(episode_key(dataset, self._place), t)
        if dataset.sample.per_episode != "all":
            t = t[: dataset.sample.per_episode]
        return t[dataset.turn[0] :: dataset.turn[1]]

    def has(self, kind: tables.Section, feature: int) -> bool:
        """True if the record has values of this section and feature."""
        return (kind, feature) in self.sections

    def text(self, number: int) -> bytes:
        """The text with this id."""
        return self._texts[number]

    def texts(self, numbers: NDArray[np.int32]) -> list[bytes]:
        """Texts with these ids [n]."""
        return [self._texts[number] for number in numbers.tolist()]


# -- reading ------------------------------------------------------------------------------------


def read_record(
    schema: RecordSchema, payload: Any, stop: int | None = None
) -> tuple[int, tables.Values, tables.Texts]:
    """A record as an index takes it; see ``formats.tables.ReadRecord``.

    A record is read whole or not at all: one feature amiss, and it is damaged. Every range lies
    inside the record, and every per-step feature has as many values as the others.

    Raises:
        MalformedRecordError: the record is not exactly what the schema says.
    """
    held: dict[str, Any]
    spans: Spans = {}
    if schema.transform is None:
        found = parse_example(payload, stop=stop, only=schema.keys, stretches=schema.stretches)
        schema.check(found)
        held = {one.key: _held(payload, found.get(one.key), one) for one in schema.features}
    else:
        result, spans = schema.transform.apply(payload, stop=stop, only=schema.keys)
        held = {**result.values, VALID_KEY: result.valid.astype(np.int64)}
    steps = schema.steps(held)
    values: tables.Values = {}
    texts: tables.Texts = {}
    for number, feature in enumerate(schema.features):
        value = held[feature.key]
        if feature.role == "frames":
            places = value if schema.transform is None else spans_of(value, spans)
            lengths = places[:, 1] - places[:, 0]
            if len(lengths) and int(lengths.max()) > MAX_FRAME_BYTES:
                raise MalformedRecordError(f"{feature.path} has a frame of more than 2 GiB")
            values[tables.Section.FRAME_OFFSETS, number] = places[:, 0]
            values[tables.Section.FRAME_LENGTHS, number] = lengths.astype(np.int32)
        elif feature.role in tables.NUMBERS:
            kind = tables.NUMBERS[feature.role]
            values[kind, number] = value.reshape(-1, feature.width).astype(kind.dtype)
        else:
            ids, texts[number] = stored_texts(value, feature)
            values[tables.Section.TEXT_IDS, number] = ids
    return steps, values, texts


def _held(payload: Any, value: FeatureValue | None, feature: tables.StoredFeature) -> Any:
    """A feature that the schema has checked: [T, 2] places of frames, numbers, or texts."""
    if value is not None and value.values is not None:
        return value.values
    ranges = value.ranges if value is not None else []
    if feature.role == "frames":
        return np.fromiter(chain.from_iterable(ranges), np.int64, 2 * len(ranges)).reshape(-1, 2)
    return [bytes(payload[start:stop]) for start, stop in ranges]
