"""Counts the samples that the datasets of a mixture give.

Data is counted by its index: building it reads and checks every record once, and both readers take
their counts from it. Remote data that is streamed has none: its count is estimated from a few
headers, unless the spec gives ``num_samples``. A quick plan estimates data without an index the
same way.

Not here: what makes a t valid (``index.valid``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from autoloader.errors import SourceError
from autoloader.formats import Feature, ShardSlice, files
from autoloader.formats.cache import JsonCache
from autoloader.formats.features import RAGGED
from autoloader.formats.records import (
    HEADER_BYTES,
    MalformedRecordError,
    parse_example,
    walk_records,
)
from autoloader.host.units import MIB
from autoloader.index.opening import find_indexes, open_indexes, versions_of
from autoloader.index.valid import count_indexed, table_of
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.samples.transforms.keep import DatasetCount, few, too_many_bad
from autoloader.sampling.episodes import DatasetTable
from autoloader.spec import PipelineSpec
from autoloader.telemetry.progress import doing

QUICK_BYTES = 64 * MIB
"""A smaller dataset is indexed as fast as its files are looked at."""
WINDOW_BYTES = 4096
PROBE_SLICES = 4
PROBE_RECORDS = 8
"""Records that are read from the front of each of ``PROBE_SLICES`` files."""
REMOTE_PROBE_RECORDS = 2
"""The same of remote files."""

_cache = JsonCache("lengths", version=2)
_Found = TypeVar("_Found")


def count_mixture(
    mixture: ResolvedMixture,
    *,
    probe_only: bool = False,
    by_index: bool = True,
    fetch: bool = False,
) -> dict[str, DatasetCount]:
    """Count every dataset of a mixture, by name.

    Args:
        mixture: datasets that are counted.
        probe_only: build no index, except of small datasets that have no stream: where none is
            there, estimate from a few records' headers.
        by_index: whether samples are read by index; else local data that ``num_samples`` speaks of
            is not counted.
        fetch: whether remote data without an index is fetched and indexed; else it is estimated.

    Raises:
        SourceError: a dataset cannot be read, or (where this is certain) gives no sample at all, or
            has more damaged records than ``errors.max_corrupt_ratio`` bears.
    """
    counted = [d for d in mixture.datasets if _is_counted(d, by_index)]
    there = [
        one for one in counted if (probe_only and not _is_small(one)) or (one.remote and not fetch)
    ]
    built = [one for one in counted if one not in there]
    found = (*find_indexes(there), *open_indexes(built))
    indexes = {one.name: index for one, index in zip([*there, *built], found, strict=True)}
    counts = {}
    for dataset in mixture.datasets:
        index = indexes.get(dataset.name)
        doing(f"counting the samples of {dataset.name}")
        counts[dataset.name] = _estimate(dataset) if index is None else count_indexed(index)
        _check(dataset, counts[dataset.name], mixture.spec)
    return counts


def quick_tables(datasets: Sequence[ResolvedDataset]) -> tuple[DatasetTable, ...]:
    """Episode tables of datasets for a plan: from their index if it is there, else estimated.

    Raises:
        SourceError: a dataset cannot be read.
    """
    asked = [dataset for dataset in datasets if dataset.indexable]
    indexes = dict(zip((one.name for one in asked), find_indexes(asked), strict=True))
    return tuple(
        _estimated_table(dataset) if index is None else table_of(dataset, index)
        for dataset in datasets
        for index in [indexes.get(dataset.name)]
    )


def _is_small(dataset: ResolvedDataset) -> bool:
    """True if a dataset is read by index alone, and its index is built in a moment."""
    if dataset.streamable or dataset.remote:
        return False
    return sum(one.size for one in versions_of(dataset)) < QUICK_BYTES


def _is_counted(dataset: ResolvedDataset, by_index: bool) -> bool:
    """True if a dataset's samples are counted by an index."""
    if dataset.remote:
        return by_index and dataset.indexable
    return by_index or dataset.num_samples is None


def _estimated_table(dataset: ResolvedDataset) -> DatasetTable:
    """Every episode has the length that its metadata says, else the mean length of a few.

    What rules leave out is not known.
    """
    each = [piece.records for piece in dataset.slices]
    if told := dataset.directory.steps:
        frames: Any = np.concatenate([told[p.path][p.start : p.stop] for p in dataset.slices])
    else:
        frames = mean_frames(dataset.slices, dataset.directory.features, dataset=dataset.name)
    if dataset.transform is not None:
        lengths, of = np.unique(frames, return_inverse=True)
        frames = np.asarray([dataset.transform.frames_left(int(one)) for one in lengths])[of]
    records = [np.arange(piece.start, piece.stop, dtype=np.int64) for piece in dataset.slices]
    return DatasetTable(
        key=dataset.key,
        sample=dataset.sample,
        stride=dataset.stride,
        steps=np.full(sum(each), frames, dtype=np.int32),
        slice_of=np.repeat(np.arange(len(each), dtype=np.int32), each),
        record_of=np.concatenate(records),
    )


def _estimate(dataset: ResolvedDataset) -> DatasetCount:
    """Count of a dataset, estimated from a few episodes."""
    table = _estimated_table(dataset)
    given = dataset.num_samples
    return DatasetCount(
        episodes=dataset.records,
        frames=int(table.steps.sum(dtype=np.int64)),
        samples=max(1, table.samples) if given is None else given,
        size=max(1, table.size) if given is None or dataset.sample.per_episode != "all" else given,
        short_episodes=0,
        damaged=(),
        estimated=given is None,
        frames_estimated=True,
    )


def _check(dataset: ResolvedDataset, found: DatasetCount, spec: PipelineSpec) -> None:
    """Refuse a dataset without an episode or a sample, or with too many that are damaged."""
    bad = len(found.damaged)
    if found.episodes and bad:
        last, ratio, which = found.damaged[-1], spec.errors.max_corrupt_ratio, found.bad_episodes
        chosen = spec.dataset(dataset.name).episodes or dataset.directory.episode_numbers
        numbers = few(which), few(sorted({*chosen} - {*which}))
        if error := too_many_bad(dataset.name, bad, dataset.records, ratio, last, *numbers):
            raise error
    if found.samples:
        return
    if not found.episodes:
        reason = found.damaged[0] if bad else "it has no records"
        what = f"no episode can be read: {reason}"
        remedy = f"check the files in {dataset.directory.path}, or remove the dataset from the spec"
    elif any(rule.samples or rule.episodes for rule in found.lost):
        losses = (
            f"{one.rule} removes {one.samples} samples and {one.episodes} whole episodes"
            for one in found.lost
        )
        what = f"its {found.episodes} episodes have no sample left: {', '.join(losses)}"
        remedy = "loosen the rule that removes the most, or remove the dataset from the spec"
    else:
        what = f"none of its {found.episodes} episodes is long enough for a sample"
        remedy = "use smaller offsets, edges: {start: repeat, end: repeat}, or remove the dataset"
    raise SourceError(f"dataset {dataset.name!r}: {what}", remedy=remedy)


# -- estimates ----------------------------------------------------------------------------------


def mean_frames(
    slices: Sequence[ShardSlice], features: Mapping[str, Feature], *, dataset: str = ""
) -> int:
    """About how many frames an episode has, at least 1: the mean of the first ones of a few files.

    An RLDS record holds, for every per-step feature, the values of all T steps in a row. So T is
    the number of values of a feature divided by the values of one step. A record is parsed in
    place: only windows around the headers of its entries are read, and the payloads of pictures are
    jumped over. Broken records are passed over. For remote files every header is a round trip, so
    their estimate is kept in the user's cache directory.

    Args:
        slices: stretches of files, from ``DatasetFormat.resolve``.
        features: all features of the same version directory.
        dataset: the name that the spec gives this dataset, for messages.

    Raises:
        SourceError: there is no per-step feature to count, or a file cannot be read.
    """
    countable = sorted(
        (
            one
            for one in features.values()
            if one.per_step and one.kind != "other" and one.listed is None
            and one.encoding != RAGGED and _step_values(one)
        ),
        key=lambda one: (not _is_plain(one), one.kind == "image", _step_values(one), one.key),
    )  # fmt: skip
    if not countable:
        raise SourceError(
            f"dataset {dataset}: it has no per-step features, so it holds no episodes",
            remedy="give an RLDS dataset: one whose features.json has a feature 'steps'",
        )
    if not slices or not files.is_remote(slices[0].path):
        return _mean(slices, countable, PROBE_RECORDS, dataset)
    versions = [(one, files.version_of(one.path, one_by_one=False)) for one in slices]
    key = versions, [(feature.key, _step_values(feature)) for feature in countable]
    known = _cache.load(key)
    if isinstance(known, int):
        return known
    mean = _mean(slices, countable, REMOTE_PROBE_RECORDS, dataset)
    _cache.save(key, mean)
    return mean


def _mean(
    slices: Sequence[ShardSlice], countable: Sequence[Feature], records: int, dataset: str
) -> int:
    """Mean steps of an episode, from the first records of a few shards."""
    lengths = of_first_records(slices, records, dataset, partial(_steps, countable=countable))
    return max(1, round(float(np.mean(lengths)))) if lengths else 1


def of_first_records(
    slices: Sequence[ShardSlice], records: int, dataset: str, look: Callable[..., _Found]
) -> list[_Found]:
    """Answers of ``look`` about the first whole records of a few shards: file, offset, length."""
    found: list[_Found] = []
    for part in slices[:: -(-len(slices) // PROBE_SLICES) or 1]:
        with files.reading(part.path, dataset=dataset), files.opened_anywhere(part.path) as file:
            window = _Window(file)
            walk = walk_records(file, len(window))
            for _, (start, length, lost) in zip(range(records), walk, strict=False):
                if lost is not None:
                    break
                with contextlib.suppress(MalformedRecordError):
                    found.append(look(window, start + HEADER_BYTES, length))
    return found


def _is_plain(feature: Feature) -> bool:
    """True if the numbers lie in the record as they are (not as one string a step)."""
    return feature.kind == "tensor" and feature.encoding is None and feature.dtype != "string"


def _step_values(feature: Feature) -> int:
    """Values in the record for one step; 0 where it depends on the step."""
    if feature.kind in ("image", "text") or feature.encoding is not None:
        return 1
    return math.prod(size or 0 for size in feature.shape)


class _Window:
    """A file as ``parse_example`` takes it, of which only the bytes that it looks at are read."""

    def __init__(self, file: int | files.RemoteFile) -> None:
        self._file = file
        self._size = files.source_bytes(file)
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
            self._data = files.pread(self._file, max(count, WINDOW_BYTES), position)
            self._start, first = position, 0
        return self._data[first : first + count]


def _steps(window: _Window, offset: int, length: int, countable: Sequence[Feature]) -> int:
    """Steps of the record at ``offset``, by the cheapest feature that it has.

    Raises:
        MalformedRecordError: the record is broken, or has none of the features.
    """
    for feature in countable:
        found = parse_example(window, start=offset, stop=offset + length, only={feature.key})
        value, size = found.get(feature.key), _step_values(feature)
        if value is None or value.kind == "missing":
            continue
        if (value.kind == "bytes") == _is_plain(feature) or len(value) % size:
            raise MalformedRecordError(f"{feature.path} does not hold {size} values a step")
        return len(value) // size
    raise MalformedRecordError("it has none of the features of the steps")
