"""About how many frames an episode has, from the headers of a few records: an estimate.

Not here: the count (``autoloader.index``, which reads every record of local files once).

An RLDS record holds, for every per-step feature, the values of all T steps in a row, so T is the
number of values of any of them over the values of one step. The cheapest features are asked:
scalars first (``is_first`` and its like are one byte a step), then the smallest numbers, then
byte strings, which must be counted one by one. Up to ``WITNESSES`` of them have to agree.

What is read of a record is a window of ``WINDOW_BYTES`` around each entry's header; the payloads
of images are jumped over. Records that are laid out in an unusual way are read whole and go
through the strict walker. Broken records are passed over.

What was found of remote files, where every header is a round trip, is kept in the user's cache
directory, under the paths, the numbers of records and the features asked.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from autoloader.catalog.cache import cache_root, keep_whole
from autoloader.catalog.example import decode_varints, parse_example, read_varint
from autoloader.catalog.features import Feature
from autoloader.catalog.files import (
    RemoteFile,
    is_remote,
    opened_anywhere,
    pread,
    source_bytes,
    unreadable,
)
from autoloader.catalog.metadata import ShardSlice
from autoloader.catalog.tfrecord import (
    HEADER_BYTES,
    MalformedRecordError,
    read_record,
    walk_records,
)
from autoloader.errors import SourceError

LAYOUT_VERSION = 1
WINDOW_BYTES = 4096
WITNESSES = 3
PROBE_SLICES = 4
PROBE_RECORDS = 8
"""Records that are read from the front of each of ``PROBE_SLICES`` files."""
REMOTE_PROBE_RECORDS = 2
"""The same of remote files."""
_FIRST_CHOICE = ("is_first", "is_last", "is_terminal", "reward", "discount")
_NUMBER_BYTES = {"bool": 1, "int": 2, "uint": 2, "float": 4}


def mean_frames(
    slices: Sequence[ShardSlice], features: Mapping[str, Feature], *, dataset: str = ""
) -> int:
    """About how many frames an episode has, at least 1: the mean of the first ones of a few files.

    Args:
        slices: from ``VersionDirectory.resolve``.
        features: of the same version directory.
        dataset: the name that the spec gives this dataset, for messages.

    Raises:
        SourceError: there is no per-step feature to count, or a file cannot be read.
    """
    witnesses = _witnesses(features)
    if not witnesses:
        raise SourceError(
            f"dataset {dataset}: it has no per-step features, so it holds no episodes"
            if dataset
            else "the dataset has no per-step features, so it holds no episodes",
            remedy="only RLDS datasets (a feature 'steps' with the frames) can be mixed",
            dataset=dataset,
        )
    if not slices or not is_remote(slices[0].path):
        return _mean(slices, witnesses, PROBE_RECORDS, dataset)
    place = _kept_place(slices, witnesses)
    try:
        return int(place.read_text(encoding="ascii"))
    except (OSError, ValueError):
        mean = _mean(slices, witnesses, REMOTE_PROBE_RECORDS, dataset)
        text = str(mean).encode()
        keep_whole(place, lambda file: file.write(text), what="the mean length of episodes")
        return mean


def _mean(
    slices: Sequence[ShardSlice], witnesses: tuple[Feature, ...], records: int, dataset: str
) -> int:
    seen: list[int] = []
    for part in slices[:: -(-len(slices) // PROBE_SLICES) or 1]:
        try:
            seen += _first_counts(part.path, witnesses, records)
        except OSError as error:
            raise unreadable(error, part.path, dataset=dataset) from error
    return max(1, round(float(np.mean(seen)))) if seen else 1


def _kept_place(slices: Sequence[ShardSlice], witnesses: tuple[Feature, ...]) -> Path:
    asked = [(part.path, part.start, part.stop) for part in slices]
    which = [(feature.key, _step_values(feature)) for feature in witnesses]
    name = hashlib.sha256(repr((LAYOUT_VERSION, asked, which)).encode()).hexdigest()[:40]
    return cache_root() / "lengths" / f"{name}.remote"


# -- which features to ask ----------------------------------------------------------------------


def _witnesses(features: Mapping[str, Feature]) -> tuple[Feature, ...]:
    """Per-step features that can be counted, cheapest first."""

    def cost(feature: Feature) -> tuple[int, float, str]:
        size = _step_values(feature)
        if feature.path in _FIRST_CHOICE and size == 1 and _is_plain(feature):
            return 0, _FIRST_CHOICE.index(feature.path), feature.key
        if _is_plain(feature):
            return 1, size * _NUMBER_BYTES.get(feature.dtype.rstrip("0123456789"), 8), feature.key
        return 2, 0 if feature.kind == "text" else 1, feature.key

    usable = [
        feature
        for feature in features.values()
        if feature.per_step and feature.kind != "other" and _step_values(feature) > 0
    ]
    return tuple(sorted(usable, key=cost))


def _is_plain(feature: Feature) -> bool:
    """Whether the numbers lie in the record as they are (not as one string a step)."""
    return feature.kind == "tensor" and feature.encoding is None and feature.dtype != "string"


def _step_values(feature: Feature) -> int:
    """Values in the record for one step; 0 where it depends on the step."""
    if feature.kind in ("image", "text") or feature.encoding is not None:
        return 1
    count = 1
    for size in feature.shape:
        count *= size or 0
    return count


# -- counting -----------------------------------------------------------------------------------


def _first_counts(path: str, witnesses: tuple[Feature, ...], records: int) -> list[int]:
    """Frames of the whole ones of a file's first records."""
    counts = []
    with opened_anywhere(path) as file:
        if isinstance(file, int) and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        window = _Window(file)
        walk = walk_records(file, source_bytes(file), verify=True)
        for _, (start, length, lost) in zip(range(records), walk, strict=False):
            if lost is not None:
                break
            try:
                counts.append(_count_steps(window, start + HEADER_BYTES, length, witnesses))
            except MalformedRecordError:
                continue
    return counts


class _Window:
    """A few bytes of a file, moved to where they are needed."""

    def __init__(self, file: int | RemoteFile) -> None:
        self.file = file
        self._start = 0
        self._data = b""

    def read(self, position: int, count: int) -> bytes:
        """Up to ``count`` bytes at ``position``; fewer at the end of the file."""
        first = position - self._start
        if first < 0 or first + count > len(self._data):
            self._data = pread(self.file, max(count, WINDOW_BYTES), position)
            self._start, first = position, 0
        return self._data[first : first + count]


def _count_steps(window: _Window, offset: int, length: int, witnesses: tuple[Feature, ...]) -> int:
    """Steps of the record at ``offset``. Raises MalformedRecordError."""
    by_key = {feature.key.encode(): feature for feature in witnesses}
    try:
        places = _list_places(window, offset, offset + length, by_key)
        counts: list[tuple[str, int]] = []
        for key, feature in by_key.items():
            if len(counts) == WITNESSES or (counts and not _is_plain(feature)):
                break
            if key in places:
                counts.append((feature.path, _values_at(window, *places[key], feature)))
    except (_UnusualError, MalformedRecordError, IndexError):
        counts = _counts_of_whole(window.file, offset, length, witnesses)
    if not counts:
        raise MalformedRecordError("it has none of the per-step features")
    first, steps = counts[0]
    for path, count in counts[1:]:
        if count != steps:
            raise MalformedRecordError(
                f"its features differ in their number of steps: {first} has {steps}, "
                f"{path} has {count}"
            )
    return steps


class _UnusualError(Exception):
    """Internal: a legal or illegal layout that the fast walk leaves to the strict one."""


def _list_places(
    window: _Window, start: int, stop: int, wanted: Mapping[bytes, Feature]
) -> dict[bytes, tuple[int, int, int]]:
    """(tag of the list, its first byte, the byte behind it) of the wanted keys of a record."""
    places: dict[bytes, tuple[int, int, int]] = {}
    if start == stop:
        return places
    head = window.read(start, min(11, stop - start))
    length, used = read_varint(head, 1)
    position = start + used
    if head[0] != 0x0A or position + length != stop:
        raise _UnusualError
    while position < stop:
        head = window.read(position, min(1024, stop - position))
        if head[0] != 0x0A:
            raise _UnusualError
        length, used = read_varint(head, 1)
        end = position + used + length
        if end > stop or head[used] != 0x0A:
            raise _UnusualError
        length, used = read_varint(head, used + 1)
        key = head[used : used + length]
        if key in wanted:
            used += length
            if head[used] != 0x12:
                raise _UnusualError
            length, used = read_varint(head, used + 1)
            if position + used + length != end or not length:
                raise _UnusualError
            tag = head[used]
            length, used = read_varint(head, used + 1)
            if position + used + length != end:
                raise _UnusualError
            places[key] = (tag, position + used, end)
        elif used + length > end - position:
            raise _UnusualError
        position = end
    return places


def _values_at(window: _Window, tag: int, start: int, stop: int, feature: Feature) -> int:
    """Steps in a list whose place is known."""
    if start == stop:
        return 0
    if not _is_plain(feature):
        raise _UnusualError  # strings have to be counted one by one
    head = window.read(start, min(11, stop - start))
    length, used = read_varint(head, 1)
    if head[0] != 0x0A or start + used + length != stop:
        raise _UnusualError
    if tag == 0x12 and length % 4 == 0:
        count = length // 4
    elif tag == 0x1A:
        data = np.frombuffer(window.read(stop - length, length), np.uint8)
        count = len(decode_varints(data))
    else:
        raise _UnusualError
    return _steps(count, feature)


def _steps(count: int, feature: Feature) -> int:
    size = _step_values(feature)
    if count % size:
        raise MalformedRecordError(
            f"{feature.path} has {count} values, which is no multiple of the {size} of one step"
        )
    return count // size


def _counts_of_whole(
    file: int | RemoteFile, offset: int, length: int, witnesses: tuple[Feature, ...]
) -> list[tuple[str, int]]:
    record = read_record(file, offset, length)
    values = parse_example(record, only={feature.key for feature in witnesses})
    counts = []
    for feature in witnesses:
        value = values.get(feature.key)
        if value is None or value.kind == "missing":
            continue
        if (value.kind == "bytes") == _is_plain(feature):
            raise MalformedRecordError(f"{feature.path} is stored as {value.kind}")
        counts.append((feature.path, _steps(len(value), feature)))
        if len(counts) == WITNESSES:
            break
    return counts
