"""A permutation with locality: near numbers have images in few blocks of neighbours.

    images   │ block 0 │ block 1 │ block 2 │ … │ short │      b numbers each, as they are stored
                  ╲         ╱  a keyed permutation of blocks
    slots    │ 2 │ short │ 0 │ 5 │ 1 │ … │                   windows of about K slots
             └── a keyed permutation ──┘ └──── of each window's numbers …
    numbers  0 … size−1

``size`` numbers are cut into blocks of b; the last one may be short. A keyed permutation puts the
blocks into slots, the short one into a slot that is drawn. The slots are cut into ``⌈slots / K⌉``
windows whose slots differ by one at most, none more than K. Numbers are permuted within their
window, and then lie in slots. All of it is arithmetic on one number: which window it is in, where
it goes there, which block its slot holds. Every step has an inverse.

Slots before the short one hold b numbers each, so a slot begins at a multiple of b, less what the
short block lacks where that lies before.

Invariants:
    1. For one size, key, block and K, the images of 0 … size−1 are 0 … size−1, each once.
    2. The images of one window's numbers are whole blocks, K at most.
    3. ``gather`` of an image is the number.
    4. Where one window holds all it is ``permutation.permute``, bit by bit.

Lanes: whole parts of every dataset that batches take turns in, so that nodes share no block.

    batch k        0   1   2   3 │ 4   5   6   7 │ …        G = 4 lanes, lane k mod G
    lane's own     └── round 0 ──┘ └── round 1 ──┘          all lanes of a round are dealt alike
    numbers of d   m·G + 0 … m·G + G−1                      its m-th sample of each lane

Batches are counted from position 0. A schedule deals one lane's positions, and all lanes follow it:
at the same place of a round they have the same dataset, and the m-th samples that they take of it
have G numbers in a row, of which lane g has the one that is g modulo G. So what a dataset gives of
a pass is dealt out evenly, a round always ends with whole numbers 0 … n of each dataset, and any
position is reached without walking. A lane's numbers of a pass are samples of one stretch of the
files (``part_of_lane``).

With W ranks, W a divisor of G, rank r's batches are those of the lanes that are r modulo W. What
lies before the first round of a leg or an epoch, and behind its last, is dealt without lanes.

``number_in_lane`` is the inverse of ``part_of_lane``.

Which sample, as they are stored, a dataset's pass gives as its n-th, and the way back.

Without locality a pass is one keyed permutation of all its samples. With it, a pass is a
permutation with locality (``scatter``), of each lane's stretch of the files where there are lanes;
the samples of a block are those that one read brings.

Invariants:
    1. The samples of a pass are all of them, each once.
    2. ``numbers`` is the inverse of ``stored``.

Not here: positions (``mixture``), what the numbers mean (``plan``, ``chains``), what is read
(``pipeline.read.blocks``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoloader.samples.draws import (
    PURPOSE_BLOCKS,
    PURPOSE_SHORT_BLOCK,
    PURPOSE_WINDOW,
    fold_array,
)
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.permutation import permute, unpermute

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]
_Permutation = Callable[[Ints, Ints, Keys], Ints]


@dataclass(frozen=True, slots=True)
class Locality:
    """Nearness in storage of the samples in a stretch of the order.

    Attributes:
        blocks: [D] samples of a block of each dataset.
        window: K, blocks among which samples are shuffled; lanes have as many together.
        lanes: G, parts of every dataset that batches take turns in; 1 is none.
        batch: samples of a batch, by which lanes take turns.
    """

    blocks: tuple[int, ...]
    window: int
    lanes: int = 1
    batch: int = 1


def scatter(number: Ints, size: Ints, key: Keys, block: Ints, window: int) -> Ints:
    """The image of each number.

    Args:
        number: [n], each in [0, size).
        size: [n], each in [1, 2⁵³].
        key: [n] keys, already hashed (``draws.fold``).
        block: [n] numbers of a block, at least 1.
        window: K, blocks of a window at most.

    Returns:
        [n] int64, each in [0, size).
    """
    slots = _Slots.of(size, key, block, window)
    first, length, turn = slots.window_of(number)
    within = permute(number - first, length, slots.window_key(turn))
    slot, at = slots.find(first + within)
    return slots.block_in(slot) * block + at


def gather(image: Ints, size: Ints, key: Keys, block: Ints, window: int) -> Ints:
    """The number [n] that each image is of; arguments as of ``scatter``."""
    slots = _Slots.of(size, key, block, window)
    which, at = np.divmod(image, block)
    placed = slots.start(slots.slot_of(which)) + at
    first, length, turn = slots.window_of(placed)
    return first + unpermute(placed - first, length, slots.window_key(turn))


@dataclass(frozen=True, slots=True)
class _Slots:
    """Where the blocks of n permutations lie, all [n].

    Attributes:
        key: key of each permutation.
        block: numbers of a whole block.
        full: number of whole blocks.
        slots: number of blocks, the short one included.
        windows: number of windows of slots.
        lacks: numbers that the short block lacks; 0 where there is none.
        short: its slot; ``slots`` where there is none.
    """

    key: Keys
    block: Ints
    full: Ints
    slots: Ints
    windows: Ints
    lacks: Ints
    short: Ints

    @classmethod
    def of(cls, size: Ints, key: Keys, block: Ints, window: int) -> _Slots:
        full, rest = np.divmod(size, block)
        has = rest > 0
        slots = full + has
        windows = -(-slots // window)
        drawn = fold_array(key, np.full(len(size), PURPOSE_SHORT_BLOCK, np.int64))
        short = (drawn % (full + 1).astype(np.uint64)).astype(np.int64)
        short = np.where(windows > 1, short, full)  # one window: blocks stay where they are
        return cls(
            key, block, full, slots, windows, np.where(has, block - rest, 0),
            np.where(has, short, slots),
        )  # fmt: skip

    def start(self, slot: Ints) -> Ints:
        """The first number of each slot; of the slot behind the last, the size."""
        return np.asarray(slot * self.block - np.where(slot > self.short, self.lacks, 0))

    def find(self, number: Ints) -> tuple[Ints, Ints]:
        """(slot, place in it) of each number."""
        behind = number >= (self.short + 1) * self.block - self.lacks
        slot, at = np.divmod(number + np.where(behind, self.lacks, 0), self.block)
        return slot, at

    def window_of(self, number: Ints) -> tuple[Ints, Ints, Ints]:
        """(first number, length, which) of each number's window."""
        slot, _ = self.find(number)
        turn = ((slot + 1) * self.windows - 1) // self.slots
        first = self.start(turn * self.slots // self.windows)
        stop = self.start((turn + 1) * self.slots // self.windows)
        return first, stop - first, turn

    def window_key(self, turn: Ints) -> Keys:
        own = fold_array(self.key, np.full(len(turn), PURPOSE_WINDOW, np.int64), turn)
        return np.where(self.windows > 1, own, self.key)

    def block_in(self, slot: Ints) -> Ints:
        """The block that lies in each slot."""
        found = np.where(slot == self.short, self.full, slot - (slot > self.short))
        self._move(permute, found, slot != self.short)
        return found

    def slot_of(self, which: Ints) -> Ints:
        """The slot in which each block lies."""
        found = which.copy()
        self._move(unpermute, found, which < self.full)
        return np.where(which < self.full, found + (found >= self.short), self.short)

    def _move(self, how: _Permutation, number: Ints, whole: NDArray[np.bool_]) -> None:
        """Put whole blocks among whole blocks, where there are several windows; in place."""
        at = np.flatnonzero(whole & (self.windows > 1))
        if len(at):
            key = fold_array(self.key[at], np.full(len(at), PURPOSE_BLOCKS, np.int64))
            number[at] = how(number[at], self.full[at], key)


def locality_of(mixture: ResolvedMixture, samples: Mapping[str, int]) -> Locality | None:
    """The locality of a mixture's order; ``None`` where its spec asks for none.

    Args:
        mixture: the mixture; its files are asked for their sizes.
        samples: of a pass, by dataset name.
    """
    asked = mixture.spec.mixing.locality
    if asked is None:
        return None
    blocks = []
    for dataset in mixture.datasets:
        # A pass's samples lie evenly in the bytes of its records, near enough.
        own = dataset.record_bytes * dataset.records / max(1, samples[dataset.name])
        blocks.append(max(1, int(asked.block / max(1.0, own))))
    return Locality(tuple(blocks), asked.window, asked.lanes, mixture.spec.batch.size)


class LanePart(NamedTuple):
    """Part of a pass that a lane has, all [n]: its stretch of the pass in file order.

    Attributes:
        lane: [n] number of the lane.
        start: [n] first sample of its stretch.
        size: [n] number of samples in its stretch.
        at: which of them is meant.
    """

    lane: Ints
    start: Ints
    size: Ints
    at: Ints


def part_of_lane(pass_: Ints, within: Ints, samples: Ints, lanes: int) -> LanePart:
    """The lane of each pass's sample ``within``, all [n]; a pass has ``samples``."""
    if lanes == 1:
        return LanePart(np.zeros_like(within), np.zeros_like(within), samples, within)
    shift = pass_ * samples % lanes
    lane = (shift + within) % lanes
    start, size = stretch_of_lane(lane, pass_, samples, lanes)
    at = (shift + within) // lanes - _begun(shift, lane, lanes)
    return LanePart(lane, start, size, at)


def lane_of_stored(pass_: Ints, stored: Ints, samples: Ints, lanes: int) -> LanePart:
    """The lane whose stretch holds each pass's sample ``stored`` in file order, all [n]."""
    lane = np.zeros_like(stored)
    for each in range(1, lanes):
        start, _ = stretch_of_lane(np.full_like(stored, each), pass_, samples, lanes)
        lane += start <= stored
    start, size = stretch_of_lane(lane, pass_, samples, lanes)
    return LanePart(lane, start, size, stored - start)


def number_in_lane(pass_: Ints, part: LanePart, samples: Ints, lanes: int) -> Ints:
    """Which sample of its pass each is, as ``part_of_lane`` was asked, all [n]."""
    shift = pass_ * samples % lanes
    return (part.at + _begun(shift, part.lane, lanes)) * lanes + part.lane - shift


def stretch_of_lane(lane: Ints, pass_: Ints, samples: Ints, lanes: int) -> tuple[Ints, Ints]:
    """(first sample in file order, samples) that each lane has of a pass, all [n]."""
    shift = pass_ * samples % lanes
    start = _before(shift + samples, lane, lanes) - _before(shift, lane, lanes)
    stop = _before(shift + samples, lane + 1, lanes) - _before(shift, lane + 1, lanes)
    return start, stop - start


def _before(stop: Ints, lane: Ints, lanes: int) -> Ints:
    """Number of 0 … stop−1 that are of lanes before ``lane``."""
    return np.asarray(stop // lanes * lane + np.minimum(stop % lanes, lane))


def _begun(shift: Ints, lane: Ints, lanes: int) -> Ints:
    """Number of 0 … shift−1 that are of ``lane``."""
    return _before(shift, lane + 1, lanes) - _before(shift, lane, lanes)


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
