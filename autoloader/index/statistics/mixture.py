"""The statistics of a mixture: from a file, from the cache, or computed now.

Statistics are computed over the records of the spec's split ``train``, whichever split is read, so
that validation data is normalised with the scale of the training data. A dataset without a
``train`` split is measured on the split that is read. ``statistics_of: recorded`` takes all splits.

Computed statistics are kept in the user's cache directory, one small JSON file a dataset. The key
holds all that they depend on: the identity and features of each shard file's index (of LeRobot data
also videos and metadata), the records of the files, the field expressions and the widths of their
features, stride, the rows that count, the sample window where it matters, and all else that the
spec says of the dataset except pictures and weights. The key of a group is the keys of its
datasets. A cache file that cannot be used is computed anew. A cache that cannot be written is none.

A statistics file of another tool, of other data or of an earlier version brings values to another
scale, and nothing fails. ``file_differences`` tells the difference in the units that the model
sees: how far apart a normalised value comes out.

Not here: one dataset's numbers (``compute``), applying them (``samples.statistics``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from autoloader.errors import SpecError
from autoloader.formats import files
from autoloader.formats.cache import JsonCache
from autoloader.index import DatasetIndex, find_indexes, open_dataset_index
from autoloader.index.opening import Progress, format_of, index_numbers
from autoloader.index.statistics.compute import (
    StatisticsOf,
    dataset_rows,
    is_of_samples,
    shared_statistics,
)
from autoloader.index.statistics.formats import EVERY, FILE_OF, read_document
from autoloader.recipes import other_names
from autoloader.samples.counts import DatasetCount
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture, resolve
from autoloader.samples.schema import RecordSchema
from autoloader.samples.statistics import FieldStatistics, NormalizationStatistics, scaling_of
from autoloader.samples.transforms.fields import FieldName
from autoloader.spec import DatasetSpec, NormalizeSpec, PipelineSpec
from autoloader.telemetry.progress import doing

TRAIN = "train"


def statistics_of(
    spec: PipelineSpec,
    split: str = TRAIN,
    *,
    cached_only: bool = False,
    read_remote: bool = False,
    progress: Progress | None = None,
    only: Collection[str] | None = None,
) -> dict[str, NormalizationStatistics] | None:
    """Statistics of every dataset that takes part in ``split``, by name.

    Args:
        spec: of the mixture; ``normalize.statistics`` names a file that is used as it is.
        split: name of the split whose datasets count.
        cached_only: compute nothing: ``None`` where some are missing.
        read_remote: whether remote datasets without an index may be read whole for it, which takes
            its time.
        progress: called with datasets done and datasets in all, where something is computed.
        only: these datasets, and those that share statistics with them; ``None``: all.

    Raises:
        SpecError: a split, a feature, or the file is wrong; or remote data needs a file.
        SourceError: a dataset cannot be read.
    """
    how = _how(spec)
    if how.statistics is not None:
        return read_statistics(how.statistics, spec)
    groups = _groups(spec, split, only)
    datasets = [one for group in groups.values() for one in group]
    found: dict[str, NormalizationStatistics] = {}
    for key, shared in groups.items():
        kept = _load(key)
        if kept is None:
            for one in shared:
                if one.remote and not read_remote and _found_index(one) is None:
                    raise _needs_file(one)
            if cached_only:
                return None
            if progress is not None:
                progress(len(found), len(datasets))
            place = f"{len(found) + 1} of {len(datasets)}"
            doing(f"computing the statistics of {shared[0].name} ({place})")
            rows = [dataset_rows(_index_of(one), how.statistics_of) for one in shared]
            kept = shared_statistics(rows, how.group_of(shared[0].name) or "")
            _cache.save(key, kept.plain())
        found.update((one.name, kept) for one in shared)
    return found


def missing_groups(spec: PipelineSpec, split: str = TRAIN) -> list[tuple[str, ...]]:
    """Names of datasets whose statistics are to be computed, those that share theirs together."""
    if _how(spec).statistics is not None:
        return []
    groups = _groups(spec, split, None).items()
    return [tuple(one.name for one in group) for key, group in groups if _load(key) is None]


def keep_statistics(
    spec: PipelineSpec, split: str, found: Mapping[str, NormalizationStatistics]
) -> None:
    """Keep statistics that were computed elsewhere, as if they had been here."""
    for key, group in _groups(spec, split, found).items():
        _cache.save(key, found[group[0].name].plain())


def _groups(
    spec: PipelineSpec, split: str, only: Collection[str] | None
) -> dict[str, list[ResolvedDataset]]:
    """Datasets that share statistics, by the key under which these are kept."""
    how, mixture = _how(spec), measured(spec, split)
    datasets = {dataset.name: dataset for dataset in mixture.datasets}
    seen: set[str] = set()
    groups: dict[str, list[ResolvedDataset]] = {}
    for name in datasets:
        if name in seen or (only is not None and name not in only):
            continue
        shared = [datasets[member] for member in how.members(name) if member in datasets]
        seen.update(one.name for one in shared)
        keys = [
            statistics_key(one, mixture.spec.dataset(one.name), how.statistics_of) for one in shared
        ]
        groups[keys[0] if len(keys) == 1 else json.dumps(keys)] = shared
    return groups


def _how(spec: PipelineSpec) -> NormalizeSpec:
    """``normalize``, or its defaults where nothing is normalised."""
    return spec.normalize or NormalizeSpec.model_construct()


def _index_of(dataset: ResolvedDataset) -> DatasetIndex:
    if not dataset.remote:
        return open_dataset_index(dataset)
    return _found_index(dataset) or index_numbers(dataset)


def _found_index(dataset: ResolvedDataset) -> DatasetIndex | None:
    """The index of remote data, where it is here or lies beside it."""
    return find_indexes([dataset])[0] if dataset.indexable else None


def _needs_file(dataset: ResolvedDataset) -> SpecError:
    where = "normalize.statistics"
    return SpecError(
        f"{where}: dataset {dataset.name!r} is remote ({dataset.directory.path}), and its "
        "statistics would take reading all of it",
        remedy="read it once with: autoloader stats --spec SPEC --out statistics.json; then set "
        "normalize: {statistics: statistics.json}",
        path=where,
    )


def read_statistics(path: str | Path, spec: PipelineSpec) -> dict[str, NormalizationStatistics]:
    """The statistics that a file, or a folder of them, has for the datasets of a spec, by name.

    A dataset has those under its own name, else under another name of the same dataset
    (``bridge_orig`` and ``bridge_dataset``), else its group's (``normalize.group``), else those of
    a file that names none. What the file says of other datasets is left out.

    Args:
        path: a file of one of the ``formats``; or a folder with one for each dataset, below its
            name, as openpi and LeRobot keep them.
        spec: the pipeline spec whose datasets count.

    Raises:
        SpecError: a file cannot be read, or is no statistics file.
    """
    folder = Path(path)
    by_file = None if folder.is_dir() else _read_file(path)
    found = {}
    for dataset in spec.datasets:
        group = _how(spec).group_of(dataset.name)
        names = [dataset.name, *other_names(dataset.name), *([] if group is None else [group])]
        own = by_file
        if own is None:
            files = (_in_folder(folder, name) for name in names)
            file = next((one for one in files if one is not None), None)
            own = {} if file is None else _read_file(file)
        entry = next((own[name] for name in (*names, EVERY) if name in own), None)
        if entry is not None:
            found[dataset.name] = entry
    return found


def with_recorded_sizes(
    counts: Mapping[str, DatasetCount],
    spec: PipelineSpec,
    statistics: Mapping[str, NormalizationStatistics] | None,
) -> dict[str, DatasetCount]:
    """Counts whose sizes are the steps that recorded statistics are of, where these are known.

    So do Octo and OpenVLA weigh: by the ``num_transitions`` of a dataset's statistics.
    """
    how = _how(spec)
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


def _read_file(path: str | Path) -> dict[str, NormalizationStatistics]:
    where = "normalize.statistics"
    remedy = "write one with: autoloader stats --spec SPEC --out FILE"
    try:
        document = json.loads(files.read_local(path, "document_bytes"))
    except OSError as error:
        why = error.strerror or error
        raise SpecError(f"{where}: {path}: {why}", remedy=remedy, path=where) from error
    except (ValueError, RecursionError) as error:
        raise SpecError(
            f"{where}: {path} is no JSON: {error}", remedy=remedy, path=where
        ) from error
    if not isinstance(document, Mapping):
        raise SpecError(f"{where}: {path} holds no mapping", remedy=remedy, path=where)
    try:
        return read_document(document)
    except ValueError as error:
        raise SpecError(f"{where}: {path}: {error}", remedy=remedy, path=where) from error


def _in_folder(folder: Path, name: str) -> Path | None:
    """The file of a dataset, or of a robot, in a folder of its own."""
    asked = (folder / name / place for place in ("stats.json", *FILE_OF.values()))
    return next((path for path in asked if path.is_file()), None)


def statistics_document(
    spec: PipelineSpec, statistics: Mapping[str, NormalizationStatistics], names: Iterable[str]
) -> dict[str, Any]:
    """The plain form of the statistics of ``names``, where there are any.

    ``mask`` says which columns the spec normalises.
    """
    document = {}
    for name in (name for name in names if name in statistics):
        entry = statistics[name].plain()
        for key, own in (("action", "action"), ("proprio", "state")):
            if key not in entry:
                continue
            how = spec.normalize_of(name, own)
            width = len(entry[key]["mean"])
            given = entry[key].get("mask") or [True] * width
            entry[key]["mask"] = list((how.mask(width) if how else None) or given)
        document[name] = entry
    return document


def measured(spec: PipelineSpec, split: str) -> ResolvedMixture:
    """The datasets of ``split``, and those that share statistics with them, as in ``train``.

    With ``statistics_of: recorded`` all records of their files, less those that ``keep.flags`` and
    ``keep.match`` leave out.
    """
    how = _how(spec)
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


_cache = JsonCache("statistics", version=5)
_IRRELEVANT = frozenset(
    ("name", "path", "tfds", "data_dir", "split", "weight", "images", "features",
     "sample", "num_samples", "normalize")
)  # fmt: skip
"""Fields of a dataset's spec that change no action or state, or that the key holds elsewhere."""


def statistics_key(dataset: ResolvedDataset, declared: DatasetSpec, of: StatisticsOf) -> str:
    """All that a dataset's statistics depend on, as text.

    Args:
        dataset: with the records that they are of.
        declared: what the spec says of it.
        of: which rows count.

    Raises:
        OSError: a shard file is gone.
    """
    versions = {}
    format_, schema = format_of(dataset), RecordSchema.of(dataset)
    for path in sorted({piece.path for piece in dataset.slices}):
        versions[path] = (
            files.version_of(path, one_by_one=False)
            if dataset.remote
            else format_.identity(path, schema)
        )
    said = declared.model_dump(mode="json")
    windowed = of == "samples" or is_of_samples(dataset, "action")
    window = dataset.sample if windowed else None
    identity = {
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
    return json.dumps(identity, sort_keys=True)


def _load(key: str) -> NormalizationStatistics | None:
    """The statistics saved under ``key``."""
    try:
        return NormalizationStatistics.from_plain(_cache.load(key))
    except ValueError:  # there are none
        return None


MOST_STEPS = 2_000_000
"""Of a mixture whose statistics a plan computes, which takes about a second a million."""
APART = 0.01
"""Of a normalised value: a difference that is told."""
_NAMED = 3


def file_differences(mixture: ResolvedMixture, spec: PipelineSpec, split: str) -> tuple[str, ...]:
    """Where the statistics that ``mixture`` is normalised by differ from its data's, for people.

    Nothing is indexed for it: data without an index is not compared, nor is a large mixture whose
    statistics are not cached.

    Args:
        mixture: normalised by the file that the spec names.
        spec: the same pipeline spec as before.
        split: name of the split that is read.
    """
    how = spec.normalize
    if how is None or how.statistics is None or mixture.statistics is None:
        return ()
    name = Path(how.statistics).name
    own = spec.model_copy(update={"normalize": how.model_copy(update={"statistics": None})})
    found = None
    if not any(dataset.remote for dataset in mixture.datasets):
        found = statistics_of(own, split, cached_only=not _is_small(mixture))
    if found is None:
        return (
            f"normalize.statistics: {name} was not compared with the data, which is not indexed, "
            "remote or large",
        )
    told = []
    for dataset in mixture.datasets:
        for field in ("action", "state"):
            given: FieldStatistics | None = getattr(mixture.statistics[dataset.name], field, None)
            computed = getattr(found[dataset.name], field, None)
            if field in dataset.scaling and given is not None and computed is not None:
                told += list(_difference(spec, dataset, field, given, computed))
    if not told:
        return ()
    more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return (
        f"normalize.statistics: {name} differs from the {how.statistics_of} of this data: "
        + "; ".join(told[:_NAMED])
        + more
        + ". Keep it for a model that was trained with it; else write it anew: autoloader stats",
    )


def _is_small(mixture: ResolvedMixture) -> bool:
    indexes = find_indexes(mixture.datasets)
    there = [index for index in indexes if index is not None]
    return len(there) == len(indexes) and sum(int(i.steps.sum()) for i in there) <= MOST_STEPS


def _difference(
    spec: PipelineSpec,
    dataset: ResolvedDataset,
    field: FieldName,
    given: FieldStatistics,
    computed: FieldStatistics,
) -> Iterator[str]:
    """The column whose normalised values differ most, where they do."""
    how = spec.normalize_of(dataset.name, field)
    assert how is not None
    width = len(computed.mean)
    a, b = (
        scaling_of(how, one, width, field=field, dataset=dataset.name) for one in (given, computed)
    )
    points = np.asarray([computed.q01, computed.mean, computed.q99], dtype=np.float64)
    scaled = [(points - one.centre) * one.factor + one.shift for one in (a, b)]
    apart = np.abs(scaled[0] - scaled[1]).max(axis=0)
    apart[~(a.active & b.active)] = 0.0
    worst = int(apart.argmax())
    if apart[worst] > APART:
        yield f"{dataset.name}: {field} column {worst} by {apart[worst]:.2g}"
