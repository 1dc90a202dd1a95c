"""Where the frames of episodes lie in videos.

Step i of an episode is frame f + i of its video, where f follows from the list of episodes and the
number of frames (``catalog.lerobot.placement``). The times at which the video shows its frames must
agree with the frame rate.

Not here: reading packets (``catalog.lerobot.packets``), decoding (``decode.video``).
"""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoloader.formats.lerobot.episodes import Episode, EpisodeList
from autoloader.formats.lerobot.metadata import LeRobotMetadata
from autoloader.formats.lerobot.packets import PacketTable, UnreadableVideoError, read_packets
from autoloader.formats.lerobot.placement import LARGEST_DRIFT_FRAMES, Placement
from autoloader.formats.lerobot.rows import DamagedEpisodeError
from autoloader.index.format import Section
from autoloader.index.lerobot.frames import Steps

SECTIONS = (
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
MOST_KEPT_PACKETS = 2**21
"""Of videos that other Parquet files still ask for; one takes 48 bytes."""


class Videos:
    """The packet tables of a dataset's videos; for any number of threads.

    A video whose episodes lie in several Parquet files is read once, as long as there is room to
    keep its table until the last of them has asked.

    Args:
        known: the dataset.
    """

    def __init__(self, known: LeRobotMetadata) -> None:
        self._known = known
        self._lock = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._kept: OrderedDict[str, PacketTable | str] = OrderedDict()
        self._left: Counter[str] | None = None
        self._placed: dict[tuple[str, str, bool], Placement] = {}

    def table(self, path: str) -> PacketTable | str:
        """The packets of a video, or why there are none; a Parquet file asks once."""
        with self._lock:
            if self._left is None:
                self._left = _users(self._known.episodes)
            mine = self._reading.setdefault(path, threading.Lock())
        with mine:
            with self._lock:
                found = self._kept.get(path)
            if found is None:
                found = _read(path)
            with self._lock:
                self._left[path] -= 1
                self._kept[path] = found
                if self._left[path] <= 0:
                    del self._kept[path]
                while sum(len(one) for one in self._kept.values()) > MOST_KEPT_PACKETS:
                    self._kept.popitem(last=False)
        return found

    def placed(self, camera: str, path: str, frames: int, *, by_row: bool) -> Placement:
        """Which frame of a video each of its episodes begins with; see ``EpisodeList.placed``."""
        key = (camera, path, by_row)
        with self._lock:
            if key not in self._placed:
                known = self._known
                found = known.episodes.placed(camera, path, frames, known.fps, by_row=by_row)
                self._placed[key] = found
            return self._placed[key]


def _users(episodes: EpisodeList) -> Counter[str]:
    """Video → Parquet files with episodes of it."""
    pairs = {
        (of.file.paths[video], file)
        for of in episodes.videos.values()
        for video, file in set(
            zip(of.file.number.tolist(), episodes.data.number.tolist(), strict=True)
        )
        if video >= 0
    }
    return Counter(video for video, _ in pairs)


def _read(path: str) -> PacketTable | str:
    try:
        return read_packets(path)
    except UnreadableVideoError as error:
        return f"the video cannot be read: {error}"
    except OSError as error:
        return f"the video cannot be read: {error.strerror or error}"


class VideoFrames:
    """The frames of one camera in the episodes of one Parquet file.

    Args:
        shard: the Parquet file.
        camera: the feature.
        videos: of the dataset.
        fps: frames a second.
        by_row: whether no time is looked at (``timestamps: ignore``).

    Attributes:
        notes: what a person should know of the videos.
    """

    def __init__(
        self, shard: str, camera: str, videos: Videos, fps: float, *, by_row: bool = False
    ) -> None:
        self._folder = os.path.dirname(shard)  # noqa: PTH120
        self._camera = camera
        self._videos = videos
        self._fps = fps
        self._by_row = by_row
        self.notes: dict[str, None] = {}
        self._tables: dict[str, PacketTable | str] = {}
        self._packets: dict[int, tuple[dict[str, int], int]] = {}

    def of(self, one: Episode, rows: slice) -> _VideoEpisode:
        """See ``FramesOfFile.of``."""
        del rows
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
        stop = first + one.length
        if self._by_row:
            return _VideoEpisode(self, place.path, table, first)
        off = np.abs(table.shown_s[first:stop] * self._fps - np.arange(first, stop))
        worst = int(np.argmax(off))
        if off[worst] > LARGEST_DRIFT_FRAMES:
            raise DamagedEpisodeError(
                f"{name}: frame {first + worst} is shown at {table.shown_s[first + worst]:.3f} s; "
                f"at {self._fps:g} frames a second it is {(first + worst) / self._fps:.3f} s; "
                "timestamps: ignore takes frames by their number"
            )
        return _VideoEpisode(self, place.path, table, first)

    def base(self, number: int, path: str, table: PacketTable) -> tuple[int, bool]:
        """(where a video's packets begin in a feature's sections, whether they have yet to go in).

        Every feature of the schema that shows frames of a video holds its packets once.
        """
        known, count = self._packets.setdefault(number, ({}, 0))
        if path in known:
            return known[path], False
        known[path] = count
        self._packets[number] = known, count + len(table)
        return count, True

    def place(self, path: str) -> bytes:
        """A video's path from the Parquet file's folder."""
        return os.fsencode(os.path.relpath(path, self._folder))


@dataclass(frozen=True, slots=True)
class _VideoEpisode:
    """See ``EpisodeFrames``; ``first`` is the episode's first frame in its video."""

    camera: VideoFrames
    path: str
    table: PacketTable
    first: int

    def sections(self, number: int, steps: Steps) -> tuple[dict[Section, Any], list[bytes]]:
        """See ``EpisodeFrames.sections``."""
        table = self.table
        key, packet = table.key_of[self.first + steps], table.packet_of[self.first + steps]
        base, new = self.camera.base(number, self.path, table)
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
        return found, [self.camera.place(self.path), table.codec.encode() + b"\0" + table.setup]
