"""The episodes of a LeRobot dataset: how long each is, and in which files its rows and videos lie.

    v2.0, v2.1   meta/episodes.jsonl, a line an episode; one Parquet file and one MP4 a camera each
    v3.0         meta/episodes/**.parquet, a row an episode; files hold several, one after another

Only the table of paths differs between the versions.

Not here: features and splits (``metadata``), the rows themselves (``index.lerobot``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autoloader.catalog import files
from autoloader.catalog.lerobot.parquet import read_columns
from autoloader.errors import SourceError

_FIELD = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")
MOST_EPISODES = 10**7


@dataclass(frozen=True, slots=True)
class VideoPlace:
    """Where a camera's frames of an episode lie.

    Attributes:
        path: the MP4 file.
        from_s: when the episode begins in it, in seconds.
    """

    path: str
    from_s: float


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode, as the metadata has it.

    Attributes:
        index: its number in the dataset.
        length: frames.
        path: the Parquet file that holds its rows.
        videos: camera feature → where its frames lie.
    """

    index: int
    length: int
    path: str
    videos: Mapping[str, VideoPlace]


@dataclass(frozen=True)
class EpisodeList:
    """All episodes of a dataset, by index."""

    all: tuple[Episode, ...]

    @cached_property
    def by_file(self) -> dict[str, tuple[Episode, ...]]:
        """Parquet file → its episodes in their order; files in the order of their first ones."""
        found: dict[str, list[Episode]] = {}
        for one in self.all:
            found.setdefault(one.path, []).append(one)
        return {path: tuple(own) for path, own in found.items()}


def read_episodes(root: Path, info: Mapping[str, Any], *, dataset: str) -> EpisodeList:
    """The episodes of the dataset in ``root``.

    Args:
        root: the directory that holds ``meta``.
        info: ``meta/info.json``.
        dataset: the name that the spec gives this dataset, for messages.

    Raises:
        SourceError: the list is missing or broken.
        MissingExtraError: it is Parquet, and pyarrow is not installed.
    """
    cameras = [
        str(name)
        for name, node in info["features"].items()
        if isinstance(node, Mapping) and node.get("dtype") == "video"
    ]
    paths = _Paths(root, info, cameras)
    source = root / "meta"
    try:
        rows = _table(source / "episodes") if paths.several else _lines(source / "episodes.jsonl")
        found = [paths.episode(row) for row in rows]
    except OSError as error:
        raise files.unreadable(error, error.filename or str(source), dataset=dataset) from error
    except (ValueError, TypeError, KeyError, LookupError) as error:
        raise SourceError(
            f"dataset {dataset}: the list of episodes in {source} is broken: "
            f"{type(error).__name__}: {str(error)[:120]}",
            remedy="restore the file from where the dataset came",
            dataset=dataset,
        ) from error
    found.sort(key=lambda one: one.index)
    return EpisodeList(tuple(found))


def tasks(root: Path, info: Mapping[str, Any]) -> dict[int, str]:
    """The text of every task, by its index.

    Raises:
        OSError, ValueError, LookupError, TypeError: there is no such list, or it is broken.
    """
    if not _several(info):
        rows = list(_lines(root / "meta" / "tasks.jsonl"))
        return {int(row["task_index"]): str(row["task"]) for row in rows}
    table = read_columns(root / "meta" / "tasks.parquet", lambda names: names)
    # Writers keep the text as the index of a data frame, whose column has no name of its own.
    texts = next(name for name in table.column_names if name != "task_index")
    numbers = table.column("task_index").to_pylist()
    return {
        int(number): str(text)
        for number, text in zip(numbers, table.column(texts).to_pylist(), strict=True)
    }


def _several(info: Mapping[str, Any]) -> bool:
    """Whether a file holds several episodes."""
    return str(info["codebase_version"]) == "v3.0"


class _Paths:
    """The path table of one dataset."""

    def __init__(self, root: Path, info: Mapping[str, Any], cameras: list[str]) -> None:
        self._root = root
        self._cameras = cameras
        self._data = str(info["data_path"])
        self._video = str(info.get("video_path") or "")
        self._chunk = int(info.get("chunks_size") or 1000)
        self.several = _several(info)
        self._known: dict[str, str] = {}

    def episode(self, row: Mapping[str, Any]) -> Episode:
        """One episode of the list.

        Raises:
            ValueError, KeyError, TypeError: the row does not say where it lies.
        """
        index, length = int(row["episode_index"]), int(row["length"])
        if not 0 <= index < MOST_EPISODES or not 0 <= length < 2**31:
            raise ValueError(f"episode {index} has {length} frames")
        values = {"episode_index": index, "episode_chunk": index // self._chunk}
        if self.several:
            values = _numbers(row, "data")
        videos = {}
        for camera in self._cameras:
            of = _numbers(row, f"videos/{camera}") if self.several else values
            start = float(row[f"videos/{camera}/from_timestamp"]) if self.several else 0.0
            if not 0 <= start < 1e9:
                raise ValueError(f"episode {index} begins at {start} s of {camera}")
            videos[camera] = VideoPlace(self._at(self._video, {**of, "video_key": camera}), start)
        return Episode(index, length, self._at(self._data, values), videos)

    def _at(self, template: str, values: Mapping[str, int | str]) -> str:
        def value(match: re.Match[str]) -> str:
            found = values[match[1]]
            return found if isinstance(found, str) else f"{found:0{int(match[2] or 0)}d}"

        path = _FIELD.sub(value, template)
        parts = path.split("/")
        if "\0" in path or {"", ".", ".."} & set(parts):
            raise ValueError(f"{path[:80]!r} is no path below the dataset")
        whole = os.path.join(self._root, *parts)  # noqa: PTH118  (a path is text here)
        return self._known.setdefault(whole, whole)


def _numbers(row: Mapping[str, Any], what: str) -> dict[str, int]:
    return {name: int(row[f"{what}/{name}"]) for name in ("chunk_index", "file_index")}


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _table(folder: Path) -> Iterator[Mapping[str, Any]]:
    found = sorted(folder.glob("*/*.parquet"))
    if not found:
        raise FileNotFoundError(2, "No Parquet file", str(folder))
    for file in found:
        table = read_columns(
            file, lambda names: [name for name in names if not name.startswith("stats/")]
        )
        yield from table.to_pylist()
