"""Indexes one Parquet file of a LeRobot dataset: its episodes' columns, and where their frames lie.

Theory of operation. pyarrow reads the columns that the schema names, all rows at once. Of each
video that an episode names the packet table is read, without decoding; of pictures inside the
Parquet file, the headers of its pages. An episode that does not fit is damaged, with the numbers;
it never gets a picture of another one. Where the schema has a transform, an episode goes through it
as a record of RLDS, in which marks stand for pictures: the result says which steps' they are.

Step i of an episode is frame f + i of its video; f follows from the list of episodes and the number
of frames (``formats.lerobot.videos``). The times of the video must agree with the frame rate.

Invariants:
    1. An episode is indexed whole or not at all.
    2. The tables are a function of the files' bytes, the metadata and the schema alone. The
       identity covers all of these: metadata by content, Parquet files and videos by size and time.

Not here: the metadata and the files (``formats.lerobot``), RLDS shards (``index.build``), decoding
(``decode.video``), unpacking pictures (``samples.encoded``).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.features import VIDEO
from autoloader.formats.lerobot.episodes import Episode, EpisodeList
from autoloader.formats.lerobot.metadata import EPISODE, LeRobotDirectory
from autoloader.formats.lerobot.parquet import PictureTable, UnreadableParquetError, read_pictures
from autoloader.formats.lerobot.rows import MARK, DamagedEpisodeError, EpisodeRows
from autoloader.formats.lerobot.videos import (
    LARGEST_DRIFT_FRAMES,
    PacketTable,
    Placement,
    UnreadableVideoError,
    read_packets,
)
from autoloader.formats.tfrecord import MalformedRecordError
from autoloader.index.build import (
    ONCE,
    TableBuilder,
    Values,
    index_payload,
    numbered,
    sections_of,
)
from autoloader.index.format import NUMBERS, Section, ShardTables, SourceIdentity
from autoloader.samples.schema import RecordSchema, StoredFeature

Ints = NDArray[np.int64]
Texts = dict[int, list[bytes]]

VIDEO_SECTIONS = (
    Section.FRAME_OFFSETS,
    Section.FRAME_LENGTHS,
    Section.FRAME_KEYS,
    Section.FRAME_PACKETS,
    Section.FRAME_FILES,
    Section.FRAME_CODECS,
    Section.PACKET_OFFSETS,
    Section.PACKET_SIZES,
    Section.PACKET_NUMBERS,
)
PICTURE_SECTIONS = (
    Section.FRAME_OFFSETS,
    Section.FRAME_LENGTHS,
    Section.FRAME_CODECS,
    Section.UNPACKED_BYTES,
    Section.PICTURE_STARTS,
    Section.PICTURE_BYTES,
)
MOST_KEPT_PACKETS = 2**21
"""Packets kept of videos that other Parquet files still ask for; one takes 48 bytes."""


class LeRobotShards:
    """Indexes the Parquet files of one dataset; see ``index.opening.ShardFormat``.

    Args:
        known: the dataset's directory, as read from its metadata.
    """

    def __init__(self, known: LeRobotDirectory) -> None:
        self._known = known
        self._videos = _Videos(known)

    def identity(self, path: str, schema: RecordSchema) -> SourceIdentity:
        """Of a Parquet file, the videos of its episodes, and the metadata; any may be missing.

        Paths count from the dataset's folder: an index beside data that was moved stays right.
        """
        cameras = (  # only the user's function knows which cameras it shows
            self._known.cameras
            if schema.transform is not None
            else [one.key for one in schema.features if one.role == "frames"]
        )
        stamp = hashlib.blake2b(self._known.digest, digest_size=8)
        size = 0
        for file in [path, *sorted(self._known.episodes.videos_of(path, cameras))]:
            stamp.update(os.fsencode(file.removeprefix(f"{self._known.path}/")))
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
            OSError: the file cannot be read.
        """
        source = self.identity(path, schema)
        given = self._known.features if schema.transform is None else schema.transform.features
        encodings = {one.key: one.encoding for one in given.values()}

        def sections(feature: StoredFeature) -> tuple[Section, ...]:
            if feature.role != "frames":
                return sections_of(feature)
            return VIDEO_SECTIONS if encodings[feature.key] == VIDEO else PICTURE_SECTIONS

        builder = TableBuilder(schema, sections)
        try:
            episodes = _EpisodesOfFile(path, schema, self._known, self._videos, encodings)
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
        for note in episodes.notes:
            builder.note(note)
        return builder.tables(source)


class _EpisodesOfFile:
    """The episodes of a Parquet file, as they lie there or as the schema's transform leaves them.

    Args:
        path: path of the Parquet file.
        schema: features that are indexed.
        known: directory of the dataset.
        videos: packet tables of the dataset's videos.
        encodings: key of a feature → its encoding, behind the transform if there is one.
    """

    def __init__(
        self,
        path: str,
        schema: RecordSchema,
        known: LeRobotDirectory,
        videos: _Videos,
        encodings: dict[str, str | None],
    ) -> None:
        self._path = path
        self._schema = schema
        self._known = known
        self._videos = videos
        self._encodings = encodings
        self._cameras: dict[str, _VideoFrames | _PictureFrames] = {}
        if schema.transform is not None:
            self._rows = EpisodeRows.whole(path, known, by_row=schema.by_row)
            return
        features = [one for one in schema.features if one.key != EPISODE]
        self._rows = EpisodeRows(
            path,
            known,
            {one.key: NUMBERS[one.role].dtype for one in features if one.role in NUMBERS},
            {one.key for one in features if one.role in ("text", "number")},
            {one.key for one in features if one.role == "frames" and encodings[one.key] != VIDEO},
            by_row=schema.by_row,
        )

    @property
    def notes(self) -> list[str]:
        """Facts about rows and videos that a person should know."""
        videos = [one for one in self._cameras.values() if isinstance(one, _VideoFrames)]
        return [*self._rows.notes, *(note for one in videos for note in one.notes)]

    def values(self, one: Episode) -> tuple[int, int, Values, Texts]:
        """(first row, steps, values for the sections, texts) of an episode.

        Raises:
            DamagedEpisodeError: the episode does not fit the metadata.
            MalformedRecordError: the transform's function fails on the episode.
        """
        values: Values = {}
        texts: Texts = {}
        if self._schema.transform is None:
            rows, steps, record = self._rows.rows_of(one), one.length, b""
        else:
            rows, record = self._rows.record(one)
            steps, values, texts = index_payload(record, self._schema)
        for number, feature in enumerate(self._schema.features):
            if feature.role == "frames":
                if self._schema.transform is None:
                    found, texts[number] = self._shown(
                        feature.key, number, one, rows, np.arange(one.length)
                    )
                else:
                    marks = values.pop((Section.FRAME_OFFSETS, number))
                    del values[Section.FRAME_LENGTHS, number]
                    found, texts[number] = self._marked(feature, number, one, rows, record, marks)
                values.update({(kind, number): part for kind, part in found.items()})
            elif self._schema.transform is None:
                self._put(feature, number, one, rows, values, texts)
        return rows.start, steps, values, texts

    def _put(
        self, feature: StoredFeature, number: int, one: Episode, rows: slice,
        values: Values, texts: Texts,
    ) -> None:  # fmt: skip
        """Put the numbers, or the texts, of a feature of an episode where they belong."""
        if feature.key == EPISODE and feature.role in NUMBERS:
            values[NUMBERS[feature.role], number] = np.asarray([[one.index]])
        elif feature.role in NUMBERS:
            values[NUMBERS[feature.role], number] = self._rows.column(feature.key, rows)
        else:
            said = (
                [str(one.index).encode()]
                if feature.key == EPISODE
                else self._rows.texts(feature.key, rows)
            )
            values[Section.TEXT_IDS, number], texts[number] = numbered(said)

    def _shown(
        self, camera: str, number: int, one: Episode, rows: slice, steps: Ints
    ) -> tuple[dict[Section, Any], list[bytes]]:
        """(what sections of frames hold, the texts that they number) of steps of an episode.

        Args:
            camera: feature that holds the pictures.
            number: of the feature in the schema.
            one: episode of the list.
            rows: of the episode in the Parquet file.
            steps: [n] numbers of the shown steps.

        Raises:
            DamagedEpisodeError: the frames are not there.
        """
        if camera not in self._cameras:
            self._cameras[camera] = (
                _VideoFrames(self._path, camera, self._videos, by_row=self._schema.by_row)
                if self._known.features[camera].encoding == VIDEO
                else _PictureFrames(self._path, camera, self._rows.count)
            )
        return self._cameras[camera].sections(number, one, rows, steps)

    def _marked(
        self, feature: StoredFeature, number: int, one: Episode, rows: slice, record: bytes,
        marks: Ints,
    ) -> tuple[dict[Section, Any], list[bytes]]:  # fmt: skip
        """As ``_shown``, of the frames whose marks lie at these places of a record."""
        of_videos = self._encodings[feature.key] == VIDEO
        told = [MARK.unpack_from(record, at) for at in marks.tolist()]
        of = {camera for camera, _ in told}
        if len(of) > 1:
            raise DamagedEpisodeError(f"{feature.path} shows frames of several cameras")
        if not told:  # the function drops the episode
            own = VIDEO_SECTIONS if of_videos else PICTURE_SECTIONS
            return {kind: np.zeros(1, np.int64) for kind in ONCE if kind in own}, [b""]
        camera = self._known.cameras[of.pop()]
        if (self._known.features[camera].encoding == VIDEO) != of_videos:
            raise DamagedEpisodeError(
                f"{feature.path} shows {camera}, which is stored in another way than in the first "
                "episode"
            )
        steps = np.asarray([step for _, step in told], np.int64)
        return self._shown(camera, number, one, rows, steps)


class _PictureFrames:
    """The pictures of one camera inside a Parquet file; read when the first episode asks.

    Args:
        shard: path of the Parquet file.
        camera: feature that holds the pictures.
        rows: number of rows of the file.
    """

    def __init__(self, shard: str, camera: str, rows: int) -> None:
        self._camera = camera
        self._table: PictureTable | str
        try:
            self._table = read_pictures(shard, camera, rows)
        except UnreadableParquetError as error:
            self._table = str(error)

    def sections(
        self, number: int, one: Episode, rows: slice, steps: Ints
    ) -> tuple[dict[Section, Any], list[bytes]]:
        """See ``_EpisodesOfFile._shown``."""
        del number
        table = self._table
        if isinstance(table, str):
            raise DamagedEpisodeError(f"{self._camera}: {table}")
        lost = np.flatnonzero(table.offset[rows] < 0)
        if len(lost):
            raise DamagedEpisodeError(
                f"{self._camera}: row {lost[0]} of episode {one.index} has no picture in its "
                "Parquet file"
            )
        shown = rows.start + steps
        found = {
            Section.FRAME_OFFSETS: table.offset[shown],
            Section.FRAME_LENGTHS: table.length[shown],
            Section.FRAME_CODECS: np.zeros(1, np.int64),
            Section.UNPACKED_BYTES: table.unpacked[shown],
            Section.PICTURE_STARTS: table.start[shown],
            Section.PICTURE_BYTES: table.size[shown],
        }
        return found, [table.codec.encode()]


class _Videos:
    """The packet tables of a dataset's videos; for any number of threads.

    A video whose episodes lie in several Parquet files is read once, as long as there is room to
    keep its table until the last of them has asked.

    Args:
        known: directory of the dataset.
    """

    def __init__(self, known: LeRobotDirectory) -> None:
        self.known = known
        self._lock = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._kept: OrderedDict[str, PacketTable | str] = OrderedDict()
        self._left: Counter[str] | None = None
        self._placed: dict[tuple[str, str, bool], Placement] = {}

    def table(self, path: str) -> PacketTable | str:
        """The packets of a video, or why there are none; a Parquet file asks once."""
        with self._lock:
            if self._left is None:
                self._left = _users(self.known.episodes)
            mine = self._reading.setdefault(path, threading.Lock())
        with mine:
            with self._lock:
                found = self._kept.get(path)
            if found is None:
                try:
                    found = read_packets(path)
                except UnreadableVideoError as error:
                    found = f"the video cannot be read: {error}"
                except OSError as error:
                    found = f"the video cannot be read: {error.strerror or error}"
            with self._lock:
                self._left[path] -= 1
                self._kept[path] = found
                if self._left[path] <= 0:
                    del self._kept[path]
                while sum(len(one) for one in self._kept.values()) > MOST_KEPT_PACKETS:
                    self._kept.popitem(last=False)
        return found

    def placed(self, camera: str, path: str, frames: int, *, by_row: bool) -> Placement:
        """First frame of each episode of a video; see ``EpisodeList.placed``."""
        key = (camera, path, by_row)
        with self._lock:
            if key not in self._placed:
                known = self.known
                found = known.episodes.placed(camera, path, frames, known.fps, by_row=by_row)
                self._placed[key] = found
            return self._placed[key]


def _users(episodes: EpisodeList) -> Counter[str]:
    """Video → number of Parquet files with episodes of the video."""
    pairs = {
        (of.paths[video], file)
        for of in episodes.videos.values()
        for video, file in set(zip(of.number.tolist(), episodes.data.number.tolist(), strict=True))
        if video >= 0
    }
    return Counter(video for video, _ in pairs)


class _VideoFrames:
    """The frames of one camera in the videos of one Parquet file's episodes.

    Args:
        shard: path of the Parquet file.
        camera: feature that holds the videos.
        videos: packet tables of the dataset's videos.
        by_row: whether times are ignored (``timestamps: ignore``).

    Attributes:
        notes: facts about the videos that a person should know, as keys.
    """

    def __init__(self, shard: str, camera: str, videos: _Videos, *, by_row: bool) -> None:
        self._folder = os.path.dirname(shard)  # noqa: PTH120
        self._camera = camera
        self._videos = videos
        self._by_row = by_row
        self.notes: dict[str, None] = {}
        self._tables: dict[str, PacketTable | str] = {}
        self._packets: dict[int, tuple[dict[str, int], int]] = {}

    def sections(
        self, number: int, one: Episode, rows: slice, steps: Ints
    ) -> tuple[dict[Section, Any], list[bytes]]:
        """See ``_EpisodesOfFile._shown``.

        Every feature of the schema that shows frames of a video holds the video's packets once.
        """
        del rows
        path, table, first = self._place(one)
        key, packet = table.key_of[first + steps], table.packet_of[first + steps]
        begins, count = self._packets.setdefault(number, ({}, 0))
        new = path not in begins
        if new:
            begins[path] = count
            self._packets[number] = begins, count + len(table)
        base = begins[path]
        ends = np.maximum.accumulate(table.offset + table.size)
        found: dict[Section, Any] = {
            Section.FRAME_OFFSETS: table.offset[key],
            Section.FRAME_LENGTHS: ends[packet] - table.offset[key],
            Section.FRAME_KEYS: base + key,
            Section.FRAME_PACKETS: base + packet,
            Section.FRAME_FILES: np.zeros(1, np.int64),
            Section.FRAME_CODECS: np.ones(1, np.int64),
        }
        if new:
            found[Section.PACKET_OFFSETS] = table.offset
            found[Section.PACKET_SIZES] = table.size
            found[Section.PACKET_NUMBERS] = table.number
        file = os.fsencode(os.path.relpath(path, self._folder))
        return found, [file, table.codec.encode() + b"\0" + table.setup]

    def _place(self, one: Episode) -> tuple[str, PacketTable, int]:
        """(video of an episode, its packets, the episode's first frame).

        Raises:
            DamagedEpisodeError: the frames are not there, or not at their times.
        """
        place = one.videos.get(self._camera)
        if place is None:
            raise DamagedEpisodeError(
                f"{self._camera}: the list of episodes does not say in which video episode "
                f"{one.index} lies, and where"
            )
        name = f"{self._camera}, {'/'.join(place.path.split('/')[-2:])}"
        if place.path not in self._tables:
            self._tables[place.path] = self._videos.table(place.path)
        table = self._tables[place.path]
        if isinstance(table, str):
            raise DamagedEpisodeError(f"{name}: {table}")
        placed = self._videos.placed(self._camera, place.path, len(table), by_row=self._by_row)
        if one.index in placed.lost:
            raise DamagedEpisodeError(f"{name}: {placed.lost[one.index]}")
        first = placed.first[one.index]
        if placed.note:
            self.notes[f"{name}: {placed.note}"] = None
        if not self._by_row:
            fps, stop = self._videos.known.fps, first + one.length
            off = np.abs(table.shown_s[first:stop] * fps - np.arange(first, stop))
            worst = int(np.argmax(off))
            if off[worst] > LARGEST_DRIFT_FRAMES:
                shown_s = table.shown_s[first + worst]
                raise DamagedEpisodeError(
                    f"{name}: frame {first + worst} is shown at {shown_s:.3f} s; at {fps:g} frames "
                    f"a second it is {(first + worst) / fps:.3f} s; timestamps: ignore takes "
                    "frames by their number"
                )
        return place.path, table, first
