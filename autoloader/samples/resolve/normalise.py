"""Applies ``spec.normalize`` to a resolved mixture, once the statistics are known.

Not here: the arithmetic (``samples.scaling``), computing statistics (``autoloader.statistics``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoloader.errors import SpecError
from autoloader.samples.resolve.dataset import ResolvedDataset
from autoloader.samples.resolve.mixture import ResolvedMixture
from autoloader.samples.scaling import Scaling, scaling_of
from autoloader.samples.statistics import NormalizationStatistics
from autoloader.spec import PipelineSpec


def normalised(
    mixture: ResolvedMixture, statistics: Mapping[str, NormalizationStatistics]
) -> ResolvedMixture:
    """The mixture with ``spec.normalize`` applied to every dataset.

    Raises:
        SpecError: a dataset has no statistics, or they do not fit it.
    """
    fitted = dict(statistics)
    for dataset in mixture.datasets:
        if dataset.name in fitted:
            widths = [bound.width if bound else 0 for bound in (dataset.action, dataset.state)]
            fitted[dataset.name] = fitted[dataset.name].fitted(*widths)
    datasets = tuple(
        replace(dataset, scaling=_scaling(mixture.spec, dataset, fitted))
        for dataset in mixture.datasets
    )
    return replace(mixture, datasets=datasets, statistics=fitted)


def _scaling(
    spec: PipelineSpec, dataset: ResolvedDataset, statistics: Mapping[str, NormalizationStatistics]
) -> dict[str, Scaling]:
    scaling = {}
    for key, bound in (("action", dataset.action), ("state", dataset.state)):
        how = spec.normalize_of(dataset.name, key)
        if how is None or bound is None:
            continue
        found = getattr(statistics.get(dataset.name), key, None)
        if found is None:
            raise SpecError(
                f"normalize.statistics: there are none for {key} of dataset {dataset.name!r}",
                remedy="compute them for this spec: autoloader stats --spec SPEC --out FILE",
                path="normalize.statistics",
            )
        scaling[key] = scaling_of(how, found, bound.width, field=key, dataset=dataset.name)
    return scaling
