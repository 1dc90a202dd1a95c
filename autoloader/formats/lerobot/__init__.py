"""LeRobot datasets (v2.0, v2.1, v3.0): Parquet columns, MP4 videos and JSON or Parquet metadata.

A Parquet file under ``data/`` is a shard: in v2.0 and v2.1 it holds one episode, in v3.0 several.
Its records are its episodes, in their order. Rows are held against the list of episodes: where they
lie, their order, times, and values.

Theory of operation. pyarrow reads the columns that are wanted, all rows at once. Of each video that
an episode names the packet table is read, without decoding; of pictures inside the Parquet file,
the headers of its pages. An episode that does not fit is damaged, with the numbers; it never gets a
picture of another one.

Step i of an episode is frame f + i of its video; f follows from the list of episodes and the number
of frames (``videos``). The times of the video must agree with the frame rate.

Not here: which episodes there are (``metadata``), where pictures lie (``parquet``), the tables of
an index (``formats.episodes``), TFDS directories (``formats.tfds``), decoding (``decode.frames``).
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError
from autoloader.formats import files
from autoloader.formats.dataset import DatasetFormat, MissingVideos, PlainReader, ShardSlice, broken
from autoloader.formats.episodes import (
    GiveEpisode,
    PackedFrames,
    StoredEpisode,
    StoredFormat,
    VideoFrames,
    changed_by,
    identity_of,
    marks_of,
)
from autoloader.formats.features import PARQUET, TASKS, VIDEO, Feature
from autoloader.formats.files import Found, UnreadableError, naming
from autoloader.formats.frames import Encoded
from autoloader.formats.lerobot.metadata import (
    EPISODE,
    INFO_FILE,
    Episode,
    EpisodeList,
    Ints,
    features_of,
    metadata_digest,
    read_episodes,
    read_info,
    read_tasks,
    task_column,
)
from autoloader.formats.lerobot.parquet import PictureTable, read_columns, read_pictures, values_of
from autoloader.formats.lerobot.videos import LARGEST_DRIFT_FRAMES, Placement
from autoloader.formats.places import folder_name
from autoloader.formats.plain import LazyPicture, Step, pixels_of
from autoloader.formats.records import write_example
from autoloader.formats.tables import Section, SourceIdentity, Wanted
from autoloader.formats.videos import PacketTable, first_frames_of, mapped, packets_of
from autoloader.host.extras import needs
from autoloader.spec.model import Timestamps

MOST_KEPT_PACKETS = 2**18
"""Packets kept of videos that other Parquet files may ask for; one takes 48 bytes."""
_RANGE = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True)
class LeRobotDirectory(StoredFormat):
    """A LeRobot dataset; see ``DatasetFormat``.

    Attributes:
        info: content of the file ``meta/info.json``.
        episodes: list of all episodes.
        digest: hash of the content of every metadata file that an index is made from.
    """

    title: ClassVar[str] = "LeRobot"
    marker: ClassVar[str] = INFO_FILE
    hub_folders: ClassVar[tuple[str, ...]] = ("meta/", "data/", "videos/")
    numbered: ClassVar[str] = EPISODE
    info: Mapping[str, Any] = field(kw_only=True, compare=False, repr=False)
    episodes: EpisodeList = field(kw_only=True, compare=False, repr=False)
    digest: bytes = field(kw_only=True, compare=False, repr=False)

    @classmethod
    def open(cls, path: str, *, dataset: str) -> LeRobotDirectory:
        """See ``DatasetFormat``; the metadata of v3.0 is Parquet, for which pyarrow is needed."""
        root = Path(path)
        digest = metadata_digest(root)  # of what is read after it: an edit meanwhile makes it stale
        info = read_info(root, dataset=dataset)
        features = features_of(info, root, dataset=dataset)
        episodes = read_episodes(root, info, dataset=dataset)
        splits, notes = _splits(info, root, episodes, dataset=dataset)
        return cls(
            name=folder_name(root),
            version=str(info["codebase_version"]),
            path=str(root),
            features=features,
            splits=splits,
            dataset=dataset,
            steps={
                path: tuple(episodes.length[episodes.data.rows_in(path)].tolist())
                for path in episodes.data.paths
            },
            notes=tuple(notes),
            info=info,
            episodes=episodes,
            digest=digest,
        )

    @property
    def fps(self) -> float:
        """Frames a second."""
        return float(self.info["fps"])

    @cached_property
    def tasks(self) -> dict[int, bytes]:
        """Text of every task, UTF-8, by its number.

        Raises:
            SourceError: there is no list of tasks, or it is broken or empty.
        """
        found = read_tasks(Path(self.path), self.info, dataset=self.dataset)
        return {number: text.encode(errors="replace") for number, text in found.items()}

    @cached_property
    def tasks_if_listed(self) -> dict[int, bytes] | None:
        """``tasks``; ``None`` where reading them raises, for readers that can go without."""
        try:
            return self.tasks
        except SourceError:
            return None

    @cached_property
    def _videos(self) -> Videos:
        return Videos()

    def identity(self, path: str, wanted: Wanted) -> SourceIdentity:
        """See ``DatasetFormat``; of a Parquet file, its episodes' videos, and the metadata."""
        cameras = (  # only the user's function knows which cameras it shows
            self.cameras
            if wanted.transform is not None
            else [one.key for one in wanted.features if one.role == "frames"]
        )
        videos = sorted(self.episodes.videos_of(path, cameras))
        return identity_of([path, *videos], self.path, self.digest)

    def stored(
        self, path: str, only: slice, wanted: Wanted | None, notes: dict[str, None]
    ) -> Iterator[GiveEpisode]:
        """See ``StoredFormat``. Raises MissingExtraError where pyarrow is not installed."""
        return EpisodesOfFile(path, wanted, self, self._videos, notes).episodes(only)

    def first_frames(self, path: str, record: int, camera: str, count: int) -> Sequence[Encoded]:
        """See ``DatasetFormat``; of a video the first packets are read, of pictures the pages."""
        one = self.episodes.at(path, record)
        count = min(count, one.length)
        if self.features[camera].encoding == VIDEO:
            video, from_s = one.videos[camera]
            return first_frames_of(video, round(from_s * self.fps), count)
        lengths = self.episodes.length[self.episodes.data.rows_in(path)]
        first = int(lengths[:record].sum())
        table = read_pictures(path, camera, int(lengths.sum()), most=first + count)
        return table.pictures(mapped(path), slice(first, first + count))

    def plain_reader(self, timestamps: Timestamps = "check") -> LeRobotReader:
        """See ``DatasetFormat``."""
        return LeRobotReader(self, timestamps)

    @property
    def episode_numbers(self) -> Sequence[int]:
        """See ``DatasetFormat``."""
        numbers: list[int] = self.episodes.index.tolist()
        return numbers

    def numbers_of(self, piece: ShardSlice) -> Ints:
        """See ``DatasetFormat``: as the metadata numbers them."""
        return self.episodes.index[self.episodes.data.rows_in(piece.path)[: piece.stop]]

    def with_episodes(self, numbers: Sequence[int]) -> DatasetFormat:
        """See ``DatasetFormat``."""
        episodes = self.episodes
        wanted = np.isin(episodes.index, np.asarray(numbers, np.int64))
        splits = {}
        for name, pieces in self.splits.items():
            every = episodes.data.rows_of(pieces)
            splits[name] = _slices(episodes, every[wanted[every]], name)
        return replace(self, splits=splits)

    def check_first(
        self, slices: Sequence[ShardSlice], cameras: Collection[str], texts: Iterable[Feature]
    ) -> None:
        """See ``DatasetFormat``.

        Raises:
            SourceError: texts of tasks are taken, and no list says what they are; or the first and
                the last video are pointers of Git LFS or the like.
        """
        if any(feature.encoding == TASKS for feature in texts):
            _ = self.tasks  # read now: a list that is missing or broken is refused here
        ends = [(one.path, k) for one in slices for k in (one.start, one.stop - 1)]
        edges = [self.episodes.at(path, record) for path, record in ends[:1] + ends[-1:]]
        for camera in cameras:
            videos = [one.videos[camera][0] for one in edges if camera in one.videos]
            files.refuse_stand_ins(videos, dataset=self.dataset)

    def missing_videos(
        self, cameras: Collection[str] | None = None, slices: Sequence[ShardSlice] | None = None
    ) -> MissingVideos | None:
        """See ``DatasetFormat``."""
        episodes, rows = self.episodes, np.arange(len(self.episodes))
        if slices is not None:
            rows = episodes.data.rows_of(slices)
        lost, named, missing = np.zeros(len(rows), np.bool_), set[str](), set[str]()
        for key, of in episodes.videos.items():
            if cameras is None or key in cameras:
                paths = {of.paths[one] for one in np.unique(of.number[rows]).tolist() if one >= 0}
                gone = [path in paths and not os.path.exists(path) for path in of.paths]
                lost |= np.asarray([*gone, False])[of.number[rows]]  # the last: no video is told
                named |= paths
                missing |= {path for path, away in zip(of.paths, gone, strict=True) if away}
        if not missing:
            return None
        without = tuple(episodes.index[rows[lost]].tolist())
        return MissingVideos(min(missing), len(missing), len(named), without, len(rows))


def _splits(
    info: Mapping[str, Any], root: Path, episodes: EpisodeList, *, dataset: str
) -> tuple[dict[str, tuple[ShardSlice, ...]], list[str]]:
    """(each split's files, what a person should know).

    A range counts places in the list of episodes, so gaps in their numbers change nothing. A split
    that is the only one has all episodes, whatever its range is: writers often leave it stale.
    Where a split begins or ends within a file, it has a part of its records.
    """
    total = len(episodes)
    told = info.get("splits") or {"train": f"0:{total}"}
    if not isinstance(told, Mapping):
        raise broken(str(root / INFO_FILE), "its splits are not a JSON object", dataset=dataset)
    ranges = {}
    for name, text in told.items():
        match = _RANGE.fullmatch(str(text))
        if match is None or not int(match[1]) <= int(match[2]):
            why = f"split {str(name)[:40]!r} is {str(text)[:40]!r}, not FIRST:LAST"
            raise broken(str(root / INFO_FILE), why, dataset=dataset)
        ranges[str(name)] = slice(int(match[1]), int(match[2]))
    if len(ranges) == 1:
        ranges = dict.fromkeys(ranges, slice(0, total))
    rows = np.arange(total)
    splits = {name: _slices(episodes, rows[own], name) for name, own in ranges.items()}
    taken = np.zeros(total, np.bool_)
    for own in ranges.values():
        taken[own] = True
    lost = episodes.index[~taken]
    if not len(lost):
        return splits, []
    some = ", ".join(map(str, lost[:5])) + (", …" if len(lost) > 5 else "")
    ways = ", ".join(f"{name} {told[name]}" for name in told)
    return splits, [
        f"{len(lost)} of {total} episodes lie in no split of info.json ({ways}): episode {some}"
    ]


def _slices(episodes: EpisodeList, rows: Ints, split: str) -> tuple[ShardSlice, ...]:
    """Stretches of files that hold the episodes of these rows, in their order."""
    file, record = episodes.data.number[rows], episodes.data.records[rows]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (file[1:] != file[:-1]) | (record[1:] != record[:-1] + 1)
    first = np.flatnonzero(begins)
    start = record[first]
    stretches = (file[first], start, start + np.diff(np.append(first, len(rows))))
    return tuple(
        ShardSlice(episodes.data.paths[number], place, begin, end, split)
        for place, (number, begin, end) in enumerate(
            zip(*(one.tolist() for one in stretches), strict=True)
        )
    )


class LeRobotReader(PlainReader[LeRobotDirectory]):
    """See ``PlainReader``: pyarrow reads an episode's rows, PyAV its frames, and no code of ours.

    Only the list of episodes, and where they lie in videos, is the loader's.
    """

    reads_by = "pyarrow"

    def steps(self, piece: ShardSlice, record: int) -> list[Step]:
        """See ``PlainReader``."""
        one = self.directory.episodes.at(piece.path, record)
        with needs("a LeRobot dataset", extra="lerobot"):
            import av  # noqa: F401  (asked for at once, not at the first picture)
            import pyarrow.parquet as parquet
        table = parquet.read_table(piece.path, filters=[("episode_index", "=", one.index)])
        ordered = "frame_index" in table.column_names
        rows = (table.sort_by("frame_index") if ordered else table).to_pylist()
        return [self._step(row, number, one) for number, row in enumerate(rows)]

    def _frame_of(
        self, camera: str, one: Episode, number: int, time_s: float | None
    ) -> NDArray[np.uint8]:
        """The frame that a camera shows at a step of an episode, at a time if it matters."""
        path, known = one.videos[camera][0], self.directory
        frames = len(self.videos.times(path))
        placed = known.episodes.placed(
            camera, path, frames, known.fps, by_row=self.timestamps == "ignore"
        )
        first = placed.first.get(one.index, 0)
        if time_s is not None:
            number = round(time_s * known.fps)  # of a steady clock, as the index requires
            number = min(max(number, 0), one.length - 1)
        return self.videos.frame(path, first + number)

    def _step(self, row: Mapping[str, Any], number: int, one: Episode) -> Step:
        step: dict[str, Any] = {EPISODE: np.asarray(one.index)}
        time_s = row.get("timestamp") if self.timestamps == "nearest" else None
        for path, feature in self.directory.features.items():
            if feature.encoding == TASKS:
                if (told := self.directory.tasks_if_listed) is not None:
                    step[path] = told.get(row[task_column(path)], b"")
            elif feature.kind == "text":
                step[path] = str(row[path] or "").encode()
            elif feature.kind == "tensor" and feature.per_step:
                shape = tuple(size or 1 for size in feature.shape)
                step[path] = np.asarray(row[path], feature.dtype).reshape(shape)
            elif feature.kind == "image" and feature.encoding == VIDEO and path in one.videos:
                step[path] = LazyPicture(partial(self._frame_of, path, one, number, time_s))
            elif feature.kind == "image" and path in row:
                step[path] = LazyPicture(partial(_stored_picture, row[path]))
        return step


def _stored_picture(value: Mapping[str, Any]) -> NDArray[np.uint8]:
    """The picture in a row; null stands in the rows of a camera that no sample shows."""
    return pixels_of(value["bytes"])


# -- one Parquet file ---------------------------------------------------------------------------


def _packed(table: PictureTable, first: int, steps: Ints) -> tuple[dict[Section, Any], list[bytes]]:
    """Places of pictures in a Parquet file; an ``episodes.PackedFrames``.

    Args:
        table: places of the pictures of all rows.
        first: row of the episode's first step.
        steps: the steps whose pictures they are.
    """
    shown = first + steps
    return {
        Section.FRAME_OFFSETS: table.offset[shown],
        Section.FRAME_LENGTHS: table.length[shown],
        Section.FRAME_CODECS: np.zeros(1, np.int64),
        Section.UNPACKED_BYTES: table.unpacked[shown],
        Section.PICTURE_STARTS: table.start[shown],
        Section.PICTURE_BYTES: table.size[shown],
    }, [table.codec.encode()]


@dataclass
class EpisodesOfFile:
    """The episodes of a Parquet file, as the index takes them.

    Args:
        path: path of the Parquet file.
        wanted: features that are indexed; ``None``: every one is read, and no frames.
        known: the dataset that the file belongs to.
        videos: packets of the dataset's videos.
        notes: filled with facts about the file that a person should know, as keys.
    """

    path: str
    wanted: Wanted | None
    known: LeRobotDirectory
    videos: Videos
    notes: dict[str, None]

    def __post_init__(self) -> None:
        """Prepare what is found once a file; nothing is read yet."""
        self._timestamps = self.wanted.timestamps if self.wanted else "check"
        self._moved: dict[str, None] = {}
        self._rows = Found(self._read)
        self._pictures = Found(self._read_pictures)
        self._placed = Found(self._place_all)

    def episodes(self, only: slice) -> Iterator[GiveEpisode]:
        """See ``StoredFormat.stored``; an episode that does not fit the metadata is damaged."""
        episodes = self.known.episodes
        for row in episodes.data.rows_in(self.path)[only].tolist():
            yield partial(self._episode, episodes[row])
        self.notes.update(self._moved)

    def _read(self, path: str) -> EpisodeRows:
        stored = self.wanted.stored if self.wanted else None
        return EpisodeRows(path, self.known, self.notes, stored, self._timestamps)

    def _episode(self, one: Episode) -> StoredEpisode:
        rows = self._rows[self.path]
        own, record = rows.record(one)
        shown_s = rows.times_s(own) if self._timestamps == "nearest" else None
        return StoredEpisode(
            record, one.length, partial(self._frames, one, own, shown_s), own.start
        )

    def _frames(
        self, one: Episode, rows: slice, times_s: Any, camera: str
    ) -> VideoFrames | PackedFrames:
        """Frames of an episode in rows of the Parquet file.

        Frames of videos are those nearest to ``times_s`` [T], unless it is ``None``.

        Raises:
            UnreadableError: the frames are not there.
        """
        if self.known.features[camera].encoding == VIDEO:
            return self._place(camera, one, times_s)
        table = self._pictures[camera]
        lost = np.flatnonzero(table.offset[rows] < 0)
        if len(lost):
            raise UnreadableError(
                f"{camera}: row {lost[0]} of episode {one.index} has no picture in its Parquet file"
            )
        return partial(_packed, table, rows.start)

    def _read_pictures(self, camera: str) -> PictureTable:
        with naming(camera):
            return read_pictures(self.path, camera, self._rows[self.path].count)

    def _place_all(self, place: tuple[str, str]) -> tuple[PacketTable, Placement]:
        """(packets, the first frames of all episodes) of a camera's video."""
        table, by_row = self.videos.table(place[1]), self._timestamps == "ignore"
        return table, self.known.episodes.placed(*place, len(table), self.known.fps, by_row=by_row)

    def _place(self, camera: str, one: Episode, times_s: Any) -> VideoFrames:
        """Place of an episode in its video.

        Raises:
            UnreadableError: the frames are not there, or not at their times.
        """
        if camera not in one.videos:
            raise UnreadableError(
                f"{camera}: the metadata (meta/episodes) does not say in which part of which video "
                f"file episode {one.index} is"
            )
        path = one.videos[camera][0]
        name = f"{camera}, {'/'.join(path.split('/')[-2:])}"
        with naming(name):
            table, placed = self._placed[camera, path]
            if one.index in placed.lost:
                raise UnreadableError(placed.lost[one.index])
            first = placed.first[one.index]
            if placed.note:
                self._moved[f"{name}: {placed.note}"] = None
            if self._timestamps != "ignore":
                _check_drift(table, slice(first, first + one.length), self.known.fps)
        steps = np.arange(one.length)
        if times_s is not None:
            steps = nearest(table.shown_s[first : first + one.length], times_s)
        return VideoFrames(path, table, first + steps)


def _check_drift(table: PacketTable, frames: slice, fps: float) -> None:
    """Refuse frames of a video that are not shown at their times. Raises UnreadableError."""
    off = np.abs(table.shown_s[frames] * fps - np.arange(frames.start, frames.stop))
    worst = int(np.argmax(off))
    if off[worst] > LARGEST_DRIFT_FRAMES:
        number = frames.start + worst
        raise UnreadableError(
            f"frame {number} is at {table.shown_s[number]:.3f} s, but at {fps:g} frames a second "
            f"it should be at {number / fps:.3f} s; timestamps: ignore takes frames by number"
        )


def nearest(shown_s: NDArray[np.float64], times_s: NDArray[np.float64]) -> Ints:
    """Step of an episode whose frame is shown nearest to each time [T]; of two the earlier one."""
    shown_s = shown_s - shown_s[0]
    after = np.searchsorted(shown_s, times_s).clip(1, max(1, len(shown_s) - 1))
    before = after - 1
    after = after.clip(max=len(shown_s) - 1)
    return np.where(times_s - shown_s[before] <= shown_s[after] - times_s, before, after)


class Videos:
    """The packet tables of a dataset's videos; for any number of threads.

    The episodes of a video may lie in several Parquet files. So the tables that were asked for last
    are kept, as long as there is room.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._kept: OrderedDict[str, PacketTable] = OrderedDict()

    def table(self, path: str) -> PacketTable:
        """The packets of a video; a Parquet file asks once. Raises UnreadableError."""
        with self._lock:
            mine = self._reading.setdefault(path, threading.Lock())
        with mine:
            found = self._kept.get(path) or packets_of(path)
            with self._lock:
                self._kept[path] = found
                self._kept.move_to_end(path)
                while sum(map(len, self._kept.values())) > MOST_KEPT_PACKETS:
                    self._kept.popitem(last=False)
        return found


# -- rows ---------------------------------------------------------------------------------------

_EPISODE, _FRAME, _TIME = "episode_index", "frame_index", "timestamp"
_LARGEST_OFFSET_FRAMES = 1.1
"""Times of some writers begin at one frame, not at 0; with what float32 makes of it."""
_STEADY_FRAMES = 0.1
"""Largest distance of times from an offset that all rows have."""


class EpisodeRows:
    """The rows of a Parquet file.

    A row without a value that is wanted costs its episode, and no other.

    Args:
        path: path of the Parquet file.
        known: the dataset that the file belongs to.
        notes: filled with facts about the file that a person should know, as keys.
        only: features that are wanted; ``None``: every one, without texts of tasks if no list says
            what they are. Columns of pictures must be there, and are not read.
        timestamps: rule by which rows get their frames.

    Attributes:
        count: number of the file's rows.

    Raises:
        UnreadableError: the file is missing or damaged, or lacks a column.
        SourceError: tasks are wanted, and their list is missing or broken.
        OSError: the file cannot be read.
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(
        self,
        path: str,
        known: LeRobotDirectory,
        notes: dict[str, None],
        only: Collection[str] | None,
        timestamps: Timestamps,
    ) -> None:
        self._known, self._notes, self._timestamps = known, notes, timestamps
        unlisted = only is None and known.tasks_if_listed is None
        self._features = {
            one.path: one
            for one in known.features.values()
            if (one.path in only if only is not None else one.kind != "other")
            and not (unlisted and one.encoding == TASKS)
        }
        every = [one for one in self._features.values() if one.per_step]
        of_tasks = {one.path: task_column(one.path) for one in every if one.encoding == TASKS}
        self._tasks = known.tasks if of_tasks else {}
        strings = [one.path for one in every if one.kind == "text" and one.path not in of_tasks]
        numbers = [one for one in every if one.kind == "tensor"]
        pictures = [one.path for one in every if one.encoding == PARQUET]
        wanted = [_EPISODE, *(one.path for one in numbers), *strings, *of_tasks.values()]
        lost: list[str] = []

        def there(columns: Sequence[str]) -> list[str]:
            lost.extend(name for name in (*wanted, *pictures) if name not in columns)
            return [one for one in dict.fromkeys([*wanted, _FRAME, _TIME]) if one in columns]

        try:
            table = read_columns(path, there)
        except UnreadableError as error:
            raise UnreadableError(f"its Parquet file cannot be read: {error}") from error
        except FileNotFoundError as error:
            name = "/".join(path.split("/")[-2:])
            raise UnreadableError(f"its Parquet file {name} is missing") from error
        if lost:
            raise UnreadableError(f"its Parquet file has no column {lost[0]!r}")
        self.count: int = table.num_rows

        def single(name: str, dtype: Any, nothing: Any) -> NDArray[Any]:
            values, bad = _flat(table.column(name), 1, np.dtype(dtype))
            return np.where(bad, nothing, values[:, 0])

        self._numbers = {
            one.path: _flat(
                table.column(one.path),
                one.step_numbers,
                np.dtype(np.float32 if "float" in one.dtype else np.int64),
            )
            for one in numbers
        }
        self._strings = {key: table.column(key).to_pylist() for key in strings}
        self._of_tasks = {one: single(name, np.int64, -1) for one, name in of_tasks.items()}
        has = table.column_names
        self._frame = single(_FRAME, np.int64, -1) if _FRAME in has else None
        self._time_s = single(_TIME, np.float64, np.nan) if _TIME in has else None
        episode = single(_EPISODE, np.int64, -1)
        self._order = np.argsort(episode, kind="stable")
        self._sorted = episode[self._order]

    def record(self, one: Episode) -> tuple[slice, bytes]:
        """(rows of an episode, the episode as a ``tf.train.Example``); Raises as ``rows_of``."""
        own = self.rows_of(one)
        values: dict[str, Any] = {}
        for key, feature in self._features.items():
            if key == EPISODE:
                values[key] = np.asarray([one.index], np.int64)
            elif feature.kind == "image":
                values[key] = marks_of(self._known.cameras.index(key), one.length)
            elif key in self._numbers:
                values[key] = self._numbers[key][0][own].reshape(-1)
            else:
                values[key] = self._texts(key, own)
        return own, write_example(values)

    def times_s(self, rows: slice) -> NDArray[np.float64] | None:
        """[T] times of an episode's rows in seconds; ``None``: the file has none."""
        return None if self._time_s is None else self._time_s[rows]

    def rows_of(self, one: Episode) -> slice:
        """Rows of an episode, checked by the list of episodes and the frame rate.

        Raises:
            UnreadableError: the rows are not there, not in order, not at their times, or a
                value is missing.
        """
        if one.damage:
            raise UnreadableError(one.damage)
        left, right = np.searchsorted(self._sorted, [one.index, one.index + 1]).tolist()
        own = self._order[left:right]
        if len(own) != one.length or not one.length:
            name = "/".join(one.path.split("/")[-2:])
            rows_there = f"{len(own)} rows" if len(own) else "no row"
            raise UnreadableError(
                f"{name} has {rows_there} of episode {one.index}, but the metadata (meta/episodes) "
                f"lists {one.length}"
            )
        first = int(own[0])
        rows = slice(first, first + one.length)
        in_order = self._frame is None or np.array_equal(self._frame[rows], np.arange(one.length))
        if own[-1] != first + one.length - 1 or not in_order:
            raise UnreadableError(f"the rows of episode {one.index} are not in frame_index order")
        if self._time_s is not None and self._timestamps != "ignore":
            self._check_times(self._time_s[rows] * self._known.fps, one)
        for key, (_, bad) in self._numbers.items():
            if bad[rows].any():
                raise UnreadableError(
                    f"{key}: row {int(np.argmax(bad[rows]))} of episode {one.index} does not fit "
                    "the dtype and shape in meta/info.json"
                )
        for feature, column in self._of_tasks.items():
            lost = set(column[rows].tolist()) - set(self._tasks)
            if lost:
                raise UnreadableError(
                    f"{feature} is empty in a row of episode {one.index}"
                    if min(lost) < 0
                    else f"{feature} {min(lost)} of episode {one.index} is not in the dataset's "
                    "list of tasks (meta/tasks.jsonl or tasks.parquet)"
                )
        return rows

    def _check_times(self, frames: NDArray[np.float64], one: Episode) -> None:
        """Compare the times of an episode's rows, in frames, with the numbers of the rows."""
        fps = self._known.fps
        off = frames - np.arange(one.length)
        if np.abs(off).max() <= LARGEST_DRIFT_FRAMES:  # false of NaN
            return
        offset = float(np.median(off))
        if abs(offset) <= _LARGEST_OFFSET_FRAMES and np.abs(off - offset).max() <= _STEADY_FRAMES:
            nearest = self._timestamps == "nearest"
            done = "frames are those nearest to them" if nearest else "that is taken off"
            self._notes[
                f"the times of its rows begin at {offset / fps:.3f} s and not at 0; {done}"
            ] = None
            return
        worst = int(np.argmax(np.abs(off)))
        raise UnreadableError(
            f"row {worst} of episode {one.index} has timestamp {frames[worst] / fps:.3f} s, but at "
            f"{fps:g} frames a second (meta/info.json) it should be {worst / fps:.3f} s; write "
            "frame_index / fps, or timestamps: ignore in the dataset's entry of the spec, to take "
            "frames by row number"
        )

    def _texts(self, key: str, rows: slice) -> list[bytes]:
        """A text of some rows, or the integer that stands for one, UTF-8; "" of a null."""
        column = self._of_tasks.get(key)
        if column is not None:
            return [self._tasks[task] for task in column[rows].tolist()]
        stored = self._strings[key][rows]
        said = (one[0] if isinstance(one, list) and one else one for one in stored)
        return [b"" if text is None else str(text).encode() for text in said]


def _flat(column: Any, width: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """([rows, width] of a column, [rows] whether a row is not of such numbers)."""
    import pyarrow

    rows, values = len(column), column.combine_chunks()
    values = getattr(values, "storage", values)  # of tensors, which some packages make of lists
    of = np.arange(rows)  # a row that loses a value has too few
    found = np.zeros((rows, width), dtype)
    while True:
        if values.null_count:
            of = of[values_of(values.is_valid())]
            values = values.drop_null()
        if not pyarrow.types.is_nested(values.type):
            break
        if not hasattr(values, "flatten") or pyarrow.types.is_struct(values.type):
            return found, np.ones(rows, np.bool_)
        lengths: Any = getattr(values.type, "list_size", None)
        if lengths is None:
            lengths = values_of(values.value_lengths())
        values, of = values.flatten(), np.repeat(of, lengths)
    bad = np.zeros(rows, np.bool_)
    try:
        flat = values_of(values)
        if flat.dtype.kind in "fu":
            changed = changed_by(flat, dtype)
            bad[of[changed]] = True
            flat = np.where(changed, 0, flat)
        flat = flat.astype(dtype)
    except (ValueError, TypeError):
        return found, np.ones(rows, np.bool_)
    bad |= np.bincount(of, minlength=rows) != width
    found[~bad] = (flat[~bad[of]] if bad.any() else flat).reshape(-1, width)
    return found, bad
