"""``autoloader inspect``: what a dataset holds, before a spec is written for it.

Records are read as they lie, without TensorFlow.

Not here: datasets below a folder (``formats.sources``), a spec of one (``process.draft``).
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from autoloader.cli.output import answered, emit_document, note
from autoloader.decode.depth import UNDECODABLE, depth_values
from autoloader.decode.frames import is_black
from autoloader.errors import UsageError, nearest
from autoloader.formats import DatasetFormat, Feature, ShardSlice, open_source
from autoloader.formats.features import RAGGED
from autoloader.formats.files import normal, reading, refuse_stand_ins
from autoloader.formats.frames import ArrayPicture, PackedPicture, VideoFrame
from autoloader.formats.records import MalformedRecordError, RecordPlace
from autoloader.formats.sources import dataset_versions
from autoloader.samples.transforms.binding import is_depth_picture, is_depth_tensor
from autoloader.samples.transforms.fields import text_of_points
from autoloader.samples.transforms.rlds import camera_numbers, read_rows
from autoloader.telemetry import progress

MOST_COLUMNS = 64
"""Above this a feature's range is told as a whole, not by column."""
FEW_VALUES = 4
"""A column of no more different values is told with them."""
_RANGES = ("feature", "column", "low", "mean", "high", "values", "not_finite")
_DECLARED = ("kind", "dtype", "shape", "encoding", "per_step")
_LONGEST_TEXT = 60
_MOST_NUMBERS = 8
_WORDS = re.compile(r"instruction|language|task|prompt", re.IGNORECASE)
_MODES = {1: "L", 3: "RGB"}
_NO_PICTURE = (OSError, Image.DecompressionBombError)


@progress.told("reading the dataset")
def show_dataset(directory: Path, split: str | None, episodes: int) -> None:
    """Show what one dataset holds.

    Args:
        directory: version directory, or a folder that holds one dataset.
        split: split that is read; ``None``: train, or the first.
        episodes: number of episodes that are read for the ranges.
    """
    found = _only_version(directory)
    counts = {name: sum(part.records for part in parts) for name, parts in found.splits.items()}
    full = [name for name, count in counts.items() if count]
    if split is not None and split not in counts:
        raise UsageError(
            f"--split {split}: the dataset has no such split", remedy=nearest(split, counts)
        )
    chosen = split or ("train" if "train" in full else next(iter(full), ""))
    if counts.get(chosen):
        shards = found.splits[chosen]
        found.require([shards[0], shards[-1]])
        refuse_stand_ins([shards[0].path, shards[-1].path], dataset=found.name)
    facts = read_facts(found, chosen, episodes) if counts.get(chosen) else None
    splits = {
        name: {"episodes": count, "shards": len(found.splits[name])}
        for name, count in counts.items()
    }
    declared = {
        path: {key: getattr(one, key) for key in _DECLARED} for path, one in found.features.items()
    }
    document: dict[str, Any] = {
        "name": found.name, "version": found.version, "path": found.path, "splits": splits,
    }  # fmt: skip
    videos = found.missing_videos()
    document["missing_videos"] = videos and videos.told("the metadata names")
    if answered({**document, "features": declared, "read": asdict(facts) if facts else None}):
        return
    features = {
        path: {"kind": one.kind if one.per_step else f"{one.kind}, once", "type": one.dtype,
               "shape": "×".join(map(str, one.shape)).replace("None", "?") or "scalar",
               "first step of the first episode": _told(path, facts)}
        for path, one in found.features.items()
    }  # fmt: skip
    read = _ranges(facts) if facts else {}
    if videos is None:
        del document["missing_videos"]
    emit_document({**document, "features": features, **read}, {"ranges": _RANGES})


def _only_version(place: Path) -> DatasetFormat:
    """The version directory at or below ``place``, the newest of one dataset.

    Raises:
        UsageError: there are several datasets.
        SourceError: there is none, or it cannot be read.
    """
    places = [versions[0] for versions in dataset_versions(normal(place), note)]
    if len(places) > 1:
        raise UsageError(
            f"{normal(place)} holds {len(places)} datasets",
            remedy="give the path of one: " + ", ".join(map(str, places)),
        )
    path = places[0] if places else Path(normal(place))
    return open_source(path if places else place, dataset=path.parent.name or path.name)


def _told(path: str, facts: DatasetFacts | None) -> str:
    """A feature's value at the first step, for people; "" where no episode was read."""
    if facts is None or path not in facts.first:
        return "(not in the record)" if facts and facts.episodes else ""
    value = facts.first[path]
    if isinstance(value, Picture):
        size = f"{value.stored_as} {value.height}×{value.width} {value.mode}, {value.bytes} bytes"
        return size + (", BLACK in every episode read" if path in facts.black else "")
    if value and isinstance(value[0], str):
        text = "; ".join(repr(one) for one in value)
        return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
    shown = ", ".join(
        "not finite" if number is None else f"{number:.4g}" for number in value[:_MOST_NUMBERS]
    )
    return shown + (f", … ({len(value)})" if len(value) > _MOST_NUMBERS else "")


def _ranges(facts: DatasetFacts) -> dict[str, Any]:
    """Ranges, as ``emit_document`` shows them."""
    rows = [
        {"feature": path, **one, "column": "all" if one["column"] is None else one["column"]}
        for path, columns in facts.ranges.items()
        for one in columns
    ]
    read = (
        f"first episode of {facts.split}: {facts.first_steps} steps. Ranges over "
        f"{facts.episodes} episodes, {facts.steps} steps"
    )
    return {"read": read, "ranges": rows}


@dataclass
class Picture:
    """One picture of the first episode, as it lies in the file.

    Attributes:
        stored_as: "jpeg", "png", …, of the bytes; "undecodable" where they are no picture.
        height, width: size in pixels; 0 where unknown.
        mode: Pillow's word for the channels.
        bytes: number of encoded bytes.
    """

    stored_as: str
    height: int = 0
    width: int = 0
    mode: str = ""
    bytes: int = 0


@dataclass
class DatasetFacts:
    """Facts of a dataset, from the episodes that were read.

    Attributes:
        split: name of the split that was read.
        episodes, steps: number of episodes, and of their steps, that were read.
        first_steps: number of steps of the first episode.
        first: path → its value at step 0 of the first episode: a list of numbers (``None``
            where one is not finite) or of texts, or a ``Picture``.
        absent: features that ``features.json`` has and the first record lacks, or whose value
            is no array.
        ranges: path → ``column_range`` of each column; ``None`` stands for all columns of a wide
            feature. Over episodes where the episode has it once. Of depth pictures, over the frame
            in the middle of each episode.
        black: cameras of which every picture looked at is black → number of these pictures.
    """

    split: str = ""
    episodes: int = 0
    steps: int = 0
    first_steps: int = 0
    first: dict[str, Any] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    ranges: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    black: dict[str, int] = field(default_factory=dict)


def read_facts(directory: DatasetFormat, split: str, episodes: int) -> DatasetFacts:
    """Facts over the first ``episodes`` episodes of a split of the metadata.

    Raises:
        SourceError: a file cannot be read.
    """
    found, features = DatasetFacts(split), directory.features
    numbers = camera_numbers(features)
    columns: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
    dark: defaultdict[str, list[bool]] = defaultdict(list)
    for place, payload in _records(directory, directory.splits[split]):
        try:
            rows_of, steps, spans = read_rows(payload, features)
        except MalformedRecordError:
            continue
        found.episodes += 1
        found.steps += steps
        values = {path: of for path, of in rows_of.items() if features[path].kind != "image"}
        cameras = {path: numbers.get(one.key) for path, one in features.items()}
        frames = {
            path: [payload[first:stop] for first, stop in spans[number].tolist()]
            for path, number in cameras.items()
            if number in spans and directory.streamable and len(spans[number])
        }
        if found.episodes == 1:
            found.first_steps = steps
            shown = {path: picture_of(encoded[0]) for path, encoded in frames.items()}
            first: dict[str, Any] = (
                shown if directory.streamable else _first_pictures(directory, place)
            )
            told = {path: rows[0] for path, rows in values.items() if len(rows)}
            first |= {path: _first_value(value, features[path]) for path, value in told.items()}
            found.first = {path: first[path] for path in features if path in first}
            found.absent = [path for path in features if path not in found.first]
        for path, rows in values.items():
            if features[path].encoding == RAGGED and None in features[path].shape and len(rows):
                rows = np.concatenate(rows.tolist())
            if features[path].dtype != "string":
                columns[path].append(rows.reshape(len(rows), -1))
        for path, encoded in frames.items():
            middle = encoded[len(encoded) // 2]
            dark[path].append(is_black(middle))
            if is_depth_picture(features[path]):
                with contextlib.suppress(*UNDECODABLE):
                    columns[path].append(depth_values(middle, features[path]).reshape(-1, 1))
        if found.episodes == episodes:
            break
    for path, parts in columns.items():
        rows = np.concatenate(parts)
        split_up = rows.shape[1] <= MOST_COLUMNS and path not in dark
        each = [(k, rows[:, k]) for k in range(rows.shape[1])] if split_up else [(None, rows)]
        found.ranges[path] = [{"column": at, **column_range(part)} for at, part in each]
    found.black = {path: len(seen) for path, seen in dark.items() if all(seen)}
    return found


def _records(
    directory: DatasetFormat, shards: Sequence[ShardSlice]
) -> Iterator[tuple[RecordPlace, bytes]]:
    """``DatasetFormat.records``; a file that cannot be read raises ``SourceError``."""
    with reading(directory.path, dataset=directory.name):
        yield from directory.records(shards)


def _first_pictures(directory: DatasetFormat, place: RecordPlace) -> dict[str, Picture]:
    """The first picture of each camera of an episode whose record does not hold them."""
    found = {}
    for name, feature in directory.features.items():
        depth = is_depth_tensor(feature) and feature.encoding is not None
        if feature.kind != "image" and not depth:
            continue
        with contextlib.suppress(ValueError, LookupError, OSError):
            (frame,) = directory.first_frames(*place, feature.key, 1)
            height, width = (int(size or 0) for size in feature.shape[:2])
            if depth:
                found[name] = Picture("raw", height, width, feature.dtype, len(frame))
            elif isinstance(frame, VideoFrame):
                size = frame.packets[0][1]
                found[name] = Picture(frame.codec.name, height, width, "RGB", size)
            elif isinstance(frame, ArrayPicture):
                stored, size = frame.stored(), len(frame)
                found[name] = (
                    picture_of(stored.tobytes())
                    if frame.codec.encoded
                    else Picture("raw", len(stored), len(stored[0]), _MODES[stored.shape[2]], size)
                )
            else:
                found[name] = picture_of(
                    frame.picture() if isinstance(frame, PackedPicture) else frame
                )
    return found


def _first_value(value: Any, feature: Feature) -> list[Any]:
    """A value of the first step: texts, or numbers (``None`` where one is not finite)."""
    if feature.dtype == "string":
        return [text.decode("utf-8", "replace") for text in np.atleast_1d(value).tolist()]
    codes = feature.dtype.startswith(("int", "uint")) and len(feature.shape) == 1
    if codes and (feature.shape[0] or 0) > 1 and _WORDS.search(feature.path):
        return [text_of_points(value).decode("utf-8")]
    flat = value.reshape(-1).astype(np.float64).tolist()
    return [one if math.isfinite(one) else None for one in flat]


def picture_of(encoded: bytes | memoryview) -> Picture:
    """Format and size that an encoded picture says of itself."""
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            name = (image.format or "").lower()
            return Picture(name, image.height, image.width, image.mode, len(encoded))
    except _NO_PICTURE:
        return Picture("undecodable", bytes=len(encoded))


def column_range(part: NDArray[Any]) -> dict[str, Any]:
    """Range of numbers of any shape: low, high, mean, not_finite, values.

    "values" are the different values, where these are few. All but "not_finite" are ``None`` where
    no number is finite.
    """
    numbers = part.astype(np.float64).reshape(-1)
    finite = numbers[np.isfinite(numbers)]
    found: dict[str, Any] = dict.fromkeys(("low", "high", "mean", "values"))
    if len(finite):
        different = np.unique(finite)
        low, high = float(different[0]), float(different[-1])
        few = different.tolist() if len(different) <= FEW_VALUES else None
        found |= {"low": low, "high": high, "values": few}
        found["mean"] = math.fsum(finite) / len(finite)
    return {**found, "not_finite": len(numbers) - len(finite)}
