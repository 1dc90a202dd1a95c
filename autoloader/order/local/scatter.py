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

Not here: what the numbers mean (``plan``, ``chains``), what is read (``read.blocks``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.order.permutation import permute, unpermute
from autoloader.samples.draws import (
    PURPOSE_BLOCKS,
    PURPOSE_SHORT_BLOCK,
    PURPOSE_WINDOW,
    fold_array,
)

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]
_Permutation = Callable[[Ints, Ints, Keys], Ints]


@dataclass(frozen=True, slots=True)
class Locality:
    """How near to each other in storage the samples of a stretch of the order are.

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
        key: of each.
        block: numbers of a whole block.
        full: whole blocks.
        slots: blocks.
        windows: windows of slots.
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
