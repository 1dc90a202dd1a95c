"""Episodes as the index files of their shards hold them: one at a time, or n gathered together.

Nothing is parsed: every value is a slice of a mapped section, or gathered from several.

Not here: which episodes there are (``index.dataset``), opening index files (``index.shard``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autoloader.index.format import NO_FEATURE, NUMBERS, Section
from autoloader.samples.encoded import PackedPicture, VideoCodec, VideoFrame
from autoloader.samples.schema import RecordSchema

_FEATURE_BITS = 10
"""Room for the number of a feature in a picture's key."""


class FeatureNumbers(dict[tuple[str, str], int]):
    """Feature numbers by use (role, or "language" of texts) and path, "steps/" or not."""

    def __init__(self, schema: RecordSchema) -> None:
        super().__init__()
        self.per_step = tuple(feature.per_step for feature in schema.features)
        for number, feature in enumerate(schema.features):
            use = feature.role if feature.role in ("frames", *NUMBERS) else "language"
            self[use, feature.path] = number
            self[use, "steps/" + feature.path] = number

    def __missing__(self, key: tuple[str, str]) -> int:
        known = sorted(path for use, path in self if use == key[0] and path[:6] != "steps/")
        raise KeyError(f"{key[1]!r} is not indexed as {key[0]}; indexed are {known}")


class EpisodeTables(Protocol):
    """The tables of a shard file: ``ShardIndex``, or those of one record in memory."""

    @property
    def path(self) -> str:
        """The file that frames lie in."""
        ...

    def section(self, kind: Section, feature: int = NO_FEATURE) -> NDArray[Any]:
        """The values of a section."""
        ...

    def has(self, kind: Section, feature: int = NO_FEATURE) -> bool:
        """True if there is such a section."""
        ...

    def text(self, number: int) -> bytes:
        """A text by its id."""
        ...

    def texts(self, numbers: NDArray[np.int32]) -> list[bytes]:
        """Texts by their ids [n]."""
        ...


class GatheredEpisodes:
    """n episodes of one dataset, sorted by slice and gathered shard by shard.

    Args:
        shards: the tables of each slice's file.
        slices, records, steps: as of the attributes.
        numbers: of the indexed features.
        rows: [n] which of their shard's tables' records they are; default: ``records``.

    Attributes:
        slice_of, record_of: [n] int64, as in a provenance.
        steps: [n] int64 raw (unstrided) steps.
    """

    __slots__ = ("_first", "_numbers", "_parts", "_rows", "record_of", "slice_of", "steps")

    def __init__(
        self,
        shards: Sequence[EpisodeTables] | Mapping[int, EpisodeTables],
        slices: NDArray[np.int32],
        records: NDArray[np.int64],
        steps: NDArray[np.int32],
        numbers: FeatureNumbers,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self.slice_of = slices.astype(np.int64)
        self.record_of = records
        self._rows = records if rows is None else rows
        self.steps = steps.astype(np.int64)
        self._numbers = numbers
        of = self.slice_of
        edges = [0, *(np.flatnonzero(of[1:] != of[:-1]) + 1).tolist(), len(of)]
        self._parts = [
            (slice(start, stop), shards[number])
            for (start, stop), number in zip(pairwise(edges), of[edges[:-1]].tolist(), strict=True)
        ]
        firsts = [
            shard.section(Section.FIRST_ROWS)[self._rows[part]] for part, shard in self._parts
        ]
        self._first = np.concatenate(firsts)

    def shards(self) -> Iterator[str]:
        """The shard files that their index speaks of."""
        for _, shard in self._parts:
            yield shard.path

    def frames(
        self, feature_path: str, raw: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Byte offsets and lengths, [n, F] each, of the encoded frames at raw steps [n, F].

        Raises:
            KeyError: the spec names no such camera feature.
        """
        number = self._numbers["frames", feature_path]
        return (
            self._gathered(Section.FRAME_OFFSETS, number, raw),
            self._gathered(Section.FRAME_LENGTHS, number, raw),
        )

    def frame_files(self, feature_path: str, files: dict[str, int]) -> NDArray[np.int32]:
        """[n] number of the file that each episode's frames lie in: the shard's own, or a video.

        Args:
            feature_path: a camera's feature.
            files: path → number; files that are not there yet are added.

        Raises:
            KeyError: the spec names no such camera feature.
        """
        number = self._numbers["frames", feature_path]
        found = np.empty(len(self.steps), np.int32)
        for rows, shard in self._parts:
            if not shard.has(Section.FRAME_FILES, number):
                found[rows] = files.setdefault(shard.path, len(files))
                continue
            ids = shard.section(Section.FRAME_FILES, number)[self._rows[rows]]
            for each in np.unique(ids).tolist():
                path = _video_path(shard, each)
                found[rows][ids == each] = files.setdefault(path, len(files))
        return found

    def frame_places(self, feature_path: str, raw: NDArray[np.int64]) -> NDArray[Any] | None:
        """[n, F] ``FramePlace`` or ``None`` of the frames at raw steps [n, F].

        ``None`` alone where every stretch of a file is a picture as it is.

        Raises:
            KeyError: the spec names no such camera feature.
        """
        number = self._numbers["frames", feature_path]
        kinds = (Section.FRAME_KEYS, Section.PICTURE_STARTS)
        if not any(shard.has(kind, number) for _, shard in self._parts for kind in kinds):
            return None
        found = np.full(raw.shape, None)
        for rows, shard in self._parts:
            at = self._first[rows, None] + raw[rows]
            of = _video_places if shard.has(Section.FRAME_KEYS, number) else _picture_places
            flat = list(of(shard, number, self._rows[rows], at))
            found[rows] = np.fromiter(flat, object, len(flat)).reshape(at.shape)
        return found

    def column(self, feature_path: str, raw: NDArray[np.int64]) -> NDArray[np.float32]:
        """[n, R, width] float32 values of a numeric feature at raw steps [n, R].

        Raises:
            KeyError: the spec names no such numeric feature.
        """
        return self._gathered(Section.COLUMN, self._numbers["column", feature_path], raw)

    def numbers(self, role: str, feature_path: str, raw: NDArray[np.int64]) -> NDArray[Any]:
        """[n, R, width] values of a feature that is stored as ``role``, at raw steps [n, R].

        [n, 1, width] of a feature that only the episode has.

        Raises:
            KeyError: the spec names no such feature.
        """
        (found,) = self.several([(role, feature_path)], raw)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def several(
        self, features: Sequence[tuple[str, str]], raw: NDArray[np.int64]
    ) -> list[list[NDArray[Any]]]:
        """Of each of these (role, path) what ``numbers`` gives, as pieces to be put together.

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
                values = shard.section(kind, number)
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
            texts += shard.texts(shard.section(Section.TEXT_IDS, number).take(at[rows]))
        return texts

    def _gathered(self, kind: Section, number: int, raw: NDArray[np.int64]) -> NDArray[Any]:
        """A section's values at steps [n, R] of each episode."""
        at = self._first[:, None] + raw
        found = [shard.section(kind, number).take(at[rows], axis=0) for rows, shard in self._parts]
        return found[0] if len(found) == 1 else np.concatenate(found)


class FramePlace(Protocol):
    """Everything but the bytes that makes a stretch of a file a frame."""

    @property
    def key(self) -> int:
        """Number that no other frame of its file has (of pictures: in indexes alike)."""
        ...

    def frame(self, data: memoryview) -> VideoFrame | PackedPicture:
        """The frame, whose stretch of the file was read."""
        ...


@dataclass(frozen=True, slots=True)
class PicturePlace:
    """See ``samples.encoded.PackedPicture``."""

    key: int
    codec: str
    unpacked: int
    start: int
    size: int

    def frame(self, data: memoryview) -> PackedPicture:
        """See ``FramePlace``."""
        return PackedPicture(data, self.codec, self.unpacked, self.start, self.size)


@dataclass(frozen=True, slots=True)
class VideoPlace:
    """Packets and codec of a video's frame; see ``samples.encoded.VideoFrame``."""

    key: int
    packets: tuple[tuple[int, int, int], ...]
    number: int
    codec: VideoCodec
    origin: tuple[str, int]

    def frame(self, data: memoryview) -> VideoFrame:
        """The frame, whose stretch of the file was read."""
        return VideoFrame(data, self.packets, self.number, self.codec, self.origin)


def _video_path(shard: EpisodeTables, number: int) -> str:
    place = os.fsdecode(shard.text(number))
    return os.path.normpath(os.path.join(os.path.dirname(shard.path), place))  # noqa: PTH118, PTH120


def _video_places(
    shard: EpisodeTables, number: int, records: NDArray[np.int64], at: NDArray[np.int64]
) -> Iterator[VideoPlace]:
    """The places of the frames at rows [n, F] of a shard's table, whose records are [n]."""
    offsets, sizes, numbers = (
        shard.section(kind, number)
        for kind in (Section.PACKET_OFFSETS, Section.PACKET_SIZES, Section.PACKET_NUMBERS)
    )
    keys = shard.section(Section.FRAME_KEYS, number)[at].tolist()
    ends = shard.section(Section.FRAME_PACKETS, number)[at].tolist()
    codecs = shard.section(Section.FRAME_CODECS, number)[records].tolist()
    files = shard.section(Section.FRAME_FILES, number)[records].tolist()
    known: dict[int, VideoCodec] = {}
    paths: dict[int, str] = {}
    for row, (file, codec) in enumerate(zip(files, codecs, strict=True)):
        if codec not in known:
            name, _, setup = shard.text(codec).partition(b"\0")
            known[codec] = VideoCodec(name.decode(), setup)
        if file not in paths:
            paths[file] = _video_path(shard, file)
        for first, last in zip(keys[row], ends[row], strict=True):
            own = slice(first, last + 1)
            begin = int(offsets[first])
            packets = zip(
                (offsets[own] - begin).tolist(), sizes[own].tolist(), numbers[own].tolist(),
                strict=True,
            )  # fmt: skip
            origin = (paths[file], begin)
            end = int(offsets[last] + sizes[last])
            yield VideoPlace(end, tuple(packets), int(numbers[last]), known[codec], origin)


def _picture_places(
    shard: EpisodeTables, number: int, records: NDArray[np.int64], at: NDArray[np.int64]
) -> Iterator[PicturePlace]:
    """The places of the pictures at rows [n, F] of a shard's table, whose records are [n]."""
    codecs = shard.section(Section.FRAME_CODECS, number)[records].tolist()
    kinds = (Section.UNPACKED_BYTES, Section.PICTURE_STARTS, Section.PICTURE_BYTES)
    columns = [shard.section(kind, number)[at].tolist() for kind in kinds]
    for rows, codec, *places in zip(at.tolist(), codecs, *columns, strict=True):
        name = shard.text(codec).decode()
        for row, *place in zip(rows, *places, strict=True):
            yield PicturePlace(row << _FEATURE_BITS | number, name, *place)
