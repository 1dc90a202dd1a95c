"""GR00T's statistics files: of whole columns, of relative actions by row, and of its named parts.

| file | holds |
| --- | --- |
| ``NAME/meta/stats.json`` | each numeric column that the spec reads, all its numbers |
| ``NAME/meta/relative_stats.json`` | each relative action by GR00T's name, [horizon, D] |
| ``dataset_statistics.json`` | by tag and field GR00T's names; what its processor takes |

The tag of a dataset is its group in ``normalize.group``, else ``new_embodiment``. Datasets of one
tag are merged as N1.6 does: mean and variance by weight, extremes and quantiles over all.

Not here: statistics that normalise batches (``statistics``), ``modality.json`` itself
(``formats.lerobot.modality``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import UsageError
from autoloader.formats.lerobot.modality import Modality
from autoloader.index.opening import open_dataset_index
from autoloader.index.statistics import dataset_rows, field_statistics, measured
from autoloader.samples.statistics import FieldStatistics
from autoloader.spec import FieldExpression, PipelineSpec

NO_TAG = "new_embodiment"
"""GR00T's tag of an embodiment that its model does not know."""
TOGETHER = "dataset_statistics.json"
_KEYS = {"mean": "mean", "std": "std", "min": "minimum", "max": "maximum", "q01": "q01",
         "q99": "q99"}  # fmt: skip
_Numbers = Mapping[str, NDArray[np.float64]]


def as_stored(spec: PipelineSpec) -> PipelineSpec:
    """The spec without all that GR00T's own code does to numbers: scales, differences, turns."""
    plain = spec.model_dump(mode="json", by_alias=True)
    plain["normalize"] = None
    for one in (plain, *plain["datasets"]):
        one["sample"].pop("action_relative_to_state", None)
    for one in plain["datasets"]:
        one["normalize"] = {}
        for field in ("action", "state"):
            terms = one[field] if isinstance(one[field], list) else [one[field]]
            one[field] = [_without_turns(term) for term in terms if term is not None] or None
    return PipelineSpec.from_mapping(plain)


def _without_turns(term: Any) -> Any:
    if not isinstance(term, Mapping) or "ops" not in term:
        return term
    ops = [op for op in term["ops"] if op != "rotation6d" and "rotation6d" not in op]
    return {**term, "ops": ops} if ops else term["path"]


def named_columns(
    expression: FieldExpression | None, modality: Modality, field: str, dataset: str
) -> Iterator[tuple[str, slice]]:
    """(GR00T's name, columns of the field) of each term of ``action`` or ``state``.

    Raises:
        UsageError: ``modality.json`` has no such columns.
    """
    keys = {
        (one.original_key, one.start, one.end): key for key, one in modality.columns(field).items()
    }
    first = 0
    for term in expression.terms if expression else ():
        start, end, _ = term.columns or (None, None, None)
        key = keys.get((term.path, start or 0, end or 0))
        if key is None or end is None:
            raise UsageError(
                f"datasets[{dataset}].{field}: {term.text()!r} is not an entry of the "
                "dataset's meta/modality.json",
                remedy="write the columns as in modality.json, such as observation.state[0:7], or "
                "write the spec by autoloader init --style gr00t",
            )
        yield key, slice(first, first := first + end - (start or 0))


def statistics_files(spec: PipelineSpec, split: str) -> dict[str, Any]:
    """Place of each file → its content.

    Raises:
        UsageError: a dataset's columns are no entries of its ``modality.json``.
        SourceError: a dataset cannot be read, or has no ``modality.json``.
    """
    found: dict[str, Any] = {}
    by_tag: dict[str, list[tuple[float, dict[str, dict[str, _Numbers]]]]] = {}
    stored = measured(as_stored(spec), split)
    as_trained = {one.name: one for one in measured(spec, split).datasets}
    for dataset in stored.datasets:
        relative = as_trained[dataset.name]
        declared = stored.spec.dataset(dataset.name)
        modality = Modality.read(declared.path or "", "n1.6", dataset=dataset.name)
        index = open_dataset_index(dataset)
        columns: dict[str, _Numbers] = {}
        for path in dataset.numeric_features():
            columns[path] = _numbers(np.concatenate([*index.values("column", path)]))
        found[f"{dataset.name}/meta/stats.json"] = {
            path: _listed(one) for path, one in columns.items()
        }
        parts: dict[str, dict[str, _Numbers]] = {}
        for field in ("state", "action"):
            keys = dict(named_columns(getattr(declared, field), modality, field, dataset.name))
            named = {key: modality.columns(field)[key] for key in keys}
            parts[field] = {
                key: {
                    kind: values[one.start : one.end]
                    for kind, values in columns[one.original_key or ""].items()
                }
                for key, one in named.items()
            }
        dims = set(relative.sample.action_relative_to_state)
        if dims:
            at_row = dataset_rows(open_dataset_index(relative), "steps", by_row=True).at_row
            assert at_row is not None
            by_row = [_numbers(at_row(row)) for row in range(relative.sample.action_horizon)]
            parts["relative_action"] = {
                key: {kind: np.stack([one[kind][own] for one in by_row]) for kind in _KEYS}
                for key, own in named_columns(declared.action, modality, "action", dataset.name)
                if {*range(own.start, own.stop)} <= dims
            }
            found[f"{dataset.name}/meta/relative_stats.json"] = {
                key: _listed(one) for key, one in parts["relative_action"].items()
            }
        group = spec.normalize.group_of(dataset.name) if spec.normalize else None
        by_tag.setdefault(group or NO_TAG, []).append((declared.weight, parts))
    found[TOGETHER] = {tag: _merged(several) for tag, several in by_tag.items()}
    return found


def _numbers(rows: NDArray[np.float32]) -> _Numbers:
    """Statistics of rows [n, width]."""
    found: FieldStatistics = field_statistics(rows, np.ones(len(rows), np.int64))
    return {kind: np.asarray(getattr(found, own)) for kind, own in _KEYS.items()}


def _listed(numbers: _Numbers) -> dict[str, Any]:
    return {kind: values.tolist() for kind, values in numbers.items()}


def _merged(several: Sequence[tuple[float, Mapping[str, Mapping[str, _Numbers]]]]) -> Any:
    """The statistics of datasets of one tag, by field and name, as lists.

    Raises:
        UsageError: the datasets differ in names.
    """
    weights = np.asarray([weight for weight, _ in several])
    weights = weights / weights.sum() if weights.sum() else weights + 1 / len(weights)
    every = [parts for _, parts in several]
    found: dict[str, dict[str, Any]] = {}
    for field, keys in every[0].items():
        found[field] = {}
        for key in keys:
            if any(key not in parts.get(field, {}) for parts in every):
                raise UsageError(
                    f"{field}.{key}: only some of the datasets of one embodiment tag have it",
                    remedy="write a group for each embodiment in normalize.group",
                )
            own = [parts[field][key] for parts in every]
            if len(own) == 1:
                found[field][key] = _listed(own[0])
                continue
            means, stds = (np.stack([one[kind] for one in own]) for kind in ("mean", "std"))
            mean = np.tensordot(weights, means, 1)
            square = np.tensordot(weights, stds**2 + means**2, 1)
            made = {"mean": mean, "std": np.sqrt(square - mean**2)}
            made |= {kind: np.min([one[kind] for one in own], axis=0) for kind in ("min", "q01")}
            made |= {kind: np.max([one[kind] for one in own], axis=0) for kind in ("max", "q99")}
            found[field][key] = _listed(made)
    return found
