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
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from autoloader.catalog import files
from autoloader.catalog.lerobot.parquet import UnreadableParquetError, read_columns
from autoloader.catalog.lerobot.placement import Placement, Span, place
from autoloader.catalog.metadata import LEROBOT_INFO, broken
from autoloader.errors import SourceError
from autoloader.units import MIB

_FIELD = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")
_OLD_FIELDS = ("episode_chunk", "episode_index")
_NEW_FIELDS = ("chunk_index", "file_index")
_LONGEST_LINE = 16 * MIB
MOST_EPISODES = 10**7


@dataclass(frozen=True, slots=True)
class VideoPlace:
    """Where a camera's frames of an episode lie.

    Attributes:
        path: the MP4 file.
        from_s: when the episode begins in it, in seconds.
        to_s: when it ends; ``None`` where the list does not say it.
    """

    path: str
    from_s: float
    to_s: float | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode, as the metadata has it.

    Attributes:
        index: its number in the dataset.
        length: frames.
        path: the Parquet file that holds its rows.
        videos: camera feature → where its frames lie; absent where the list does not say it.
        damage: why the episode cannot be used; "" where its row of the list is whole.
    """

    index: int
    length: int
    path: str
    videos: Mapping[str, VideoPlace]
    damage: str = ""


@dataclass(frozen=True)
class EpisodeList:
    """All episodes of a dataset, by index; ``notes`` are what a person should know of the list."""

    all: tuple[Episode, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def places(self) -> tuple[tuple[str, int], ...]:
        """(Parquet file, which of its episodes) of every episode."""
        count: Counter[str] = Counter()
        found = []
        for one in self.all:
            found.append((one.path, count[one.path]))
            count[one.path] += 1
        return tuple(found)

    @cached_property
    def by_video(self) -> dict[tuple[str, str], tuple[Episode, ...]]:
        """(camera, video) → the episodes that lie there."""
        found: dict[tuple[str, str], list[Episode]] = {}
        for one in self.all:
            for camera, at in one.videos.items():
                found.setdefault((camera, at.path), []).append(one)
        return {key: tuple(own) for key, own in found.items()}

    def placed(
        self, camera: str, path: str, frames: int, fps: float, *, by_row: bool = False
    ) -> Placement:
        """Which frame of a video each of its episodes begins with; see ``placement.place``.

        Args:
            camera: the feature.
            path: the video.
            frames: that it has.
            fps: of the dataset.
            by_row: whether starts are not looked at.
        """
        own = [one for one in self.by_video[camera, path] if one.length]
        spans = []
        for one in own:
            at = one.videos[camera]
            end = None if at.to_s is None else at.to_s * fps
            spans.append(Span(one.index, one.length, at.from_s * fps, end, not one.damage))
        if not spans:
            return Placement({})
        last = own[-1]
        behind = bisect_right(self.all, last.index, key=lambda one: one.index)
        after = self.all[behind] if behind < len(self.all) else None
        followed = (
            after is not None
            and last.videos[camera].to_s is not None  # in v2.1 a video is of one episode alone
            and (after.index > last.index + 1 or camera not in after.videos)
        )
        return place(spans, frames, followed=followed, by_row=by_row)

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
    source = root / "meta"
    _check_version(root, info, dataset=dataset)
    paths = _Paths(root, info, cameras, dataset=dataset)
    try:
        rows = _table(source / "episodes") if paths.several else _lines(source / "episodes.jsonl")
        found = _all_named([paths.episode(row, number) for number, row in enumerate(rows)])
    except OSError as error:
        raise files.unreadable(error, error.filename or str(source), dataset=dataset) from error
    except _BrokenListError as error:
        raise broken(error.file, error.why, dataset=dataset) from error
    except (ValueError, TypeError, KeyError, LookupError) as error:
        why = f"a row has no {error}" if isinstance(error, KeyError) else str(error)[:120]
        raise SourceError(
            f"dataset {dataset}: the list of episodes in {source} is broken: {why}",
            remedy="restore the file from where the dataset came",
            dataset=dataset,
        ) from error
    return _each_once(found, source, dataset=dataset)


def _all_named(found: list[Episode]) -> list[Episode]:
    """The episodes by number; one without a number or a file has those next to it in the list.

    Raises:
        ValueError: no row names a file.
    """
    taken = {one.index for one in found if one.index >= 0}
    path = next((one.path for one in found if one.path), "")
    if found and not path:
        raise ValueError(found[0].damage)
    for row, one in enumerate(found):
        path = one.path or path
        if one.index < 0 or not one.path:
            index = row if one.index < 0 else one.index
            while one.index < 0 and index in taken:
                index += 1
            taken.add(index)
            found[row] = replace(one, index=index, path=path)
    return sorted(found, key=lambda one: one.index)


class _BrokenListError(ValueError):
    """A list cannot be read: its file, and why. Internal: told as a ``SourceError``."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file}: {why}")
        self.file, self.why = str(file), why


def _each_once(found: list[Episode], source: Path, *, dataset: str) -> EpisodeList:
    """The sorted episodes; of an episode that is listed twice in the same words, one.

    Raises:
        SourceError: two rows of an episode differ.
    """
    kept = found[:1]
    again = set()
    for one in found[1:]:
        if one.index != kept[-1].index:
            kept.append(one)
        elif one == kept[-1]:
            again.add(one.index)
        else:
            raise SourceError(
                f"dataset {dataset}: the list of episodes in {source} is broken: episode "
                f"{one.index} stands there twice, with {kept[-1].length} frames in "
                f"{kept[-1].path} and with {one.length} frames in {one.path}",
                remedy="take the row away that does not fit the files",
                dataset=dataset,
            )
    notes: tuple[str, ...] = ()
    if again:
        some = ", ".join(map(str, sorted(again)[:5])) + (", …" if len(again) > 5 else "")
        notes = (f"listed twice in {source}, and taken once: episode {some}",)
    return EpisodeList(tuple(kept), notes)


def _check_version(root: Path, info: Mapping[str, Any], *, dataset: str) -> None:
    """Refuse a list of episodes of another version than ``info.json`` says."""
    told, meta = str(info["codebase_version"]), root / "meta"
    old, new = (meta / "episodes.jsonl").exists(), (meta / "episodes").is_dir()
    if (old, new) == ((True, False) if _several(info) else (False, True)):
        raise broken(
            str(root / LEROBOT_INFO),
            f"its codebase_version is {told}, and the episodes are listed as "
            + ("v2.1 lists them, in meta/episodes.jsonl" if old else "v3.0 does, in meta/episodes"),
            dataset=dataset,
            remedy="convert the whole dataset with lerobot, or restore the info.json that belongs "
            "to these files",
        )


def tasks(root: Path, info: Mapping[str, Any], *, dataset: str) -> dict[int, str]:
    """The text of every task, by its index; at least one.

    Raises:
        SourceError: there is no such list, or it is broken or empty.
        MissingExtraError: it is Parquet, and pyarrow is not installed.
    """
    file = root / "meta" / ("tasks.parquet" if _several(info) else "tasks.jsonl")
    other = file.with_name("tasks.jsonl" if _several(info) else "tasks.parquet")
    found: dict[int, str] = {}
    try:
        for number, text in _task_table(file) if _several(info) else _task_lines(file):
            if not isinstance(text, str):
                raise _BrokenListError(file, f"task {number} has no text")
            if found.setdefault(int(number), text) != text:
                raise _BrokenListError(
                    file,
                    f"task {number} stands there twice, as {found[int(number)]!r} and {text!r}",
                )
    except FileNotFoundError as error:
        why = f"{file.parent} has no {file.name}, which says what the tasks of its frames are"
        if other.exists():
            why += f"; {other.name} is of another version of LeRobot's files"
        raise SourceError(
            f"dataset {dataset}: {why}",
            remedy=f"restore {file.name}, or convert the whole dataset with lerobot; without its "
            "texts leave language out",
            dataset=dataset,
        ) from error
    except OSError as error:
        raise files.unreadable(error, str(file), dataset=dataset) from error
    except (ValueError, LookupError, TypeError) as error:
        why = error.why if isinstance(error, _BrokenListError) else str(error)[:120]
        raise broken(str(file), why, dataset=dataset) from error
    if not found:
        raise broken(str(file), "it lists no task", dataset=dataset)
    return found


def _task_lines(file: Path) -> Iterator[tuple[Any, Any]]:
    for row in _lines(file):
        if "task_index" not in row or "task" not in row:
            raise _BrokenListError(file, "a line has no task_index and task")
        yield row["task_index"], row["task"]


def _task_table(file: Path) -> Iterator[tuple[Any, Any]]:
    table = read_columns(file, lambda names: names, "list_bytes")
    # Writers keep the text as the index of a data frame, whose column has no name of its own.
    others = [name for name in table.column_names if name != "task_index"]
    if len(others) == len(table.column_names) or not others:
        raise _BrokenListError(file, f"its columns are {', '.join(table.column_names)[:80]}")
    texts = "task" if "task" in others else others[0]
    columns = (table.column(name).to_pylist() for name in ("task_index", texts))
    yield from zip(*columns, strict=True)


def _several(info: Mapping[str, Any]) -> bool:
    """Whether a file holds several episodes."""
    return str(info["codebase_version"]) == "v3.0"


class _Paths:
    """The path table of one dataset."""

    def __init__(
        self, root: Path, info: Mapping[str, Any], cameras: list[str], *, dataset: str
    ) -> None:
        self._root = root
        self._cameras = cameras
        self.several = _several(info)
        self._known: dict[str, str] = {}
        self._file, self._dataset = str(root / LEROBOT_INFO), dataset
        self._data = self._template(info, "data_path")
        self._video = self._template(info, "video_path") if cameras else ""
        chunk = info.get("chunks_size") or 1000
        if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
            raise broken(self._file, f"chunks_size is {str(chunk)[:40]}", dataset=dataset)
        self._chunk = chunk

    def _template(self, info: Mapping[str, Any], name: str) -> str:
        """A path with fields in it.

        Raises:
            SourceError: there is none, or it names a field that the version does not have.
        """
        found = info.get(name)
        if not isinstance(found, str) or not found:
            raise broken(self._file, f"it has no {name}", dataset=self._dataset)
        known = _NEW_FIELDS if self.several else _OLD_FIELDS
        for field in (match[1] for match in _FIELD.finditer(found)):
            if field not in (*known, "video_key") or (field == "video_key" and name == "data_path"):
                names = ", ".join(f"{{{one}}}" for one in known)
                raise broken(
                    self._file,
                    f"its {name} names {{{field}}}; paths of {info['codebase_version']} are made "
                    f"of {names}",
                    dataset=self._dataset,
                    remedy=f"write {name} as the files are called, or restore the file",
                )
        return found

    def episode(self, row: Mapping[str, Any], number: int) -> Episode:
        """One episode of the list.

        A null, or what is no number, costs the episode, or a camera of it: the episode is damaged,
        of index -1 and without a path where these are not told, or without a video of the camera.

        Args:
            row: of the list.
            number: of the row.

        Raises:
            ValueError, KeyError: there is no such column at all, or no path below the dataset.
        """
        index = _number(row["episode_index"], MOST_EPISODES)
        length = _number(row["length"], 2**31)
        wrong = {"episode_index": index, "length": length}
        values: dict[str, int | None] = {}
        if self.several:
            values = {name: _number(row[f"data/{name}"]) for name in _NEW_FIELDS}
            wrong |= {f"data/{name}": value for name, value in values.items()}
        elif index is not None:
            values = {"episode_index": index, "episode_chunk": index // self._chunk}
        lost = next((name for name, value in wrong.items() if value is None), None)
        damage = "" if lost is None else f"its {lost} is {row[lost]!r:.40}"
        begin, end = (_number(row.get(f"dataset_{side}_index")) for side in ("from", "to"))
        if not damage and begin is not None and end is not None and end - begin != length:
            damage = f"it has {length} frames, and rows {begin} to {end - 1}"
        if damage:
            damage = f"row {number} of the list of episodes: {damage}"
        path = self._at(self._data, values) or ""
        places = ((camera, self._video_of(camera, row, values)) for camera in self._cameras)
        videos = {camera: place for camera, place in places if place is not None}
        return Episode(-1 if index is None else index, length or 0, path, videos, damage)

    def _video_of(
        self, camera: str, row: Mapping[str, Any], values: Mapping[str, int | None]
    ) -> VideoPlace | None:
        """Where a camera's frames lie; ``None`` where the row does not say it."""
        start: float | None = 0.0
        end = None
        if self.several:
            of = f"videos/{camera}"
            values = {name: _number(row.get(f"{of}/{name}")) for name in _NEW_FIELDS}
            start, end = (_seconds(row.get(f"{of}/{side}_timestamp")) for side in ("from", "to"))
        path = self._at(self._video, {**values, "video_key": camera})
        return None if path is None or start is None else VideoPlace(path, start, end)

    def _at(self, template: str, values: Mapping[str, int | str | None]) -> str | None:
        """The path with these values in it; ``None`` where one of them is not known."""
        if not values or None in values.values():
            return None

        def value(match: re.Match[str]) -> str:
            found = values[match[1]]
            return f"{found:0{int(match[2] or 0)}d}" if isinstance(found, int) else str(found)

        path = _FIELD.sub(value, template)
        parts = path.split("/")
        if "\0" in path or {"", ".", ".."} & set(parts):
            raise ValueError(f"{path[:80]!r} is no path below the dataset")
        whole = os.path.join(self._root, *parts)  # noqa: PTH118  (a path is text here)
        return self._known.setdefault(whole, whole)


def _number(value: Any, limit: int = 2**53) -> int | None:
    """A whole number from 0 to below a limit; ``None`` of anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < limit and value == int(value) else None


def _seconds(value: Any) -> float | None:
    """A time from 0 on; ``None`` of anything else."""
    found = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if found else None


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    with files.opened_regular(file, "list_bytes") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(_LONGEST_LINE), b""), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise _BrokenListError(file, f"line {number} is no JSON: {error}") from error
            if not isinstance(row, Mapping):
                raise _BrokenListError(file, f"line {number} is no JSON object")
            yield row


def _table(folder: Path) -> Iterator[Mapping[str, Any]]:
    found = sorted(folder.glob("*/*.parquet"))
    if not found:
        raise FileNotFoundError(2, "No Parquet file", str(folder))
    for file in found:
        try:
            table = read_columns(
                file,
                lambda names: [name for name in names if not name.startswith("stats/")],
                "list_bytes",
            )
        except UnreadableParquetError as error:
            raise _BrokenListError(file, str(error)) from error
        yield from table.to_pylist()
