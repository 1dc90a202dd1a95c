"""Computes one dataset's statistics from its index: exactly what a pass over all valid t gives.

Theory of operation. The multiset of rows is the one the model gets in a pass with ``per_episode:
all``: the rows of every valid t's window that lie in the episode, after field expressions,
differences and sums; masked rows are left out. With a horizon of 1 that is every action once, as
Octo and OpenVLA count. A horizon of 16 gives the same row up to 16 times; it is held once, with
that weight. Sums are in float64; quantiles are NumPy's, by linear interpolation in float64, and
exact, because a column is sorted whole. Memory: the float32 values of one dataset's field, and one
column's float64 copies.

Values that are not finite are left out, column by column, and it is said how many.

Not here: which statistics a run needs and where they are kept (``mixture``, ``cache``).
"""

from __future__ import annotations

import logging
import math

import numpy as np
from numpy.typing import NDArray

from autoloader.index import DatasetIndex
from autoloader.index.valid import valid_t
from autoloader.samples import windows
from autoloader.samples.block import field_offsets, field_rows
from autoloader.samples.counts import samples_per_episode
from autoloader.samples.resolve import FieldName
from autoloader.samples.statistics import FieldStatistics, NormalizationStatistics
from autoloader.transforms.ranges import Ranges

logger = logging.getLogger(__name__)


def dataset_statistics(index: DatasetIndex) -> NormalizationStatistics:
    """The statistics of the episodes of ``index``."""
    dataset = index.dataset
    every = dataset.sample.model_copy(update={"per_episode": "all"})
    # An episode that a transform drops has no step.
    dropped = 0 if dataset.transform is None else int((index.steps == 0).sum())
    valid = valid_t(index)
    return NormalizationStatistics(
        action=_field_statistics(index, "action", valid) if dataset.action else None,
        state=_field_statistics(index, "state", valid) if dataset.state else None,
        transitions=int(samples_per_episode(every, index.strided, valid).sum()),
        trajectories=index.episodes - dropped,
    )


def field_statistics(values: NDArray[np.float32], weights: NDArray[np.int64]) -> FieldStatistics:
    """Statistics of rows [n, width], row i counted ``weights[i]`` times."""
    columns = [_column(values[:, number], weights) for number in range(values.shape[1])]
    mean, std, minimum, maximum, q01, q99 = zip(*columns, strict=True)
    return FieldStatistics(mean, std, minimum, maximum, q01, q99)


def _field_statistics(
    index: DatasetIndex, name: FieldName, valid: Ranges | None
) -> FieldStatistics:
    dataset = index.dataset
    bound = dataset.bound(name)
    assert bound is not None
    relative = bool(name == "action" and dataset.sample.action_relative_to_state)
    terms = [*bound.terms, *(dataset.state.terms if relative and dataset.state else ())]
    paths = dict.fromkeys(term.path for term in terms if term.path is not None)
    summed = name == "action" and dataset.sample.action_reduce == "sum"
    rows: list[NDArray[np.float32]] = [np.empty((0, bound.width), np.float32)]
    weights: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    for number, steps in enumerate(index.strided.tolist()):
        if valid is None:
            t = np.arange(*windows.valid_range(dataset.sample, steps), dtype=np.int64)
        else:
            t = valid.numbers(number)
        if not len(t):
            continue
        episode = index.episode(number)
        columns = {path: episode.column(path)[:: dataset.stride] for path in paths}
        if summed or relative:  # every t has rows of its own
            values, mask = field_rows(dataset, name, t, steps, columns, bound.width)
            found = values[mask[..., 0]]
            weights.append(np.ones(len(found), np.int64))
        else:
            window = windows.rows(t, field_offsets(dataset.sample, name), steps, dataset.sample)
            times = np.bincount(window.index[window.inside], minlength=steps)
            used = np.flatnonzero(times)
            found = bound.evaluate(columns, steps)[used]
            weights.append(times[used].astype(np.int64))
        rows.append(found)
    values, counts = np.concatenate(rows), np.concatenate(weights)
    lost = int(counts[~np.isfinite(values).all(axis=1)].sum())
    if lost:
        logger.warning(
            "dataset %s: %d of %d rows of %s hold values that are not finite; these are left out",
            dataset.name, lost, int(counts.sum()), name,
        )  # fmt: skip
    return field_statistics(values, counts)


def _column(
    values: NDArray[np.float32], weights: NDArray[np.int64]
) -> tuple[float, float, float, float, float, float]:
    """Mean, std, minimum, maximum, q01, q99."""
    finite = np.isfinite(values)
    kept, times = values[finite].astype(np.float64), weights[finite]
    total = int(times.sum())
    if not total:
        return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    mean = float((kept * times).sum() / total)
    deviation = kept - mean
    std = math.sqrt(float((deviation * deviation * times).sum() / total))
    order = np.argsort(kept, kind="stable")
    kept, upto = kept[order], np.cumsum(times[order])
    low, high = (_quantile(kept, upto, q) for q in (0.01, 0.99))
    return mean, std, float(kept[0]), float(kept[-1]), low, high


def _quantile(ordered: NDArray[np.float64], upto: NDArray[np.int64], q: float) -> float:
    """NumPy's linear quantile of ``ordered`` values, of which ``upto[i]`` are the first i + 1."""
    place = q * (int(upto[-1]) - 1)
    rank = math.floor(place)
    part = place - rank
    at = np.searchsorted(upto, [rank, min(rank + 1, int(upto[-1]) - 1)], side="right")
    low, high = (float(one) for one in ordered[at])
    step = high - low
    return high - step * (1 - part) if part >= 0.5 else low + step * part
