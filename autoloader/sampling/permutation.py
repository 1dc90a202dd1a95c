"""Keyed permutations of 0 … size−1 that are computed, not stored.

A pass of 36 million samples is shuffled without a list of them (``permute``). A number is split in
two digits ``l + a·r`` with ``a·b ≥ size``. A Feistel network adds a hash of one digit to the other,
modulo its base, in turn. That permutes 0 … a·b−1. A result at or beyond ``size`` goes in again
until one is below it ("cycle walking"), which permutes 0 … size−1. Both are of Black and Rogaway,
"Ciphers with arbitrary finite domains" (CT-RSA 2002). With ``a = ⌈√size⌉`` and ``b = ⌈size/a⌉``
less than one number in √size walks. The hash is splitmix64; this is no cipher, it mixes.

With locality (``scatter``) near numbers have images in few blocks of neighbours::

    images   │ block 0 │ block 1 │ block 2 │ … │ short │      b numbers each, as they are stored
                  ╲         ╱  a keyed permutation of blocks
    slots    │ 2 │ short │ 0 │ 5 │ 1 │ … │                   windows of about K slots
             └── a keyed permutation ──┘ └──── of each window's numbers …
    numbers  0 … size−1

``size`` numbers are cut into blocks of b; the last one may be short. A keyed permutation puts the
blocks into slots, the short one into a slot that is drawn. The slots are cut into ``⌈slots / K⌉``
windows, none of more than K slots, whose numbers of slots differ by one at most. Numbers are
permuted within their window, and then lie in slots. Slots before the short one hold b numbers each.
So a slot begins at a multiple of b, less the numbers that the short block lacks where that lies
before.

Everything is elementwise: each number has a size and a key of its own, so one call serves a run
of positions over many datasets and passes.

Invariants:
    1. For one size and key (and block and K), the images of 0 … size−1 are 0 … size−1, each once.
    2. The image of a number depends on that number, its size, its key (its block, K) alone.
    3. ``unpermute`` and ``gather`` of an image are the number.
    4. ``scatter``: the images of one window's numbers are whole blocks, K at most.
    5. Where one window holds all, ``scatter`` is ``permute``, bit by bit.

Not here: what the numbers mean (``plan``, ``chains``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoloader.samples.draws import (
    PURPOSE_BLOCKS,
    PURPOSE_SHORT_BLOCK,
    PURPOSE_WINDOW,
    Bools,
    Ints,
    Keys,
    constant,
    fold_array,
    splitmix64_in_place,
)

# Four rounds mix large domains; with a handful of numbers it takes this many until every order of
# up to five, and every pair of neighbours beyond, comes about equally often, which tests count.
ROUNDS = 12
_ROUND_SHIFT = 48
MAX_SIZE = 2**53
_TURNS = [constant(turn << _ROUND_SHIFT) for turn in range(ROUNDS)]
_ONE = constant(1)


def permute(number: Ints, size: Ints, key: Keys) -> Ints:
    """The image of each number under the permutation of its size and key.

    Args:
        number: [n], each in [0, size).
        size: [n], each in [1, 2⁵³].
        key: [n] keys, already hashed (``draws.fold``).

    Returns:
        [n] int64, each in [0, size).
    """
    return _walked(_network, number, size, key)


def unpermute(image: Ints, size: Ints, key: Keys) -> Ints:
    """The number that each image [n] is of; the other arguments as of ``permute``."""
    return _walked(_network_back, image, size, key)


_Network = Callable[[Keys, Keys, Keys, Keys], Keys]


def _walked(network: _Network, number: Ints, size: Ints, key: Keys) -> Ints:
    limit = size.astype(np.uint64)
    a = np.ceil(np.sqrt(size.astype(np.float64))).astype(np.uint64)
    b = (limit + a - np.uint64(1)) // a
    image = network(number.astype(np.uint64), a, b, key)
    outside = np.flatnonzero(image >= limit)
    while len(outside):
        image[outside] = network(image[outside], a[outside], b[outside], key[outside])
        outside = outside[image[outside] >= limit[outside]]
    return image.astype(np.int64)


def _network(number: Keys, a: Keys, b: Keys, key: Keys) -> Keys:
    right, left = np.divmod(number, a)
    mixed, scratch = np.empty_like(number), np.empty_like(number)
    for turn in range(0, ROUNDS, 2):
        left += _hash(right, key, turn, mixed, scratch)
        left %= a
        right += _hash(left, key, turn + 1, mixed, scratch)
        right %= b
    right *= a
    right += left
    return np.asarray(right)


def _network_back(image: Keys, a: Keys, b: Keys, key: Keys) -> Keys:
    right, left = np.divmod(image, a)
    mixed, scratch = np.empty_like(image), np.empty_like(image)
    for turn in range(ROUNDS - 2, -1, -2):
        # What falls below zero wraps to far beyond its base; with the base added it is less again.
        right -= np.remainder(_hash(left, key, turn + 1, mixed, scratch), b, out=mixed)
        np.minimum(right, np.add(right, b, out=scratch), out=right)
        left -= np.remainder(_hash(right, key, turn, mixed, scratch), a, out=mixed)
        np.minimum(left, np.add(left, a, out=scratch), out=left)
    right *= a
    right += left
    return np.asarray(right)


def _hash(digit: Keys, key: Keys, turn: int, mixed: Keys, scratch: Keys) -> Keys:
    """63 bits of a digit under a key, another function each turn; they lie in ``mixed``."""
    np.bitwise_or(digit, _TURNS[turn], out=mixed)
    np.bitwise_xor(mixed, key, out=mixed)
    splitmix64_in_place(mixed, scratch)
    mixed >>= _ONE
    return mixed


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

    def _move(self, how: Callable[[Ints, Ints, Keys], Ints], number: Ints, whole: Bools) -> None:
        """Put whole blocks among whole blocks, where there are several windows; in place."""
        at = np.flatnonzero(whole & (self.windows > 1))
        if len(at):
            key = fold_array(self.key[at], np.full(len(at), PURPOSE_BLOCKS, np.int64))
            number[at] = how(number[at], self.full[at], key)
