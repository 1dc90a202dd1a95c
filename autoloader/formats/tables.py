"""Tables that a format makes of a shard file: places of frames, numbers of steps.

An index file holds these tables. Each format fills them by a ``TableBuilder``, so that whatever
reads an index knows no format.

Not here: the bytes of an index file (``index.shard``), records of TFDS (``tfds``), Parquet files
and videos (``lerobot``).
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.features import Feature
from autoloader.host.frozen import frozen
from autoloader.spec.model import Timestamps

NO_FEATURE = 0xFFFF
REST_OF_FILE = -1
"""Record number of the damage entry that speaks of everything behind the last record."""
FIRST_NOTE = -2
"""Record numbers of damage entries from here down are notes: what a person should know."""

Role = Literal["frames", "column", "integers", "text", "texts", "points", "number"]


@frozen
class StoredFeature:
    """One feature of a record.

    Attributes:
        role: "frames" (byte ranges of encoded pictures), "column" (numbers as float32),
            "integers" (numbers as int64), "text" (stored as bytes), "texts" (several of them,
            taken together), "points" (stored as Unicode code points) or "number" (an integer,
            taken as decimal text).
        key: key of the feature in the ``tf.train.Example``.
        path: as users name it.
        list_kind: the list that the record must hold: "bytes", "float" or "int64".
        width: numbers, or texts, of one step; 1 for frames that are byte strings; 0 of texts of
            which an episode has any number.
        per_step: whether every step has one, or only the episode.
    """

    role: Role
    key: str
    path: str
    list_kind: Literal["bytes", "float", "int64"]
    width: int
    per_step: bool


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
    PICTURE_FIRST = 24, "<i4"


Key = tuple[Section, int]
"""A section, and the number of its feature or ``NO_FEATURE``."""
Values = dict[Key, NDArray[Any]]
"""Values of one record for each section."""
Texts = dict[int, list[bytes]]
"""Feature number → texts of one record, UTF-8."""
NUMBERS: Mapping[str, Section] = {"column": Section.COLUMN, "integers": Section.INTEGERS}
"""Role of a numeric feature → the kind of its section, whose items have a width."""
ONCE = (Section.FRAME_FILES, Section.FRAME_CODECS)
"""Sections of frames with one number for each record, damaged ones included."""
_OF_TEXTS = (Section.TEXT_IDS, *ONCE)


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
        """The identity of a file, by its ``stat``."""
        return cls(stat.st_size, stat.st_mtime_ns)


@frozen
class ShardTables:
    """Tables of one shard file. R records, F rows: the frames of its whole records.

    Attributes:
        source: state of the shard file when it was indexed.
        record_offsets, record_lengths: [R] int64 first byte and number of bytes of each payload;
            no lengths where row k is record k, and an index then has no first rows either.
        steps: [R] int32 steps of each record; −1 for damaged records, which have no rows.
        damage: number of a record → reason; ``REST_OF_FILE`` stands for all behind the last record.
            Numbers from ``FIRST_NOTE`` down are notes.
        sections: (kind, feature number) → values: [F] or [F, width] of features of the steps; [R]
            or [R, width] of features of the episode, and of videos' files and codecs; [P] of
            videos' packets.
        texts: every text once, UTF-8, by id.
    """

    source: SourceIdentity
    record_offsets: NDArray[np.int64]
    record_lengths: NDArray[np.int64]
    steps: NDArray[np.int32]
    damage: Mapping[int, str]
    sections: Mapping[Key, NDArray[Any]] = field(default_factory=dict)
    texts: Sequence[bytes] = ()


class Rewriting(Protocol):
    """Source of an episode's other features; see ``samples.transforms.transform.Transform``."""

    @property
    def features(self) -> Mapping[str, Feature]:
        """Features of the transformed episodes, by path."""


@dataclass(frozen=True)
class Wanted:
    """Features that an index takes of a shard file.

    Attributes:
        features: features in the order of their sections.
        transform: function that each episode goes through first, or ``None``.
        timestamps: rule by which rows get their frames.
    """

    features: tuple[StoredFeature, ...]
    transform: Rewriting | None = None
    timestamps: Timestamps = "check"

    @property
    def stored(self) -> frozenset[str] | None:
        """Keys of the stored features that are read; ``None``: all, as a function may read any."""
        return None if self.transform else frozenset(one.key for one in self.features)


ReadRecord = Callable[[Any, int], tuple[int, Values, Texts]]
"""(a record, its bytes) → (steps, values by section, texts by feature number).

Frame offsets count from the start of the record. Text ids are places in the feature's own list of
texts. Raises ``MalformedRecordError`` where the record is not exactly what is wanted."""


def numbered(items: Iterable[bytes]) -> tuple[NDArray[np.int32], list[bytes]]:
    """Number of every item among the different ones, and these in the order they come."""
    known: dict[bytes, int] = {}
    return np.array([known.setdefault(item, len(known)) for item in items], np.int32), list(known)


class TableBuilder:
    """Builds the tables of a shard file.

    Frames have the sections that their values come with, and none without a whole record.

    Args:
        features: features that are indexed of each record.

    Attributes:
        damage: number of a record → reason why it is left out.
    """

    def __init__(self, features: Sequence[StoredFeature]) -> None:
        self.damage: dict[int, str] = {}
        self._features = features
        self._records: list[tuple[int, int, int]] = []
        self._texts: dict[bytes, int] = {}
        self._parts: dict[Key, list[NDArray[Any]]] = {}
        for number, feature in enumerate(features):
            if feature.role != "frames":
                self._begun(NUMBERS.get(feature.role, Section.TEXT_IDS), number)

    def add(self, offset: int, length: int, steps: int, values: Values, texts: Texts) -> None:
        """Add the next record.

        Args:
            offset: place of the record in the file.
            length: bytes of the record there.
            steps: number of the record's steps.
            values: values by section; a text is a number in ``texts``.
            texts: feature number → its texts, UTF-8.
        """
        known = self._texts
        for (kind, number), part in values.items():
            if kind in _OF_TEXTS:
                ids = [known.setdefault(text, len(known)) for text in texts[number]]
                part = np.array(ids, np.int32)[part]
            self._begun(kind, number).append(part)
        self._records.append((offset, length, steps))

    def leave_out(self, offset: int, length: int, reason: str) -> None:
        """Add a record without rows; features that the episode has once keep their one place."""
        self.damage[len(self._records)] = reason
        self._records.append((offset, length, -1))
        for (kind, number), parts in self._parts.items():
            parts.append(self._left_out(kind, number, 1))

    def note(self, text: str) -> None:
        """Add a fact about the shard file that a person should know."""
        self.damage[min([*self.damage, FIRST_NOTE + 1]) - 1] = text

    def tables(self, source: SourceIdentity) -> ShardTables:
        """The tables of the records added so far."""
        offsets, lengths, each = np.array(self._records, np.int64).reshape(-1, 3).T
        sections = {
            key: np.concatenate(parts).astype(key[0].dtype, copy=False)
            for key, parts in sorted(self._parts.items(), key=lambda one: one[0][1])
        }
        steps, texts = each.astype(np.int32), list(self._texts)
        return ShardTables(source, offsets, lengths, steps, self.damage, sections, texts)

    def _begun(self, kind: Section, number: int) -> list[NDArray[Any]]:
        """Parts of a section, which begins with the places of records that were left out."""
        if (parts := self._parts.get((kind, number))) is None:
            parts = self._parts[kind, number] = [self._left_out(kind, number, len(self._records))]
        return parts

    def _left_out(self, kind: Section, number: int, records: int) -> NDArray[Any]:
        """Places in a section of so many records that are left out; numbers have a width."""
        feature = self._features[number]
        rows = records if kind in ONCE or not feature.per_step else 0
        width = (feature.width,) if kind in NUMBERS.values() else ()
        return np.full((rows, *width), -1, kind.dtype)
