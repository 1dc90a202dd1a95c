"""Says where a statistics file differs from what the spec's own data gives.

Files of another tool, of other data, or of earlier versions (which counted a row as often as
windows showed it) bring values to another scale, and nothing fails. The difference is told in the
units that the model sees: how far apart a normalised value comes out.

Not here: computing statistics (``compute``), reading files (``mixture``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from autoloader.index import find_indexes
from autoloader.index.statistics.mixture import statistics_of
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.samples.statistics import FieldStatistics, scaling_of
from autoloader.samples.transforms.fields import FieldName
from autoloader.spec import PipelineSpec

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
        spec: the same.
        split: which split.
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
