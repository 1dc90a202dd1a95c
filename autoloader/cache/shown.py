"""How many samples of a pass show a frame: of how many frames of a dataset one does, two do, ….

With m frame offsets most frames are shown by m samples of a pass; those near an episode's ends by
fewer, and where an edge repeats, the first and the last by more. So it is enough to count an
episode of each short length; one that is longer has so many more frames in its middle.

Where samples are chained, the neighbours that share a frame in a block use it together: what counts
is how many blocks show it. That is told by its mean.

Not here: when they show it (``intervals``), the frames of goals, which are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from autoloader.samples.windows import rows, valid_range
from autoloader.sampling.episodes import DatasetTable
from autoloader.spec import SampleSpec

Shown = tuple[tuple[int, float], ...]
"""(uses in a pass, frames that have so many), uses above zero and ascending."""

_EPISODES = 256
"""Episodes that are looked at where rules leave t out."""


def frames_by_uses(table: DatasetTable) -> Shown:
    """How often the frames of a dataset are used in a pass that takes every valid t.

    Args:
        table: of the dataset. Where rules keep t, it is told from some of its episodes.
    """
    strided = -(-table.steps.astype(np.int64) // table.stride)
    if table.kept is not None:
        return _of_kept(table, strided)
    lengths, episodes = np.unique(strided, return_counts=True)
    span = _span(table.sample)
    total: Counter[int] = Counter()
    for length, count in zip(lengths.tolist(), episodes.tolist(), strict=True):
        short = min(length, span)
        for uses, frames in _of_episode(table.sample, short, None).items():
            total[uses] += count * frames
        total[len(set(table.sample.frame_offsets))] += count * (length - short)
    return _listed(total)


def of_blocks(shown: Shown, decodes: float) -> Shown:
    """The same where blocks of samples use a frame together.

    Args:
        shown: uses by single samples.
        decodes: frames that a pass decodes, fewer than its samples show.
    """
    frames = sum(count for _, count in shown)
    mean = max(1.0, decodes / frames)
    few = int(mean)
    more = (mean - few) * frames
    return tuple((k, n) for k, n in ((few, frames - more), (few + 1, more)) if n > 0)


def _span(sample: SampleSpec) -> int:
    """Frames of an episode from which on one more is one more in its middle."""
    offsets = (*sample.frame_offsets, 0)
    first, stop = valid_range(sample, 0)
    lost = first + (stop - valid_range(sample, 10**6)[1] + 10**6)
    return 2 * (max(offsets) - min(offsets)) + lost + 2


def _of_episode(
    sample: SampleSpec, steps: int, kept: NDArray[np.int64] | None
) -> Mapping[int, int]:
    """Frames of one episode by the samples that show them."""
    t = np.arange(*valid_range(sample, steps), dtype=np.int64) if kept is None else kept
    if not len(t):
        return {}
    window = rows(t, np.asarray(sorted(set(sample.frame_offsets)), dtype=np.int64), steps, sample)
    pairs = np.where(window.zeroed, -1, window.index) + np.arange(len(t))[:, None] * (steps + 1)
    seen = np.unique(pairs[~window.zeroed]) % (steps + 1)
    uses = np.bincount(seen, minlength=steps)
    return {k: n for k, n in enumerate(np.bincount(uses).tolist()) if k and n}


def _of_kept(table: DatasetTable, strided: NDArray[np.int64]) -> Shown:
    assert table.kept is not None
    counts = table.kept.counts()
    some = np.flatnonzero(counts)
    picked = some[np.linspace(0, len(some) - 1, min(len(some), _EPISODES)).astype(np.int64)]
    total: Counter[int] = Counter()
    for episode in picked.tolist():
        total.update(_of_episode(table.sample, int(strided[episode]), table.kept.numbers(episode)))
    scale = float(counts.sum() / counts[picked].sum())
    return tuple((uses, frames * scale) for uses, frames in _listed(total))


def _listed(total: Mapping[int, int]) -> Shown:
    return tuple((uses, float(total[uses])) for uses in sorted(total) if total[uses])
