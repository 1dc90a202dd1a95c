"""Texts of every record, read without its pictures, cached per shard file: what ``keep`` looks at.

Theory of operation. The strict walker of Examples touches no payload that it is not asked for, so
it runs over a window of ``WINDOW_BYTES`` that is moved through the file; only records whose code
points or numbers are asked for are read whole. Texts repeat from step to step: they are kept as
runs of steps with the same text, each text once.

The cache is a file per shard file and set of features in the user's cache directory, named by a
hash of the shard file's path, size and modification time. What is there is checked (CRC-32 of a
zip file); a cache that cannot be used is none. Payload checksums are not verified: a damaged record
is found when it is read; one that cannot be walked has no texts.

Not here: the rules (``keep``), the index's own texts (``index.build``).
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import Feature, ShardSlice
from autoloader.catalog.cache import cache_root, keep_whole
from autoloader.catalog.example import FeatureValue, parse_example
from autoloader.catalog.tfrecord import (
    HEADER_BYTES,
    MalformedRecordError,
    opened,
    read_record,
    walk_records,
)
from autoloader.errors import SourceError
from autoloader.sampling.fields import is_text, text_of_points

LAYOUT_VERSION = 1
WINDOW_BYTES = 4096
ALL_STEPS = 2**31 - 1
"""Steps that a text of the whole episode covers."""
_IO_THREADS = 4


@dataclass(frozen=True, slots=True)
class TextRuns:
    """The texts of one feature.

    Attributes:
        runs: [K, 4] int64: record, first step, the step behind the last, which text; steps before
            the stride. Records in order, of several slices counted through.
        texts: every text once, UTF-8.
    """

    runs: NDArray[np.int64]
    texts: tuple[bytes, ...]


def read_texts(
    slices: Sequence[ShardSlice], features: Sequence[Feature], *, dataset: str
) -> tuple[TextRuns, ...]:
    """The texts of ``features`` in the records of ``slices``, counted through from 0.

    Args:
        slices: records of a split.
        features: text, vectors of code points, or single integers (as decimal numbers).
        dataset: for messages.

    Raises:
        SourceError: a file cannot be read.
    """
    paths = list(dict.fromkeys(piece.path for piece in slices))
    try:
        with ThreadPoolExecutor(min(_IO_THREADS, len(paths)), "autoloader-texts") as pool:
            found = list(pool.map(lambda path: _texts_of_file(path, features), paths))
    except OSError as error:
        raise SourceError(
            f"dataset {dataset}: {error.filename or 'a shard file'} cannot be read: "
            f"{error.strerror or error}",
            remedy="check that the shard files are there and readable",
            dataset=dataset,
        ) from error
    of_file = dict(zip(paths, found, strict=True))
    return tuple(_joined(slices, {p: of_file[p][k] for p in paths}) for k in range(len(features)))


def _joined(slices: Sequence[ShardSlice], of_file: dict[str, TextRuns]) -> TextRuns:
    """One feature's runs over all slices."""
    ids: dict[bytes, int] = {}
    parts, rows = [np.empty((0, 4), dtype=np.int64)], 0
    for piece in slices:
        found = of_file[piece.path]
        begin, end = np.searchsorted(found.runs[:, 0], [piece.start, piece.stop])
        part = found.runs[begin:end].copy()
        part[:, 0] += rows - piece.start
        new = [ids.setdefault(text, len(ids)) for text in found.texts]
        part[:, 3] = np.asarray(new, dtype=np.int64)[part[:, 3]] if new else 0
        parts.append(part)
        rows += piece.records
    return TextRuns(np.concatenate(parts), tuple(ids))


def _texts_of_file(path: str, features: Sequence[Feature]) -> list[TextRuns]:
    place = _cache_file(path, features)
    found = _load(place, len(features))
    if found is None:
        found = _read_file(path, features)
        _save(place, found)
    return found


def _read_file(path: str, features: Sequence[Feature]) -> list[TextRuns]:
    keys = {feature.key for feature in features}
    whole = not all(is_text(feature) for feature in features)
    found = [_Runs(feature.per_step) for feature in features]
    with opened(path) as fd:
        size = os.fstat(fd).st_size
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        records = enumerate(walk_records(fd, size, verify=True))
        for record, (start, length, lost) in records:
            if lost is not None:
                break
            at = start + HEADER_BYTES
            try:
                payload = read_record(fd, at, length) if whole else _Payload(fd, at, length)
                values = parse_example(payload, only=keys)
                texts = [_texts(_values(payload, values.get(f.key), f), f) for f in features]
            except MalformedRecordError:
                continue
            for runs, each in zip(found, texts, strict=True):
                runs.add(record, each)
    return [runs.whole() for runs in found]


def runs_of_episode(values: Any, feature: Feature) -> TextRuns:
    """The texts of one episode, which is record 0.

    Args:
        values: of the feature: byte strings, or integers, flat; ``None`` where it has none.
        feature: whose.

    Raises:
        MalformedRecordError: they are none, or not as many as steps need.
    """
    runs = _Runs(feature.per_step)
    runs.add(0, _texts(values, feature))
    return runs.whole()


class _Runs:
    """Grows the runs of one feature, record by record."""

    def __init__(self, per_step: bool) -> None:
        self._per_step = per_step
        self._runs: list[tuple[int, int, int, int]] = []
        self._ids: dict[bytes, int] = {}

    def add(self, record: int, texts: Sequence[bytes]) -> None:
        """The texts of a record's steps, or its one text."""
        step = 0
        for text, same in groupby(texts):
            stop = step + len(list(same)) if self._per_step else ALL_STEPS
            self._runs.append((record, step, stop, self._ids.setdefault(text, len(self._ids))))
            step = stop

    def whole(self) -> TextRuns:
        """What was added."""
        return TextRuns(np.asarray(self._runs, np.int64).reshape(-1, 4), tuple(self._ids))


def _values(payload: Any, value: FeatureValue | None, feature: Feature) -> Any:
    """Byte strings or numbers of a feature, as the record holds them."""
    if is_text(feature):
        ranges = value.ranges if value is not None else []
        return [bytes(payload[start:stop]) for start, stop in ranges]
    return None if value is None else value.values


def _texts(values: Any, feature: Feature) -> list[bytes]:
    """The text of every step, or the episode's one; absent is empty."""
    if is_text(feature):
        texts = list(values or ())
        return texts if feature.per_step or texts else [b""]
    if values is None:
        raise MalformedRecordError(f"{feature.path} is missing or holds no numbers")
    numbers = values.astype(np.int64, copy=False)
    if not feature.shape:
        return [str(number).encode() for number in numbers.tolist()]
    width = int(feature.shape[0] or 1)
    if len(numbers) % width:
        raise MalformedRecordError(f"{feature.path} holds {len(numbers)} values of {width}")
    return [text_of_points(row) for row in numbers.reshape(-1, width)]


class _Payload:
    """A record's bytes as the walker asks for them, through a window over the file."""

    def __init__(self, fd: int, offset: int, length: int) -> None:
        self._fd = fd
        self._offset = offset
        self._length = length
        self._first = 0
        self._data = b""

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, at: int | slice) -> int | bytes:
        if isinstance(at, int):
            return self._bytes(at, at + 1)[0]
        return self._bytes(at.start, at.stop)

    def _bytes(self, start: int, stop: int) -> bytes:
        first = start - self._first
        if first < 0 or stop - self._first > len(self._data):
            if stop > self._length:
                raise IndexError(stop)
            count = min(max(stop - start, WINDOW_BYTES), self._length - start)
            self._data = os.pread(self._fd, count, self._offset + start)
            self._first, first = start, 0
        return self._data[first : first + stop - start]


def _cache_file(path: str, features: Sequence[Feature]) -> Path:
    place = Path(path).absolute()
    stat = place.stat()
    asked = [(one.key, one.kind, one.dtype, one.shape, one.per_step) for one in features]
    identity = repr((str(place), stat.st_size, stat.st_mtime_ns, LAYOUT_VERSION, asked))
    name = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:40]
    return cache_root() / "texts" / f"{name}.npz"


def _load(place: Path, features: int) -> list[TextRuns] | None:
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = []
            for k in range(features):
                ends, data = arrays[f"ends{k}"].tolist(), arrays[f"bytes{k}"].tobytes()
                texts = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
                found.append(TextRuns(arrays[f"runs{k}"], tuple(texts)))
            return found
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def _save(place: Path, found: Sequence[TextRuns]) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    for k, one in enumerate(found):
        arrays[f"runs{k}"] = one.runs
        arrays[f"ends{k}"] = np.cumsum([len(text) for text in one.texts], dtype=np.int64)
        arrays[f"bytes{k}"] = np.frombuffer(b"".join(one.texts), dtype=np.uint8)
    keep_whole(place, lambda file: np.savez(file, **arrays), what="texts")  # type: ignore[arg-type]
