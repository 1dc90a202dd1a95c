"""Indexes one Parquet file of a LeRobot dataset: its episodes' columns, and where their frames lie.

Theory of operation. The columns that the schema names are read by pyarrow, all rows at once. Of
each video that an episode names the packet table is read, without decoding; of pictures inside the
Parquet file, the headers of its pages. An episode that does not fit is damaged, with the numbers;
it never gets a picture of another one. Where the schema has a transform, an episode goes through it
as a record of RLDS, in which marks stand for pictures: what comes out says which step's they are.

Invariants:
    1. An episode is indexed whole or not at all.
    2. The tables are a function of the files' bytes, the metadata and the schema alone. The
       identity covers all of these: metadata by content, Parquet files and videos by size and time.

Not here: the metadata and the files (``catalog.lerobot``), RLDS shards (``index.build``), decoding.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.features import TASKS, VIDEO
from autoloader.formats.lerobot.episodes import Episode
from autoloader.formats.lerobot.examples import MARK, EpisodeExamples
from autoloader.formats.lerobot.metadata import EPISODE, LeRobotMetadata, task_column
from autoloader.formats.lerobot.rows import DamagedEpisodeError, EpisodeRows, NumberColumn
from autoloader.formats.tfrecord import MalformedRecordError
from autoloader.index import tables
from autoloader.index.build import index_payload, numbered
from autoloader.index.format import DTYPES, NUMBERS, Section, ShardTables, SourceIdentity
from autoloader.index.lerobot import pictures, videos
from autoloader.index.lerobot.frames import EpisodeFrames, FramesOfFile
from autoloader.index.tables import TableBuilder, Values
from autoloader.samples.schema import RecordSchema, StoredFeature

Texts = dict[int, list[bytes]]


class LeRobotShards:
    """Indexes the Parquet files of one dataset; see ``index.shard_formats.ShardFormat``.

    Args:
        known: the dataset.
    """

    def __init__(self, known: LeRobotMetadata) -> None:
        self._known = known
        self._videos = videos.Videos(known)

    def identity(self, path: str, schema: RecordSchema) -> SourceIdentity:
        """Of a Parquet file, the videos of its episodes, and the metadata; any may be missing.

        Paths count from the dataset's folder: an index beside data that was moved stays right.
        """
        cameras = self._cameras(schema)
        videos = self._known.episodes.videos_of(path, cameras)
        stamp = hashlib.blake2b(self._known.digest, digest_size=8)
        size = 0
        for file in [path, *sorted(videos)]:
            stamp.update(os.fsencode(file.removeprefix(f"{self._known.root}/")))
            try:
                found = os.stat(file)  # noqa: PTH116
            except OSError:
                stamp.update(b"\0missing\0")
                continue
            size += found.st_size
            stamp.update(b"\0%d %d\0" % (found.st_size, found.st_mtime_ns))
        return SourceIdentity(size, int.from_bytes(stamp.digest(), "little") >> 1)

    def tables(self, path: str, schema: RecordSchema) -> ShardTables:
        """The tables of a Parquet file's episodes.

        Raises:
            OSError: it cannot be read.
        """
        source = self.identity(path, schema)
        builder = TableBuilder(schema, self._sections(schema))
        episodes: _PlainEpisodes | _TransformedEpisodes
        try:
            cameras = _Cameras(path, self._known, self._videos, by_row=schema.by_row)
            if schema.transform is None:
                episodes = _PlainEpisodes(path, schema, self._known, cameras)
            else:
                episodes = _TransformedEpisodes(path, schema, self._known, cameras)
        except DamagedEpisodeError as error:
            for _ in self._known.episodes.in_file(path):
                builder.leave_out(0, 0, str(error))
            return builder.tables(source)
        for one in self._known.episodes.in_file(path):
            try:
                first, steps, values, texts = episodes.values(one)
            except (DamagedEpisodeError, MalformedRecordError) as error:
                builder.leave_out(0, 0, str(error))
            else:
                builder.add(first, one.length, steps, values, texts)
        for note in (*episodes.notes, *cameras.notes):
            builder.note(note)
        return builder.tables(source)

    def _cameras(self, schema: RecordSchema) -> tuple[str, ...]:
        """The cameras whose frames may be shown; of a user's function only it knows which."""
        if schema.transform is not None:
            return self._known.cameras
        return tuple(one.key for one in schema.features if one.role == "frames")

    def _sections(self, schema: RecordSchema) -> Any:
        features = self._known.features if schema.transform is None else schema.transform.features
        encodings = {one.key: one.encoding for one in features.values()}

        def sections(feature: StoredFeature) -> tuple[Section, ...]:
            if feature.role != "frames":
                return tables.sections_of(feature)
            return videos.SECTIONS if encodings[feature.key] == VIDEO else pictures.SECTIONS

        return sections


class _Cameras:
    """The frames of a Parquet file's episodes, camera by camera, as far as they are asked for."""

    def __init__(
        self, path: str, known: LeRobotMetadata, of: videos.Videos, *, by_row: bool
    ) -> None:
        self._path = path
        self._by_row = by_row
        self._known = known
        self._videos = of
        self._found: dict[str, FramesOfFile] = {}

    def frames(self, camera: str, one: Episode, rows: slice, count: int) -> EpisodeFrames:
        """The frames of an episode whose rows these are, of a file of ``count``.

        Raises:
            DamagedEpisodeError: they are not there.
        """
        if camera not in self._found:
            if self.is_video(camera):
                fps = self._known.fps
                self._found[camera] = videos.VideoFrames(
                    self._path, camera, self._videos, fps, by_row=self._by_row
                )
            else:
                self._found[camera] = pictures.PictureFrames(self._path, camera, count)
        return self._found[camera].of(one, rows)

    @property
    def notes(self) -> list[str]:
        """What a person should know of the videos that were asked for."""
        every = self._found.values()
        return [note for one in every if isinstance(one, videos.VideoFrames) for note in one.notes]

    def is_video(self, camera: str) -> bool:
        """Whether its frames lie in videos."""
        return self._known.features[camera].encoding == VIDEO


class _PlainEpisodes:
    """Episodes as they lie in their Parquet file."""

    def __init__(
        self, path: str, schema: RecordSchema, known: LeRobotMetadata, cameras: _Cameras
    ) -> None:
        self._schema = schema
        self._fps = known.fps
        self._cameras = cameras
        numbers = [
            NumberColumn(one.key, one.width, DTYPES[NUMBERS[one.role]])
            for one in schema.features
            if one.role in NUMBERS and one.per_step
        ]
        texts = {one.key for one in schema.features if one.role in ("text", "number")} - {EPISODE}
        inside = {
            one.key
            for one in schema.features
            if one.role == "frames" and not cameras.is_video(one.key)
        }
        by_task = {
            key: task_column(key)
            for key in sorted(texts)
            if key in known.features and known.features[key].encoding == TASKS
        }
        tasks = known.tasks if by_task else {}
        strings = texts - set(by_task)
        self._rows = EpisodeRows(
            path, numbers, strings, by_task, tasks, inside, by_row=schema.by_row
        )

    @property
    def notes(self) -> Mapping[str, None]:
        """What a person should know of the rows."""
        return self._rows.notes

    def values(self, one: Episode) -> tuple[int, int, Values, Texts]:
        """(first row, steps, what goes into the sections, texts) of an episode.

        Raises:
            DamagedEpisodeError: it does not fit.
        """
        rows = self._rows.rows_of(one, self._fps)
        values: Values = {}
        texts: Texts = {}
        steps = np.arange(one.length)
        for number, feature in enumerate(self._schema.features):
            if feature.role == "frames":
                frames = self._cameras.frames(feature.key, one, rows, self._rows.count)
                found, texts[number] = frames.sections(number, steps)
                values.update({(kind, number): part for kind, part in found.items()})
            elif feature.key == EPISODE:
                values.update(_numbered_episode(one, number, feature, texts))
            elif feature.role in NUMBERS:
                values[NUMBERS[feature.role], number] = self._rows.column(feature.key, rows)
            else:
                said = self._rows.texts(feature.key, rows)
                values[Section.TEXT_IDS, number], texts[number] = numbered(said)
        return rows.start, one.length, values, texts


class _TransformedEpisodes:
    """Episodes as the schema's transform leaves them."""

    def __init__(
        self, path: str, schema: RecordSchema, known: LeRobotMetadata, cameras: _Cameras
    ) -> None:
        self._schema = schema
        self._known = known
        self._cameras = cameras
        self._examples = EpisodeExamples(path, known, by_row=schema.by_row)

    @property
    def notes(self) -> Mapping[str, None]:
        """What a person should know of the rows."""
        return self._examples.notes

    def values(self, one: Episode) -> tuple[int, int, Values, Texts]:
        """(first row, steps, what goes into the sections, texts) of an episode.

        Raises:
            DamagedEpisodeError: it does not fit.
            MalformedRecordError: its function fails on it.
        """
        rows, record = self._examples.record(one)
        steps, values, texts = index_payload(record, self._schema)
        for number, feature in enumerate(self._schema.features):
            if feature.role == "frames":
                marks = values.pop((Section.FRAME_OFFSETS, number))
                del values[Section.FRAME_LENGTHS, number]
                found, texts[number] = self._frames(feature, number, one, rows, record, marks)
                values.update({(kind, number): part for kind, part in found.items()})
        return rows.start, steps, values, texts

    def _frames(
        self, feature: StoredFeature, number: int, one: Episode, rows: slice, record: bytes,
        marks: NDArray[np.int64],
    ) -> tuple[Mapping[Section, Any], list[bytes]]:  # fmt: skip
        """As ``EpisodeFrames.sections``, of the frames whose marks lie here in the record."""
        transform = self._schema.transform
        assert transform is not None
        encoding = next(f.encoding for f in transform.features.values() if f.key == feature.key)
        told = [MARK.unpack_from(record, at) for at in marks.tolist()]
        of = {camera for camera, _ in told}
        if len(of) > 1:
            raise DamagedEpisodeError(f"{feature.path} shows frames of several cameras")
        if not told:  # the function drops the episode
            once = [kind for kind in tables.ONCE if encoding == VIDEO or kind in pictures.SECTIONS]
            return {kind: np.zeros(1, np.int64) for kind in once}, [b""]
        camera = self._known.cameras[of.pop()]
        if self._cameras.is_video(camera) != (encoding == VIDEO):
            raise DamagedEpisodeError(
                f"{feature.path} shows {camera}, which is stored in another way than in the first "
                "episode"
            )
        steps = np.asarray([step for _, step in told], np.int64)
        frames = self._cameras.frames(camera, one, rows, self._examples.count)
        return frames.sections(number, steps)


def _numbered_episode(one: Episode, number: int, feature: StoredFeature, texts: Texts) -> Values:
    """The number of an episode, as a number, or as the text that rules look at."""
    if feature.role in NUMBERS:
        return {(NUMBERS[feature.role], number): np.asarray([[one.index]])}
    texts[number] = [str(one.index).encode()]
    return {(Section.TEXT_IDS, number): np.zeros(1, np.int32)}
