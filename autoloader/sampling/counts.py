"""How many samples each dataset gives in a pass.

Not here: episode lengths on disk (``catalog.lengths``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import episode_lengths
from autoloader.errors import SourceError
from autoloader.sampling.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.windows import valid_range
from autoloader.spec import SampleSpec


@dataclass(frozen=True, slots=True)
class DatasetCount:
    """What one dataset holds.

    Attributes:
        episodes: records of the split that can be read.
        frames: their frames, before the stride.
        samples: samples of a pass.
        short_episodes: episodes that give no sample because no window fits.
        damaged: records that cannot be read, with their reasons.
        estimated: whether frames and samples are an estimate from a probe.
    """

    episodes: int
    frames: int
    samples: int
    short_episodes: int
    damaged: tuple[str, ...]
    estimated: bool


def samples_per_episode(sample: SampleSpec, strided: NDArray[np.int64]) -> NDArray[np.int64]:
    """[E] samples that episodes of ``strided`` [E] frames give in a pass."""
    lengths, inverse = np.unique(strided, return_inverse=True)
    counts = []
    for length in lengths.tolist():
        first, stop = valid_range(sample, length)
        counts.append(stop - first)
    counted = np.asarray(counts, dtype=np.int64)
    if sample.per_episode != "all":
        counted = np.minimum(counted, sample.per_episode)
    return np.asarray(counted[inverse.reshape(-1)], dtype=np.int64)


def count_dataset(dataset: ResolvedDataset, *, probe_only: bool = False) -> DatasetCount:
    """Count one dataset's samples; reads record headers (cached), never pictures.

    Args:
        dataset: the dataset.
        probe_only: read a few records only and estimate from them, labelled so.

    Raises:
        SourceError: no record can be read.
    """
    found = episode_lengths(
        dataset.slices, dataset.directory.features, probe_only=probe_only, dataset=dataset.name
    )
    every = np.concatenate([part.astype(np.int64) for part in found.lengths])
    whole = every[every >= 0]
    if not len(whole):
        reason = found.damage[0].reason if found.damage else "it has no records"
        raise SourceError(
            f"dataset {dataset.name!r}: no episode can be read: {reason}",
            remedy=f"check the files in {dataset.directory.path}, or take the dataset out",
            dataset=dataset.name,
        )
    per_episode = samples_per_episode(dataset.sample, -(-whole // dataset.stride))
    return DatasetCount(
        episodes=len(whole),
        frames=int(whole.sum()),
        samples=int(per_episode.sum()),
        short_episodes=int((per_episode == 0).sum()),
        damaged=tuple(f"{d.path}, record {d.record}: {d.reason}" for d in found.damage),
        estimated=found.estimated,
    )


def count_mixture(mixture: ResolvedMixture, *, probe_only: bool = False) -> dict[str, DatasetCount]:
    """Count every dataset of a mixture, by name.

    Raises:
        SourceError: a dataset cannot be read, or (where this is certain) gives no sample at all.
    """
    counts = {}
    for dataset in mixture.datasets:
        count = count_dataset(dataset, probe_only=probe_only)
        if not count.samples and not count.estimated:
            raise SourceError(
                f"dataset {dataset.name!r}: none of its {count.episodes} episodes is long enough "
                "for a sample",
                remedy="use smaller offsets, edges: {start: repeat, end: repeat}, or take it out",
                dataset=dataset.name,
            )
        counts[dataset.name] = count
    return counts
