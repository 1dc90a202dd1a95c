"""Bytes of encoded frames that samples need, by the index: they price a start.

Not here: the price (``controller.admission``), reading them (``pipeline.read.planned``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from autoloader.formats.features import SLAB, VIDEO
from autoloader.index.dataset import DatasetIndex, GatheredEpisodes
from autoloader.index.opening import find_indexes
from autoloader.samples.block import RUN_BYTES
from autoloader.samples.resolve import MixtureSizes, ResolvedDataset, ResolvedMixture
from autoloader.samples.transforms.keep import DatasetCount
from autoloader.samples.windows import frame_rows

_LOOKED_AT = 4  # episodes of each dataset
_WINDOWS = 16  # of each of these episodes, where frames lie in slabs
_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are spread evenly, and in step with no chunks."""


def mean_encoded_bytes(
    mixture: ResolvedMixture, indexes: Sequence[DatasetIndex], shares: Sequence[float]
) -> float:
    """Mean bytes of all encoded frames of a sample of the mixture.

    Estimated from the first frames of a few episodes of each dataset; of a video these are
    keyframes. Of frames in slabs, windows all over the episode are looked at.

    Args:
        mixture: the resolved mixture.
        indexes: index of each dataset.
        shares: share of each dataset, 0 to 1; they weight the datasets' means.
    """
    found = 0.0
    for dataset, index, share in zip(mixture.datasets, indexes, shares, strict=True):
        with_steps = np.flatnonzero(index.steps)  # a transform may leave an episode without any
        if not len(with_steps):
            continue
        some = with_steps[np.linspace(0, len(with_steps) - 1, _LOOKED_AT).astype(np.int64)]
        episodes, first = index.episodes_at(some), np.zeros((len(some), 1), np.int64)
        for features in dataset.cameras.values():
            lengths = [
                _slab_bytes(dataset, episodes, feature.path)
                if feature.encoding == SLAB
                else episodes.frames(feature.path, first, {}).length.mean() * mixture.layout.frames
                for feature in features
            ]
            found += share * float(np.mean(lengths))
    return found


def _slab_bytes(dataset: ResolvedDataset, episodes: GatheredEpisodes, feature_path: str) -> float:
    """Mean bytes of the slabs that a sample's frames lie in; each slab is read once."""
    count = len(episodes.steps)
    steps = np.repeat(-(-episodes.steps // dataset.stride), _WINDOWS)
    t = (steps * np.tile(np.arange(_WINDOWS) * _GOLDEN % 1, count)).astype(np.int64)
    keys = np.arange(len(t), dtype=np.uint64)  # any goals will do
    window = frame_rows(t, steps[:, None], dataset.sample, keys).index
    places = episodes.frames(feature_path, window.reshape(count, -1) * dataset.stride, {})
    offset = places.offset.reshape(window.shape)
    order = np.argsort(offset, axis=1)  # an episode lies in one file
    first = np.diff(np.take_along_axis(offset, order, axis=1), prepend=-1) > 0
    length = np.take_along_axis(places.length.reshape(window.shape), order, axis=1)
    return float(length.sum(axis=1, where=first).mean())


def priced_sizes(
    mixture: ResolvedMixture, shares: Sequence[float], counts: Mapping[str, DatasetCount]
) -> MixtureSizes:
    """Sizes of a mixture, with the bytes that a batch reads where it may be large.

    A picture in a record takes no more than the record's bytes a step, so most mixtures are known
    to be small without a look at their indexes. Those of videos and slabs are not.

    Args:
        mixture: the resolved mixture.
        shares: share of each dataset, 0 to 1.
        counts: counts of each dataset, by name.
    """
    sizes, most = mixture.sizes, mixture.layout.slot_bytes
    if not {SLAB, VIDEO} & mixture.encodings:
        of = [(one.record_bytes, counts[one.name]) for one in mixture.datasets]
        a_step = [bytes_ * count.episodes / max(1, count.frames) for bytes_, count in of]
        frames = mixture.spec.batch.size * mixture.layout.frames
        most = int(2 * frames * np.dot(shares, a_step))  # these are means
    may_be_large = mixture.in_slabs or most > RUN_BYTES
    indexes = find_indexes(mixture.datasets) if may_be_large else ()
    known = [index for index in indexes if index is not None]
    if not known or len(known) < len(indexes):
        return sizes
    read = mixture.spec.batch.size * mean_encoded_bytes(mixture, known, shares)
    whole = sum(one.record_bytes * one.records for one in mixture.datasets)
    return replace(sizes, run_bytes=min(int(read), whole))
