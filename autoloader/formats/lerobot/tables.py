"""Tables of one Parquet file of a LeRobot dataset: its episodes' columns, where their frames lie.

Theory of operation. pyarrow reads the columns that are wanted, all rows at once. Of each video that
an episode names the packet table is read, without decoding; of pictures inside the Parquet file,
the headers of its pages. An episode that does not fit is damaged, with the numbers; it never gets a
picture of another one. A transform gets an episode as a record of RLDS, in which marks stand for
pictures: the result says which steps' they are.

Step i of an episode is frame f + i of its video; f follows from the list of episodes and the number
of frames (``videos``). The times of the video must agree with the frame rate.

Invariants:
    1. An episode is indexed whole or not at all.
    2. The tables are a function of the files' bytes, the metadata and the wanted features alone.

Not here: the metadata (``metadata``), the rows (``rows``), decoding (``decode.frames``), unpacking
pictures (``samples.block``).
"""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.features import VIDEO
from autoloader.formats.lerobot.metadata import EPISODE, Episode, EpisodeList, LeRobotMetadata
from autoloader.formats.lerobot.parquet import PictureTable, UnreadableParquetError, read_pictures
from autoloader.formats.lerobot.rows import MARK, DamagedEpisodeError, EpisodeRows
from autoloader.formats.lerobot.videos import (
    LARGEST_DRIFT_FRAMES,
    PacketTable,
    Placement,
    UnreadableVideoError,
    read_packets,
)
from autoloader.formats.records import MalformedRecordError
from autoloader.formats.tables import (
    NUMBERS,
    ONCE,
    ReadRecord,
    Section,
    StoredFeature,
    TableBuilder,
    Texts,
    Values,
    Wanted,
    numbered,
    sections_of,
)

Ints = NDArray[np.int64]
_Frames = tuple[dict[Section, Any], list[bytes]]
"""(values of sections of frames, texts that they number)."""

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


def read_tables(path: str, wanted: Wanted, read: ReadRecord, videos: Videos) -> TableBuilder:
    """The tables of a Parquet file's episodes.

    Raises:
        OSError: the file cannot be read.
    """
    known = videos.known
    given = known.features if wanted.transform is None else wanted.transform.features
    encodings = {one.key: one.encoding for one in given.values()}

    def sections(feature: StoredFeature) -> tuple[Section, ...]:
        if feature.role != "frames":
            return sections_of(feature)
        return VIDEO_SECTIONS if encodings[feature.key] == VIDEO else PICTURE_SECTIONS

    builder = TableBuilder(wanted.features, sections)
    try:
        episodes = _EpisodesOfFile(path, wanted, read, videos, encodings)
    except DamagedEpisodeError as error:
        for _ in known.episodes.in_file(path):
            builder.leave_out(0, 0, str(error))
        return builder
    for one in known.episodes.in_file(path):
        try:
            first, steps, values, texts = episodes.values(one)
        except (DamagedEpisodeError, MalformedRecordError) as error:
            builder.leave_out(0, 0, str(error))
        else:
            builder.add(first, one.length, steps, values, texts)
    for note in episodes.notes:
        builder.note(note)
    return builder


class _EpisodesOfFile:
    """The episodes of a Parquet file, as they lie there or as the transform leaves them.

    Args:
        path: path of the Parquet file.
        wanted: features that are indexed.
        read: reads an episode as a record, through the transform.
        videos: packet tables of the dataset's videos.
        encodings: key of a feature → its encoding, behind the transform if there is one.
    """

    def __init__(
        self,
        path: str,
        wanted: Wanted,
        read: ReadRecord,
        videos: Videos,
        encodings: Mapping[str, str | None],
    ) -> None:
        self._path = path
        self._wanted = wanted
        self._read = read
        self._videos = videos
        self._known = videos.known
        self._encodings = encodings
        self._notes: dict[str, None] = {}
        self._pictures: dict[str, PictureTable | str] = {}
        self._tables: dict[str, PacketTable | str] = {}
        self._packets: Counter[int] = Counter()
        self._begins: dict[tuple[int, str], int] = {}
        if wanted.transform is not None:
            self._rows = EpisodeRows.whole(path, self._known, by_row=wanted.by_row)
            return
        features = [one for one in wanted.features if one.key != EPISODE]
        self._rows = EpisodeRows(
            path,
            self._known,
            {one.key: NUMBERS[one.role].dtype for one in features if one.role in NUMBERS},
            {one.key for one in features if one.role in ("text", "number")},
            {one.key for one in features if one.role == "frames" and encodings[one.key] != VIDEO},
            by_row=wanted.by_row,
        )

    @property
    def notes(self) -> list[str]:
        """Facts about rows and videos that a person should know."""
        return [*self._rows.notes, *self._notes]

    def values(self, one: Episode) -> tuple[int, int, Values, Texts]:
        """(first row, steps, values for the sections, texts) of an episode.

        Raises:
            DamagedEpisodeError: the episode does not fit the metadata.
            MalformedRecordError: the transform's function fails on the episode.
        """
        values: Values = {}
        texts: Texts = {}
        record, steps = b"", one.length
        rewritten = self._wanted.transform is not None
        if rewritten:
            rows, record = self._rows.record(one)
            steps, values, texts = self._read(record, len(record))
        else:
            rows = self._rows.rows_of(one)
        for number, feature in enumerate(self._wanted.features):
            if feature.role == "frames":
                camera, shown = feature.key, np.arange(one.length)
                if rewritten:
                    marks = values.pop((Section.FRAME_OFFSETS, number))
                    del values[Section.FRAME_LENGTHS, number]
                    camera, shown = self._marked(feature, record, marks)
                found, texts[number] = self._frames(camera, number, one, rows, shown)
                values.update({(kind, number): part for kind, part in found.items()})
            elif not rewritten:
                self._put(feature, number, one, rows, values, texts)
        return rows.start, steps, values, texts

    def _put(
        self, feature: StoredFeature, number: int, one: Episode, rows: slice,
        values: Values, texts: Texts,
    ) -> None:  # fmt: skip
        """Put the numbers, or the texts, of a feature of an episode where they belong."""
        of_episode = feature.key == EPISODE
        if feature.role in NUMBERS:
            values[NUMBERS[feature.role], number] = (
                np.asarray([[one.index]]) if of_episode else self._rows.column(feature.key, rows)
            )
        else:
            own = [str(one.index).encode()] if of_episode else self._rows.texts(feature.key, rows)
            values[Section.TEXT_IDS, number], texts[number] = numbered(own)

    def _marked(self, feature: StoredFeature, record: bytes, marks: Ints) -> tuple[str, Ints]:
        """(camera, [n] steps of it) of the frames whose marks lie at these places of a record.

        Raises:
            DamagedEpisodeError: they are of several cameras, or of one that is stored otherwise.
        """
        told = [MARK.unpack_from(record, at) for at in marks.tolist()]
        of = {camera for camera, _ in told}
        if len(of) > 1:
            raise DamagedEpisodeError(f"{feature.path} shows frames of several cameras")
        if not told:  # the function drops the episode
            return feature.key, np.empty(0, np.int64)
        camera = self._known.cameras[of.pop()]
        if (self._known.features[camera].encoding == VIDEO) != self._of_videos(feature.key):
            raise DamagedEpisodeError(
                f"{feature.path} shows {camera}, which is stored in another way than in the first "
                "episode"
            )
        return camera, np.asarray([step for _, step in told], np.int64)

    def _of_videos(self, key: str) -> bool:
        return self._encodings[key] == VIDEO

    def _frames(self, camera: str, number: int, one: Episode, rows: slice, steps: Ints) -> _Frames:
        """Sections of the frames that steps of an episode show.

        Args:
            camera: feature that holds the pictures.
            number: of the feature in the schema.
            one: episode of the list.
            rows: rows of the episode in the Parquet file.
            steps: [n] numbers of the shown steps.

        Raises:
            DamagedEpisodeError: the frames are not there.
        """
        key = self._wanted.features[number].key
        if not len(steps):
            own = VIDEO_SECTIONS if self._of_videos(key) else PICTURE_SECTIONS
            return {kind: np.zeros(1, np.int64) for kind in ONCE if kind in own}, [b""]
        if self._of_videos(key):
            return self._video_frames(camera, number, one, steps)
        if camera not in self._pictures:
            try:
                self._pictures[camera] = read_pictures(self._path, camera, self._rows.count)
            except UnreadableParquetError as error:
                self._pictures[camera] = str(error)
        table = self._pictures[camera]
        if isinstance(table, str):
            raise DamagedEpisodeError(f"{camera}: {table}")
        lost = np.flatnonzero(table.offset[rows] < 0)
        if len(lost):
            raise DamagedEpisodeError(
                f"{camera}: row {lost[0]} of episode {one.index} has no picture in its Parquet file"
            )
        shown = rows.start + steps
        return {
            Section.FRAME_OFFSETS: table.offset[shown],
            Section.FRAME_LENGTHS: table.length[shown],
            Section.FRAME_CODECS: np.zeros(1, np.int64),
            Section.UNPACKED_BYTES: table.unpacked[shown],
            Section.PICTURE_STARTS: table.start[shown],
            Section.PICTURE_BYTES: table.size[shown],
        }, [table.codec.encode()]

    def _video_frames(self, camera: str, number: int, one: Episode, steps: Ints) -> _Frames:
        """As ``_frames``; each feature that shows frames of a video holds its packets once."""
        path, table, first = self._place(camera, one)
        key, packet = table.key_of[first + steps], table.packet_of[first + steps]
        new = (number, path) not in self._begins
        if new:
            self._begins[number, path] = self._packets[number]
            self._packets[number] += len(table)
        base = self._begins[number, path]
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
        folder = os.path.dirname(self._path)  # noqa: PTH120
        file = os.fsencode(os.path.relpath(path, folder))
        return found, [file, table.codec.encode() + b"\0" + table.setup]

    def _place(self, camera: str, one: Episode) -> tuple[str, PacketTable, int]:
        """(video of an episode, its packets, the episode's first frame).

        Raises:
            DamagedEpisodeError: the frames are not there, or not at their times.
        """
        place, by_row, fps = one.videos.get(camera), self._wanted.by_row, self._known.fps
        if place is None:
            raise DamagedEpisodeError(
                f"{camera}: the list of episodes does not say in which video episode "
                f"{one.index} lies, and where"
            )
        name = f"{camera}, {'/'.join(place.path.split('/')[-2:])}"
        if place.path not in self._tables:
            self._tables[place.path] = self._videos.table(place.path)
        table = self._tables[place.path]
        if isinstance(table, str):
            raise DamagedEpisodeError(f"{name}: {table}")
        placed = self._videos.placed(camera, place.path, len(table), by_row=by_row)
        if one.index in placed.lost:
            raise DamagedEpisodeError(f"{name}: {placed.lost[one.index]}")
        first = placed.first[one.index]
        if placed.note:
            self._notes[f"{name}: {placed.note}"] = None
        if not by_row:
            stop = first + one.length
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


class Videos:
    """The packet tables of a dataset's videos; for any number of threads.

    The episodes of a video may lie in several Parquet files. Its table is kept until the last of
    them has asked, as long as there is room.

    Args:
        known: metadata of the dataset.
    """

    def __init__(self, known: LeRobotMetadata) -> None:
        self.known = known
        self._lock = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._kept: OrderedDict[str, PacketTable | str] = OrderedDict()
        self._left: Counter[str] | None = None
        self._placed: dict[tuple[str, str, int, bool], Placement] = {}

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
        key, known = (camera, path, frames, by_row), self.known
        with self._lock:
            if key not in self._placed:
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
