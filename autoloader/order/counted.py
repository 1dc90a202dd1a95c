"""From the number of a thing in a dataset to its episode, for many datasets at once.

One array of running counts holds every episode of every dataset, so that a run of positions over
hundreds of datasets is one search: among every 64th count, which stay in the processor's cache,
then by halves within 64, all things at a time, so that their cache misses overlap.

Not here: what is counted (``plan`` counts samples, ``chains`` counts runs and what they leave).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_COARSE = 64


class CountedEpisodes:
    """Running counts over the episodes of all datasets.

    Args:
        counts: of each dataset the count of each episode [E_d]; a dataset that is not asked for
            may be empty.

    Attributes:
        totals: [D] int64, the sum of each dataset.
    """

    def __init__(self, counts: Sequence[NDArray[np.int32]]) -> None:
        ends = np.cumsum([len(each) for each in counts], dtype=np.int64)
        self._first_episode = ends - [len(each) for each in counts]
        self._before = np.zeros(int(ends[-1]) + 1, dtype=np.int64)
        for first, each in zip(self._first_episode.tolist(), counts, strict=True):
            running = self._before[first + 1 : first + 1 + len(each)]
            np.cumsum(each, out=running)
            running += self._before[first]
        self._first = self._before[self._first_episode]
        self._coarse = self._before[::_COARSE].copy()
        self.totals: NDArray[np.int64] = self._before[ends] - self._first

    def find(
        self, dataset: NDArray[np.int64], number: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(episode of the dataset [n], number within the episode [n]) of thing ``number`` [n]."""
        place = self._first[dataset] + number
        episode = (np.searchsorted(self._coarse, place, side="right") - 1) * _COARSE
        last = len(self._before) - 1
        half = _COARSE // 2
        while half:
            further = np.minimum(episode + half, last)
            np.copyto(episode, further, where=self._before[further] <= place)
            half //= 2
        within = place - self._before[episode]
        return episode - self._first_episode[dataset], within

    def of_episode(
        self, dataset: NDArray[np.int64], episode: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The count of each episode [n]."""
        at = self._first_episode[dataset] + episode
        return np.asarray(self._before[at + 1] - self._before[at])
