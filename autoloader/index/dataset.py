"""A dataset's index: every readable episode of its slices, and the records that cannot be read.

Nothing is parsed: every value is a slice of a mapped section, or gathered from several.

Not here: opening and building index files (``index.opening``, ``index.shard``), which t are valid
(``index.valid``), the order of samples (``sampling.plan``).
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.arrays import codec_of
from autoloader.formats.features import ARRAY, PARQUET, SLAB
from autoloader.formats.frames import (
    ArrayPicture,
    Encoded,
    PackedPicture,
    SlabRead,
    VideoCodec,
    VideoFrame,
    share,
)
from autoloader.formats.tables import NO_FEATURE, NUMBERS, REST_OF_FILE, Key, Section
from autoloader.index.shard import ShardIndex
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema
from autoloader.samples.transforms.transform import VALID_KEY
from autoloader.sampling.episodes import strided_steps

_FEATURE_BITS = 10
"""Room for the number of a feature in a picture's key."""
_FIRST_ROWS = Section.FIRST_ROWS, NO_FEATURE


class DamagedRecord(NamedTuple):
    """A quarantined record: its slice, its number in the slice's file, why."""

    slice: int
    record: int
    reason: str


class DatasetIndex:
    """Every readable episode of a dataset's slices, ordered by slice and record; thread-safe.

    Args:
        dataset: dataset that the episodes belong to.
        schema: features that are indexed of each episode.
        shards: the open index of each slice's file.

    Attributes:
        dataset, schema: dataset and schema that it was made with.
        shards: open index of each shard file, by path.
        steps: [E] int32 raw (unstrided) steps; 0 is possible.
        slice_of: [E] int32 number of the slice, which is a provenance's shard.
        record_of: [E] int64 record in the slice's file, which is a provenance's episode.
        tables, rows: each slice's tables, and [E] which of their records each episode is.
        numbers: numbers of the indexed features.
        damaged: quarantined records of the slices.
        record_type: type of ``record_of``.
    """

    record_type: ClassVar[type[np.integer[Any]]] = np.int64

    def __init__(
        self, dataset: ResolvedDataset, schema: RecordSchema, shards: Sequence[ShardIndex]
    ) -> None:
        self.dataset = dataset
        self.schema = schema
        self.tables: Mapping[int, EpisodeTables] = dict(enumerate(shards))
        self.shards = {shard.path: shard for shard in shards}
        self.numbers = FeatureNumbers(schema)
        steps: list[NDArray[np.int32]] = []
        records: list[NDArray[np.int64]] = []
        damaged: list[DamagedRecord] = []
        for number, (piece, shard) in enumerate(zip(dataset.slices, shards, strict=True)):
            there = shard.front.steps[piece.start : piece.stop]
            whole = np.arange(piece.start, piece.start + len(there), dtype=self.record_type)
            if not (there >= 0).all():
                whole, there = whole[there >= 0], there[there >= 0]
            steps.append(there)
            records.append(whole)
            if len(whole) < piece.records:
                damaged += _damaged(dataset, number, shard)
        counts = [len(part) for part in records]
        self._first = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        one = len(counts) == 1  # a file of a million records costs no copies
        self.steps = steps[0] if one else np.concatenate(steps)
        zero = np.broadcast_to(np.int32(0), counts[:1])
        self.slice_of = zero if one else np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self.rows = self.record_of = records[0] if one else np.concatenate(records)
        self.damaged = tuple(damaged)

    def of(self, dataset: ResolvedDataset) -> DatasetIndex:
        """The same episodes, of a dataset that differs in what follows from them alone."""
        other = copy.copy(self)
        other.dataset = dataset
        return other

    @property
    def episodes(self) -> int:
        """E, the number of readable episodes."""
        return len(self.steps)

    @property
    def strided(self) -> NDArray[np.int64]:
        """[E] int64 steps of each episode after the stride."""
        return strided_steps(self.steps, self.dataset.stride)

    def text_ids(
        self, feature_path: str
    ) -> Iterator[tuple[slice, NDArray[np.int32], Callable[[int], bytes]]]:
        """By slice: its episodes, ids of a text of them, and what tells the text of an id.

        The ids are those of every step, one episode's behind another's, or of every episode.

        Raises:
            KeyError: no such text is indexed.
        """
        number = self.numbers["language", feature_path]
        for shard, mine, rows in self._by_slice():
            ids = shard.sections[Section.TEXT_IDS, number]
            of_steps = self.numbers.per_step[number]
            yield mine, ids[rows] if of_steps else ids[self.rows[mine]], shard.text

    def column(self, e: int, feature_path: str) -> NDArray[np.float32]:
        """[T, width] float32 values of a numeric feature in episode ``e``, read-only.

        Raises:
            KeyError: the spec names no such numeric feature.
        """
        shard, number = self.tables[int(self.slice_of[e])], self.numbers["column", feature_path]
        first = int(shard.sections[_FIRST_ROWS][self.rows[e]])
        found: NDArray[np.float32] = shard.sections[Section.COLUMN, number][first:]
        return found[: self.steps[e]]

    def episodes_at(self, numbers: NDArray[np.int64]) -> GatheredEpisodes:
        """Episodes ``numbers`` [n], which ascend; any may come more than once."""
        return GatheredEpisodes(self, numbers)

    def valid_steps(self) -> NDArray[np.bool_]:
        """[sum of ``steps``] which steps of a transformed dataset may be t, before the stride."""
        parts = [part[:, 0] != 0 for part in self.values("column", VALID_KEY)]
        return np.concatenate([np.empty(0, dtype=np.bool_), *parts])

    def values(self, role: str, feature_path: str) -> Iterator[NDArray[Any]]:
        """By slice: [n, width] values of a numeric feature, of every step or of every episode."""
        number = self.numbers[role, feature_path]
        for shard, mine, rows in self._by_slice():
            of_steps = self.numbers.per_step[number]
            found = shard.sections[NUMBERS[role], number]
            yield found[rows] if of_steps else found[self.rows[mine]]

    def _by_slice(self) -> Iterator[tuple[EpisodeTables, slice, slice]]:
        """(its shard, its episodes, rows of their steps in the shard's sections) of each slice."""
        for shard, edges in zip(self.tables.values(), pairwise(self._first.tolist()), strict=True):
            rows = self.rows[mine := slice(*edges)]
            begin = int(shard.sections[_FIRST_ROWS][rows[0]]) if len(rows) else 0
            yield shard, mine, slice(begin, begin + int(self.steps[mine].sum(dtype=np.int64)))

    def digest(self) -> str:
        """Short hash of the slices' content: the same for a copy of the files elsewhere.

        The hash follows from every section's checksum, so from all that is indexed: episodes,
        numbers, texts, and places of frames, but not from the frames' pictures.
        """
        digest = hashlib.blake2b(self.schema.fingerprint, digest_size=8)
        for piece in self.dataset.slices:
            shard = self.shards[piece.path]
            whole = (Path(piece.path).name, piece.start, piece.stop, shard.front.rows)
            digest.update(repr(whole).encode() + shard.front.directory)
        return digest.hexdigest()

    def rows_of(self, camera: str) -> bytes:
        """Value that two datasets share if the keys of a camera's frames are comparable.

        Nothing where keys are places in a file. Where they are rows of the index (pictures packed
        in Parquet files or in arrays), the indexed features, by which rows and features are
        numbered.
        """
        choices = self.dataset.cameras.get(camera, ())
        packed = any(feature.encoding in (PARQUET, ARRAY, SLAB) for feature in choices)
        return self.schema.fingerprint if packed else b""

    def damage_reasons(self) -> tuple[str, ...]:
        """The quarantined records, for people."""
        slices = self.dataset.slices
        return tuple(f"{slices[d.slice].path}, record {d.record}: {d.reason}" for d in self.damaged)

    @property
    def bad_episodes(self) -> tuple[int, ...]:
        """Numbers of the quarantined episodes; none where episodes have no numbers."""
        directory, slices = self.dataset.directory, self.dataset.slices
        every = self.damaged if directory.numbered else ()
        return tuple(int(directory.numbers_of(slices[d.slice])[d.record]) for d in every)

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts about the files that a person should know, each once."""
        told = (note for shard in self.shards.values() for note in shard.front.notes)
        return tuple(dict.fromkeys(told))

    def check_unchanged(self, paths: Set[str] | None) -> None:
        """See ``ShardIndex.check_unchanged``; of the indexes of these shard files, or of all.

        Raises:
            SourceError: a damaged index cannot be built anew.
        """
        known = self.shards.keys()
        for path in known if paths is None else known & paths:
            self.shards[path].check_unchanged()


def _damaged(dataset: ResolvedDataset, number: int, shard: ShardIndex) -> Iterator[DamagedRecord]:
    """The quarantined records of a slice, except those that ``keep`` leaves out by number alone."""
    piece, front, directory = dataset.slices[number], shard.front, dataset.directory
    keep = dataset.keep if directory.numbered else None
    if dataset.transform is not None and dataset.transform.spec is not None:
        keep = None  # the user's function may change what the rules look at
    numbers = directory.numbers_of(piece) if keep else ()
    behind = front.damage.get(REST_OF_FILE, "the file has fewer records than its metadata says")
    for record in range(piece.start, piece.stop):
        if record < len(front.steps) and front.steps[record] >= 0:
            continue
        if keep is None or not keep.excludes({directory.numbered: str(numbers[record])}):
            yield DamagedRecord(number, record, front.damage.get(record, behind))


# -- gathering -----------------------------------------------------------------------------------


class FeatureNumbers(dict[tuple[str, str], int]):
    """Feature numbers by use (role, or "language" of texts) and path, "steps/" or not."""

    def __init__(self, schema: RecordSchema) -> None:
        super().__init__()
        self.per_step = tuple(feature.per_step for feature in schema.features)
        for number, feature in enumerate(schema.features):
            use = feature.role if feature.role in ("frames", *NUMBERS) else "language"
            self[use, feature.path] = number
            self[use, "steps/" + feature.path] = number


class EpisodeTables(Protocol):
    """The tables of a shard file: ``ShardIndex``, or those of one record in memory."""

    @property
    def path(self) -> str:
        """Path of the shard file, which frames lie in where they are no videos."""

    @property
    def sections(self) -> Mapping[Key, NDArray[Any]]:
        """Values of each section."""

    def has(self, kind: Section, feature: int) -> bool:
        """True if there are values of this section and feature."""

    def text(self, number: int) -> bytes:
        """The text with this id."""

    def texts(self, numbers: NDArray[np.int32]) -> list[bytes]:
        """Texts with these ids [n]."""


MakeFrame = Callable[[memoryview], VideoFrame | PackedPicture | ArrayPicture]
"""Makes a frame of the stretch of a file that was read for it."""


class FramePlaces(NamedTuple):
    """Places of encoded frames of a camera, at n × F steps or in one row.

    Attributes:
        file: int32 number of the file; −1: nothing is to be read, as the sample has no such picture
            or the frame is cached.
        offset: int64 place of the stretch in the file, in bytes.
        length: int32 bytes of the stretch.
        key: int64 number that no other frame of its file has (of pictures that are packed: in
            indexes alike).
        make: ``MakeFrame`` of each; ``None`` where the stretch is a picture as it is, or where
            every one is.
    """

    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int32]
    key: NDArray[np.int64]
    make: NDArray[Any] | None = None

    @classmethod
    def nowhere(cls, shape: tuple[int, ...]) -> FramePlaces:
        """Places of frames that are not to be read."""
        file, length = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
        return cls(file, np.zeros(shape, np.int64), length, np.zeros(shape, np.int64))

    def at(self, rows: NDArray[np.int64] | slice) -> FramePlaces:
        """Places of some frames in one row, counted row by row."""
        return FramePlaces._make(one if one is None else one.ravel()[rows] for one in self)

    def finish(self, frames: list[Encoded | None], datasets: Sequence[int]) -> bool:
        """Make frames of the bytes that were read, in place; ``None`` stays.

        Args:
            frames: bytes of the frames.
            datasets: index of the dataset of each frame.

        Returns:
            True if some are frames of videos.
        """
        if self.make is None:
            return False
        for row, make in enumerate(self.make.tolist()):
            data = frames[row]
            if make is not None and isinstance(data, memoryview):
                frames[row] = make(data)
        videos = {row: one for row, one in enumerate(frames) if isinstance(one, VideoFrame)}
        for row, one in share(videos, datasets):
            frames[row] = one
        return bool(videos)


class GatheredEpisodes:
    """n episodes of one dataset, sorted by slice and gathered shard by shard.

    Args:
        index: index of the dataset.
        episodes: [n] their numbers in it, ascending; any may come more than once.

    Attributes:
        slice_of, record_of: [n] int64, as in a provenance.
        steps: [n] int64 raw (unstrided) steps.
    """

    def __init__(self, index: DatasetIndex, episodes: NDArray[np.int64]) -> None:
        self.slice_of = index.slice_of[episodes].astype(np.int64)
        self.record_of = index.record_of[episodes].astype(np.int64)
        self._rows = index.rows[episodes]
        self.steps = index.steps[episodes].astype(np.int64)
        self._numbers = index.numbers
        of = self.slice_of
        edges = [0, *((of[1:] != of[:-1]).nonzero()[0] + 1).tolist(), len(of)]
        self._parts = [
            (slice(start, stop), index.tables[number])
            for (start, stop), number in zip(pairwise(edges), of[edges[:-1]].tolist(), strict=True)
        ]

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """[n] row of their shard's tables that their first step has."""
        firsts = [shard.sections[_FIRST_ROWS][self._rows[part]] for part, shard in self._parts]
        return np.concatenate(firsts)

    def shards(self) -> Iterator[str]:
        """The shard files that their index speaks of."""
        for _, shard in self._parts:
            yield shard.path

    def frames(
        self, feature_path: str, raw: NDArray[np.int64], files: dict[str, int]
    ) -> FramePlaces:
        """Places of the encoded frames at raw steps [n, F].

        Args:
            feature_path: path of the camera's feature.
            raw: [n, F] raw steps.
            files: path → number of a file, the shard's own or a video; new ones are added.

        Raises:
            KeyError: the spec names no such camera feature.
        """
        number = self._numbers["frames", feature_path]
        offset, key = np.empty(raw.shape, np.int64), np.empty(raw.shape, np.int64)
        length, file, make = np.empty(raw.shape, np.int32), np.empty(raw.shape, np.int32), None
        wanted = self._first[:, None] + raw
        for rows, shard in self._parts:
            records, at = self._rows[rows], wanted[rows]
            offset[rows] = shard.sections[Section.FRAME_OFFSETS, number].take(at)
            length[rows] = shard.sections[Section.FRAME_LENGTHS, number].take(at)
            if not shard.has(Section.FRAME_FILES, number):
                file[rows] = files.setdefault(shard.path, len(files))
            else:
                ids = shard.sections[Section.FRAME_FILES, number][records]
                for each in np.unique(ids).tolist():
                    file[rows][ids == each] = files.setdefault(_video_path(shard, each), len(files))
            made: Iterator[MakeFrame | None]
            packed = shard.has(Section.PICTURE_STARTS, number)
            if shard.has(Section.FRAME_KEYS, number):
                pictures = _array_pictures if packed else _video_frames
                key[rows], made = pictures(shard, number, records, at)
            elif packed:
                key[rows], made = _packed_pictures(shard, number, records, at)
            else:
                key[rows] = offset[rows] + length[rows]
                continue
            make = np.full(raw.shape, None) if make is None else make
            make[rows] = np.fromiter(made, object, at.size).reshape(at.shape)
        return FramePlaces(file, offset, length, key, make)

    def column(self, feature_path: str, raw: NDArray[np.int64]) -> NDArray[np.float32]:
        """[n, R, width] float32 values of a numeric feature at raw steps [n, R].

        Raises:
            KeyError: the spec names no such numeric feature.
        """
        key = Section.COLUMN, self._numbers["column", feature_path]
        at = self._first[:, None] + raw
        found = [shard.sections[key].take(at[rows], axis=0) for rows, shard in self._parts]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def several(
        self, features: Sequence[tuple[str, str]], raw: NDArray[np.int64]
    ) -> list[list[NDArray[Any]]]:
        """[n, R, width] values of features by (role, path), at raw steps [n, R], as pieces.

        [n, 1, width] of a feature that only the episode has.

        Raises:
            KeyError: the spec names no such feature.
        """
        wanted = [(NUMBERS[key[0]], self._numbers[key]) for key in features]
        per_step = [self._numbers.per_step[number] for _, number in wanted]
        found: list[list[NDArray[Any]]] = [[] for _ in wanted]
        at = self._first[:, None] + raw
        for rows, shard in self._parts:
            steps, records = at[rows], self._rows[rows, None]
            for pieces, (kind, number), of_steps in zip(found, wanted, per_step, strict=True):
                values = shard.sections[kind, number]
                pieces.append(values.take(steps if of_steps else records, axis=0))
        return found

    def language(self, feature_path: str, raw: NDArray[np.int64]) -> list[bytes]:
        """UTF-8 texts at raw steps [n]; an episode's one text where it has but one.

        Raises:
            KeyError: the spec names no such language feature.
        """
        number = self._numbers["language", feature_path]
        at = self._first + raw if self._numbers.per_step[number] else self._rows
        texts: list[bytes] = []
        for rows, shard in self._parts:
            texts += shard.texts(shard.sections[Section.TEXT_IDS, number].take(at[rows]))
        return texts


def _video_path(shard: EpisodeTables, number: int) -> str:
    place = os.fsdecode(shard.text(number))
    return os.path.normpath(os.path.join(os.path.dirname(shard.path), place))  # noqa: PTH118, PTH120


def _video_frames(
    shard: EpisodeTables, number: int, records: NDArray[np.int64], at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Iterator[MakeFrame]]:
    """(keys, what makes each) of the frames at rows [n, F] of a shard, whose records are [n]."""
    offsets, sizes, numbers = (
        shard.sections[kind, number]
        for kind in (Section.PACKET_OFFSETS, Section.PACKET_SIZES, Section.PACKET_NUMBERS)
    )
    first, last = (
        shard.sections[kind, number][at] for kind in (Section.FRAME_KEYS, Section.FRAME_PACKETS)
    )
    codecs = shard.sections[Section.FRAME_CODECS, number][records].tolist()
    files = shard.sections[Section.FRAME_FILES, number][records].tolist()
    codec_of = {one: VideoCodec.of(shard.text(one)) for one in set(codecs)}
    paths = {one: _video_path(shard, one) for one in set(files)}

    def frames() -> Iterator[MakeFrame]:
        for file, codec, keys, ends in zip(
            files, codecs, first.tolist(), last.tolist(), strict=True
        ):
            for key, end in zip(keys, ends, strict=True):
                own, begin = slice(key, end + 1), int(offsets[key])
                packets = zip(
                    (offsets[own] - begin).tolist(), sizes[own].tolist(), numbers[own].tolist(),
                    strict=True,
                )  # fmt: skip
                yield partial(
                    VideoFrame,
                    packets=tuple(packets),
                    number=int(numbers[end]),
                    codec=codec_of[codec],
                    origin=(paths[file], begin),
                )

    return offsets[last] + sizes[last], frames()


def _packed_pictures(
    shard: EpisodeTables, number: int, records: NDArray[np.int64], at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Iterator[MakeFrame]]:
    """As ``_video_frames``, of pictures inside Parquet files."""
    codecs = shard.sections[Section.FRAME_CODECS, number][records].tolist()
    kinds = (Section.UNPACKED_BYTES, Section.PICTURE_STARTS, Section.PICTURE_BYTES)
    columns = [shard.sections[kind, number][at].tolist() for kind in kinds]
    names = {codec: shard.text(codec).decode() for codec in set(codecs)}
    frames: Iterator[MakeFrame] = (
        partial(PackedPicture, codec=names[codec], unpacked=unpacked, start=start, size=size)
        for codec, *rows in zip(codecs, *columns, strict=True)
        for unpacked, start, size in zip(*rows, strict=True)
    )
    return at << _FEATURE_BITS | number, frames


def _array_pictures(
    shard: EpisodeTables, number: int, records: NDArray[np.int64], at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Iterator[MakeFrame | None]]:
    """As ``_video_frames``, of rows of arrays; ``None`` makes what is an encoded picture as is."""
    kinds = (Section.PACKET_OFFSETS, Section.PACKET_SIZES, Section.PACKET_NUMBERS)
    offsets, sizes, masks = (shard.sections[kind, number] for kind in kinds)
    kinds = (Section.FRAME_OFFSETS, Section.FRAME_KEYS, Section.PICTURE_STARTS)
    columns = [shard.sections[kind, number][at].tolist() for kind in kinds]
    codecs = shard.sections[Section.FRAME_CODECS, number][records].tolist()
    known = {one: shard.text(one) for one in set(codecs)}
    slabs: dict[int, SlabRead] = {}

    def frames() -> Iterator[MakeFrame | None]:
        for text, *rows in zip(codecs, *columns, strict=True):
            codec = codec_of(known[text]) if known[text] else None
            for begin, key, row in zip(*rows, strict=True):
                if codec is None:
                    yield None
                    continue
                if key not in slabs or not codec.chunk:
                    own = slice(key, key + codec.slab_chunks)
                    places = (offsets[own] - begin, sizes[own], masks[own])
                    chunks = tuple(zip(*(one.tolist() for one in places), strict=True))
                    slabs[key] = SlabRead((shard.path, begin), chunks)
                yield partial(ArrayPicture, codec=codec, number=row, slab=slabs[key])

    return at << _FEATURE_BITS | number, frames()
