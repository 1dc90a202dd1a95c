"""The valid t of datasets that ``keep`` leaves a set of, where others have one range.

One array of ranges holds every episode of every such dataset (``transforms.ranges``), so that the t
of a run of samples is one binary search. Datasets without rules cost nothing here.

Not here: which t are kept (``transforms.keep``), which sample a position names (``plan``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoloader.order.table import DatasetTable
from autoloader.transforms.ranges import Ranges

Ints = NDArray[np.int64]


class KeptSamples:
    """The kept t of every dataset that has rules.

    Args:
        tables: all datasets.
    """

    def __init__(self, tables: Sequence[DatasetTable]) -> None:
        none = Ranges.spans(np.empty(0, np.int64), np.empty(0, np.int64))
        sets = [none if table.kept is None else table.kept for table in tables]
        lengths = [one.episodes for one in sets]
        self._has = np.asarray([table.kept is not None for table in tables], dtype=np.bool_)
        self._first_episode = np.cumsum(lengths, dtype=np.int64) - lengths
        before = np.cumsum([0, *(len(one.start) for one in sets)], dtype=np.int64)
        shifted = [
            one.first[:-1] + ranges for one, ranges in zip(sets, before.tolist(), strict=False)
        ]
        self._ranges = Ranges(
            np.concatenate([*shifted, before[-1:]]),
            np.concatenate([one.start for one in sets]),
            np.concatenate([one.stop for one in sets]),
        )

    def put(self, t: Ints, dataset: Ints, episode: Ints, place: Ints) -> None:
        """Set ``t`` [n], where its dataset has rules, to the ``place``-th kept of its episode."""
        at = np.flatnonzero(self._has[dataset])
        if len(at):
            row = self._first_episode[dataset[at]] + episode[at]
            t[at] = self._ranges.nth(row, place[at])
