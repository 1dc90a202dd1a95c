"""LeRobot datasets (v2.0, v2.1, v3.0): Parquet columns, MP4 videos and JSON or Parquet metadata.

A Parquet file under ``data/`` is a shard: in v2.0 and v2.1 it holds one episode, in v3.0 several.
Its records are its episodes, in their order.

Not here: TFDS directories (``formats.tfds``), decoding (``decode.frames``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from autoloader.formats import files
from autoloader.formats.dataset import DatasetFormat, MissingVideos, PlainReader, ShardSlice, broken
from autoloader.formats.episodes import GiveEpisode, identity_of
from autoloader.formats.features import TASKS, VIDEO, Feature
from autoloader.formats.frames import Encoded
from autoloader.formats.lerobot.metadata import (
    EPISODE,
    INFO_FILE,
    Episode,
    EpisodeList,
    LeRobotMetadata,
    features_of,
    metadata_digest,
    read_episodes,
    read_info,
    task_column,
)
from autoloader.formats.lerobot.parquet import read_pictures
from autoloader.formats.lerobot.tables import EpisodesOfFile, Videos
from autoloader.formats.places import folder_name
from autoloader.formats.plain import LazyPicture, Step, pixels_of
from autoloader.formats.tables import SourceIdentity, Wanted
from autoloader.formats.videos import first_frames_of, mapped
from autoloader.host.extras import needs
from autoloader.spec.model import Timestamps

_RANGE = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True)
class LeRobotDirectory(LeRobotMetadata):
    """A LeRobot dataset; see ``DatasetFormat``."""

    title: ClassVar[str] = "LeRobot"
    marker: ClassVar[str] = INFO_FILE
    hub_folders: ClassVar[tuple[str, ...]] = ("meta/", "data/", "videos/")
    numbered: ClassVar[bool] = True

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

    @cached_property
    def _videos(self) -> Videos:
        return Videos(self.episodes)

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
            place = one.videos[camera]
            return first_frames_of(place.path, round(place.from_s * self.fps), count)
        lengths = self.episodes.length[self.episodes.data.rows_in(path)]
        first = int(lengths[:record].sum())
        table = read_pictures(path, camera, int(lengths.sum()), most=first + count)
        return table.pictures(mapped(path), slice(first, first + count))

    def plain_reader(self, timestamps: Timestamps = "check") -> LeRobotReader:
        """See ``DatasetFormat``."""
        return LeRobotReader(self, timestamps)

    @cached_property
    def cameras_without_files(self) -> tuple[str, ...]:
        """See ``DatasetFormat``."""
        videos = self.episodes.videos
        return tuple(
            one
            for one in self.cameras
            if self.features[one].encoding == VIDEO
            and not any(map(os.path.exists, videos[one].paths))
        )

    @property
    def episode_numbers(self) -> Sequence[int]:
        """See ``DatasetFormat``."""
        numbers: list[int] = self.episodes.index.tolist()
        return numbers

    def told_of(self, shard: str, record: int) -> Mapping[str, str]:
        """See ``DatasetFormat``: the number of the episode."""
        return {EPISODE: str(self.episodes.at(shard, record).index)}

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
            SourceError: as ``check_texts``; the first and the last video are pointers of Git LFS or
                the like.
        """
        self.check_texts(texts)
        ends = ((slices[0].path, slices[0].start), (slices[-1].path, slices[-1].stop - 1))
        edges = [self.episodes.at(path, record) for path, record in ends]
        for camera in cameras:
            places = [place for one in edges if (place := one.videos.get(camera)) is not None]
            files.refuse_stand_ins([place.path for place in places], dataset=self.dataset)

    def check_texts(self, texts: Iterable[Feature]) -> None:
        """See ``DatasetFormat``.

        Raises:
            SourceError: texts of tasks are taken, and no list says what they are.
        """
        if any(feature.encoding == TASKS for feature in texts):
            _ = self.tasks  # read now: a list that is missing or broken is refused here

    def missing_videos(
        self,
        cameras: Collection[str] | None = None,
        slices: Sequence[ShardSlice] | None = None,
    ) -> MissingVideos | None:
        """See ``DatasetFormat``."""
        episodes, rows = self.episodes, np.arange(len(self.episodes))
        if slices is not None:
            rows = episodes.data.rows_of(slices)
        lost, named, missing = np.zeros(len(rows), np.bool_), set[str](), set[str]()
        for key, of in episodes.videos.items():
            if cameras is None or key in cameras:
                taken = np.unique(of.number[rows])
                paths = {of.paths[one] for one in taken.tolist() if one >= 0}
                gone = [path in paths and not Path(path).exists() for path in of.paths]
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


def _slices(episodes: EpisodeList, rows: NDArray[np.int64], split: str) -> tuple[ShardSlice, ...]:
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
        path, known = one.videos[camera].path, self.directory
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
