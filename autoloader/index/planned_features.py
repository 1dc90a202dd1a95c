"""What else the samples of a planned run hold, gathered from the indexes.

Not here: their form in a batch (``samples.features``), the run itself (``index.planned``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoloader.index.episodes import GatheredEpisodes
from autoloader.samples import windows
from autoloader.samples.features import FeatureRows
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import held_role


def gather_features(
    found: FeatureRows,
    dataset: ResolvedDataset,
    episodes: GatheredEpisodes,
    own: slice,
    t: NDArray[np.int64],
    steps: NDArray[np.int64],
) -> None:
    """Put the features of a dataset's samples ``own`` into ``found``.

    Args:
        found: takes them.
        dataset: whose.
        episodes: their n episodes.
        own: which of the run's samples they are.
        t: [n] strided.
        steps: [n] strided, of their episodes.
    """
    if not dataset.held:
        return
    offsets = np.asarray(dataset.sample.state_offsets, dtype=np.int64)
    window = windows.rows(t, offsets, steps[:, None], dataset.sample)
    raw = window.index * dataset.stride
    for name, feature in dataset.held.items():
        role = held_role(feature)
        if role != "text":
            found.numbers(name, own, episodes.numbers(role, feature.path, raw), window)
            continue
        columns = raw.T if feature.per_step else raw.T[:1]
        texts = [episodes.language(feature.path, column) for column in columns]
        found.texts(name, own, texts, window)
