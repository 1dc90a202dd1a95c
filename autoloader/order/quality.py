"""How well an order is shuffled, told from the plan alone.

- different episodes of a batch, a mean over the first batches;
- of samples of a dataset that follow each other, how many are of one episode;
- Spearman's rank correlation between a dataset's order of delivery and its order in storage
  (episode, then t): 1 is storage order, 0 is none. A mean over a few passes and all datasets.

Not here: the same of batches that came (``bench.shuffle``), decodes (``reuse``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoloader.order.episodes import DatasetTable
from autoloader.order.mixture import MixtureOrder
from autoloader.order.plan import SamplePlan

_BATCHES = 64
_PASSES = 4
_SAMPLES = 1024
"""Samples of a pass of a dataset, evenly spread, whose order is looked at."""


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How well an order is shuffled.

    Attributes:
        distinct_episodes: different episodes in a batch, mean.
        same_episode_ratio: of neighbours in a dataset, how many are of one episode.
        storage_correlation: of delivery and storage, from −1 to 1.
    """

    distinct_episodes: float
    same_episode_ratio: float
    storage_correlation: float


def foretell_quality(
    order: MixtureOrder,
    tables: Sequence[DatasetTable],
    batch: int,
    *,
    passes: int = _PASSES,
    start: int = 0,
) -> ShuffleQuality:
    """What batches of ``batch`` samples will be of; no file is looked at.

    Args:
        order: the mixture's.
        tables: its datasets, each with a sample at least.
        batch: samples of a batch.
        passes: of each dataset whose order is held against storage.
        start: the position of the first of the batches.
    """
    plan = SamplePlan(order, tables, chain=order.chain)
    stop = start + _BATCHES * batch
    counts = [plan.samples(at, at + batch).distinct_episodes for at in range(start, stop, batch)]
    planned = plan.samples(start, stop)
    neighbours = same = 0
    for dataset in range(len(tables)):
        episode = planned.episode[planned.dataset == dataset]
        neighbours += max(0, len(episode) - 1)
        same += int((episode[1:] == episode[:-1]).sum())
    found = [
        correlation
        for dataset, table in enumerate(tables)
        if order.used[dataset]
        for pass_ in range(passes)
        if (correlation := _of_pass(plan, dataset, table, pass_)) is not None
    ]
    return ShuffleQuality(
        float(np.mean(counts)),
        same / max(1, neighbours),
        float(np.mean(found)) if found else 0.0,
    )


def _of_pass(plan: SamplePlan, dataset: int, table: DatasetTable, pass_: int) -> float | None:
    count = min(_SAMPLES, table.samples)
    if count < 2:
        return None
    within = np.linspace(0, table.samples - 1, count).astype(np.int64)
    found = plan.at(np.full(count, dataset, np.int64), pass_ * table.samples + within)
    rank = np.empty(count)
    rank[np.lexsort((found.t, found.episode))] = np.arange(count)
    return float(np.corrcoef(rank, np.arange(count))[0, 1])
