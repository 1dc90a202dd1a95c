"""What the sample plan knows of a dataset: the lengths and places of its episodes.

Not here: where they lie in the files (``index.dataset``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoloader.samples.counts import samples_per_episode
from autoloader.spec import SampleSpec
from autoloader.transforms.ranges import Ranges


@dataclass(frozen=True, slots=True)
class DatasetTable:
    """What the plan knows of a dataset: its episodes that can be read, in the order of its files.

    Attributes:
        key: of all draws of the dataset (``draws.dataset_key``).
        sample: which t are valid, and how many of an episode a pass takes.
        stride: every ``stride``-th frame counts.
        steps: [E] frames of each episode, before the stride.
        slice_of: [E] the slice of each episode (its provenance's shard).
        record_of: [E] the record of each episode in its slice.
        kept: the valid t of each episode where rules leave some out (``keep``), else ``None``.
        counts: [E] int32 samples of each episode in a pass, derived.
    """

    key: int
    sample: SampleSpec
    stride: int
    steps: NDArray[np.int32]
    slice_of: NDArray[np.int32]
    record_of: NDArray[np.int64]
    kept: Ranges | None = field(default=None, repr=False)
    counts: NDArray[np.int32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        strided = -(-self.steps // self.stride)
        counts = samples_per_episode(self.sample, strided.astype(np.int64), self.kept)
        object.__setattr__(self, "counts", counts.astype(np.int32))

    @property
    def samples(self) -> int:
        """Samples of a pass."""
        return int(self.counts.sum(dtype=np.int64))
