"""Which sample, as they are stored, a dataset's pass gives as its n-th, and the way back.

Without locality a pass is one keyed permutation of all its samples. With it, a pass is a
permutation with locality (``scatter``), of each lane's stretch of the files where there are lanes
(``lanes``); the samples of a block are those that one read brings.

Invariants:
    1. The samples of a pass are all of them, each once.
    2. ``numbers`` is the inverse of ``stored``.

Not here: which episode and t a stored sample is (``episodes``), runs through episodes (``chains``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoloader.order.local.lanes import (
    lane_of_stored,
    number_in_lane,
    part_of_lane,
    stretch_of_lane,
)
from autoloader.order.local.scatter import Locality, gather, scatter
from autoloader.order.permutation import permute, unpermute
from autoloader.samples.draws import fold_array

Ints = NDArray[np.int64]
_LANE_BITS = 40
"""Room for the number of a block beside that of its lane."""


class PassOrder:
    """The passes of all datasets.

    Args:
        samples: [D] of a pass.
        keys: [D] of the passes' permutations.
        locality: blocks and lanes; ``None``: any sample may follow any other.
    """

    def __init__(self, samples: Ints, keys: NDArray[np.uint64], locality: Locality | None) -> None:
        self._samples, self._keys, self._locality = samples, keys, locality
        # Lanes are shuffled side by side, and have the window's blocks together.
        self._window = 1 if locality is None else max(1, locality.window // locality.lanes)
        self._block = np.asarray(() if locality is None else locality.blocks, dtype=np.int64)

    def stored(self, dataset: Ints, pass_: Ints, within: Ints) -> tuple[Ints, Ints | None]:
        """(which stored sample, its block) a pass's sample ``within`` is, all [n].

        There are no blocks without locality.
        """
        key, samples = fold_array(self._keys[dataset], pass_), self._samples[dataset]
        if self._locality is None:
            return permute(within, samples, key), None
        lanes, block = self._locality.lanes, self._block[dataset]
        part = part_of_lane(pass_, within, samples, lanes)
        own = fold_array(key, part.lane) if lanes > 1 else key
        at = scatter(part.at, part.size, own, block, self._window)
        return part.start + at, (part.lane << _LANE_BITS) + at // block

    def numbers(self, dataset: Ints, pass_: Ints, stored: Ints) -> Ints:
        """Which sample of its pass each stored one is, all [n]."""
        key, samples = fold_array(self._keys[dataset], pass_), self._samples[dataset]
        if self._locality is None:
            return unpermute(stored, samples, key)
        lanes, block = self._locality.lanes, self._block[dataset]
        part = lane_of_stored(pass_, stored, samples, lanes)
        own = fold_array(key, part.lane) if lanes > 1 else key
        at = gather(part.at, part.size, own, block, self._window)
        return number_in_lane(pass_, part._replace(at=at), samples, lanes)

    def block(self, dataset: int, pass_: int, block: int) -> tuple[int, int]:
        """The stored samples [start, stop) of a block."""
        assert self._locality is not None
        lane, which = divmod(block, 1 << _LANE_BITS)
        one = np.asarray([lane]), np.asarray([pass_]), self._samples[[dataset]]
        first, length = (int(own[0]) for own in stretch_of_lane(*one, self._locality.lanes))
        size = self._locality.blocks[dataset]
        return first + which * size, first + min((which + 1) * size, length)
