"""The statistics of a mixture: from a file, from the cache, or computed now.

Statistics are computed over the records of the spec's split ``train``, whichever split is read, so
that validation data is normalised with the scale of the training data. A dataset without a
``train`` split is measured on the split that is read.

Not here: one dataset's numbers (``compute``), applying them (``samples.scaling``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoloader.errors import SpecError
from autoloader.index import open_dataset_index
from autoloader.index.opening import Progress, index_numbers
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture, resolve
from autoloader.samples.statistics import NormalizationStatistics
from autoloader.spec import PipelineSpec
from autoloader.spec.regular_files import DocumentError, read_regular
from autoloader.statistics import cache
from autoloader.statistics.compute import dataset_statistics

TRAIN = "train"


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
        spec: of the mixture; ``normalize.statistics`` names a file that is used as it is.
        split: whose datasets.
        cached_only: compute nothing: ``None`` where some are missing.
        read_remote: whether remote datasets may be read whole for it, which takes its time.
        progress: called with datasets done and datasets in all, where something is computed.

    Raises:
        SpecError: a split, a feature, or the file is wrong; or remote data needs a file.
        SourceError: a dataset cannot be read.
    """
    if spec.normalize is not None and spec.normalize.statistics is not None:
        return read_statistics(spec.normalize.statistics)
    measured = _measured(spec, split)
    found: dict[str, NormalizationStatistics] = {}
    for done, dataset in enumerate(measured.datasets):
        key = cache.statistics_key(dataset, measured.spec.dataset(dataset.name))
        kept = cache.load(key)
        if kept is None and dataset.remote and not read_remote:
            raise _needs_file(dataset)
        if kept is None:
            if cached_only:
                return None
            if progress is not None:
                progress(done, len(measured.datasets))
            kept = dataset_statistics(
                index_numbers(dataset) if dataset.remote else open_dataset_index(dataset)
            )
            cache.save(key, kept)
        found[dataset.name] = kept
    return found


def _needs_file(dataset: ResolvedDataset) -> SpecError:
    where = "normalize.statistics"
    return SpecError(
        f"{where}: dataset {dataset.name!r} is remote ({dataset.directory.path}), and its "
        "statistics would take reading all of it",
        remedy="read it once with: autoloader stats --spec SPEC --out statistics.json; then set "
        "normalize: {statistics: statistics.json}",
        path=where,
    )


def read_statistics(path: str | Path) -> dict[str, NormalizationStatistics]:
    """The statistics in a file, by dataset name.

    Raises:
        SpecError: it cannot be read, or is no statistics file.
    """
    where = "normalize.statistics"
    remedy = "write one with: autoloader stats --spec SPEC --out FILE"
    try:
        document = json.loads(read_regular(path))
    except (OSError, DocumentError) as error:
        why = error.what if isinstance(error, DocumentError) else error.strerror or error
        raise SpecError(f"{where}: {path}: {why}", remedy=remedy, path=where) from error
    except (ValueError, RecursionError) as error:
        raise SpecError(
            f"{where}: {path} is no JSON: {error}", remedy=remedy, path=where
        ) from error
    if not isinstance(document, Mapping):
        raise SpecError(f"{where}: {path} holds no mapping", remedy=remedy, path=where)
    found = {}
    for name, entry in document.items():
        try:
            found[str(name)] = NormalizationStatistics.from_plain(entry)
        except ValueError as error:
            raise SpecError(
                f"{where}: {path}: dataset {name!r}: {error}", remedy=remedy, path=where
            ) from error
    return found


def statistics_document(
    spec: PipelineSpec, statistics: Mapping[str, NormalizationStatistics]
) -> dict[str, Any]:
    """The plain form of statistics; ``mask`` says which columns the spec normalises."""
    document = {}
    for name, found in statistics.items():
        entry = found.plain()
        for key, own in (("action", "action"), ("proprio", "state")):
            if key not in entry:
                continue
            how = getattr(spec.normalize, own, None)
            width = len(entry[key]["mean"])
            given = entry[key].get("mask") or [True] * width
            entry[key]["mask"] = list((how.mask(width) if how else None) or given)
        document[name] = entry
    return document


def _measured(spec: PipelineSpec, split: str) -> ResolvedMixture:
    """The datasets of ``split``, with the records of ``train``."""
    taking_part = []
    for dataset in spec.datasets:
        if dataset.split.get(split) is not None:
            records = dataset.split.get(TRAIN) or dataset.split[split]
            taking_part.append(dataset.model_copy(update={"split": {split: records}}))
    plain = {"datasets": tuple(taking_part), "normalize": None}
    return resolve(spec.model_copy(update=plain), split)
