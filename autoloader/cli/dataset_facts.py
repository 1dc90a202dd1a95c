"""What the episodes of a version directory really hold: the first one, and ranges over some.

Reads records as they lie, without TensorFlow. Not here: showing it (``cli.inspect``).
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.decode.depth import UNDECODABLE, depth_values
from autoloader.formats import Feature, ShardSlice, VersionDirectory
from autoloader.formats.features import PARQUET, RAGGED
from autoloader.formats.files import unreadable
from autoloader.formats.lerobot.episodes import Episode
from autoloader.formats.lerobot.metadata import metadata_of
from autoloader.formats.lerobot.parquet import read_columns
from autoloader.formats.lerobot.rows import DamagedEpisodeError, EpisodeRows
from autoloader.formats.lerobot.videos import UnreadableVideoError, read_packets
from autoloader.formats.tfrecord import MalformedRecordError, read_records
from autoloader.samples.transforms.cameras import is_depth_picture
from autoloader.samples.transforms.fields import text_of_points
from autoloader.samples.transforms.rlds import METADATA, camera_numbers, read_episode

MOST_COLUMNS = 64
"""Above this a feature's range is told as a whole, not by column."""
FEW_VALUES = 3
"""A column of no more different values is told with them."""

_WORDS = re.compile(r"instruction|language|task|prompt", re.IGNORECASE)


@dataclass
class ColumnRange:
    """One column of a feature (or all of a wide one) over the steps that were read.

    Attributes:
        column: which, or ``None`` for all columns of a wide feature.
        low, high: the least and the greatest finite value; ``None`` where there is none.
        mean: of the finite values.
        not_finite: how many values are NaN or infinite.
        values: the different values, where there are few.
    """

    column: int | None
    low: float | None
    high: float | None
    mean: float | None
    not_finite: int
    values: list[float] | None


@dataclass
class Picture:
    """One picture of the first episode, as it lies in the file.

    Attributes:
        stored_as: "jpeg", "png", …, of the bytes; "undecodable" where they are no picture.
        height, width: pixels.
        mode: Pillow's word for the channels.
        bytes: encoded.
    """

    stored_as: str
    height: int = 0
    width: int = 0
    mode: str = ""
    bytes: int = 0


@dataclass
class DatasetFacts:
    """What was read.

    Attributes:
        split: where.
        episodes, steps: how many were read.
        damaged: records that could not be.
        first_steps: steps of the first episode.
        first: path → its value at step 0 of the first episode: a list of numbers (``None``
            where one is not finite) or of texts, or a ``Picture``.
        absent: features that ``features.json`` has and the first record lacks, or that no array
            holds.
        texts: path → how many different texts the episodes have.
        ranges: path → a range for each column; over episodes where the episode has it once. Of
            depth pictures, over the frame in the middle of each episode.
        black: cameras whose every looked-at picture is black → pictures looked at.
    """

    split: str = ""
    episodes: int = 0
    steps: int = 0
    damaged: int = 0
    first_steps: int = 0
    first: dict[str, Any] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    texts: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, list[ColumnRange]] = field(default_factory=dict)
    black: dict[str, int] = field(default_factory=dict)


def read_facts(directory: VersionDirectory, split: str, episodes: int) -> DatasetFacts:
    """Facts over the first ``episodes`` episodes of a split of the metadata.

    Raises:
        SourceError: a file cannot be read.
    """
    found = DatasetFacts(split)
    features = directory.features
    texts: dict[str, set[bytes]] = {}
    columns: dict[str, list[NDArray[Any]]] = {}
    pictures: dict[str, list[bool]] = {}
    depths: dict[str, list[NDArray[Any]]] = {}
    read = _payloads if directory.streamable else _lerobot_payloads
    for payload, told in read(directory.splits[split], directory, found):
        try:
            episode, steps, spans = read_episode(payload, features)
        except MalformedRecordError:
            found.damaged += 1
            continue
        found.episodes += 1
        found.steps += steps
        values = dict(_leaves(episode, features))
        frames = {
            path: [payload[first:stop] for first, stop in spans[number].tolist()]
            for path, number in _cameras(features).items()
            if number in spans and told is None
        }
        if found.episodes == 1:
            shown = {path: picture_of(encoded[0]) for path, encoded in frames.items() if encoded}
            _first_episode(found, features, values, shown if told is None else told(), steps)
        for path, listed in values.items():
            rows = listed
            if features[path].encoding == RAGGED and None in features[path].shape:
                rows = np.concatenate(listed.tolist()) if len(listed) else listed
            if features[path].dtype == "string":
                texts.setdefault(path, set()).update(rows.reshape(-1).tolist())
            else:
                columns.setdefault(path, []).append(rows.reshape(len(rows), -1))
        for path, encoded in frames.items():
            if encoded:
                middle = encoded[len(encoded) // 2]
                pictures.setdefault(path, []).append(_is_black(middle))
                if is_depth_picture(features[path]):
                    with contextlib.suppress(*UNDECODABLE):
                        measured = depth_values(middle, features[path])
                        depths.setdefault(path, []).append(measured.reshape(-1))
        if found.episodes == episodes:
            break
    found.texts = {path: len(different) for path, different in texts.items()}
    found.ranges = {
        path: list(column_ranges(np.concatenate(parts))) for path, parts in columns.items()
    }
    for path, frames_of in depths.items():
        found.ranges[path] = [column_range(None, np.concatenate(frames_of))]
    found.black = {path: len(seen) for path, seen in pictures.items() if all(seen)}
    return found


_Pictures = Callable[[], dict[str, Picture]]


def _payloads(
    shards: tuple[ShardSlice, ...], directory: VersionDirectory, found: DatasetFacts
) -> Iterator[tuple[bytes, None]]:
    for shard in shards:
        try:
            for one in read_records(shard.path):
                if one.payload is None:
                    found.damaged += 1
                else:
                    yield one.payload, None
        except OSError as error:
            raise unreadable(error, shard.path, dataset=directory.name) from error


def _lerobot_payloads(
    shards: tuple[ShardSlice, ...], directory: VersionDirectory, found: DatasetFacts
) -> Iterator[tuple[bytes, _Pictures]]:
    """Episodes as records, and what the first picture of each camera is: they hold none."""
    known = metadata_of(directory)
    for shard in shards:
        try:
            examples = EpisodeRows.whole(shard.path, known, by_row=True)
        except DamagedEpisodeError:
            found.damaged += shard.records
            continue
        for one in known.episodes.in_file(shard.path, shard.start, shard.stop):
            try:
                rows, payload = examples.record(one)
            except DamagedEpisodeError:
                found.damaged += 1
                continue
            yield payload, partial(_first_pictures, directory, shard.path, one, rows.start)


def _first_pictures(
    directory: VersionDirectory, path: str, one: Episode, row: int
) -> dict[str, Picture]:
    """The first picture inside the Parquet file, and the first packet of a video."""
    found = {}
    inside = [name for name, one in directory.features.items() if one.encoding == PARQUET]
    table: Any = read_columns(path, lambda _: inside) if inside else None
    for name, feature in directory.features.items():
        if name in inside and (stored := table.column(name)[row].as_py()).get("bytes"):
            found[name] = picture_of(stored["bytes"])
        elif name in one.videos:
            height, width = (int(size or 0) for size in feature.shape[:2])
            with contextlib.suppress(UnreadableVideoError, OSError):
                video = read_packets(one.videos[name].path)
                found[name] = Picture(video.codec, height, width, "RGB", int(video.size[0]))
    return found


def _cameras(features: Mapping[str, Feature]) -> dict[str, int]:
    numbers = camera_numbers(features)
    return {path: numbers[one.key] for path, one in features.items() if one.key in numbers}


def _leaves(
    episode: Mapping[str, Any], features: Mapping[str, Feature]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Path → [T, …] values of all but pictures; what the episode has once is [1, …]."""
    for path, feature in features.items():
        holder: Any = episode if feature.per_step else episode[METADATA]
        rest = path if feature.per_step else path.removeprefix(f"{METADATA}/")
        while isinstance(holder, Mapping) and rest:
            if rest in holder:
                holder, rest = holder[rest], ""
            else:
                head, _, rest = rest.partition("/")
                holder = holder.get(head)
        if holder is None or isinstance(holder, Mapping) or feature.kind == "image":
            continue
        yield path, holder if feature.per_step else _one_row(holder)


def _one_row(value: Any) -> NDArray[Any]:
    if isinstance(value, bytes):
        row = np.empty(1, object)
        row[0] = value
        return row
    return np.asarray(value)[None]


def _first_episode(
    found: DatasetFacts,
    features: Mapping[str, Feature],
    values: Mapping[str, NDArray[Any]],
    pictures: Mapping[str, Picture],
    steps: int,
) -> None:
    found.first_steps = steps
    for path, feature in features.items():
        if path in pictures:
            found.first[path] = pictures[path]
        elif path not in values or not len(values[path]):
            found.absent.append(path)
        elif feature.dtype == "string":
            found.first[path] = [
                text.decode("utf-8", "replace") for text in np.atleast_1d(values[path][0]).tolist()
            ]
        elif _holds_code_points(feature):
            found.first[path] = [text_of_points(values[path][0]).decode("utf-8")]
        else:
            flat = values[path][0].reshape(-1).astype(np.float64).tolist()
            found.first[path] = [one if math.isfinite(one) else None for one in flat]


def _holds_code_points(feature: Feature) -> bool:
    whole = feature.dtype.startswith(("int", "uint")) and len(feature.shape) == 1
    return whole and (feature.shape[0] or 0) > 1 and bool(_WORDS.search(feature.path))


def picture_of(encoded: bytes) -> Picture:
    """What an encoded picture says of itself."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(encoded)) as image:
            name = (image.format or "").lower()
            return Picture(name, image.height, image.width, image.mode, len(encoded))
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError):
        return Picture("undecodable", bytes=len(encoded))


def _is_black(encoded: bytes) -> bool:
    """Whether a picture is all zero, as the placeholder of a camera that is not there."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return not np.asarray(image).any()
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError):
        return not encoded


def column_ranges(rows: NDArray[Any]) -> Iterator[ColumnRange]:
    """A range for each column of [n, width] numbers, or one for all where there are many."""
    wide = rows.shape[1] > MOST_COLUMNS
    parts = [(None, rows)] if wide else [(k, rows[:, k]) for k in range(rows.shape[1])]
    for column, part in parts:
        yield column_range(column, part)


def column_range(column: int | None, part: NDArray[Any]) -> ColumnRange:
    """The range of some numbers of any shape."""
    numbers = part.astype(np.float64).reshape(-1)
    finite = numbers[np.isfinite(numbers)]
    different = np.unique(finite[:1000])
    if len(different) <= FEW_VALUES:
        different = np.unique(finite)
    few = different.tolist() if 0 < len(different) <= FEW_VALUES else None
    return ColumnRange(
        column,
        float(finite.min()) if len(finite) else None,
        float(finite.max()) if len(finite) else None,
        math.fsum(finite) / len(finite) if len(finite) else None,
        len(numbers) - len(finite),
        few,
    )
