"""Metadata of a LeRobot dataset: features, frame rate, tasks, and where each episode lies.

``meta/info.json`` has the features, the frame rate, the splits and the templates of all paths.

    v2.0, v2.1   meta/episodes.jsonl, a line an episode; one Parquet file and one MP4 a camera each
    v3.0         meta/episodes/**.parquet, a row an episode; files hold several, one after another

Only the table of paths differs between the versions. The list of episodes may have millions of
rows, so it is read and kept by columns; an ``Episode`` is made where somebody asks for one.

Not here: splits and rows (``lerobot``), the packets of a video (``videos``).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError
from autoloader.formats import files
from autoloader.formats.dataset import ShardSlice, broken, read_json
from autoloader.formats.features import PARQUET, TASK, TASKS, VIDEO, Feature, FeatureKind
from autoloader.formats.lerobot.parquet import read_columns, values_of
from autoloader.formats.lerobot.videos import Placement, Spans, place
from autoloader.host.frozen import frozen
from autoloader.host.units import MIB

Ints = NDArray[np.int64]

INFO_FILE = "meta/info.json"
"""File that every LeRobot dataset has."""
VERSIONS = ("v2.0", "v2.1", "v3.0")
EPISODE = "episode_metadata/episode_index"
"""Path of the one feature that an episode has once: its number, for rules and functions."""
MOST_EPISODES = 10**7
_ANNOTATION = "annotation."
"""Integers under such names are numbers of tasks, as GR00T writes them."""
_DTYPES = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
_FIELD = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")
_OLD_FIELDS = ("episode_chunk", "episode_index")
_NEW_FIELDS = ("chunk_index", "file_index")
_NEEDED = ("episode_index", "length")
_ROWS = ("dataset_from_index", "dataset_to_index")
_TIMES = ("from_timestamp", "to_timestamp")
_LONGEST_LINE = 16 * MIB


@frozen
class Episode:
    """One episode, as the metadata has it.

    Attributes:
        index: number of the episode in the dataset.
        length: number of frames of the episode.
        path: the Parquet file that holds its rows.
        videos: camera feature → (path of the MP4 file, time at which the episode begins in it, in
            seconds); absent where the list does not say it.
        damage: reason why the episode cannot be used; "": it can.
    """

    index: int
    length: int
    path: str
    videos: Mapping[str, tuple[str, float]]
    damage: str = ""


@dataclass(frozen=True, eq=False)
class FileColumn:
    """In which file of a kind each episode lies.

    Attributes:
        number: [E] int32 place of the file in ``paths``; -1 where the list does not say it.
        paths: paths of the files, each once.
    """

    number: NDArray[np.int32]
    paths: Sequence[str]

    @cached_property
    def _by_file(self) -> tuple[Ints, Ints, dict[str, int]]:
        """(rows in the order of their files, where each file begins there, path → number)."""
        order = np.argsort(self.number, kind="stable")
        begins = np.searchsorted(self.number[order], np.arange(len(self.paths) + 1))
        return order, begins, {path: number for number, path in enumerate(self.paths)}

    def rows_in(self, path: str) -> Ints:
        """Rows of the list whose episodes lie in a file; they ascend."""
        order, begins, numbers = self._by_file
        number = numbers[path]
        return order[begins[number] : begins[number + 1]]

    def rows_of(self, slices: Iterable[ShardSlice]) -> NDArray[np.int64]:
        """Episodes in stretches of files, in their order."""
        rows = [self.rows_in(one.path)[one.start : one.stop] for one in slices]
        return np.concatenate([np.empty(0, np.int64), *rows])

    @cached_property
    def records(self) -> Ints:
        """[E] which of its file's episodes each is."""
        order, begins, _ = self._by_file
        found = np.empty_like(order)
        found[order] = np.arange(len(order)) - begins[self.number[order]]
        return found


@dataclass(frozen=True, eq=False)
class VideoColumn(FileColumn):
    """Places of a camera's frames of every episode.

    Attributes:
        from_s: [E] float64 begin of the episode in its video, in seconds.
        to_s: [E] float64 end in seconds; NaN where the list does not say it.
    """

    from_s: NDArray[np.float64]
    to_s: NDArray[np.float64]

    def place(self, row: int) -> tuple[str, float] | None:
        """See ``Episode.videos``; ``None`` where the list does not say it."""
        number = self.number[row]
        return None if number < 0 else (self.paths[number], float(self.from_s[row]))


@dataclass(frozen=True, eq=False)
class EpisodeList:
    """All episodes of a dataset, a row each, by their numbers.

    Attributes:
        index: [E] int64 numbers of the episodes, which ascend.
        length: [E] int64 number of frames.
        data: Parquet file of each episode.
        videos: camera feature → its videos.
        damage: row → why the episode cannot be used; absent where its row of the list is whole.
    """

    index: Ints
    length: Ints
    data: FileColumn
    videos: Mapping[str, VideoColumn]
    damage: Mapping[int, str]

    def __len__(self) -> int:
        """E."""
        return len(self.index)

    def __getitem__(self, row: int) -> Episode:
        """The episode of a row."""
        places = ((camera, of.place(row)) for camera, of in self.videos.items())
        return Episode(
            int(self.index[row]),
            int(self.length[row]),
            self.data.paths[self.data.number[row]],
            {camera: place for camera, place in places if place is not None},
            self.damage.get(row, ""),
        )

    def at(self, path: str, record: int) -> Episode:
        """An episode of a Parquet file."""
        return self[int(self.data.rows_in(path)[record])]

    def videos_of(self, path: str, cameras: Iterable[str]) -> set[str]:
        """The videos of a Parquet file's episodes; a camera that has none is passed over."""
        rows = self.data.rows_in(path)
        own = (self.videos[camera] for camera in cameras if camera in self.videos)
        return {of.paths[k] for of in own for k in set(of.number[rows].tolist()) if k >= 0}

    def placed(
        self, camera: str, path: str, frames: int, fps: float, *, by_row: bool = False
    ) -> Placement:
        """First frame of each episode of a video; see ``videos.place``.

        Args:
            camera: feature that holds the videos.
            path: path of the video.
            frames: number of the video's frames.
            fps: frame rate of the dataset.
            by_row: true if starts by time are ignored.
        """
        videos = self.videos[camera]
        own = videos.rows_in(path)
        own = own[self.length[own] > 0]
        if not len(own):
            return Placement({})
        last, after = own[-1], own[-1] + 1
        followed = bool(
            after < len(self)
            and not math.isnan(videos.to_s[last])  # in v2.1 a video is of one episode alone
            and (self.index[after] > self.index[last] + 1 or videos.number[after] < 0)
        )
        sure = np.asarray([row not in self.damage for row in own.tolist()], np.bool_)
        start, end = videos.from_s[own] * fps, videos.to_s[own] * fps
        spans = Spans(self.index[own], self.length[own], start, end, sure)
        return place(spans, frames, followed=followed, by_row=by_row)


def metadata_digest(root: Path) -> bytes:
    """Hash of the content of ``info.json`` and of the lists of tasks and episodes."""
    found = hashlib.blake2b(digest_size=16)
    meta = root / "meta"
    lists = (meta.glob(name) for name in ("tasks.*", "episodes.jsonl", "episodes/*/*.parquet"))
    for file in [root / INFO_FILE, *sorted(file for each in lists for file in each)]:
        try:
            content = files.read_local(file, "list_bytes")
        except OSError:  # whoever needs the file says why
            continue
        found.update(b"%b\0%d\0" % (os.fsencode(file.relative_to(root)), len(content)))
        found.update(content)
    return found.digest()


def read_info(root: Path, *, dataset: str) -> Mapping[str, Any]:
    """``meta/info.json``, checked as far as paths and times need it.

    Raises:
        SourceError: the file is broken, or of a version that is not known.
    """
    file = str(root / INFO_FILE)
    info = read_json(file, dataset=dataset)
    version = str(info.get("codebase_version"))
    if version not in VERSIONS:
        raise SourceError(
            f"dataset {dataset}: {root} is a LeRobot dataset of version {version[:20]}, which is "
            "not supported",
            remedy=f"convert it with lerobot to one of: {', '.join(VERSIONS)}",
        )
    if info.get("storage_format") == "lance":
        raise SourceError(
            f"dataset {dataset}: {root} holds Lance tables (storage_format in {INFO_FILE}), "
            "which are not supported",
            remedy="give the dataset of Parquet files that it was converted from; or read it with "
            "lerobot[lancedb], and write its frames again with LeRobotDataset.create",
        )
    fps = info.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < 1e6:
        why = f"fps is {fps!r:.40}, not a number above 0"
        raise broken(file, why, dataset=dataset, remedy="set fps to a number, such as 30")
    if not isinstance(info.get("features"), Mapping):
        raise broken(file, "it lists no features", dataset=dataset)
    return info


def features_of(info: Mapping[str, Any], root: Path, *, dataset: str) -> dict[str, Feature]:
    """The features of ``info.json`` by path, the task's text and the episode's number included.

    Raises:
        SourceError: a feature has no type and shape.
    """
    features = {}
    for name, node in info["features"].items():
        try:
            features[name] = _feature(str(name), node)
        except (KeyError, TypeError, ValueError) as error:
            why = f"feature {str(name)[:80]!r} has no dtype and shape"
            raise broken(str(root / INFO_FILE), why, dataset=dataset) from error
    features[EPISODE] = Feature(EPISODE, EPISODE, "tensor", "int64", (), None, per_step=False)
    if "task_index" in features and TASK not in features:
        features[TASK] = Feature(TASK, TASK, "text", "string", (), TASKS, per_step=True)
    return features


def task_column(feature: str) -> str:
    """The column with the numbers of the tasks whose texts a feature is."""
    return "task_index" if feature == TASK else feature


def _feature(name: str, node: Mapping[str, Any]) -> Feature:
    """A feature from its entry in ``info.json``."""
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
        dtype = "uint16" if depth else "uint8"
        return Feature(name, name, "image", dtype, shape, encoding, per_step=True)
    numbers_tasks = name.startswith(_ANNOTATION) and "int" in dtype and math.prod(shape) == 1
    if dtype == "string" or numbers_tasks:
        stored = TASKS if numbers_tasks else None
        return Feature(name, name, "text", "string", (), stored, per_step=True)
    kind: FeatureKind = "tensor" if dtype in _DTYPES and min(shape, default=1) >= 0 else "other"
    columns = _column_names(node.get("names"), math.prod(shape))
    return Feature(name, name, kind, dtype, shape, None, per_step=True, columns=columns)


def _column_names(told: Any, width: int) -> tuple[str, ...]:
    """Names of a feature's columns, as a list, ``[[…]]``, ``{motors: […]}`` or ``{name: 0, …}``."""
    if isinstance(told, Mapping):
        told = list(told) if len(told) == width else list(told.values())
    if isinstance(told, list) and len(told) == 1 and isinstance(told[0], list):
        told = told[0]
    named = isinstance(told, list) and len(told) == width and all(isinstance(n, str) for n in told)
    return tuple(told) if named else ()


def _are_channels(size: int) -> bool:
    """True if a dimension may be a picture's channels; not all writers name them."""
    return size in (1, 3)


# -- the list of episodes -----------------------------------------------------------------------


def read_episodes(root: Path, info: Mapping[str, Any], *, dataset: str) -> EpisodeList:
    """The episodes of the dataset in ``root``, in the order of their numbers.

    A null, or what is no number, costs the episode, or a camera of it: the camera has no video,
    the episode is damaged. It has the file of the episode before where that is not told.

    Args:
        root: the directory that holds ``meta``.
        info: content of the file ``meta/info.json``.
        dataset: the name that the spec gives this dataset, for messages.

    Raises:
        SourceError: the list is missing or broken.
        MissingExtraError: the list is Parquet, and pyarrow is not installed.
    """
    cameras = [
        str(name)
        for name, node in info["features"].items()
        if isinstance(node, Mapping) and node.get("dtype") == "video"
    ]
    fault = partial(broken, str(root / INFO_FILE), dataset=dataset)
    source = root / "meta" / ("episodes" if _several(info) else "episodes.jsonl")
    if not source.exists():
        raise fault(
            f"its codebase_version is {info['codebase_version']}, and {source}, the list of "
            "episodes in that version, is missing",
            remedy=f"copy {source.name} there, or the info.json that belongs to these files; or "
            "convert the dataset with lerobot",
        )
    data = _template(info, "data_path", fault)
    video = _template(info, "video_path", fault) if cameras else ""
    chunk = info.get("chunks_size") or 1000
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise fault(f"chunks_size is {chunk!r:.40}, not a whole number above 0")
    with _readable(source, dataset):
        listed = (
            _parquet_columns(source, cameras, dataset) if _several(info) else _json_columns(source)
        )
        numbers = _numbers(listed)
        rows = np.argsort(numbers, kind="stable")
        again = rows[1:][np.diff(numbers[rows]) == 0]
        if len(again):
            raise broken(
                str(source),
                f"episode {numbers[again[0]]} is listed twice, the second time in row {again[0]}",
                dataset=dataset,
                remedy="remove the row that does not match the files",
            )
        listed = {name: column[rows] for name, column in listed.items()}
        index = _whole(listed, "episode_index", MOST_EPISODES)
        told = {"episode_index": index, "length": _whole(listed, "length", 2**31)}
        keys = {"episode_index": index, "episode_chunk": index // min(chunk, MOST_EPISODES)}
        if _several(info):
            keys = {name: _whole(listed, f"data/{name}") for name in _NEW_FIELDS}
            told |= {f"data/{name}": values for name, values in keys.items()}
        damage = _damage(listed, told, rows)
        own = _files(root, data, keys)
        videos = {
            camera: _videos_of(camera, listed, keys, partial(_files, root, video))
            for camera in cameras
        }
        named = own.number >= 0
        if not named.all():
            if not named.any():
                raise ValueError(next(iter(damage.values())))
            known = np.where(named, np.arange(len(index)), np.argmax(named))
            own = FileColumn(own.number[np.maximum.accumulate(known)], own.paths)
        return EpisodeList(numbers[rows], np.maximum(told["length"], 0), own, videos, damage)


@contextmanager
def _readable(source: Path, dataset: str) -> Iterator[None]:
    """Words what goes wrong while a list is read as a ``SourceError``."""
    try:
        with files.reading(str(source), dataset=dataset):
            yield
    except (ValueError, TypeError, LookupError) as error:
        why = f"a row has no {error}" if isinstance(error, KeyError) else str(error)[:120]
        raise broken(str(source), why, dataset=dataset) from error


def _numbers(listed: _Columns) -> Ints:
    """[E] number of each episode; where none is told, that of its row or the next free one."""
    index = _whole(listed, "episode_index", MOST_EPISODES)
    lost = np.flatnonzero(index < 0).tolist()
    taken = set(index.tolist()) if lost else set()
    for row in lost:
        index[row] = next(number for number in count(row) if number not in taken)
        taken.add(int(index[row]))
    return index


def read_tasks(root: Path, info: Mapping[str, Any], *, dataset: str) -> dict[int, str]:
    """The text of every task, by its index; at least one.

    Raises:
        SourceError: there is no such list, or it is broken or empty.
        MissingExtraError: the list is Parquet, and pyarrow is not installed.
    """
    file = root / "meta" / ("tasks.parquet" if _several(info) else "tasks.jsonl")
    found: dict[int, str] = {}
    try:
        with _readable(file, dataset):
            for number, text in (_task_table if _several(info) else _task_lines)(file):
                if not isinstance(text, str):
                    raise ValueError(f"task {number} has no text")  # noqa: TRY004
                first = found.setdefault(int(number), text)
                if first != text:
                    raise ValueError(f"task {number} is listed twice, as {first!r} and {text!r}")
    except SourceError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise SourceError(
            f"dataset {dataset}: {file.parent} has no {file.name}, which holds the texts of "
            "the tasks",
            remedy=f"copy {file.name} there, or convert the dataset again with lerobot; to train "
            "without texts, remove language from the dataset in the spec",
        ) from error
    if not found:
        raise broken(str(file), "it lists no task", dataset=dataset)
    return found


def _task_lines(file: Path) -> Iterator[tuple[Any, Any]]:
    return ((row["task_index"], row["task"]) for row in _lines(file))


def _task_table(file: Path) -> Iterator[tuple[Any, Any]]:
    """(index, text) of the tasks in a Parquet file."""
    table = read_columns(file, lambda names: names, "list_bytes")
    # Writers keep the text as the index of a data frame, whose column has no name of its own.
    others = [name for name in table.column_names if name != "task_index"]
    if len(others) == len(table.column_names) or not others:
        raise ValueError(f"it has {', '.join(table.column_names)[:80]}, not task_index and a text")
    texts = "task" if "task" in others else others[0]
    columns = (table.column(name).to_pylist() for name in ("task_index", texts))
    return zip(*columns, strict=True)


def _several(info: Mapping[str, Any]) -> bool:
    """True if files of the dataset's version hold several episodes."""
    return str(info["codebase_version"]) == "v3.0"


_Columns = Mapping[str, NDArray[np.float64]]
"""Column of the list of episodes → [E] its numbers, exact below 2**53; NaN of anything else."""


def _whole(listed: _Columns, name: str, limit: int = 2**53) -> Ints:
    """[E] whole numbers of a column from 0 to below a limit; -1 where there is none."""
    found = listed[name]
    known = (found >= 0) & (found < limit) & (found == np.floor(found))
    return np.where(known, found, -1).astype(np.int64)


def _seconds(listed: _Columns, name: str) -> NDArray[np.float64]:
    """[E] times of a column from 0 on; NaN where there is none."""
    found = listed[name]
    return np.where((found >= 0) & (found < 1e9), found, np.nan)


def _floats(column: Any) -> NDArray[np.float64]:
    """[n] numbers of a column, Python's or pyarrow's; see ``_Columns``."""
    if not isinstance(column, list):
        from pyarrow import types

        if types.is_integer(column.type) or types.is_floating(column.type):
            return np.asarray(values_of(column), np.float64)
        column = column.to_pylist()
    number = (int, float)  # and no bool
    return np.asarray(
        [one if type(one) in number and abs(one) <= 2**53 else np.nan for one in column], np.float64
    )


def _template(info: Mapping[str, Any], name: str, fault: Callable[..., SourceError]) -> str:
    """A path, whose fields are to be filled in by ``%``.

    Raises:
        SourceError: there is none, or it names a field that the version does not have.
    """
    found = info.get(name)
    if not isinstance(found, str) or not found:
        raise fault(f"it has no {name}")
    known = _NEW_FIELDS if _several(info) else _OLD_FIELDS
    allowed = known if name == "data_path" else (*known, "video_key")
    for other in (match[1] for match in _FIELD.finditer(found)):
        if other not in allowed:
            names = ", ".join(f"{{{one}}}" for one in known)
            raise fault(
                f"its {name} has the field {{{other}}}; in {info['codebase_version']} a path "
                f"has {names}",
                remedy=f"correct {name} so that it fits the names of the files",
            )

    def filled(match: re.Match[str]) -> str:
        return "%(video_key)s" if match[1] == "video_key" else f"%({match[1]})0{match[2] or 0}d"

    return _FIELD.sub(filled, found.replace("%", "%%"))


def _videos_of(
    camera: str, listed: _Columns, keys: Mapping[str, Ints], files_of: Callable[..., FileColumn]
) -> VideoColumn:
    """Places of a camera's frames; ``keys`` are of the Parquet files."""
    of, known = f"videos/{camera}", next(iter(keys.values()))
    from_s, to_s = np.zeros(len(known)), np.full(len(known), np.nan)
    if _NEW_FIELDS[0] in keys:
        from_s, to_s = (_seconds(listed, f"{of}/{name}") for name in _TIMES)
        numbers = {name: _whole(listed, f"{of}/{name}") for name in _NEW_FIELDS}
        keys = {one: np.where(np.isnan(from_s), -1, values) for one, values in numbers.items()}
    file = files_of(keys, video_key=camera)
    return VideoColumn(file.number, file.paths, from_s, to_s)


def _files(root: Path, template: str, keys: Mapping[str, Ints], **names: str) -> FileColumn:
    """The files whose paths have these numbers in them; none where one is below 0."""
    folder = os.path.join(root, "")  # noqa: PTH118  (a path is text here)
    of = np.stack(list(keys.values()), axis=1)
    begins = np.ones(len(of), np.bool_)
    begins[1:] = np.any(of[1:] != of[:-1], axis=1)
    first = np.flatnonzero(begins)
    found: dict[str, int] = {}
    numbers = np.full(len(first), -1, np.int32)
    for stretch, values in enumerate(of[first].tolist()):
        if min(values) >= 0:
            path = folder + template % {**names, **dict(zip(keys, values, strict=True))}
            numbers[stretch] = found.setdefault(path, len(found))
    if found:  # the others differ in digits alone
        path = next(iter(found)).removeprefix(folder)
        if "\0" in path or {"", ".", ".."} & set(path.split("/")):
            raise ValueError(f"{path[:80]!r} is not a path below the dataset")
    return FileColumn(np.repeat(numbers, np.diff(np.append(first, len(of)))), tuple(found))


def _damage(listed: _Columns, told: Mapping[str, Ints], rows: Ints) -> dict[int, str]:
    """Row → why its episode cannot be used: numbers are not told, or contradict each other."""
    length, begin, end = told["length"], *(_whole(listed, name) for name in _ROWS)
    found = {}
    for row in np.flatnonzero((begin >= 0) & (end >= 0) & (end - begin != length)).tolist():
        found[row] = f"length is {length[row]}, but its rows are {begin[row]} to {end[row] - 1}"
    for name in reversed(list(told)):
        for row in np.flatnonzero(told[name] < 0).tolist():
            found[row] = f"{name} is not a whole number of at least 0"
    return {one: f"row {rows[one]} of the list of episodes: {why}" for one, why in found.items()}


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    """Objects of a file of JSON lines."""
    with files.opened_regular(file, "list_bytes") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(_LONGEST_LINE), b""), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                why = str(error).partition(": line ")[0]  # a line of its own
                raise ValueError(f"line {number} is not JSON: {why}") from error
            if not isinstance(row, Mapping):
                raise TypeError(f"line {number} is not a JSON object")
            yield row


def _json_columns(file: Path) -> _Columns:
    """The columns of a list that is lines of JSON. Raises KeyError of one that is not there."""
    rows = list(_lines(file))
    needed = {name: _floats([row[name] for row in rows]) for name in _NEEDED}
    return needed | {name: _floats([row.get(name) for row in rows]) for name in _ROWS}


def _parquet_columns(folder: Path, cameras: Sequence[str], dataset: str) -> _Columns:
    """The columns of a list that is Parquet. Raises KeyError of one that is not there."""
    of = [f"videos/{camera}" for camera in cameras]
    needed = [*_NEEDED, *(f"data/{name}" for name in _NEW_FIELDS)]
    others = [*_ROWS, *(f"{one}/{name}" for one in of for name in (*_NEW_FIELDS, *_TIMES))]
    found = sorted(folder.glob("*/*.parquet"))
    if not found:
        raise FileNotFoundError(2, "No Parquet file", str(folder))
    parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in (*needed, *others)}
    for file in found:
        with _readable(file, dataset):
            table = read_columns(
                file, lambda names: [name for name in names if name in parts], "list_bytes"
            )
        rows, there = table.num_rows, set(table.column_names)
        for name, values in parts.items() if rows else ():
            if name in needed and name not in there:
                raise KeyError(name)
            own = _floats(table.column(name)) if name in there else np.full(rows, np.nan)
            values.append(own)
    return {name: np.concatenate([np.empty(0), *values]) for name, values in parts.items()}
