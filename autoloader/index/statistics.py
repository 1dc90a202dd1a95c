"""Exact statistics of every dataset's action and state, from indexes, kept in the user's cache.

Theory of operation. A row that counts is of one of two multisets:

- ``steps``: every step (after the stride) of the episodes from which filters leave something, once,
  after field expressions. Windows, edges and chunks have no say. ``recorded`` is the same of more
  episodes (``measured``).
- ``samples``: what the model gets in a pass with ``per_episode: all``: the rows of every valid t's
  window that lie in the episode. A horizon of 16 gives the same row up to 16 times; it is kept
  once, with that weight.

An action that is summed, or relative to the state at t, is a sample's and no step's: its rows are
those of samples in either case.

Sums are in float64; quantiles are NumPy's, by linear interpolation in float64, and exact, because a
column is sorted whole. Memory: the float32 values of one field of the datasets that share it, and
one column's float64 copies. Values that are not finite are left out, column by column, and counted.

Statistics are computed over the records of the spec's split ``train``, whichever split is read:
validation data is normalised with the scale of the training data. A dataset without a ``train``
split is measured on the split that is read. ``statistics_of: recorded`` takes all splits.

A cache file holds the statistics of one dataset or group. Its key holds all that they depend on:

- the identity and features of each shard file's index, and the records of the files;
- the field expressions and the widths of their features, the stride, and which rows count;
- the sample window where it matters, and all else that the spec says of the dataset except
  pictures and weights.

A cache file that cannot be used is computed anew. A cache that cannot be written is none.

Not here: statistics files (``statistics_files``), applying statistics (``samples.statistics``).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SpecError, many
from autoloader.formats import files
from autoloader.formats.cache import JsonCache
from autoloader.host.frozen import frozen
from autoloader.index.dataset import DatasetIndex
from autoloader.index.opening import Progress, find_indexes, open_dataset_index
from autoloader.index.planned import Group, Part, field_rows
from autoloader.index.statistics_files import normalize_of, read_statistics
from autoloader.index.valid import remaining_episodes, valid_t
from autoloader.samples import windows
from autoloader.samples.block import field_windows
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture, resolve
from autoloader.samples.schema import RecordSchema
from autoloader.samples.statistics import FieldStatistics, NormalizationStatistics
from autoloader.samples.transforms.fields import FIELDS, FieldName
from autoloader.samples.transforms.keep import DatasetCount, valid_per_episode
from autoloader.spec import DatasetSpec, PipelineSpec, SampleSpec
from autoloader.telemetry.progress import doing

TRAIN = "train"
StatisticsOf = Literal["steps", "samples", "recorded"]
_IRRELEVANT = frozenset(
    ("name", "path", "kind", "tfds", "data_dir", "split", "weight", "images", "features",
     "sample", "num_samples", "normalize")
)  # fmt: skip
"""Fields of a dataset's spec that change no action or state, or that the key holds elsewhere."""

logger = logging.getLogger(__name__)

_cache = JsonCache("statistics", version=6)


def statistics_of(
    spec: PipelineSpec,
    split: str = TRAIN,
    *,
    cached_only: bool = False,
    read_remote: bool = False,
    progress: Progress | None = None,
) -> dict[str, NormalizationStatistics] | None:
    """Statistics of every dataset that takes part in ``split``, by name.

    Args:
        spec: spec of the mixture; ``normalize.statistics`` names a file that is used as it is.
        split: name of the split whose datasets count.
        cached_only: compute nothing: ``None`` where some are missing.
        read_remote: whether remote datasets without an index may be fetched and indexed for it,
            which takes its time.
        progress: called with datasets done and datasets in all, where something is computed.

    Raises:
        SpecError: a split, a feature, or the file is wrong; or remote data needs a file.
        SourceError: a dataset cannot be read.
    """
    how = normalize_of(spec)
    if how.statistics is not None:
        return read_statistics(how.statistics, spec)
    groups = _groups(spec, split)
    datasets = [one for _, group in groups for one in group]
    found: dict[str, NormalizationStatistics] = {}
    for key, shared in groups:
        kept = _load(key)
        if kept is None:
            for one in shared:
                known = not one.remote or (one.indexable and find_indexes([one])[0] is not None)
                if not known and not read_remote:
                    raise _needs_file(one)
            if cached_only:
                return None
            if progress is not None:
                progress(len(found), len(datasets))
            place = f"{len(found) + 1} of {len(datasets)}"
            doing(f"computing the statistics of {shared[0].name} ({place})")
            rows = [
                dataset_rows(open_dataset_index(one), how.statistics_of, by_row=_by_row(spec, one))
                for one in shared
            ]
            kept = shared_statistics(rows, how.group_of(shared[0].name) or "")
            _cache.save(key, kept.plain())
        found.update((one.name, kept) for one in shared)
    return found


def _groups(spec: PipelineSpec, split: str) -> list[tuple[str, list[ResolvedDataset]]]:
    """Datasets that share statistics, each group with the key under which these are kept.

    Groups over the same data have one key.
    """
    how, mixture = normalize_of(spec), measured(spec, split)
    datasets = {dataset.name: dataset for dataset in mixture.datasets}
    seen: set[str] = set()
    groups: list[tuple[str, list[ResolvedDataset]]] = []
    for name in datasets:
        if name in seen:
            continue
        shared = [datasets[member] for member in how.members(name) if member in datasets]
        seen.update(one.name for one in shared)
        keys = [
            statistics_key(
                one, mixture.spec.dataset(one.name), how.statistics_of, by_row=_by_row(spec, one)
            )
            for one in shared
        ]
        groups.append((keys[0] if len(keys) == 1 else json.dumps(keys), shared))
    return groups


def _by_row(spec: PipelineSpec, dataset: ResolvedDataset) -> bool:
    """True if the action needs statistics of each row of the horizon."""
    how = spec.normalize_of(dataset.name, "action")
    relative = dataset.action is not None and dataset.sample.action_relative_to_state
    return how is not None and how.by_row and bool(relative)


def _needs_file(dataset: ResolvedDataset) -> SpecError:
    """The error for a remote dataset whose statistics no file has."""
    where = "normalize.statistics"
    return SpecError(
        f"{where}: dataset {dataset.name!r} is remote ({dataset.directory.path}), and its "
        "statistics would take reading all of it",
        remedy="read it once with: autoloader stats SPEC -o statistics.json; then set "
        "normalize: {statistics: statistics.json}",
    )


def with_recorded_sizes(
    counts: Mapping[str, DatasetCount],
    spec: PipelineSpec,
    statistics: Mapping[str, NormalizationStatistics] | None,
) -> dict[str, DatasetCount]:
    """Counts whose sizes are the steps that recorded statistics are of, where these are known.

    So do Octo and OpenVLA weigh: by the ``num_transitions`` of a dataset's statistics.
    """
    how = normalize_of(spec)
    if how.statistics_of != "recorded" or statistics is None:
        return dict(counts)
    steps = {
        name: one.transitions
        for name, one in statistics.items()
        if one.transitions and how.group_of(name) is None
    }
    return {
        name: replace(count, size=steps.get(name, count.size)) for name, count in counts.items()
    }


def measured(spec: PipelineSpec, split: str) -> ResolvedMixture:
    """The datasets of ``split``, and those that share statistics with them, as in ``train``.

    With ``statistics_of: recorded`` all records of their files, less those that ``keep.flags`` and
    ``keep.match`` leave out.
    """
    how = normalize_of(spec)
    named = {one.name for one in spec.datasets if one.split.get(split) is not None}
    named |= {member for name in named for member in how.members(name)}
    taking_part = []
    for dataset in spec.datasets:
        records = dataset.split.get(TRAIN) or dataset.split.get(split)
        if dataset.name not in named or records is None:
            continue
        if how.statistics_of == "recorded":
            keep = dataset.keep and dataset.keep.of_episodes
            dataset = dataset.model_copy(update={"split": {split: "all"}, "keep": keep})
        else:
            dataset = dataset.model_copy(update={"split": {split: records}})
        taking_part.append(dataset)
    plain = {"datasets": tuple(taking_part), "normalize": None}
    return resolve(spec.model_copy(update=plain), split)


def statistics_key(
    dataset: ResolvedDataset, declared: DatasetSpec, of: StatisticsOf, *, by_row: bool = False
) -> str:
    """All that a dataset's statistics depend on, as text.

    Args:
        dataset: with the records that they are of.
        declared: the dataset as the spec declares it.
        of: name of the rows that count.
        by_row: whether there are statistics of each row of the action's horizon.

    Raises:
        OSError: a shard file is gone.
    """
    schema = RecordSchema.of(dataset)
    versions = {
        path: files.version_of(path, one_by_one=False)
        if dataset.remote
        else dataset.directory.identity(path, schema)
        for path in sorted({piece.path for piece in dataset.slices})
    }
    said = declared.model_dump(mode="json")
    windowed = of == "samples" or is_of_samples(dataset, "action")
    window = dataset.sample if windowed else None
    identity: dict[str, Any] = {
        "files": versions,
        "features": schema.fingerprint.hex(),
        "slices": [(piece.path, piece.start, piece.stop) for piece in dataset.slices],
        "widths": [bound.widths if bound else None for bound in (dataset.action, dataset.state)],
        "of": of,
        "sample": window.model_dump(mode="json", exclude={"per_episode"}) if window else None,
        "keep": dataset.keep.identity if dataset.keep else None,
        "transform": dataset.transform.identity if dataset.transform else None,
        "said": {key: value for key, value in said.items() if key not in _IRRELEVANT},
    }
    if by_row:
        identity["by_row"] = "the others of steps"
    return json.dumps(identity, sort_keys=True)


def _load(key: str) -> NormalizationStatistics | None:
    """The statistics saved under ``key``."""
    try:
        return NormalizationStatistics.from_plain(_cache.load(key))
    except ValueError:  # there are none
        return None


# -- one dataset's numbers -----------------------------------------------------------------------


Rows = tuple[NDArray[np.float32], NDArray[np.int64]]
"""([n, width] rows of a field, [n] how often each counts)."""


@frozen
class DatasetRows:
    """Rows that one dataset's statistics are of; a field that it does not have is absent.

    Attributes:
        name: name of the dataset.
        fields: rows of each field.
        transitions, trajectories: numbers of steps or samples, and of episodes.
        horizon: rows of the action that have statistics of their own; 0: none.
        at_row: rows [n, width] of the action at one row of the horizon, of whole horizons.
    """

    name: str
    fields: Mapping[FieldName, Rows]
    transitions: int
    trajectories: int
    horizon: int = 0
    at_row: Callable[[int], NDArray[np.float32]] | None = None


def shared_statistics(datasets: Sequence[DatasetRows], group: str = "") -> NormalizationStatistics:
    """One set of statistics, of the rows of all ``datasets``.

    Args:
        datasets: resolved datasets, at least one.
        group: name of the group in ``normalize.group``, for messages.

    Raises:
        SpecError: their fields differ in width.
    """
    fields: dict[FieldName, FieldStatistics] = {}
    for name in FIELDS:
        there = [(one.name, one.fields[name]) for one in datasets if name in one.fields]
        for other, (values, _) in there[1:]:
            width, first = values.shape[1], there[0][1][0].shape[1]
            if width != first:
                raise SpecError(
                    f"normalize.group.{group}: the {name} of {there[0][0]!r} has "
                    f"{many(first, 'column')}, the {name} of {other!r} has {width}",
                    remedy="move one of the two to another group: a group needs equal columns",
                )
        if there:
            rows = [one for _, one in there]
            values = np.concatenate([found for found, _ in rows])
            weights = np.concatenate([times for _, times in rows])
            fields[name] = field_statistics(values, weights)
    by_row = []
    for row in range(max(one.horizon for one in datasets)):
        values = np.concatenate([one.at_row(row) for one in datasets if one.at_row is not None])
        by_row.append(field_statistics(values, np.ones(len(values), np.int64)))
    return NormalizationStatistics(
        action=fields.get("action"),
        state=fields.get("state"),
        action_rows=tuple(by_row) or None,
        transitions=sum(one.transitions for one in datasets),
        trajectories=sum(one.trajectories for one in datasets),
    )


def dataset_rows(index: DatasetIndex, of: StatisticsOf, *, by_row: bool = False) -> DatasetRows:
    """The rows that the statistics of the episodes of ``index`` are of.

    With ``by_row`` the action's rows are those of steps, as they lie in the files; differences to
    the state have rows for each place in the horizon.
    """
    dataset, strided = index.dataset, index.strided
    remain = remaining_episodes(index)
    if of == "samples":
        transitions = int(valid_per_episode(dataset.sample, strided, valid_t(index)).sum())
    else:
        transitions = int(strided[remain].sum())

    fields = {}
    for name in FIELDS:
        if dataset.bound(name) is not None:
            fields[name] = _field_rows(index, name, of, remain, absolute=by_row)
    found = DatasetRows(dataset.name, fields, transitions, int(remain.sum()))
    if not by_row:
        return found
    return replace(
        found, horizon=dataset.sample.action_horizon, at_row=partial(_at_row, index, remain)
    )


def _at_row(index: DatasetIndex, remain: NDArray[np.bool_], row: int) -> NDArray[np.float32]:
    """[n, width] differences to the state at one row of the horizon, of samples that have all."""
    dataset = index.dataset
    own = dataset.sample.action_offsets
    one = {"action_start": own[row], "action_horizon": 1, "action_per": "sample"}
    sample = dataset.sample.model_copy(update=one)
    assert dataset.action is not None
    found = [np.empty((0, dataset.action.width), np.float32)]
    for number in np.flatnonzero(remain).tolist():
        steps = int(index.strided[number])
        t = np.arange(max(0, -own[0]), max(0, steps - max(0, own[-1])), dtype=np.int64)
        if len(t):
            values, _ = _sample_rows(index, "action", number, t, sample)
            found.append(values[:, 0])
    return np.concatenate(found)


def _sample_rows(
    index: DatasetIndex, name: FieldName, episode: int, t: NDArray[np.int64], sample: SampleSpec
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """A field's rows, and their mask, of the samples at t of an episode."""
    dataset, rows = index.dataset, slice(0, len(t))
    bound = dataset.bound(name)
    assert bound is not None
    part = Part(rows, 0, dataset, index.episodes_at(np.full(len(t), episode)))
    stride = np.full((len(t), 1), dataset.stride)
    steps = -(-part.episodes.steps[:, None] // stride)
    return field_rows(Group(rows, sample, [part]), name, t, steps, stride, bound.width)


def is_of_samples(dataset: ResolvedDataset, name: FieldName) -> bool:
    """True if a field's rows depend on t, so that no step has one of its own."""
    sample = dataset.sample
    return name == "action" and (
        bool(sample.action_relative_to_state) or sample.action_reduce == "sum"
    )


def field_statistics(values: NDArray[np.float32], weights: NDArray[np.int64]) -> FieldStatistics:
    """Statistics of rows [n, width], row i counted ``weights[i]`` times."""
    columns = [_column(values[:, number], weights) for number in range(values.shape[1])]
    names = ("mean", "std", "minimum", "maximum", "q01", "q99", "q10", "q50", "q90")
    found = dict(zip(names, zip(*columns, strict=True), strict=True))
    return FieldStatistics.model_validate(found)


def _field_rows(
    index: DatasetIndex,
    name: FieldName,
    of: StatisticsOf,
    remain: NDArray[np.bool_],
    *,
    absolute: bool = False,
) -> Rows:
    """Rows of a field: of each step of the episodes that remain, or of the samples' windows.

    Differences to the state are rows of samples, except with ``absolute``: then they are not taken.
    """
    dataset = index.dataset
    bound = dataset.bound(name)
    assert bound is not None
    of_samples = is_of_samples(dataset, name)
    by_t = of_samples and not absolute
    by_step = not by_t if of_samples else of != "samples"
    valid = None if by_step else valid_t(index)
    rows: list[NDArray[np.float32]] = [np.empty((0, bound.width), np.float32)]
    weights: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    for number, steps in enumerate(index.strided.tolist()):
        if by_step:
            t = np.arange(steps if remain[number] else 0)
        elif valid is None:
            t = np.arange(*windows.valid_range(dataset.sample, steps), dtype=np.int64)
        else:
            t = valid.numbers(number)
        if not len(t):
            continue
        if by_t:  # every t has rows of its own
            values, mask = _sample_rows(index, name, number, t, dataset.sample)
            found = values[mask[..., 0]]
            times = np.ones(len(found), np.int64)
        else:
            columns = {
                path: index.column(number, path)[:: dataset.stride] for path in bound.paths()
            }
            found, times = bound.evaluate(columns, steps), np.ones(steps, np.int64)
        if not by_t and not by_step:
            _, window = field_windows(dataset.sample, name, t, steps)
            times = np.bincount(window.index[window.inside], minlength=steps)
            found, times = found[times > 0], times[times > 0]
        rows.append(found)
        weights.append(times)
    values, counts = np.concatenate(rows), np.concatenate(weights)
    lost = int(counts[~np.isfinite(values).all(axis=1)].sum())
    if lost:
        logger.warning(
            "dataset %s: %d of %d rows of %s hold values that are not finite; these are left out",
            dataset.name, lost, int(counts.sum()), name,
        )  # fmt: skip
    return values, counts


def _column(values: NDArray[np.float32], weights: NDArray[np.int64]) -> tuple[float, ...]:
    """Mean, std, minimum, maximum, q01, q99, q10, q50, q90."""
    finite = np.isfinite(values)
    kept, times = values[finite].astype(np.float64), weights[finite]
    total = int(times.sum())
    if not total:
        return (0.0,) * 9
    mean = float((kept * times).sum() / total)
    deviation = kept - mean
    std = math.sqrt(float((deviation * deviation * times).sum() / total))
    order = np.argsort(kept, kind="stable")
    kept, upto = kept[order], np.cumsum(times[order])
    quantiles = (_quantile(kept, upto, q) for q in (0.01, 0.99, 0.1, 0.5, 0.9))
    return mean, std, float(kept[0]), float(kept[-1]), *quantiles


def _quantile(ordered: NDArray[np.float64], upto: NDArray[np.int64], q: float) -> float:
    """NumPy's linear quantile of ``ordered`` values, of which ``upto[i]`` are the first i + 1."""
    place = q * (int(upto[-1]) - 1)
    rank = math.floor(place)
    part = place - rank
    at = np.searchsorted(upto, [rank, min(rank + 1, int(upto[-1]) - 1)], side="right")
    low, high = (float(one) for one in ordered[at])
    step = high - low
    return high - step * (1 - part) if part >= 0.5 else low + step * part
