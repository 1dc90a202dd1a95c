"""How many samples each dataset gives in a pass.

Not here: episode lengths on disk (``catalog.lengths``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import episode_lengths
from autoloader.errors import SourceError
from autoloader.sampling.keep import RuleLoss, valid_t
from autoloader.sampling.ranges import Ranges
from autoloader.sampling.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.windows import valid_ranges
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
        estimated: whether samples are an estimate from a probe.
        frames_estimated: whether frames are.
        lost: what each rule of ``keep`` leaves out, in order.
    """

    episodes: int
    frames: int
    samples: int
    short_episodes: int
    damaged: tuple[str, ...]
    estimated: bool
    lost: tuple[RuleLoss, ...] = ()
    frames_estimated: bool = False


def samples_per_episode(
    sample: SampleSpec, strided: NDArray[np.int64], kept: Ranges | None = None
) -> NDArray[np.int64]:
    """[E] samples that episodes of ``strided`` [E] frames give in a pass.

    Args:
        sample: windows, and how many t of an episode are drawn.
        strided: frames after the stride.
        kept: their valid t where rules leave some out (``keep.valid_t``).
    """
    if kept is not None:
        counted = kept.counts()
    else:
        first, stop = valid_ranges(sample, strided)
        counted = stop - first
    if sample.per_episode != "all":
        counted = np.minimum(counted, sample.per_episode)
    return np.asarray(counted, dtype=np.int64)


def counted_episodes(
    dataset: ResolvedDataset, rows: NDArray[np.int64], steps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int, tuple[RuleLoss, ...]]:
    """(samples of each episode [E], episodes too short for a window, what rules leave out).

    Args:
        dataset: whose episodes.
        rows: [E] which records of the split they are, ascending.
        steps: [E] their frames, before the stride.
    """
    strided = -(-steps // dataset.stride)
    every = samples_per_episode(dataset.sample, strided)
    if dataset.keep is None:
        return every, int((every == 0).sum()), ()
    kept, lost = valid_t(dataset.keep, dataset.sample, dataset.stride, rows, strided)
    return samples_per_episode(dataset.sample, strided, kept), int((every == 0).sum()), lost


def count_dataset(dataset: ResolvedDataset, *, probe_only: bool = False) -> DatasetCount:
    """Count one dataset's samples; reads record headers (cached), never pictures.

    Args:
        dataset: the dataset.
        probe_only: read a few records only and estimate from them, labelled so; not where the
            dataset has rules to ``keep``, whose texts and lengths are read (and cached) whole.
            Of remote data no more is read in any case; ``num_samples`` replaces the estimate.

    Raises:
        SourceError: no record can be read.
    """
    found = episode_lengths(
        dataset.slices,
        dataset.directory.features,
        probe_only=probe_only and dataset.keep is None,
        dataset=dataset.name,
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
    given = dataset.num_samples
    per_episode, short, lost = counted_episodes(dataset, np.flatnonzero(every >= 0), whole)
    return DatasetCount(
        episodes=len(whole),
        frames=int(whole.sum()),
        samples=int(per_episode.sum()) if given is None else given,
        short_episodes=short,
        damaged=tuple(f"{d.path}, record {d.record}: {d.reason}" for d in found.damage),
        estimated=found.estimated and given is None,
        lost=lost,
        frames_estimated=found.estimated,
    )


def samples_of_records(dataset: ResolvedDataset) -> NDArray[np.int64]:
    """[records] samples that ``count_dataset`` finds in each record; 0 of damaged ones.

    Those with a transform are counted by their index, which has read every record whole: where it
    finds damage, it counts nothing, and what is damaged later is 0 here too.

    Raises:
        SourceError: a file cannot be read.
    """
    if dataset.transform is not None:
        return np.zeros(dataset.records, dtype=np.int64)
    found = episode_lengths(dataset.slices, dataset.directory.features, dataset=dataset.name)
    every = np.concatenate([part.astype(np.int64) for part in found.lengths])
    rows = np.flatnonzero(every >= 0)
    each = np.zeros(len(every), dtype=np.int64)
    each[rows] = counted_episodes(dataset, rows, every[rows])[0]
    return each


def _rules(dataset: ResolvedDataset) -> str:
    named = {"transform": dataset.transform, "keep": dataset.keep}
    given = [name for name, one in named.items() if one is not None]
    return " and ".join(given) + (" leave" if len(given) == 2 else " leaves")


def count_mixture(
    mixture: ResolvedMixture,
    *,
    probe_only: bool = False,
    count: Callable[..., DatasetCount] = count_dataset,
) -> dict[str, DatasetCount]:
    """Count every dataset of a mixture, by name.

    Args:
        mixture: whose datasets; where one has a transform, ``index.counting`` counts them.
        probe_only: as of ``count_dataset``.
        count: counts one dataset.

    Raises:
        SourceError: a dataset cannot be read, or (where this is certain) gives no sample at all.
    """
    counts = {}
    for dataset in mixture.datasets:
        found = count(dataset, probe_only=probe_only)
        if not found.samples and not found.estimated:
            if any(rule.samples or rule.episodes for rule in found.lost):
                raise SourceError(
                    f"dataset {dataset.name!r}: {_rules(dataset)} no sample of "
                    f"its {found.episodes} episodes: "
                    + ", ".join(
                        f"{r.rule} takes {r.samples} samples, {r.episodes} episodes whole"
                        for r in found.lost
                    ),
                    remedy="loosen the rule that takes the most, or take the dataset out",
                    dataset=dataset.name,
                )
            raise SourceError(
                f"dataset {dataset.name!r}: none of its {found.episodes} episodes is long enough "
                "for a sample",
                remedy="use smaller offsets, edges: {start: repeat, end: repeat}, or take it out",
                dataset=dataset.name,
            )
        counts[dataset.name] = found
    return counts
