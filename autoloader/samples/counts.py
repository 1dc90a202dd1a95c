"""How many samples a dataset gives in a pass.

Not here: counting them (``autoloader.index``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.samples.windows import valid_ranges
from autoloader.spec import SampleSpec
from autoloader.transforms.keep import RuleLoss
from autoloader.transforms.ranges import Ranges


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
        kept: their valid t where rules leave some out.
    """
    if kept is not None:
        counted = kept.counts()
    else:
        first, stop = valid_ranges(sample, strided)
        counted = stop - first
    if sample.per_episode != "all":
        counted = np.minimum(counted, sample.per_episode)
    return np.asarray(counted, dtype=np.int64)
