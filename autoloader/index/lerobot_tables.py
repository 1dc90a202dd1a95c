"""Indexes one Parquet file of a LeRobot dataset: its episodes' columns, and where their frames lie.

Theory of operation. The columns that the schema names are read by pyarrow, all rows at once. Of
each video that an episode names the packet table is read, without decoding. Step i of an episode
is frame round(from_s × fps) + i of its video. That is checked: against the number of frames, the
times at which the video shows them, and the episodes beside it in the same file. An episode that
does not fit is damaged, with the numbers; it never gets a picture of another one.

Invariants:
    1. An episode is indexed whole or not at all.
    2. The tables are a function of the files' bytes, the metadata and the schema alone.

Not here: the metadata (``catalog.lerobot``), RLDS shards (``index.build``), decoding.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog.lerobot.episodes import Episode, EpisodeList, read_episodes, tasks
from autoloader.catalog.lerobot.metadata import TASK, read_info
from autoloader.catalog.lerobot.packets import PacketTable, UnreadableVideoError, read_packets
from autoloader.catalog.lerobot.parquet import UnreadableParquetError, read_columns
from autoloader.catalog.metadata import LEROBOT_INFO
from autoloader.index.format import DTYPES, NUMBERS, Section, ShardTables, SourceIdentity
from autoloader.samples.schema import RecordSchema, StoredFeature

LARGEST_DRIFT_FRAMES = 0.5
"""A time that is off by more than this many frames belongs to another frame."""


@dataclass(frozen=True)
class LeRobotShards:
    """Indexes the Parquet files of one dataset; see ``index.shard_formats.ShardFormat``.

    Args:
        root: the dataset's directory.
        dataset: its name, for messages.
    """

    root: str
    dataset: str

    def identity(self, path: str, schema: RecordSchema) -> SourceIdentity:
        """Of a Parquet file and the videos of its episodes: bytes in all, and the last change.

        Raises:
            OSError: the Parquet file is not there. A video may be missing.
        """
        first = os.stat(path)  # noqa: PTH116
        size, changed = first.st_size, first.st_mtime_ns
        for video in sorted(_videos(self._metadata().episodes.by_file[path], schema)):
            try:
                found = os.stat(video)  # noqa: PTH116
            except OSError:
                continue
            size, changed = size + found.st_size, max(changed, found.st_mtime_ns)
        return SourceIdentity(size, changed)

    def try_out(self, path: str, schema: RecordSchema, nbytes: int) -> int:
        """Index a Parquet file and throw it away; its videos are read as far as packets tell.

        Raises:
            OSError: it cannot be read.
        """
        del nbytes  # a file is read at once
        return self.tables(path, schema).source.size

    def tables(self, path: str, schema: RecordSchema) -> ShardTables:
        """The tables of a Parquet file's episodes.

        Raises:
            OSError: it cannot be read.
        """
        source = self.identity(path, schema)
        known = self._metadata()
        fps, episodes = known.fps, known.episodes.by_file[path]
        builder = _Builder(schema, path)
        try:
            rows = _Rows(path, schema, known.tasks if _has_task(schema) else {})
        except _DamagedError as error:
            for _ in episodes:
                builder.leave_out(str(error))
            return builder.tables(source)
        videos = _Videos(known)
        for one in episodes:
            try:
                first = rows.first_of(one, fps)
                frames = {number: videos.frames(one, key) for number, key in _cameras(schema)}
            except _DamagedError as error:
                builder.leave_out(str(error))
            else:
                builder.add(one, first, rows, frames)
        return builder.tables(source)

    def _metadata(self) -> _Metadata:
        info = Path(self.root) / LEROBOT_INFO
        return _read_metadata(self.root, self.dataset, info.stat().st_mtime_ns)


@dataclass(frozen=True)
class _Metadata:
    """What the shards of a dataset share; read once.

    Attributes:
        root: the dataset's directory.
        info: ``meta/info.json``.
        episodes: all of them.
    """

    root: Path
    info: Mapping[str, Any]
    episodes: EpisodeList

    @property
    def fps(self) -> float:
        """Frames a second."""
        return float(self.info["fps"])

    @cached_property
    def tasks(self) -> dict[int, bytes]:
        """The text of every task; empty where there is no list that can be read."""
        try:
            return {number: text.encode() for number, text in tasks(self.root, self.info).items()}
        except (OSError, ValueError, LookupError, TypeError, StopIteration):
            return {}  # every episode then says that its task is not listed

    @cached_property
    def taken(self) -> dict[tuple[str, str], list[tuple[int, int, int]]]:
        """Camera and video file → first frame, end and index of every episode in it."""
        found: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
        for one in self.episodes.all:
            for camera, place in one.videos.items():
                first = round(place.from_s * self.fps)
                span = (first, first + one.length, one.index)
                found.setdefault((camera, place.path), []).append(span)
        return found


@lru_cache(maxsize=64)
def _read_metadata(root: str, dataset: str, changed_ns: int) -> _Metadata:
    del changed_ns
    info = read_info(Path(root), dataset=dataset)
    return _Metadata(Path(root), info, read_episodes(Path(root), info, dataset=dataset))


class _DamagedError(Exception):
    """An episode cannot be used; the message says why."""


def _cameras(schema: RecordSchema) -> list[tuple[int, str]]:
    return [(n, one.key) for n, one in enumerate(schema.features) if one.role == "frames"]


def _videos(episodes: Sequence[Episode], schema: RecordSchema) -> set[str]:
    keys = [key for _, key in _cameras(schema)]
    return {one.videos[key].path for one in episodes for key in keys if key in one.videos}


def _has_task(schema: RecordSchema) -> bool:
    return any(one.key == TASK for one in schema.features)


class _Rows:
    """The rows of a Parquet file: columns as the schema wants them."""

    def __init__(self, path: str, schema: RecordSchema, texts: Mapping[int, bytes]) -> None:
        self.texts = texts
        numeric = [one for one in schema.features if one.role in NUMBERS]
        strings = [one for one in schema.features if one.role == "text" and one.key != TASK]
        wanted = ["episode_index", "frame_index", "timestamp", *(["task_index"] if texts else [])]
        names = list(dict.fromkeys([*wanted, *(one.key for one in (*numeric, *strings))]))

        def there(columns: Sequence[str]) -> list[str]:
            lost = [name for name in names if name not in columns and name != "timestamp"]
            if lost:
                raise _DamagedError(f"its Parquet file has no column {lost[0]!r}")
            return [name for name in names if name in columns]

        try:
            table = read_columns(path, there)
        except UnreadableParquetError as error:
            raise _DamagedError(f"its Parquet file cannot be read: {error}") from error
        self.numbers = {one.key: _flat(table.column(one.key), one) for one in numeric}
        self.strings = {one.key: table.column(one.key).to_pylist() for one in strings}
        self.episode = _whole(table.column("episode_index"))
        self.frame = _whole(table.column("frame_index"))
        self.task = _whole(table.column("task_index")) if texts else None
        self.time_s = None
        if "timestamp" in table.column_names:
            self.time_s = table.column("timestamp").to_numpy().astype(np.float64)

    def first_of(self, one: Episode, fps: float) -> int:
        """The first row of an episode.

        Raises:
            _DamagedError: its rows are not there, not in order, or not at their times.
        """
        own = np.flatnonzero(self.episode == one.index)
        if len(own) != one.length or not one.length:
            raise _DamagedError(
                f"episode {one.index} has {len(own)} rows in its Parquet file, and {one.length} "
                "frames by the list of episodes"
            )
        first = int(own[0])
        rows = slice(first, first + one.length)
        steps = np.arange(one.length)
        if own[-1] != first + one.length - 1 or not np.array_equal(self.frame[rows], steps):
            raise _DamagedError(f"the rows of episode {one.index} are not its frames in order")
        if self.time_s is not None:
            off = np.abs(self.time_s[rows] * fps - steps)
            worst = int(np.argmax(off))
            if not off[worst] <= LARGEST_DRIFT_FRAMES:
                raise _DamagedError(
                    f"row {worst} of episode {one.index} has the time "
                    f"{self.time_s[rows][worst]:.3f} s; at {fps:g} frames a second it is "
                    f"{worst / fps:.3f} s"
                )
        for key, values in self.numbers.items():
            if values is None:
                raise _DamagedError(f"{key}: a row has not as many numbers as the metadata says")
        if self.task is not None and (lost := set(self.task[rows].tolist()) - set(self.texts)):
            raise _DamagedError(f"task {min(lost)} of episode {one.index} is not in the task list")
        return first


def _flat(column: Any, feature: StoredFeature) -> NDArray[Any] | None:
    """[rows, width] as its section holds them; ``None`` where a row has not that many numbers."""
    import pyarrow

    rows, values = len(column), column.combine_chunks()
    if values.null_count:
        return None
    while pyarrow.types.is_nested(values.type):
        if not hasattr(values, "flatten"):
            return None
        lengths = values.value_lengths() if hasattr(values, "value_lengths") else None
        if lengths is not None and len(lengths.unique()) > 1:
            return None
        values = values.flatten()
        if not isinstance(values, pyarrow.Array) or values.null_count:
            return None
    try:
        flat = values.to_numpy(zero_copy_only=False).astype(DTYPES[NUMBERS[feature.role]])
    except (ValueError, TypeError):
        return None
    return flat.reshape(rows, -1) if len(flat) == rows * feature.width else None


def _whole(column: Any) -> NDArray[np.int64]:
    """[rows] int64; -1 where a row has none."""
    try:
        return np.asarray(column.fill_null(-1).to_numpy()).astype(np.int64)
    except (ValueError, TypeError) as error:
        raise _DamagedError(f"a column of numbers cannot be read: {error}"[:200]) from error


@dataclass(frozen=True, slots=True)
class _EpisodeFrames:
    """The frames of an episode in one video: its table, and which is the episode's first."""

    path: str
    table: PacketTable
    first: int


class _Videos:
    """The videos of a shard's episodes; each is demuxed once for it."""

    def __init__(self, known: _Metadata) -> None:
        self._fps = known.fps
        self._taken = known.taken
        self._tables: dict[str, PacketTable | str] = {}

    def frames(self, one: Episode, key: str) -> _EpisodeFrames:
        """Where the frames of an episode lie in a camera's video.

        Raises:
            _DamagedError: the video is missing, damaged, or does not hold them.
        """
        place = one.videos.get(key)
        if place is None:
            raise _DamagedError(f"{key} has no video")
        name = f"{key}, {'/'.join(place.path.split('/')[-2:])}"
        table = self._table(place.path)
        if isinstance(table, str):
            raise _DamagedError(f"{name}: {table}")
        first = round(place.from_s * self._fps)
        stop = first + one.length
        for start, end, other in self._taken[key, place.path]:
            if other != one.index and start < stop and first < end:
                raise _DamagedError(
                    f"{name}: frames {first} to {stop - 1} are of episode {one.index}, and "
                    f"{start} to {end - 1} of episode {other}"
                )
        if stop > len(table):
            raise _DamagedError(
                f"{name}: it has {len(table)} frames, and episode {one.index} wants {first} to "
                f"{stop - 1}"
            )
        off = np.abs(table.shown_s[first:stop] * self._fps - np.arange(first, stop))
        worst = int(np.argmax(off))
        if off[worst] > LARGEST_DRIFT_FRAMES:
            raise _DamagedError(
                f"{name}: frame {first + worst} is shown at {table.shown_s[first + worst]:.3f} s; "
                f"at {self._fps:g} frames a second it is {(first + worst) / self._fps:.3f} s"
            )
        return _EpisodeFrames(place.path, table, first)

    def _table(self, path: str) -> PacketTable | str:
        """The packets of a video, or why there are none."""
        if path not in self._tables:
            try:
                self._tables[path] = read_packets(path)
            except UnreadableVideoError as error:
                self._tables[path] = f"the video cannot be read: {error}"
            except OSError as error:
                self._tables[path] = f"the video cannot be read: {error.strerror or error}"
        return self._tables[path]


_OF_FRAMES = (
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
_ONCE = (Section.FRAME_FILES, Section.FRAME_CODECS)
"""Sections with one number for each record, damaged ones included."""


@dataclass
class _Builder:
    """Puts the tables of a shard together, episode by episode."""

    schema: RecordSchema
    path: str
    steps: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    damage: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._texts: dict[bytes, int] = {}
        self._parts: dict[tuple[Section, int], list[Any]] = {}
        self._packets_of: dict[tuple[int, str], int] = {}
        self._packets = [0] * len(self.schema.features)
        for number, one in enumerate(self.schema.features):
            kinds = (
                _OF_FRAMES if one.role == "frames" else (NUMBERS.get(one.role, Section.TEXT_IDS),)
            )
            self._parts.update({(kind, number): [] for kind in kinds})

    def leave_out(self, reason: str) -> None:
        """The next episode has no rows."""
        self.damage[len(self.steps)] = reason
        self.steps.append(-1)
        self.offsets.append(0)
        for (kind, _), parts in self._parts.items():
            if kind in _ONCE:
                parts.append([-1])

    def add(
        self, one: Episode, first: int, rows: _Rows, frames: Mapping[int, _EpisodeFrames]
    ) -> None:
        """The next episode."""
        self.steps.append(one.length)
        self.offsets.append(first)
        own = slice(first, first + one.length)
        for number, feature in enumerate(self.schema.features):
            if feature.role == "frames":
                self._add_frames(number, frames[number], one.length)
            elif feature.role in NUMBERS:
                values = rows.numbers[feature.key]
                assert values is not None
                self._parts[NUMBERS[feature.role], number].append(values[own])
            else:
                if feature.key == TASK and rows.task is not None:
                    texts = [rows.texts[task] for task in rows.task[own].tolist()]
                else:
                    texts = [str(text or "").encode() for text in rows.strings[feature.key][own]]
                self._parts[Section.TEXT_IDS, number].append([self._text(text) for text in texts])

    def _add_frames(self, number: int, frames: _EpisodeFrames, length: int) -> None:
        table = frames.table
        shown = slice(frames.first, frames.first + length)
        key, packet = table.key_of[shown], table.packet_of[shown]
        base = self._packets_of.get((number, frames.path))
        parts: dict[Section, Any] = {}
        if base is None:
            base = self._packets_of[number, frames.path] = self._packets[number]
            self._packets[number] += len(table)
            parts[Section.PACKET_OFFSETS] = table.offset
            parts[Section.PACKET_SIZES] = table.size
            parts[Section.PACKET_NUMBERS] = table.number
        ends = np.maximum.accumulate(table.offset + table.size)
        parts[Section.FRAME_OFFSETS] = table.offset[key]
        parts[Section.FRAME_LENGTHS] = ends[packet] - table.offset[key]
        parts[Section.FRAME_KEYS], parts[Section.FRAME_PACKETS] = base + key, base + packet
        place = os.path.relpath(frames.path, os.path.dirname(self.path))  # noqa: PTH120
        parts[Section.FRAME_FILES] = [self._text(os.fsencode(place))]
        parts[Section.FRAME_CODECS] = [self._text(table.codec.encode() + b"\0" + table.setup)]
        for kind, values in parts.items():
            self._parts[kind, number].append(values)

    def _text(self, text: bytes) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def tables(self, source: SourceIdentity) -> ShardTables:
        """The tables of the episodes added so far."""
        sections = {}
        for (kind, number), parts in self._parts.items():
            width = (self.schema.features[number].width,) if kind in NUMBERS.values() else ()
            nothing = np.empty((0, *width), DTYPES[kind])
            sections[kind, number] = np.concatenate([nothing, *parts]).astype(DTYPES[kind])
        steps = np.array(self.steps, np.int32)
        return ShardTables(
            source=source,
            record_offsets=np.array(self.offsets, np.int64),
            record_lengths=np.maximum(steps, 0).astype(np.int64),
            steps=steps,
            damage=self.damage,
            sections=sections,
            texts=list(self._texts),
        )
