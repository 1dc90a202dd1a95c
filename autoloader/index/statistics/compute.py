"""Computes statistics from indexes, exactly: of one dataset, or of several that share them.

Theory of operation. What counts is one of two multisets of rows:

- ``steps``: every step (after the stride) of the episodes from which filters leave something, once,
  after field expressions. Windows, edges and chunks have no say. ``recorded`` is the same of more
  episodes (``mixture.measured``).
- ``samples``: what the model gets in a pass with ``per_episode: all``: the rows of every valid t's
  window that lie in the episode. A horizon of 16 gives the same row up to 16 times; it is held
  once, with that weight.

An action that is summed, or relative to the state at t, is a sample's and no step's: its rows are
those of samples in either case.

Sums are in float64; quantiles are NumPy's, by linear interpolation in float64, and
exact, because a column is sorted whole. Memory: the float32 values of one field of the datasets
that share it, and one column's float64 copies.

Values that are not finite are left out, column by column, and it is said how many.

Not here: which statistics a run needs and where they are kept (``mixture``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SpecError
from autoloader.index import DatasetIndex
from autoloader.index.valid import remaining_episodes, valid_t
from autoloader.samples import windows
from autoloader.samples.block import field_rows, field_windows
from autoloader.samples.counts import valid_per_episode
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.statistics import FieldStatistics, NormalizationStatistics
from autoloader.samples.transforms.fields import FieldName
from autoloader.samples.transforms.keep import Ranges

logger = logging.getLogger(__name__)

StatisticsOf = Literal["steps", "samples", "recorded"]


@dataclass(frozen=True, slots=True)
class FieldRows:
    """Rows [n, width] float32 of a field, row i counted ``weights[i]`` times."""

    values: NDArray[np.float32]
    weights: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DatasetRows:
    """Rows that one dataset's statistics are of; ``None`` for a field that it does not have."""

    name: str
    action: FieldRows | None
    state: FieldRows | None
    transitions: int
    trajectories: int


def dataset_statistics(index: DatasetIndex, of: StatisticsOf = "steps") -> NormalizationStatistics:
    """The statistics of the episodes of ``index``."""
    return shared_statistics([dataset_rows(index, of)])


def shared_statistics(datasets: Sequence[DatasetRows], group: str = "") -> NormalizationStatistics:
    """One set of statistics, of the rows of all ``datasets``.

    Args:
        datasets: resolved datasets, at least one.
        group: its name in ``normalize.group``, for messages.

    Raises:
        SpecError: their fields differ in width.
    """
    fields: dict[str, FieldStatistics | None] = {}
    for name in ("action", "state"):
        there = [(one.name, rows) for one in datasets if (rows := getattr(one, name)) is not None]
        for other, rows in there[1:]:
            width, first = rows.values.shape[1], there[0][1].values.shape[1]
            if width != first:
                raise SpecError(
                    f"normalize.group.{group}: {name} of {there[0][0]!r} has {first} columns, that "
                    f"of {other!r} has {width}",
                    remedy="group datasets whose columns mean the same",
                    path=f"normalize.group.{group}",
                )
        fields[name] = None
        if there:
            values = np.concatenate([rows.values for _, rows in there])
            weights = np.concatenate([rows.weights for _, rows in there])
            fields[name] = field_statistics(values, weights)
    return NormalizationStatistics(
        action=fields["action"],
        state=fields["state"],
        transitions=sum(one.transitions for one in datasets),
        trajectories=sum(one.trajectories for one in datasets),
    )


def dataset_rows(index: DatasetIndex, of: StatisticsOf) -> DatasetRows:
    """The rows that the statistics of the episodes of ``index`` are of."""
    dataset, strided = index.dataset, index.strided
    remain = remaining_episodes(index)
    if of == "samples":
        transitions = int(valid_per_episode(dataset.sample, strided, valid_t(index)).sum())
    else:
        transitions = int(strided[remain].sum())

    def rows(name: FieldName) -> FieldRows | None:
        if dataset.bound(name) is None:
            return None
        if of != "samples" and not is_of_samples(dataset, name):
            return _noted(index, name, _step_rows(index, name, remain))
        return _noted(index, name, _sample_rows(index, name, valid_t(index)))

    return DatasetRows(dataset.name, rows("action"), rows("state"), transitions, int(remain.sum()))


def is_of_samples(dataset: ResolvedDataset, name: FieldName) -> bool:
    """True if a field's rows depend on t, so that no step has one of its own."""
    sample = dataset.sample
    return name == "action" and (
        bool(sample.action_relative_to_state) or sample.action_reduce == "sum"
    )


def field_statistics(values: NDArray[np.float32], weights: NDArray[np.int64]) -> FieldStatistics:
    """Statistics of rows [n, width], row i counted ``weights[i]`` times."""
    columns = [_column(values[:, number], weights) for number in range(values.shape[1])]
    mean, std, minimum, maximum, q01, q99, q10, q50, q90 = zip(*columns, strict=True)
    return FieldStatistics(mean, std, minimum, maximum, q01, q99, q10, q50, q90)


def _step_rows(index: DatasetIndex, name: FieldName, remain: NDArray[np.bool_]) -> FieldRows:
    """Every step of the episodes that remain, once."""
    dataset = index.dataset
    bound = dataset.bound(name)
    assert bound is not None
    rows = [np.empty((0, bound.width), np.float32)]
    for number in np.flatnonzero(remain).tolist():
        columns = {path: index.column(number, path)[:: dataset.stride] for path in bound.paths()}
        rows.append(bound.evaluate(columns, int(index.strided[number])))
    values = np.concatenate(rows)
    return FieldRows(values, np.ones(len(values), np.int64))


def _sample_rows(index: DatasetIndex, name: FieldName, valid: Ranges | None) -> FieldRows:
    """Rows of the samples of every valid t."""
    dataset = index.dataset
    bound = dataset.bound(name)
    assert bound is not None
    by_t = is_of_samples(dataset, name)
    relative = name == "action" and bool(dataset.sample.action_relative_to_state)
    terms = [*bound.terms, *(dataset.state.terms if relative and dataset.state else ())]
    paths = dict.fromkeys(term.path for term in terms if term.path is not None)
    rows: list[NDArray[np.float32]] = [np.empty((0, bound.width), np.float32)]
    weights: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    for number, steps in enumerate(index.strided.tolist()):
        if valid is None:
            t = np.arange(*windows.valid_range(dataset.sample, steps), dtype=np.int64)
        else:
            t = valid.numbers(number)
        if not len(t):
            continue
        columns = {path: index.column(number, path)[:: dataset.stride] for path in paths}
        if by_t:  # every t has rows of its own
            values, mask = field_rows(dataset, name, t, steps, columns, bound.width)
            found = values[mask[..., 0]]
            weights.append(np.ones(len(found), np.int64))
        else:
            _, window = field_windows(dataset.sample, name, t, steps)
            times = np.bincount(window.index[window.inside], minlength=steps)
            used = np.flatnonzero(times)
            found = bound.evaluate(columns, steps)[used]
            weights.append(times[used].astype(np.int64))
        rows.append(found)
    return FieldRows(np.concatenate(rows), np.concatenate(weights))


def _noted(index: DatasetIndex, name: FieldName, rows: FieldRows) -> FieldRows:
    """``rows``; says how many of them hold values that no statistics can be of."""
    lost = int(rows.weights[~np.isfinite(rows.values).all(axis=1)].sum())
    if lost:
        logger.warning(
            "dataset %s: %d of %d rows of %s hold values that are not finite; these are left out",
            index.dataset.name, lost, int(rows.weights.sum()), name,
        )  # fmt: skip
    return rows


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
