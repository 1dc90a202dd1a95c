"""What the index of a transformed dataset says of its episodes: which t are valid, what was lost.

A dropped episode is one without a step; which steps may be t is a column (``VALID_KEY``).

Not here: running the transform (``index.build``, ``sampling.transform``), datasets that are read as
they lie (``sampling.counts``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autoloader.sampling.counts import DatasetCount, samples_per_episode
from autoloader.sampling.keep import RuleLoss
from autoloader.sampling.ranges import Ranges
from autoloader.sampling.windows import valid_ranges

if TYPE_CHECKING:
    from autoloader.index.dataset import DatasetIndex


def valid_ranges_of(index: DatasetIndex) -> Ranges | None:
    """The valid t of each episode, or ``None`` where the transform bars no step."""
    valid = index.valid_steps()
    if valid.all():
        return None
    steps = index.steps.astype(np.int64)
    first = np.cumsum(steps) - steps
    edges = np.zeros(len(valid) + 1, dtype=np.bool_)
    edges[first] = True  # runs end with their episode
    edges[-1] = True
    before = np.concatenate([[False], valid[:-1]])
    begins = np.flatnonzero(valid & (edges[:-1] | ~before))
    after = np.concatenate([valid[1:], [False]])
    ends = np.flatnonzero(valid & (edges[1:] | ~after)) + 1
    episode = np.searchsorted(first, begins, side="right") - 1
    barred = Ranges.of(len(steps), episode, begins - first[episode], ends - first[episode])
    stride = index.dataset.stride
    windows = Ranges.spans(*valid_ranges(index.dataset.sample, -(-steps // stride)))
    return windows.both(barred.strided(stride))


def count_transformed(index: DatasetIndex) -> DatasetCount:
    """What the transformed episodes of ``index`` give."""
    dataset = index.dataset
    steps = index.steps.astype(np.int64)
    strided = -(-steps // dataset.stride)
    every = samples_per_episode(dataset.sample, strided)
    kept = valid_ranges_of(index)
    left = every if kept is None else samples_per_episode(dataset.sample, strided, kept)
    dropped = int((steps == 0).sum())
    lost = []
    if dropped:
        lost.append(RuleLoss("transform", dropped, 0))
    if kept is not None:
        whole = int(((every > 0) & (left == 0)).sum())
        lost.append(RuleLoss("transform.valid", whole, int((every - left).sum())))
    return DatasetCount(
        episodes=index.episodes,
        frames=int(steps.sum()),
        samples=int(left.sum()),
        short_episodes=int((every == 0).sum()) - dropped,
        damaged=index.damage_reasons(),
        estimated=False,
        lost=tuple(lost),
    )
