"""Counts of the samples that a dataset gives in a pass.

Not here: counting them (``autoloader.index``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError
from autoloader.samples.transforms.keep import Ranges, RuleLoss
from autoloader.samples.windows import valid_ranges
from autoloader.spec import SampleSpec


@dataclass(frozen=True, slots=True)
class DatasetCount:
    """Counts of one dataset: episodes, valid steps, samples.

    Attributes:
        episodes: records of the split that can be read.
        frames: their frames, before the stride.
        samples: samples of a pass.
        size: what ``natural_scaled`` multiplies a weight by: samples of a pass that takes every
            valid t, whatever ``per_episode`` draws; or the steps of recorded statistics.
        short_episodes: episodes that give no sample because no window fits.
        damaged: records that cannot be read, with their reasons.
        estimated: whether samples are an estimate from a probe.
        frames_estimated: True if the number of frames is an estimate.
        lost: what each rule of ``keep`` leaves out, in order.
        notes: what a person should know of the files.
        empty_texts: a clause for each text that its samples have and that is "" in all of them.
    """

    episodes: int
    frames: int
    samples: int
    size: int
    short_episodes: int
    damaged: tuple[str, ...]
    estimated: bool
    lost: tuple[RuleLoss, ...] = ()
    frames_estimated: bool = False
    empty_texts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def too_many_bad(
    dataset: str, bad: int, records: int, ratio: float, last: str
) -> SourceError | None:
    """The error of a dataset with too many bad records; ``None`` where a run bears them.

    Args:
        dataset: name of the dataset, for errors.
        bad: records that cannot be used.
        records: records of the split, by shard.
        ratio: ``errors.max_corrupt_ratio``; one bad record is always borne.
        last: where one of them lies, and why it is bad.
    """
    if bad <= max(1, int(ratio * records)):
        return None
    return SourceError(
        f"dataset {dataset!r}: {bad} of {records} episodes are bad, more than "
        f"errors.max_corrupt_ratio={ratio}; the last is {last}",
        remedy="mend or take out the dataset, or raise errors.max_corrupt_ratio",
        dataset=dataset,
    )


def samples_per_episode(
    sample: SampleSpec, strided: NDArray[np.int64], kept: Ranges | None = None
) -> NDArray[np.int64]:
    """[E] samples that episodes of ``strided`` [E] frames give in a pass.

    Args:
        sample: windows, and how many t of an episode are drawn.
        strided: frames after the stride.
        kept: their valid t where rules leave some out.
    """
    counted = valid_per_episode(sample, strided, kept)
    return counted if sample.per_episode == "all" else np.minimum(counted, sample.per_episode)


def valid_per_episode(
    sample: SampleSpec, strided: NDArray[np.int64], kept: Ranges | None = None
) -> NDArray[np.int64]:
    """[E] valid t of episodes, drawn or not; arguments as of ``samples_per_episode``."""
    if kept is not None:
        return np.asarray(kept.counts(), dtype=np.int64)
    first, stop = valid_ranges(sample, strided)
    return np.asarray(stop - first, dtype=np.int64)
