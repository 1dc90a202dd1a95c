"""Throws truncated, mutated and oddly laid out records at the indexer and holds it to protobuf.

A file of records is indexed as a whole, so that the reuse of buffers is part of the trial. Every
record must end as damaged with a reason, or with exactly what the protobuf runtime reads: the same
number of steps, the same frames at the byte ranges, which lie inside the record, the same numbers
and texts. Not here: tests of what the
layouts mean (``tests/catalog``), the long run (``tools/hunt/damage.py``).
"""

import collections
import os
import random
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from autoloader.formats.records import masked_crc32c
from autoloader.formats.tables import REST_OF_FILE, Section, ShardTables, StoredFeature
from autoloader.formats.tfds import read_tables
from autoloader.index.records import read_record
from autoloader.samples.schema import RecordSchema
from autoloader.samples.transforms.fields import text_of_points

SCHEMA = RecordSchema(
    (
        StoredFeature("column", "steps/action", "action", "float", 3, True),
        StoredFeature("column", "steps/is_first", "is_first", "int64", 1, True),
        StoredFeature("frames", "steps/image", "image", "bytes", 1, True),
        StoredFeature("frames", "steps/wrist", "wrist", "bytes", 1, True),
        StoredFeature("points", "steps/codes", "codes", "int64", 4, True),
        StoredFeature("text", "episode_metadata/task", "episode_metadata/task", "bytes", 1, False),
        StoredFeature("text", "steps/words", "words", "bytes", 1, True),
    )
)
RECORDS_A_FILE = 40


def message_classes() -> tuple[type[Any], type[Any]]:
    """Example and Feature of ``tf.train``, declared by hand, so that they need no TensorFlow.

    The map is declared as the list of entries that it is on the wire, with keys and values as
    bytes: what the schema does not name may hold anything, as it may for TensorFlow.
    """
    file = descriptor_pb2.FileDescriptorProto(name="fuzz.proto", package="fuzz", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(owner: Any, name: str, number: int, kind: int, many: bool = False, of: str = "") -> Any:
        label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
        return owner.field.add(
            name=name, number=number, type=kind, label=label, type_name=of or None
        )

    lists = (("Bytes", kinds.TYPE_BYTES), ("Float", kinds.TYPE_FLOAT), ("Int64", kinds.TYPE_INT64))
    for name, kind in lists:
        add(file.message_type.add(name=f"{name}List"), "value", 1, kind, many=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, _) in enumerate(lists, start=1):
        one = add(feature, name.lower(), number, kinds.TYPE_MESSAGE, of=f".fuzz.{name}List")
        one.oneof_index = 0
    entry = file.message_type.add(name="Entry")
    add(entry, "key", 1, kinds.TYPE_BYTES)
    add(entry, "value", 2, kinds.TYPE_BYTES)
    add(file.message_type.add(name="Features"), "entry", 1, kinds.TYPE_MESSAGE, True, ".fuzz.Entry")
    example = file.message_type.add(name="Example")
    add(example, "features", 1, kinds.TYPE_MESSAGE, of=".fuzz.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    example_class, feature_class = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"fuzz.{name}"))
        for name in ("Example", "Feature")
    )
    return example_class, feature_class


EXAMPLE, FEATURE = message_classes()


def read_by_protobuf(payload: bytes) -> dict[str, Any]:
    """The features of the schema that a record has. Raises ``message.DecodeError``."""
    entries = {one.key: one.value for one in EXAMPLE.FromString(payload).features.entry}
    named = {feature.key: feature.key.encode() for feature in SCHEMA.features}
    return {key: FEATURE.FromString(entries[raw]) for key, raw in named.items() if raw in entries}


# -- records ------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def part(tag: int, payload: bytes) -> bytes:
    return bytes([tag]) + varint(len(payload)) + payload


class Writer:
    """Writes legal records in every layout that the wire format allows."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._hurt = -1

    def record(self) -> bytes:
        """A record: one in three damaged in one list, with right lengths around it; one in three
        with something that the schema does not allow."""
        rng = self.rng
        self._hurt = rng.randrange(len(SCHEMA.features)) if rng.random() < 0.33 else -1
        steps = rng.choice((0, 1, 2, 3, 5, 9))
        entries = []
        for feature in SCHEMA.features:
            count = feature.width * (steps if feature.per_step else 1)
            entries.append(self.entry(feature.key, self.values(feature.list_kind, count)))
        entries.append(self.entry("steps/other", self.values("bytes", steps)))
        if rng.random() < 0.33:
            self.spoil(entries, steps)
        rng.shuffle(entries)
        if rng.random() < 0.1:  # a message may come in pieces, which are merged
            cut = rng.randrange(len(entries) + 1)
            return part(0x0A, b"".join(entries[:cut])) + part(0x0A, b"".join(entries[cut:]))
        return part(0x0A, b"".join(entries))

    def spoil(self, entries: list[bytes], steps: int) -> None:
        rng = self.rng
        at = rng.randrange(len(SCHEMA.features))
        feature = SCHEMA.features[at]
        kind = rng.choice(("bytes", "float", "int64"))
        count = rng.choice((0, 1, steps, steps + 1, feature.width * steps + 1))
        what = rng.randrange(4)
        if what == 0:
            del entries[at]
        elif what == 1:
            entries[at] = self.entry(feature.key, self.values(kind, count))
        elif what == 2:
            entries.append(self.entry(feature.key, self.values(kind, count)))
        else:
            entries[at] = self.entry(feature.key, b"")

    def entry(self, key: str, feature: bytes) -> bytes:
        parts = [part(0x0A, key.encode()), part(0x12, feature)]
        if self.rng.random() < 0.2:
            parts.reverse()
        return part(0x0A, b"".join(parts))

    def values(self, kind: str, count: int) -> bytes:
        """A Feature with ``count`` values, packed or not or both."""
        rng = self.rng
        self._hurt -= 1
        hurt = self._hurt == -1
        if kind == "bytes":
            same = rng.randbytes(rng.choice((0, 3, 20)))
            strings = [
                same if rng.random() < 0.4 else rng.randbytes(rng.choice((0, 1, 40, 130, 300)))
                for _ in range(count)
            ]
            listed = b"".join(part(0x0A, one) for one in strings)
            return part(0x0A, altered(rng, listed) if hurt else listed)
        tag, single = (0x12, 0x0D) if kind == "float" else (0x1A, 0x08)
        numbers = [
            struct.pack("<f", rng.gauss(0, 10))
            if kind == "float"
            else varint(rng.choice((0, 1, 65, 200, 0x1F600, 0xD800, -1, 2**63 - 1, -(2**63))))
            for _ in range(count)
        ]
        layout, cut = rng.random(), rng.randrange(count + 1)
        if layout < 0.6:
            cut = count
        elif layout < 0.8:
            cut = 0
        packed = part(0x0A, b"".join(numbers[:cut])) if cut or layout >= 0.8 else b""
        listed = packed + b"".join(bytes([single]) + one for one in numbers[cut:])
        return part(tag, altered(rng, listed) if hurt else listed)


def mutated(rng: random.Random, record: bytes) -> bytes:
    """The record; every second one altered anywhere, or cut off and its outer length mended."""
    if rng.random() < 0.5:
        return record
    data = altered(rng, record)
    if rng.random() < 0.5 and len(data) > 3:
        return part(0x0A, data[1 + len(varint(len(record) - 3)) :])
    return data


def altered(rng: random.Random, record: bytes) -> bytes:
    """The bytes cut off, or with some of them changed, taken out or put in."""
    data = bytearray(record)
    what = rng.randrange(5)
    if what == 0:
        return record[: rng.randrange(len(record) + 1)]
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(data) + 1)
        if what == 1 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif what == 2 and at < len(data):
            data[at] = rng.choice((0, 1, 0x08, 0x0A, 0x0D, 0x12, 0x1A, 0x7F, 0x80, 0xFF))
        elif what == 3:
            del data[at : at + rng.choice((1, 1, 2, 9))]
        elif what == 4:
            source, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 9))
            data[at:at] = rng.choice((rng.randbytes(length), data[source : source + length]))
    return bytes(data)


def framed(payloads: Sequence[bytes]) -> bytes:
    """A TFRecord file."""
    file = bytearray()
    for payload in payloads:
        size = struct.pack("<Q", len(payload))
        file += size + struct.pack("<I", masked_crc32c(size))
        file += payload + struct.pack("<I", masked_crc32c(payload))
    return bytes(file)


# -- the trial ----------------------------------------------------------------------------------


@dataclass
class Report:
    """What came out.

    Attributes:
        cases: records tried.
        whole: of these, records that were indexed.
        steps: steps of these, whose frames, numbers and texts were compared.
        reasons: why the others were not, without numbers and names.
        slowest_s: a record of the slowest file took this.
    """

    cases: int = 0
    whole: int = 0
    steps: int = 0
    reasons: collections.Counter[str] = field(default_factory=collections.Counter)
    slowest_s: float = 0.0


def run(cases: int, seed: int) -> Report:
    """Tries ``cases`` records.

    Raises:
        AssertionError: a record was indexed as what it is not.
    """
    rng = random.Random(seed)
    report = Report()
    writer = Writer(rng)
    fd = os.memfd_create("fuzz")
    try:
        while report.cases < cases:
            payloads = [mutated(rng, writer.record()) for _ in range(RECORDS_A_FILE)]
            file = framed(payloads)
            cut = rng.random() < 0.1
            if cut:  # damage outside of the payloads
                at = rng.randrange(len(file))
                rest = b"" if rng.random() < 0.5 else bytes([file[at] ^ 0x10]) + file[at + 1 :]
                file = file[:at] + rest
            os.ftruncate(fd, 0)
            os.pwrite(fd, file, 0)
            begun = time.perf_counter()
            tables = read_tables(f"/proc/self/fd/{fd}", SCHEMA, partial(read_record, SCHEMA))
            report.slowest_s = max(report.slowest_s, (time.perf_counter() - begun) / RECORDS_A_FILE)
            assert cut or len(tables.steps) == RECORDS_A_FILE
            compare(tables, payloads, file, report)
            report.cases += len(payloads)
    finally:
        os.close(fd)
    return report


def compare(tables: ShardTables, payloads: Sequence[bytes], file: bytes, report: Report) -> None:
    """Holds the tables of a file to what protobuf reads of its records."""
    row = 0
    for record, steps in enumerate(tables.steps.tolist()):
        start = int(tables.record_offsets[record])
        stop = start + int(tables.record_lengths[record])
        assert stop <= len(file)
        if steps < 0:
            reason = tables.damage[record]
            assert reason
            words = (word for word in reason.split() if word.isalpha())
            report.reasons[" ".join(words)] += 1
            continue
        assert record not in tables.damage
        payload = file[start:stop]
        assert payload == payloads[record]
        compare_record(tables, payload, start, row, steps, file, record)
        row += steps
        report.whole += 1
        report.steps += steps
    assert all(len(values) in (row, len(tables.steps)) for values in tables.sections.values())
    if REST_OF_FILE not in tables.damage:  # whole, or cut off just behind a record
        assert len(framed(payloads[: len(tables.steps)])) == len(file)


def compare_record(
    tables: ShardTables, payload: bytes, start: int, row: int, steps: int, file: bytes, record: int
) -> None:
    try:
        found = read_by_protobuf(payload)
    except message.DecodeError as error:
        raise AssertionError(f"protobuf refuses {payload!r}") from error
    rows = slice(row, row + steps)
    for number, feature in enumerate(SCHEMA.features):
        value = found.get(feature.key)
        if feature.role == "frames":
            offsets = tables.sections[Section.FRAME_OFFSETS, number][rows].tolist()
            lengths = tables.sections[Section.FRAME_LENGTHS, number][rows].tolist()
            for offset, length in zip(offsets, lengths, strict=True):
                assert start <= offset <= offset + length <= start + len(payload)
            frames = [file[o : o + n] for o, n in zip(offsets, lengths, strict=True)]
            assert frames == list(value.bytes.value)
        elif feature.role == "column":
            numbers = tables.sections[Section.COLUMN, number][rows]
            assert numbers.shape == (steps, feature.width)
            wanted = value.float.value if feature.list_kind == "float" else value.int64.value
            flat = np.array(list(wanted), np.float32 if feature.list_kind == "float" else np.int64)
            np.testing.assert_array_equal(numbers.reshape(-1), flat.astype(np.float32))
        else:
            ids = tables.sections[Section.TEXT_IDS, number]
            ids = ids[rows] if feature.per_step else ids[record : record + 1]
            texts = [tables.texts[one] for one in ids.tolist()]
            if feature.role == "points":
                points = np.array(list(value.int64.value), np.int64).reshape(-1, feature.width)
                assert texts == [text_of_points(line) for line in points]
            else:
                strings = list(value.bytes.value) if value is not None else []
                assert texts == (strings or ([] if feature.per_step else [b""]))
