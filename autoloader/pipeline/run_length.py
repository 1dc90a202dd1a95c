"""How many samples a planned run has.

Not here: what is done with a run (``read.planned``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoloader.index.dataset import DatasetIndex
from autoloader.samples.resolve import ResolvedMixture

RUN_SAMPLES = 256
"""Samples of a run that are read at most, or somewhat more: a run is whole batches."""
HELD_RUN_SAMPLES = 1024
"""Samples of a run at most, those counted whose frames are held. Its planning costs much the same
for each dataset however many samples of it there are, so where all are held the rate of 29 datasets
rises by a tenth from 512 to 1,024 samples, and by nothing above."""
SAMPLES_A_THREAD = 48
"""As many as each decode thread keeps a run alive for a while; fewer would plan too often."""

LEAST_RUN_SAMPLES = 32
RUN_BYTES = 16 * 2**20
"""Encoded frames that a run should not exceed: where frames are large it has fewer samples."""
_PINNED_PART = 20
"""What is held and pinned by a run, which makes no room, is this part of the cache at most."""
_LEAST_HELD = 0.25
_NEARLY_ALL = 0.75
"""From this share of the frames on what is not held, and wants room, becomes less and less."""
_LOOKED_AT = 4


def run_samples(
    decode_threads: int,
    ranks_here: int,
    sample_bytes: float,
    held_ratio: float = 0.0,
    held_samples: float = math.inf,
) -> int:
    """Samples of a run, at least 1 (a run is whole batches, however few).

    Planning a run costs its time, whatever its length, and all of it lies in memory until its last
    sample is decoded: so it is long where many threads decode, and short where few do. Frames that
    are held are neither read nor decoded, so a run may have as many more samples.

    Args:
        decode_threads: that decode it.
        ranks_here: so many read ahead in one process: together about as much as one.
        sample_bytes: mean of encoded frames.
        held_ratio: share of the frames that were held lately.
        held_samples: samples whose frames the cache has room for; infinite where it holds nothing.
    """
    decoded = max(1 / RUN_SAMPLES, 1 - held_ratio)
    read = min(RUN_SAMPLES, SAMPLES_A_THREAD * max(2, decode_threads))
    many = min(HELD_RUN_SAMPLES, int(read / decoded))
    displaced = held_ratio * min(1.0, (1 - held_ratio) / (1 - _NEARLY_ALL))
    many = int(min(many, held_samples / _PINNED_PART / max(_LEAST_HELD, displaced)))
    many = max(LEAST_RUN_SAMPLES, many // ranks_here)
    return max(1, min(many, int(RUN_BYTES / ranks_here / max(1.0, sample_bytes * decoded))))


def sample_bytes(
    mixture: ResolvedMixture, indexes: Sequence[DatasetIndex], shares: Sequence[float]
) -> float:
    """Mean bytes of a sample's encoded frames, estimated from a few episodes of each dataset."""
    found = 0.0
    for dataset, index, share in zip(mixture.datasets, indexes, shares, strict=True):
        whole = np.flatnonzero(index.steps)  # a transform may leave an episode without steps
        if not len(whole):
            continue
        some = whole[np.linspace(0, len(whole) - 1, _LOOKED_AT).astype(np.int64)]
        episodes, first = index.episodes_at(some), np.zeros((len(some), 1), np.int64)
        for features in dataset.cameras.values():
            lengths = [episodes.frames(feature.path, first)[1].mean() for feature in features]
            found += share * mixture.layout.frames * float(np.mean(lengths))
    return found
