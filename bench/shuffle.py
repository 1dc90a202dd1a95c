"""How well a stream of samples is shuffled, from where each sample lies in storage.

A loader can be fast by giving samples as they lie: neighbours share frames, pages and decoded
pictures, and a batch holds few episodes. So these figures stand beside every throughput figure:

- ``distinct_episodes``: how many episodes a batch holds, mean over batches. The batch size is the
  best there is.
- ``storage_correlation``: Spearman's rank correlation between a dataset's order of delivery and its
  order in storage (episode, then step), mean over datasets, each counted by its samples. 1 is
  storage order, 0 is none.
- ``same_episode_ratio``: of the samples of a dataset that follow each other, how many are of one
  episode.

Not here: which samples a contender gives (``bench.peers``), when they are counted
(``bench.window``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FEWEST = 8
"""Samples of a dataset below which their order says nothing."""


def shuffle_quality(batches: Sequence[NDArray[np.int64]]) -> dict[str, float]:
    """The figures of a stretch of batches; one that cannot be told is absent.

    Args:
        batches: in order of delivery, ``[B, 3]`` each: dataset, episode within it (rising as they
            are stored), step within that.
    """
    if not batches:
        return {}
    distinct = [len(np.unique(batch[:, :2], axis=0)) for batch in batches]
    found = {"distinct_episodes": float(np.mean(distinct))}
    samples = np.concatenate(batches)
    counts, correlations, neighbours, same = [], [], 0, 0
    for dataset in np.unique(samples[:, 0]):
        own = samples[samples[:, 0] == dataset, 1:]
        neighbours += len(own) - 1
        same += int((own[1:, 0] == own[:-1, 0]).sum())
        correlation = rank_correlation(own)
        if len(own) >= FEWEST and correlation is not None:
            counts.append(len(own))
            correlations.append(correlation)
    if correlations:
        found["storage_correlation"] = float(np.average(correlations, weights=counts))
    if neighbours:
        found["same_episode_ratio"] = same / neighbours
    return found


def rank_correlation(places: NDArray[np.int64]) -> float | None:
    """Spearman's correlation of rows ``[n, k]`` (first column first) with their order.

    Rows that come twice share the mean of their ranks. ``None`` where all rows are the same.
    """
    _, ranks, counts = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        return None
    # The mean rank of equal rows: those below, and the middle of their own.
    means = np.cumsum(counts) - (counts + 1) / 2
    return float(np.corrcoef(means[ranks.reshape(-1)], np.arange(len(places)))[0, 1])
