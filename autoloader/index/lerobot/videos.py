"""Where the frames of episodes lie in videos.

Step i of an episode is frame round(from_s × fps) + i of its video. That is checked: against the
number of frames, the times at which the video shows them, and the other episodes of the same file.

Not here: reading packets (``catalog.lerobot.packets``), decoding (``decode.video``).
"""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoloader.catalog.lerobot.episodes import Episode, EpisodeList
from autoloader.catalog.lerobot.metadata import LeRobotMetadata
from autoloader.catalog.lerobot.packets import PacketTable, UnreadableVideoError, read_packets
from autoloader.catalog.lerobot.rows import LARGEST_DRIFT_FRAMES, DamagedEpisodeError
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

Span = tuple[int, int, int]
"""First frame, the frame behind the last, and the index of the episode that they belong to."""


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
        self._clashes: dict[tuple[str, str], dict[int, tuple[Span, Span]]] | None = None

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

    def clash(self, camera: str, path: str, one: Episode) -> tuple[Span, Span] | None:
        """The frames of an episode, and another's that are partly the same; mostly ``None``."""
        with self._lock:
            if self._clashes is None:
                self._clashes = _clashes(self._known)
        return self._clashes.get((camera, path), {}).get(one.index)


def _users(episodes: EpisodeList) -> Counter[str]:
    """Video → Parquet files with episodes of it."""
    pairs = {(place.path, one.path) for one in episodes.all for place in one.videos.values()}
    return Counter(video for video, _ in pairs)


def _read(path: str) -> PacketTable | str:
    try:
        return read_packets(path)
    except UnreadableVideoError as error:
        return f"the video cannot be read: {error}"
    except OSError as error:
        return f"the video cannot be read: {error.strerror or error}"


def _clashes(known: LeRobotMetadata) -> dict[tuple[str, str], dict[int, tuple[Span, Span]]]:
    """Camera and video → episode → its frames, and those of one that wants some of them too."""
    taken: dict[tuple[str, str], list[Span]] = {}
    for one in known.episodes.all:
        for camera, place in one.videos.items():
            first = round(place.from_s * known.fps)
            if one.length:
                span = (first, first + one.length, one.index)
                taken.setdefault((camera, place.path), []).append(span)
    found: dict[tuple[str, str], dict[int, tuple[Span, Span]]] = {}
    for key, spans in taken.items():
        spans.sort()
        farthest = spans[0]
        for span in spans[1:]:
            if span[0] < farthest[1]:
                of = found.setdefault(key, {})
                of.setdefault(span[2], (span, farthest))
                of.setdefault(farthest[2], (farthest, span))
            if span[1] > farthest[1]:
                farthest = span
    return found


class VideoFrames:
    """The frames of one camera in the episodes of one Parquet file.

    Args:
        shard: the Parquet file.
        camera: the feature.
        videos: of the dataset.
        fps: frames a second.
    """

    def __init__(self, shard: str, camera: str, videos: Videos, fps: float) -> None:
        self._folder = os.path.dirname(shard)  # noqa: PTH120
        self._camera = camera
        self._videos = videos
        self._fps = fps
        self._tables: dict[str, PacketTable | str] = {}
        self._packets: dict[int, tuple[dict[str, int], int]] = {}

    def of(self, one: Episode, rows: slice) -> _VideoEpisode:
        """See ``FramesOfFile.of``."""
        del rows
        place = one.videos.get(self._camera)
        if place is None:
            raise DamagedEpisodeError(f"{self._camera} has no video")
        name = f"{self._camera}, {'/'.join(place.path.split('/')[-2:])}"
        if place.path not in self._tables:
            self._tables[place.path] = self._videos.table(place.path)
        table = self._tables[place.path]
        if isinstance(table, str):
            raise DamagedEpisodeError(f"{name}: {table}")
        if (clash := self._videos.clash(self._camera, place.path, one)) is not None:
            (first, stop, _), (start, end, other) = clash
            raise DamagedEpisodeError(
                f"{name}: frames {first} to {stop - 1} are of episode {one.index}, and "
                f"{start} to {end - 1} of episode {other}"
            )
        first = round(place.from_s * self._fps)
        stop = first + one.length
        if stop > len(table):
            raise DamagedEpisodeError(
                f"{name}: it has {len(table)} frames, and episode {one.index} wants {first} to "
                f"{stop - 1}"
            )
        off = np.abs(table.shown_s[first:stop] * self._fps - np.arange(first, stop))
        worst = int(np.argmax(off))
        if off[worst] > LARGEST_DRIFT_FRAMES:
            raise DamagedEpisodeError(
                f"{name}: frame {first + worst} is shown at {table.shown_s[first + worst]:.3f} s; "
                f"at {self._fps:g} frames a second it is {(first + worst) / self._fps:.3f} s"
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
