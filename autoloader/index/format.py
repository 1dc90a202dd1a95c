"""The binary format of an index file: header, directory, sections; packing and opening.

Not here: what is in the tables (``index.build``), the paths of index files and access
to mapped sections (``index.shard``).
``docs/reference/index-format.md`` describes every byte.

An index file is written once and never changed. Its identity is the version of this format, the
stamp of all files that it was made from, and the fingerprint of the indexed features; whoever
opens it compares all of them. The header carries a checksum of itself and of the directory, the
directory one of each section, so that damage anywhere is noticed before a value is used.
"""

from __future__ import annotations

import enum
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from autoloader.samples.schema import RecordSchema

MAGIC = b"ALINDEX\0"
VERSION = 1
ALIGNMENT = 64
"""Sections start at multiples of this, in bytes."""
FIRST_READ_BYTES = 8192
"""One read of this gives the header, the directory and, of most files, the episode table."""
NO_FEATURE = 0xFFFF
REST_OF_FILE = -1
"""Record number of the damage entry that speaks of everything behind the last record."""
FIRST_NOTE = -2
"""Record numbers of damage entries from here down are notes: what a person should know."""

HEADER = struct.Struct("<8sIIqq32sqqqII")
"""Magic, version, sections, source size, source stamp, fingerprint, records, rows, bytes of this
file, zero, CRC-32C of header (with 0 in this place) and directory."""
ENTRY = struct.Struct("<HHIqqII")
"""Kind, feature, CRC-32C, offset, items, numbers an item, zero."""
_CRC_AT = HEADER.size - 4


class Section(enum.IntEnum):
    """Contents of a section: the kind in the directory, and the type of its values.

    Attributes:
        dtype: NumPy type of the values, little-endian.
    """

    dtype: np.dtype[Any]

    def __new__(cls, kind: int, dtype: str = "u1") -> Section:
        """The member of this number and type."""
        one = int.__new__(cls, kind)
        one._value_ = kind
        one.dtype = np.dtype(dtype)
        return one

    STEPS = 1, "<i4"
    DAMAGE = 2, "u1"
    SCHEMA = 3, "u1"
    RECORD_OFFSETS = 4, "<i8"
    RECORD_LENGTHS = 5, "<i8"
    FIRST_ROWS = 6, "<i8"
    FRAME_OFFSETS = 7, "<i8"
    FRAME_LENGTHS = 8, "<i4"
    COLUMN = 9, "<f4"
    TEXT_IDS = 10, "<i4"
    TEXT_STARTS = 11, "<i8"
    TEXT_BYTES = 12, "u1"
    INTEGERS = 13, "<i8"
    FRAME_FILES = 14, "<i4"
    FRAME_CODECS = 15, "<i4"
    FRAME_KEYS = 16, "<i8"
    FRAME_PACKETS = 17, "<i8"
    PACKET_OFFSETS = 18, "<i8"
    PACKET_SIZES = 19, "<i4"
    PACKET_NUMBERS = 20, "<i4"
    UNPACKED_BYTES = 21, "<i4"
    PICTURE_STARTS = 22, "<i4"
    PICTURE_BYTES = 23, "<i4"


NUMBERS: Mapping[str, Section] = {"column": Section.COLUMN, "integers": Section.INTEGERS}
"""Role of a numeric feature → the kind of its section, whose items have a width."""


class UnusableIndexError(Exception):
    """An index file that is stale, damaged or of another version; the message is the reason.

    Internal: whoever meets it builds the index anew.
    """


class SourceIdentity(NamedTuple):
    """State of a shard file, and of all else that its index is made from, when it was indexed.

    Attributes:
        size: bytes of all these files.
        stamp: modification time of a single file in ns, or the generation of a remote one; of
            several files a hash of each one's name, size and time, or of its content.
    """

    size: int
    stamp: int

    @classmethod
    def of(cls, stat: os.stat_result) -> SourceIdentity:
        """From a stat of the file."""
        return cls(stat.st_size, stat.st_mtime_ns)


class Entry(NamedTuple):
    """One section in the directory: ``items`` × ``width`` numbers of the kind's type."""

    kind: Section
    feature: int
    crc: int
    offset: int
    items: int
    width: int

    @property
    def nbytes(self) -> int:
        """Bytes of the section."""
        return int(self.items * self.width * self.kind.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class ShardTables:
    """Tables of one shard file. R records, F rows: the frames of its whole records.

    Attributes:
        source: the file when it was indexed.
        record_offsets, record_lengths: [R] int64, of payloads.
        steps: [R] int32, -1 for damaged records, which have no rows.
        damage: record → reason; ``REST_OF_FILE`` for what lies behind the last one; notes from
            ``FIRST_NOTE`` down.
        sections: of the features, by (kind, feature number): [F] or [F, width]; of features that
            only the episode has, and file and codec of videos, [R] or [R, width]; [P] of videos'
            packets.
        texts: every text once, UTF-8, by id.
    """

    source: SourceIdentity
    record_offsets: NDArray[np.int64]
    record_lengths: NDArray[np.int64]
    steps: NDArray[np.int32]
    damage: Mapping[int, str]
    sections: Mapping[tuple[Section, int], NDArray[Any]] = field(default_factory=dict)
    texts: Sequence[bytes] = ()


def pack(tables: ShardTables, schema: RecordSchema) -> bytes:
    """The bytes of an index file; the same tables give the same bytes."""
    first_rows = np.zeros(len(tables.steps) + 1, np.int64)
    np.cumsum(np.maximum(tables.steps, 0), out=first_rows[1:])
    text_starts = np.zeros(len(tables.texts) + 1, np.int64)
    text_starts[1:] = np.cumsum([len(text) for text in tables.texts], dtype=np.int64)
    damage = json.dumps(sorted(tables.damage.items())).encode() if tables.damage else b""
    parts: list[tuple[Section, int, NDArray[Any]]] = [
        (Section.STEPS, NO_FEATURE, tables.steps),
        (Section.DAMAGE, NO_FEATURE, np.frombuffer(damage, np.uint8)),
        (Section.SCHEMA, NO_FEATURE, np.frombuffer(schema.document, np.uint8)),
        (Section.RECORD_OFFSETS, NO_FEATURE, tables.record_offsets),
        (Section.RECORD_LENGTHS, NO_FEATURE, tables.record_lengths),
        (Section.FIRST_ROWS, NO_FEATURE, first_rows),
        *((kind, feature, tables.sections[kind, feature]) for kind, feature in tables.sections),
        (Section.TEXT_STARTS, NO_FEATURE, text_starts),
        (Section.TEXT_BYTES, NO_FEATURE, np.frombuffer(b"".join(tables.texts), np.uint8)),
    ]
    position = _aligned(HEADER.size + len(parts) * ENTRY.size)
    directory, bodies = [], []
    for kind, feature, values in parts:
        body = np.ascontiguousarray(values, kind.dtype).tobytes()
        items = len(values)
        width = values.shape[1] if values.ndim > 1 else 1
        crc = google_crc32c.value(body)
        directory.append(ENTRY.pack(kind, feature, crc, position, items, width, 0))
        bodies.append((position, body))
        position = _aligned(position + len(body))
    file = bytearray(position)
    listed = b"".join(directory)
    file[HEADER.size : HEADER.size + len(listed)] = listed
    HEADER.pack_into(
        file,
        0,
        MAGIC,
        VERSION,
        len(parts),
        *tables.source,
        schema.fingerprint,
        len(tables.steps),
        int(first_rows[-1]),
        position,
        0,
        0,
    )
    crc = google_crc32c.value(bytes(file[: HEADER.size + len(listed)]))
    struct.pack_into("<I", file, _CRC_AT, crc)
    for offset, body in bodies:
        file[offset : offset + len(body)] = body
    return bytes(file)


def source_of(content: bytes) -> SourceIdentity:
    """The file that an index file was made of; of what is none, of no file."""
    if len(content) < HEADER.size:
        return SourceIdentity(-1, -1)
    return SourceIdentity(*HEADER.unpack(content[: HEADER.size])[3:5])


def with_source(content: bytes, source: SourceIdentity) -> bytes:
    """An index file, of a copy of the file that it was made of."""
    values = list(HEADER.unpack(content[: HEADER.size]))
    listed = content[HEADER.size : HEADER.size + values[2] * ENTRY.size]
    values[3:5], values[-1] = source, 0
    values[-1] = google_crc32c.value(HEADER.pack(*values) + listed)
    return HEADER.pack(*values) + content[HEADER.size :]


@dataclass(frozen=True, slots=True)
class Front:
    """The front of an index file: enough to count episodes without mapping it.

    Attributes:
        header: its bytes, which no other content has.
        steps: [R] int32, -1 for damaged records.
        damage: record → reason, as of ``ShardTables``.
        rows: frames of the whole records.
        file_bytes: size of the index file.
        directory: packed entries of the sections.
    """

    header: bytes
    steps: NDArray[np.int32]
    damage: Mapping[int, str]
    rows: int
    file_bytes: int
    directory: bytes

    @property
    def notes(self) -> list[str]:
        """Facts about the shard file that a person should know."""
        return [told for record, told in self.damage.items() if record <= FIRST_NOTE]

    def entries(self) -> dict[tuple[Section, int], Entry]:
        """The directory, by kind and feature."""
        return {(entry.kind, entry.feature): entry for entry in _entries(self.directory)}


def read_front(
    read: Callable[[int, int], bytes], size: int, source: SourceIdentity, fingerprint: bytes
) -> Front:
    """Checks header, directory and episode table of an index file.

    Args:
        read: gives (count, offset) bytes of it, fewer at its end.
        size: bytes of the index file.
        source: what the source file looks like now.
        fingerprint: of the features that are wanted.

    Raises:
        UnusableIndexError: it is stale, damaged, cut off, of another version or schema.
        OSError: it cannot be read.
    """
    front = read(FIRST_READ_BYTES, 0)
    if len(front) < HEADER.size or front[:8] != MAGIC:
        raise UnusableIndexError("it is no index file")
    header = front[: HEADER.size]
    _, version, count, *identity, found, records, rows, file_bytes, _, crc = HEADER.unpack(header)
    if version != VERSION:
        raise UnusableIndexError(f"it has version {version}, not {VERSION}")
    if size != file_bytes:
        raise UnusableIndexError("it is cut off")
    if HEADER.size + count * ENTRY.size > size:
        raise UnusableIndexError("its header is damaged")
    front = _longer(read, front, HEADER.size + count * ENTRY.size)
    directory = front[HEADER.size : HEADER.size + count * ENTRY.size]
    if count < 2 or google_crc32c.value(header[:_CRC_AT] + bytes(4) + directory) != crc:
        raise UnusableIndexError("the checksum of its header is wrong")
    if found != fingerprint:
        raise UnusableIndexError("it holds other features")
    if tuple(identity) != source:
        raise UnusableIndexError("the file that it indexes has changed")
    steps, damage = _entries(directory[: 2 * ENTRY.size])
    if (steps.kind, damage.kind, steps.items) != (Section.STEPS, Section.DAMAGE, records):
        raise UnusableIndexError("its directory is not in order")
    for entry in (steps, damage):
        if min(entry.offset, entry.items) < 0 or entry.offset + entry.nbytes > size:
            raise UnusableIndexError("its directory is not in order")
    front = _longer(read, front, damage.offset + damage.nbytes)
    bodies = []
    for entry in (steps, damage):
        bodies.append(front[entry.offset : entry.offset + entry.nbytes])
        if google_crc32c.value(bodies[-1]) != entry.crc:
            raise UnusableIndexError("the checksum of its episode table is wrong")
    return Front(
        header=header,
        steps=np.frombuffer(bodies[0], Section.STEPS.dtype).astype(np.int32, copy=False),
        damage=dict(json.loads(bodies[1])) if bodies[1] else {},
        rows=rows,
        file_bytes=file_bytes,
        directory=directory,
    )


def _entries(directory: bytes) -> list[Entry]:
    try:
        return [Entry(Section(kind), *rest) for kind, *rest, _ in ENTRY.iter_unpack(directory)]
    except ValueError as error:
        raise UnusableIndexError(f"its directory is not in order: {error}") from error


def _longer(read: Callable[[int, int], bytes], front: bytes, size: int) -> bytes:
    """At least ``size`` bytes of the file; ``front`` are its first."""
    while len(front) < size:
        piece = read(size - len(front), len(front))
        if not piece:
            raise UnusableIndexError("it is cut off")
        front += piece
    return front


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT
