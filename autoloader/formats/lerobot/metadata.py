"""Metadata of a LeRobot dataset, as a ``VersionDirectory``.

``meta/info.json`` has the features, the frame rate, the splits and the templates of all paths. A
Parquet file under ``data/`` is a shard: in v2.0 and v2.1 it holds one episode, in v3.0 several.
Its records are its episodes, in their order.

Not here: the list of episodes (``episodes``), the packets of a video (``videos``).
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError
from autoloader.formats import files
from autoloader.formats.directories import folder_name
from autoloader.formats.features import PARQUET, TASKS, VIDEO, Feature, FeatureKind
from autoloader.formats.lerobot.episodes import EpisodeList, read_episodes, tasks
from autoloader.formats.metadata import (
    LEROBOT,
    LEROBOT_INFO,
    MissingVideos,
    ShardSlice,
    VersionDirectory,
    broken,
    read_json,
)

VERSIONS = ("v2.0", "v2.1", "v3.0")
TASK = "task"
"""Path of the feature that holds the text of each frame's task."""
EPISODE = "episode_metadata/episode_index"
"""Path of the one feature that an episode has once: its number, for rules and functions."""
_ANNOTATION = "annotation."
"""Integers under such names are numbers of tasks, as GR00T writes them."""
_RANGE = re.compile(r"(\d+):(\d+)")
_DTYPES = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


@dataclass(frozen=True)
class LeRobotDirectory(VersionDirectory):
    """A LeRobot dataset; see ``VersionDirectory``.

    Attributes:
        info: content of the file ``meta/info.json``.
        episodes: list of all episodes.
        digest: hash of the content of every metadata file that an index is made from.
    """

    streamable: ClassVar[bool] = False
    numbered: ClassVar[bool] = True
    texts_only: ClassVar[bool] = True

    info: Mapping[str, Any] = field(kw_only=True, compare=False, repr=False)
    episodes: EpisodeList = field(kw_only=True, compare=False, repr=False)
    digest: bytes = field(kw_only=True, compare=False, repr=False)

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
        found = tasks(Path(self.path), self.info, dataset=self.dataset)
        return {number: text.encode() for number, text in found.items()}

    @cached_property
    def tasks_if_listed(self) -> dict[int, bytes] | None:
        """``tasks``; ``None`` where reading them raises, for readers that can go without."""
        try:
            return self.tasks
        except SourceError:
            return None

    @cached_property
    def cameras(self) -> tuple[str, ...]:
        """Features that are pictures, in the order of their names."""
        return tuple(sorted(path for path, one in self.features.items() if one.kind == "image"))

    @cached_property
    def cameras_without_files(self) -> tuple[str, ...]:
        """See ``VersionDirectory``."""
        videos = self.episodes.videos
        return tuple(
            one
            for one in self.cameras
            if self.features[one].encoding == VIDEO
            and not any(map(os.path.exists, videos[one].paths))
        )

    @property
    def episode_numbers(self) -> Sequence[int]:
        """See ``VersionDirectory``."""
        numbers: list[int] = self.episodes.index.tolist()
        return numbers

    def episode_number(self, shard: str, record: int) -> int | None:
        """See ``VersionDirectory``."""
        return self.episodes.at(shard, record).index

    def with_episodes(self, numbers: Sequence[int]) -> VersionDirectory:
        """See ``VersionDirectory``."""
        episodes = self.episodes
        wanted = np.isin(episodes.index, np.asarray(numbers, np.int64))
        splits = {}
        for name, pieces in self.splits.items():
            rows = [episodes.data.rows_in(one.path)[one.start : one.stop] for one in pieces]
            every = np.concatenate([np.empty(0, np.int64), *rows])
            splits[name] = _slices(episodes, every[wanted[every]], name)
        return replace(self, splits=splits)

    def check_first(
        self, slices: Sequence[ShardSlice], cameras: Collection[str], texts: Iterable[Feature]
    ) -> None:
        """See ``VersionDirectory``.

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
        """See ``VersionDirectory``.

        Raises:
            SourceError: texts of tasks are taken, and no list says what they are.
        """
        if any(feature.encoding == TASKS for feature in texts):
            assert self.tasks, "a list without a task is refused"

    def missing_videos(self) -> MissingVideos | None:
        """See ``VersionDirectory``."""
        videos = self.episodes.videos.values()
        named = {path for of in videos for path in of.paths}
        missing = {path for path in named if not Path(path).exists()}
        if not missing:
            return None
        count = len(self.episodes)
        lost = np.zeros(count, np.bool_)
        for of in videos:
            gone = [path in missing for path in of.paths]
            lost |= np.asarray([*gone, False])[of.number]  # the last: no video is told
        return MissingVideos(min(missing), len(missing), len(named), int(lost.sum()), count)

    def _require(self, slices: Sequence[ShardSlice]) -> None:
        """Nothing: a file that is not there costs its episodes."""


def open_lerobot(path: str | Path, *, dataset: str) -> VersionDirectory:
    """Reads the metadata of a LeRobot dataset.

    Args:
        path: the directory that holds ``meta/info.json``; local.
        dataset: the name that the spec gives this dataset, for messages.

    Raises:
        SourceError: it is broken, or of a version that is not known.
        MissingExtraError: it is of v3.0, whose metadata is Parquet, and pyarrow is not installed.
    """
    root = Path(files.normal(path))
    digest = _digest(root)  # of what is read after it: metadata edited meanwhile makes it stale
    info = _read_info(root, dataset=dataset)
    features = _features(info, root, dataset=dataset)
    episodes = read_episodes(root, info, dataset=dataset)
    splits, notes = _splits(info, root, episodes, dataset=dataset)
    return LeRobotDirectory(
        name=folder_name(root),
        version=str(info["codebase_version"]),
        path=str(root),
        features=features,
        splits=splits,
        record_bytes={},
        file_format=LEROBOT,
        dataset=dataset,
        steps={
            path: tuple(episodes.length[episodes.data.rows_in(path)].tolist())
            for path in episodes.data.paths
        },
        notes=(*episodes.notes, *notes),
        info=info,
        episodes=episodes,
        digest=digest,
    )


def _digest(root: Path) -> bytes:
    """Hash of the content of ``info.json`` and of the lists of tasks and episodes."""
    found = hashlib.blake2b(digest_size=16)
    meta = root / "meta"
    lists = (meta.glob(name) for name in ("tasks.*", "episodes.jsonl", "episodes/*/*.parquet"))
    for file in [root / LEROBOT_INFO, *sorted(file for each in lists for file in each)]:
        try:
            content = files.read_local(file, "list_bytes")
        except OSError:  # whoever needs the file says why
            continue
        found.update(b"%b\0%d\0" % (os.fsencode(file.relative_to(root)), len(content)))
        found.update(content)
    return found.digest()


def metadata_of(directory: VersionDirectory) -> LeRobotDirectory:
    """A directory that is known to be of LeRobot, by its own type."""
    assert isinstance(directory, LeRobotDirectory), "only LeRobot datasets are asked"
    return directory


def _read_info(root: Path, *, dataset: str) -> Mapping[str, Any]:
    """``meta/info.json``, checked as far as paths and times need it.

    Raises:
        SourceError: it is broken, or of a version that is not known.
    """
    file = str(root / LEROBOT_INFO)
    info = read_json(file, dataset=dataset)
    version = str(info.get("codebase_version"))
    if version not in VERSIONS:
        raise SourceError(
            f"dataset {dataset}: {root} is a LeRobot dataset of version {version[:20]}",
            remedy=f"convert it with lerobot to one of: {', '.join(VERSIONS)}",
            dataset=dataset,
        )
    fps = info.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < 1e6:
        why = f"fps is {fps!r:.40}, and no number above 0"
        raise broken(file, why, dataset=dataset, remedy="write the frames a second as a number")
    if not isinstance(info.get("features"), Mapping):
        raise broken(file, "it lists no features", dataset=dataset)
    return info


def _features(info: Mapping[str, Any], root: Path, *, dataset: str) -> dict[str, Feature]:
    features = {}
    for name, node in info["features"].items():
        try:
            features[name] = _feature(str(name), node)
        except (KeyError, TypeError, ValueError) as error:
            why = f"feature {str(name)[:80]!r} has no dtype and shape"
            raise broken(str(root / LEROBOT_INFO), why, dataset=dataset) from error
    features[EPISODE] = Feature(EPISODE, EPISODE, "tensor", "int64", (), None, per_step=False)
    if "task_index" in features and TASK not in features:
        features[TASK] = Feature(TASK, TASK, "text", "string", (), TASKS, per_step=True)
    return features


def task_column(feature: str) -> str:
    """The column with the numbers of the tasks whose texts a feature is."""
    return "task_index" if feature == TASK else feature


def _feature(name: str, node: Mapping[str, Any]) -> Feature:
    dtype, shape = str(node["dtype"]), tuple(int(size) for size in node["shape"])
    if dtype in (VIDEO, "image"):
        encoding = VIDEO if dtype == VIDEO else PARQUET
        told = [node.get("info"), node.get("video_info"), node]
        depth = any(
            one.get("video.is_depth_map") or one.get("is_depth_map")
            for one in told
            if isinstance(one, Mapping)
        )
        names = [str(each).rstrip("s") for each in node.get("names") or []]
        if len(shape) == 3 and (
            names[:1] == ["channel"] or _are_channels(shape[0]) > _are_channels(shape[-1])
        ):
            shape = (*shape[1:], shape[0])
        return Feature(
            name, name, "image", "uint16" if depth else "uint8", shape, encoding, per_step=True
        )
    if dtype == "string":
        return Feature(name, name, "text", "string", (), None, per_step=True)
    if name.startswith(_ANNOTATION) and "int" in dtype and math.prod(shape) == 1:
        return Feature(name, name, "text", "string", (), TASKS, per_step=True)
    kind: FeatureKind = "tensor" if dtype in _DTYPES and min(shape, default=1) >= 0 else "other"
    return Feature(name, name, kind, dtype, shape, None, per_step=True)


def _are_channels(size: int) -> bool:
    """True of a dimension that may be a picture's channels; not all writers name it."""
    return size in (1, 3)


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
        raise broken(str(root / LEROBOT_INFO), "its splits are no mapping", dataset=dataset)
    ranges = {}
    for name, text in told.items():
        match = _RANGE.fullmatch(str(text))
        if match is None or not int(match[1]) <= int(match[2]):
            why = f"split {str(name)[:40]!r} is {str(text)[:40]!r}, not FIRST:LAST"
            raise broken(str(root / LEROBOT_INFO), why, dataset=dataset)
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
