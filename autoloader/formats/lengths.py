"""Estimates how many frames an episode has, from the headers of a few records.

Not here: the count (``autoloader.index``, which reads every record of local files once).

An RLDS record holds, for every per-step feature, the values of all T steps in a row. So T is the
number of values of any such feature divided by the values of one step. The cheapest features are
read: scalars first (``is_first`` and its like are one byte a step), then the smallest numbers, then
byte strings, which must be counted one by one. Up to ``MOST_FEATURES`` of them have to agree.

A record is parsed in place: only windows of ``WINDOW_BYTES`` around the headers of its entries are
read, and the payloads of images are jumped over. Broken records are passed over.

For remote files every header is a round trip, so their estimate is kept in the user's cache
directory, under the paths, their versions, the numbers of records and the features.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from autoloader.errors import SourceError
from autoloader.formats.cache import JsonCache
from autoloader.formats.example import parse_example
from autoloader.formats.features import RAGGED, Feature
from autoloader.formats.files import (
    RemoteFile,
    is_remote,
    opened_anywhere,
    pread,
    source_bytes,
    unreadable,
    version_of,
)
from autoloader.formats.metadata import ShardSlice
from autoloader.formats.tfrecord import HEADER_BYTES, MalformedRecordError, walk_records

WINDOW_BYTES = 4096
MOST_FEATURES = 3
PROBE_SLICES = 4
PROBE_RECORDS = 8
"""Records that are read from the front of each of ``PROBE_SLICES`` files."""
REMOTE_PROBE_RECORDS = 2
"""The same of remote files."""
_FIRST_CHOICE = ("is_first", "is_last", "is_terminal", "reward", "discount")
_NUMBER_BYTES = {"bool": 1, "int": 2, "uint": 2, "float": 4}
_cache = JsonCache("lengths", version=2)


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
    countable = _countable(features)
    if not countable:
        raise SourceError(
            f"dataset {dataset}: it has no per-step features, so it holds no episodes"
            if dataset
            else "the dataset has no per-step features, so it holds no episodes",
            remedy="only RLDS datasets (a feature 'steps' with the frames) can be mixed",
            dataset=dataset,
        )
    if not slices or not is_remote(slices[0].path):
        return _mean(slices, countable, PROBE_RECORDS, dataset)
    key = (
        [
            (part.path, version_of(part.path, one_by_one=False), part.start, part.stop)
            for part in slices
        ],
        [(feature.key, _step_values(feature)) for feature in countable],
    )
    known = _cache.load(key)
    if isinstance(known, int):
        return known
    mean = _mean(slices, countable, REMOTE_PROBE_RECORDS, dataset)
    _cache.save(key, mean)
    return mean


def _mean(
    slices: Sequence[ShardSlice], countable: Sequence[Feature], records: int, dataset: str
) -> int:
    lengths: list[int] = []
    for part in slices[:: -(-len(slices) // PROBE_SLICES) or 1]:
        try:
            lengths += _first_lengths(part.path, countable, records)
        except OSError as error:
            raise unreadable(error, part.path, dataset=dataset) from error
    return max(1, round(float(np.mean(lengths)))) if lengths else 1


# -- which features are counted -----------------------------------------------------------------


def _countable(features: Mapping[str, Feature]) -> list[Feature]:
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
        if feature.per_step
        and feature.kind != "other"
        and feature.listed is None
        and feature.encoding != RAGGED
        and _step_values(feature) > 0
    ]
    return sorted(usable, key=cost)


def _is_plain(feature: Feature) -> bool:
    """Whether the numbers lie in the record as they are (not as one string a step)."""
    return feature.kind == "tensor" and feature.encoding is None and feature.dtype != "string"


def _step_values(feature: Feature) -> int:
    """Values in the record for one step; 0 where it depends on the step."""
    if feature.kind in ("image", "text") or feature.encoding is not None:
        return 1
    return math.prod(size or 0 for size in feature.shape)


# -- counting -----------------------------------------------------------------------------------


def _first_lengths(path: str, countable: Sequence[Feature], records: int) -> list[int]:
    """Frames of the whole ones of a file's first records."""
    lengths = []
    with opened_anywhere(path) as file:
        if isinstance(file, int) and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        window = _Window(file)
        walk = walk_records(file, len(window), verify=True)
        for _, (start, length, lost) in zip(range(records), walk, strict=False):
            if lost is not None:
                break
            try:
                lengths.append(_count_steps(window, start + HEADER_BYTES, length, countable))
            except MalformedRecordError:
                continue
    return lengths


class _Window:
    """A file as ``parse_example`` takes it, of which only the bytes that it looks at are read."""

    def __init__(self, file: int | RemoteFile) -> None:
        self._file = file
        self._size = source_bytes(file)
        self._start = 0
        self._data = b""

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, which: int | slice) -> int | bytes:
        if isinstance(which, slice):
            return self._read(which.start, which.stop - which.start)
        return self._read(which, 1)[0]

    def _read(self, position: int, count: int) -> bytes:
        first = position - self._start
        if first < 0 or first + count > len(self._data):
            self._data = pread(self._file, max(count, WINDOW_BYTES), position)
            self._start, first = position, 0
        return self._data[first : first + count]


def _count_steps(window: _Window, offset: int, length: int, countable: Sequence[Feature]) -> int:
    """Steps of the record at ``offset``, on which the cheapest features that it has agree.

    Raises:
        MalformedRecordError: it is broken, or has none of the features.
    """
    plain = [feature for feature in countable if _is_plain(feature)]
    for asked in (plain[:MOST_FEATURES], countable):
        keys = {feature.key for feature in asked}
        found = parse_example(window, start=offset, stop=offset + length, only=keys)
        steps: dict[int, str] = {}
        for feature in asked:
            value = found.get(feature.key)
            if value is None or value.kind == "missing":
                continue
            size = _step_values(feature)
            if (value.kind == "bytes") == _is_plain(feature) or len(value) % size:
                raise MalformedRecordError(
                    f"{feature.path} holds {len(value)} values as {value.kind}, {size} a step"
                )
            steps.setdefault(len(value) // size, feature.path)
        if len(steps) > 1:
            raise MalformedRecordError(f"its features differ in their number of steps: {steps}")
        if steps:
            return next(iter(steps))
    raise MalformedRecordError("it has none of the per-step features")
