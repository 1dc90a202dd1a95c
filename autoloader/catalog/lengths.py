"""Frames of every episode, without decoding any: walked headers, cached per shard file.

Not here: which frames a sample may start at (``autoloader.sampling``), the byte ranges of frames
(``autoloader.index``).

An RLDS record holds, for every per-step feature, the values of all T steps in a row, so T is the
number of values of any of them over the values of one step. The cheapest features are asked:
scalars first (``is_first`` and its like are one byte a step), then the smallest numbers, then
byte strings, which must be counted one by one. Up to ``WITNESSES`` of them have to agree.

What is read of a record is a window of ``WINDOW_BYTES`` around each entry's header; the payloads
of images are jumped over. Records that are laid out in an unusual way are read whole and go
through the strict walker, which also words what is wrong with broken ones. Payload checksums are
not verified: damage elsewhere in a record is found when it is read.

The cache is a file per shard file in the user's cache directory: an ``[N + 2] int32`` array whose
last two are the CRC-32C of the others and the layout's version. Its name is a hash of the shard
file's path, size, modification time and of the features asked. A file with damage is not cached.

Remote files are never counted, only probed: a record's few headers are round trips each. What a
probe found is kept too, under the paths, the numbers of records and the features asked.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

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
PROBE_RECORDS = 8
"""Records that a probe reads, from the front of each of ``PROBE_SLICES`` slices."""
PROBE_SLICES = 4
REMOTE_PROBE_RECORDS = 2
"""The same of remote files."""
_IO_THREADS = 4  # hides the latency of storage; costs up to a third where files lie in memory
_FIRST_CHOICE = ("is_first", "is_last", "is_terminal", "reward", "discount")
_NUMBER_BYTES = {"bool": 1, "int": 2, "uint": 2, "float": 4}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EpisodeDamage:
    """An episode whose length cannot be known: ``record`` is its number in the file."""

    path: str
    record: int
    reason: str


@dataclass(frozen=True, slots=True)
class EpisodeLengths:
    """Frames per episode of some slices.

    Attributes:
        lengths: one ``[records] int32`` array a slice, in the order of the slices; -1 where the
            record is malformed.
        damage: why, for every -1.
        estimated: True where a probe has filled in the mean of the episodes it has read.
    """

    lengths: tuple[NDArray[np.int32], ...]
    damage: tuple[EpisodeDamage, ...] = ()
    estimated: bool = False

    @property
    def episodes(self) -> int:
        """Episodes whose length is known."""
        return sum(int((part >= 0).sum()) for part in self.lengths)

    @property
    def frames(self) -> int:
        """Frames of these episodes."""
        return sum(int(part[part >= 0].sum(dtype=np.int64)) for part in self.lengths)


def episode_lengths(
    slices: Sequence[ShardSlice],
    features: Mapping[str, Feature],
    *,
    cache: bool = True,
    probe_only: bool = False,
    dataset: str = "",
) -> EpisodeLengths:
    """Counts the frames of every episode in ``slices``.

    Args:
        slices: from ``VersionDirectory.resolve``.
        features: of the same version directory.
        cache: read and write the user's cache directory; a cache that cannot be used is none.
        probe_only: read a few records at most, and estimate the others from these.
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
    known: dict[str, _FileLengths] = {}
    missing: list[str] = []
    if slices and is_remote(slices[0].path):
        return _remote_lengths(slices, witnesses, cache=cache, dataset=dataset)
    for path in dict.fromkeys(part.path for part in slices):
        found = _load(path, witnesses) if cache else None
        if found is None:
            missing.append(path)
        else:
            known[path] = _FileLengths(found, {}, "")
    try:
        if probe_only and missing:
            return _probe(slices, known, witnesses)
        for path, counted in zip(missing, _count_files(missing, witnesses), strict=True):
            known[path] = counted
            if cache and not counted.reasons and not counted.end:
                _save(path, witnesses, counted.lengths)
    except OSError as error:
        raise SourceError(
            f"dataset {dataset}: {error.filename or 'a shard file'} cannot be read: "
            f"{error.strerror or error}",
            remedy="check that the shard files are there and readable",
            dataset=dataset,
        ) from error
    return _gather(slices, known)


@dataclass(frozen=True, slots=True)
class _FileLengths:
    lengths: NDArray[np.int32]
    reasons: dict[int, str]
    end: str  # why records behind the last one are unknown; empty: the file just ends


def _count_files(paths: Sequence[str], witnesses: tuple[Feature, ...]) -> Iterable[_FileLengths]:
    if len(paths) < 2:
        return [_count_file(path, witnesses) for path in paths]
    with ThreadPoolExecutor(min(_IO_THREADS, len(paths)), "autoloader-lengths") as pool:
        return list(pool.map(lambda path: _count_file(path, witnesses), paths))


def _gather(slices: Sequence[ShardSlice], known: Mapping[str, _FileLengths]) -> EpisodeLengths:
    lengths: list[NDArray[np.int32]] = []
    damage: list[EpisodeDamage] = []
    for part in slices:
        file = known[part.path]
        values = np.full(part.records, -1, dtype=np.int32)
        there = file.lengths[part.start : part.stop]
        values[: len(there)] = there
        lengths.append(values)
        for record in (np.flatnonzero(values < 0) + part.start).tolist():
            reason = file.reasons.get(record) or file.end or "the file has fewer records"
            damage.append(EpisodeDamage(part.path, record, reason))
    return EpisodeLengths(tuple(lengths), tuple(damage))


def _probe(
    slices: Sequence[ShardSlice],
    known: Mapping[str, _FileLengths],
    witnesses: tuple[Feature, ...],
) -> EpisodeLengths:
    """Exact where the cache knows, else the mean of a few records from the fronts of slices."""
    seen = [file.lengths for file in known.values()]
    for part in [part for part in slices if part.path not in known][:PROBE_SLICES]:
        counted = _count_file(part.path, witnesses, stop=PROBE_RECORDS)
        seen.append(counted.lengths)
    mean = _mean(seen)
    lengths = []
    for part in slices:
        values = np.full(part.records, max(mean, 1), dtype=np.int32)
        if part.path in known:
            there = known[part.path].lengths[part.start : part.stop]
            values[: len(there)] = there
            values[len(there) :] = -1
        lengths.append(values)
    return EpisodeLengths(tuple(lengths), (), estimated=True)


def _mean(seen: Sequence[NDArray[np.int32]]) -> int:
    together = np.concatenate(seen)
    together = together[together >= 0]
    return round(float(together.mean())) if len(together) else 1


def _remote_lengths(
    slices: Sequence[ShardSlice], witnesses: tuple[Feature, ...], *, cache: bool, dataset: str
) -> EpisodeLengths:
    """Every episode has the mean of a few; what was found is kept."""
    asked = [(part.path, part.start, part.stop) for part in slices], _asked(witnesses)
    name = hashlib.sha256(repr((LAYOUT_VERSION, *asked)).encode()).hexdigest()[:40]
    place = cache_root() / "lengths" / f"{name}.remote"
    mean = _kept_mean(place) if cache else None
    if mean is None:
        mean = _probe_remote(slices, witnesses, dataset)
        if cache:
            text = str(mean).encode()
            keep_whole(place, lambda file: file.write(text), what="episode lengths")
    filled = tuple(np.full(part.records, max(mean, 1), dtype=np.int32) for part in slices)
    return EpisodeLengths(filled, (), estimated=True)


def _probe_remote(
    slices: Sequence[ShardSlice], witnesses: tuple[Feature, ...], dataset: str
) -> int:
    seen: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
    for part in slices[:: -(-len(slices) // PROBE_SLICES)]:
        try:
            seen.append(_count_file(part.path, witnesses, stop=REMOTE_PROBE_RECORDS).lengths)
        except OSError as error:
            raise unreadable(error, part.path, dataset=dataset) from error
    return _mean(seen)


def _kept_mean(place: Path) -> int | None:
    try:
        return int(place.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


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


def _count_file(
    path: str, witnesses: tuple[Feature, ...], *, stop: int | None = None
) -> _FileLengths:
    lengths: list[int] = []
    reasons: dict[int, str] = {}
    end = ""
    with opened_anywhere(path) as file:
        size = source_bytes(file)
        if isinstance(file, int) and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        window = _Window(file)
        for start, length, reason in walk_records(file, size, verify=True):
            if reason is not None:
                end = reason
                break
            if len(lengths) == stop:
                break
            try:
                lengths.append(_count_steps(window, start + HEADER_BYTES, length, witnesses))
            except MalformedRecordError as error:
                reasons[len(lengths)] = str(error)
                lengths.append(-1)
    return _FileLengths(np.array(lengths, dtype=np.int32), reasons, end)


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


# -- cache --------------------------------------------------------------------------------------


def _cache_file(path: str, witnesses: tuple[Feature, ...]) -> Path:
    place = Path(path).absolute()
    stat = place.stat()
    asked = (str(place), stat.st_size, stat.st_mtime_ns, LAYOUT_VERSION, _asked(witnesses))
    identity = repr(asked)
    name = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:40]
    return cache_root() / "lengths" / f"{name}.npy"


def _asked(witnesses: tuple[Feature, ...]) -> list[tuple[str, int]]:
    return [(feature.key, _step_values(feature)) for feature in witnesses]


def _load(path: str, witnesses: tuple[Feature, ...]) -> NDArray[np.int32] | None:
    try:
        with _cache_file(path, witnesses).open("rb") as file:
            values: NDArray[Any] = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if values.dtype != np.int32 or values.ndim != 1 or len(values) < 2:
        return None
    lengths: NDArray[np.int32] = values[:-2].astype(np.int32)
    if values[-1] != LAYOUT_VERSION or values[-2] != _checksum(lengths):
        return None
    return lengths


def _save(path: str, witnesses: tuple[Feature, ...], lengths: NDArray[np.int32]) -> None:
    values = np.append(lengths, np.array([_checksum(lengths), LAYOUT_VERSION], np.int32))
    try:
        place = _cache_file(path, witnesses)
    except OSError as error:
        logger.debug("episode lengths not kept: %s", error)
        return
    keep_whole(
        place, lambda file: np.save(file, values, allow_pickle=False), what="episode lengths"
    )


def _checksum(lengths: NDArray[np.int32]) -> np.int32:
    return np.uint32(google_crc32c.value(lengths.tobytes())).view(np.int32)
