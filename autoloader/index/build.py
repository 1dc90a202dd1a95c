"""Indexes one shard file: every record checked, parsed strictly, and reduced to tables.

``TableBuilder`` puts the tables together, for TFRecords here and for other formats elsewhere.

Not here: framing and checksums (``formats.tfrecord``), the wire format (``formats.example``), how
tables become a file (``index.format``), which shards need it (``index.opening``).

Theory of operation. A record is read in pieces of ``PIECE_BYTES`` into a buffer that the next
record uses again (fresh memory would cost as much as the reading), the checksum running along
while a piece is still in the processor's cache; then the strict walker finds the values. Reading
releases the interpreter's lock, the walk does not: it takes about half a microsecond a frame,
against three to four for reading the 24 kB of a frame, so that two threads index faster than one.

Invariants:

1. A record is indexed whole or not at all: one feature amiss, and it is quarantined with a reason.
2. Every range lies inside its record, and every per-step feature has as many values as the others.
3. The tables are a function of the file's bytes and the schema alone.
4. Beside the tables, at most one buffer a thread is held, and of records above ``LARGE_BYTES`` one
   at a time in the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.example import FeatureValue, parse_example
from autoloader.formats.files import RemoteFile, opened_anywhere, told_stand_in
from autoloader.formats.tfrecord import (
    HEADER_BYTES,
    WRONG_CHECKSUM,
    FileChangedError,
    MalformedRecordError,
    RecordReader,
    walk_records,
)
from autoloader.index.format import (
    FIRST_NOTE,
    NUMBERS,
    REST_OF_FILE,
    Section,
    ShardTables,
    SourceIdentity,
)
from autoloader.samples.schema import RecordSchema, StoredFeature
from autoloader.samples.transforms.fields import joined, text_of_points
from autoloader.samples.transforms.rlds import spans_of
from autoloader.samples.transforms.transform import VALID_KEY, Transform

MAX_FRAME_BYTES = 2**31 - 1
Values = dict[tuple[Section, int], NDArray[Any]]
"""Of one record: what is to be appended to each section."""

ONCE = (Section.FRAME_FILES, Section.FRAME_CODECS)
"""Sections of frames with one number for each record, damaged ones included."""
_OF_TEXTS = (Section.TEXT_IDS, *ONCE)


def index_shard(path: str, schema: RecordSchema, records: range | None = None) -> ShardTables:
    """The tables of one shard file, local or remote.

    Args:
        path: local path or URL of the file.
        schema: features that are indexed of each record.
        records: those to read; default: all. The tables call those before them damaged.

    Raises:
        FileChangedError: it was written to meanwhile.
        OSError: it cannot be opened or read.
    """
    builder = TableBuilder(schema)
    with opened_anywhere(path) as file:
        source = _identity(file)
        if isinstance(file, int) and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        reader = RecordReader(file)
        walk = walk_records(file, source.size, verify=True)
        for record, (start, length, lost) in enumerate(walk):
            if records is not None and record >= records.stop:
                break
            if lost is not None:
                builder.damage[REST_OF_FILE] = (not start and told_stand_in(path)) or lost
                break
            if records is not None and record < records.start:
                builder.leave_out(start + HEADER_BYTES, length, "it was not asked for")
                continue
            offset = start + HEADER_BYTES
            with reader.record(offset, length) as payload:
                if payload is None:
                    builder.leave_out(offset, length, WRONG_CHECKSUM)
                    continue
                try:
                    steps, values, texts = index_payload(payload, schema, stop=length)
                except MalformedRecordError as error:
                    builder.leave_out(offset, length, str(error))
                    continue
                for (kind, _), part in values.items():
                    if kind is Section.FRAME_OFFSETS:
                        part += offset
                builder.add(offset, length, steps, values, texts)
        if _identity(file) != source:
            raise FileChangedError(f"{path} was written to")
    return builder.tables(source)


def _identity(file: int | RemoteFile) -> SourceIdentity:
    if isinstance(file, int):
        return SourceIdentity.of(os.fstat(file))
    return SourceIdentity(file.size, 0)


def index_payload(
    payload: Any, schema: RecordSchema, *, stop: int | None = None
) -> tuple[int, Values, dict[int, list[bytes]]]:
    """(steps, values by section, texts by feature number) of one record.

    Frame offsets count from the start of ``payload``, of which ``stop`` bytes are the record. Text
    ids are places in the feature's own list of texts.

    Raises:
        MalformedRecordError: the record is not exactly what the schema says.
    """
    if schema.transform is None:
        found = parse_example(payload, stop=stop, only=schema.keys, stretches=schema.stretches)
    else:
        found, payload = _transformed(payload, stop, schema.transform, schema.keys)
    steps = schema.steps(found)
    values: Values = {}
    texts: dict[int, list[bytes]] = {}
    for number, feature in enumerate(schema.features):
        value = found.get(feature.key)
        if feature.role == "frames":
            spans = _pairs(value)
            lengths = spans[:, 1] - spans[:, 0]
            if len(lengths) and int(lengths.max()) > MAX_FRAME_BYTES:
                raise MalformedRecordError(f"{feature.path} has a frame of more than 2 GiB")
            values[Section.FRAME_OFFSETS, number] = spans[:, 0]
            values[Section.FRAME_LENGTHS, number] = lengths.astype(np.int32)
        elif feature.role in NUMBERS:
            kind = NUMBERS[feature.role]
            numbers = _numbers(value, feature).reshape(-1, feature.width)
            values[kind, number] = numbers.astype(kind.dtype)
        else:
            ids, texts[number] = _texts(payload, value, feature)
            values[Section.TEXT_IDS, number] = ids
    return steps, values, texts


def _transformed(
    payload: Any, stop: int | None, transform: Transform, keys: frozenset[str]
) -> tuple[dict[str, FeatureValue], bytes]:
    """(the lists of a record as its transform leaves it, the bytes that its texts lie in).

    Frames lie where they lay, in ``payload``.

    Raises:
        MalformedRecordError: the record is damaged, or the function fails on it.
    """
    result, spans = transform.apply(payload, stop=stop, only=keys)
    pictures = {feature.key for feature in transform.features.values() if feature.kind == "image"}
    found = {VALID_KEY: FeatureValue("int64", values=result.valid.astype(np.int64))}
    texts = bytearray()
    for key, value in result.values.items():
        if key in pictures:
            places = spans_of(value, spans).tolist()
            found[key] = FeatureValue("bytes", ranges=[(first, end) for first, end in places])
        elif isinstance(value, list):
            ends = np.cumsum([len(texts), *map(len, value)]).tolist()
            texts += b"".join(value)
            found[key] = FeatureValue("bytes", ranges=list(pairwise(ends)))
        else:
            kind: Literal["float", "int64"] = "float" if value.dtype == np.float32 else "int64"
            found[key] = FeatureValue(kind, values=value)
    return found, bytes(texts)


def _pairs(value: FeatureValue | None) -> NDArray[np.int64]:
    """[T, 2] int64 start and stop of every string."""
    ranges = value.ranges if value is not None else []
    flat = np.fromiter(chain.from_iterable(ranges), np.int64, 2 * len(ranges))
    return flat.reshape(-1, 2)


def _numbers(value: FeatureValue | None, feature: StoredFeature) -> NDArray[Any]:
    if value is None or value.values is None:
        raise MalformedRecordError(f"{feature.path} is missing")
    return value.values


def _texts(
    payload: Any, value: FeatureValue | None, feature: StoredFeature
) -> tuple[NDArray[np.int32], list[bytes]]:
    """Id of every step's text, and the texts; of the episode's one text, one id."""
    if feature.role == "points":
        rows = _numbers(value, feature).astype(np.int64).reshape(-1, feature.width)
        ids, different = numbered(row.tobytes() for row in rows)
        return ids, [text_of_points(np.frombuffer(row, np.int64)) for row in different]
    if feature.role == "number":
        return numbered(str(int(one)).encode() for one in _numbers(value, feature).tolist())
    ranges = value.ranges if value is not None else []
    if not feature.per_step and not ranges:
        return np.zeros(1, np.int32), [b""]
    strings = [bytes(payload[start:stop]) for start, stop in ranges]
    return numbered(strings if feature.width == 1 else joined(strings, feature.width))


def numbered(items: Iterable[bytes]) -> tuple[NDArray[np.int32], list[bytes]]:
    """Number of every item among the different ones, and these in the order they come."""
    known: dict[bytes, int] = {}
    ids = [known.setdefault(item, len(known)) for item in items]
    return np.array(ids, np.int32), list(known)


# -- tables ---------------------------------------------------------------------------------------


def sections_of(feature: StoredFeature) -> tuple[Section, ...]:
    """The sections of a feature whose frames are byte ranges of the shard file."""
    if feature.role == "frames":
        return Section.FRAME_OFFSETS, Section.FRAME_LENGTHS
    return (NUMBERS.get(feature.role, Section.TEXT_IDS),)


class TableBuilder:
    """Builds the tables of a shard file.

    Args:
        schema: features that are indexed of each record.
        sections: gives the sections that a feature has.

    Attributes:
        schema: features that are indexed of each record.
        damage: number of a record → reason why it is left out.
    """

    def __init__(
        self,
        schema: RecordSchema,
        sections: Callable[[StoredFeature], tuple[Section, ...]] = sections_of,
    ) -> None:
        self.schema = schema
        self.damage: dict[int, str] = {}
        self._records: list[tuple[int, int, int]] = []
        self._texts: dict[bytes, int] = {}
        self._parts: dict[tuple[Section, int], list[NDArray[Any]]] = {
            (kind, number): []
            for number, feature in enumerate(schema.features)
            for kind in sections(feature)
        }

    def add(
        self, offset: int, length: int, steps: int, values: Values, texts: Mapping[int, list[bytes]]
    ) -> None:
        """Add the next record.

        Args:
            offset: place of the record in the file.
            length: bytes of the record there.
            steps: number of the record's steps.
            values: by section; those that are texts as places in ``texts``.
            texts: feature number → its texts, UTF-8.
        """
        self._records.append((offset, length, steps))
        known = self._texts
        for (kind, number), part in values.items():
            if kind in _OF_TEXTS:
                ids = [known.setdefault(text, len(known)) for text in texts[number]]
                part = np.array(ids, np.int32)[part]
            self._parts[kind, number].append(part)

    def leave_out(self, offset: int, length: int, reason: str) -> None:
        """Add a record without rows; features that the episode has once keep their one place."""
        self.damage[len(self._records)] = reason
        self._records.append((offset, length, -1))
        for (kind, number), parts in self._parts.items():
            if kind in ONCE or not self.schema.features[number].per_step:
                parts.append(np.full((1, *self._width(kind, number)), -1, kind.dtype))

    def note(self, text: str) -> None:
        """Add a fact about the shard file that a person should know."""
        self.damage[min([*self.damage, FIRST_NOTE + 1]) - 1] = text

    def tables(self, source: SourceIdentity) -> ShardTables:
        """The tables of the records added so far."""
        records = np.array(self._records, np.int64).reshape(-1, 3)
        sections = {
            (kind, number): np.concatenate(
                [np.empty((0, *self._width(kind, number)), kind.dtype), *parts]
            ).astype(kind.dtype, copy=False)
            for (kind, number), parts in self._parts.items()
        }
        offsets, lengths, steps = records.T
        return ShardTables(
            source, offsets, lengths, steps.astype(np.int32), self.damage, sections,
            list(self._texts),
        )  # fmt: skip

    def _width(self, kind: Section, number: int) -> tuple[int, ...]:
        """Shape of a section's item: numbers have a width."""
        return (self.schema.features[number].width,) if kind in NUMBERS.values() else ()
