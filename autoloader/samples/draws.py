"""Keyed draws and permutations: which t, which camera, which order, without a stateful generator.

A draw is a hash of its purpose and of dataset, pass, shard, episode and t. It does not depend on
draws before it, on threads, or on the position at which a run was resumed. Of an episode's steps t
the n with the smallest hashes are drawn, uniformly and without replacement. The hash is
``splitmix64(key(dataset name, pass, shard, episode) xor t)``. The episode's samples come in the
order of these hashes.

splitmix64 is a step of the generator of Steele, Lea and Flood, "Fast splittable pseudorandom number
generators" (OOPSLA 2014). ``pipeline.graph.tensorflow`` holds the same function in TensorFlow.

Permutations are computed, not stored: a pass of 36 million samples is shuffled without a list of
them (``permute``). A number is split in two digits, ``l + a·r`` with l < a, r < b and
``a·b ≥ size``. A Feistel network adds a hash of one digit to the other, modulo its base, in turn.
That permutes 0 … a·b−1. A result at or beyond ``size`` goes in again until one is below it ("cycle
walking"), which permutes 0 … size−1. Both are of Black and Rogaway, "Ciphers with arbitrary finite
domains" (CT-RSA 2002).
With ``a = ⌈√size⌉`` and ``b = ⌈size/a⌉`` less than one number in √size walks. The hash is
splitmix64; this is no cipher, it mixes.

With locality (``scatter``) numbers that are close to each other have images in few blocks. Blocks
and windows are those of ``mixing.locality``; a slot here is room for one block::

    images   │ block 0 │ block 1 │ block 2 │ … │ short │      b numbers each, as they are stored
                  ╲         ╱  a keyed permutation of blocks
    slots    │ 2 │ short │ 0 │ 5 │ 1 │ … │                   windows of about K slots
             └── a keyed permutation ──┘ └──── of each window's numbers …
    numbers  0 … size−1

``size`` numbers are cut into blocks of b; the last one may be short. A keyed permutation puts the
blocks into slots, the short one into a slot that is drawn. The slots are cut into ``⌈slots / K⌉``
windows, none of more than K slots, whose numbers of slots differ by one at most. Numbers are
permuted within their window, and then lie in slots. Slot s begins at s·b. Behind the short block
the numbers that this lacks are taken off.

Everything is elementwise: each number has a size and a key of its own, so one call serves a run
of positions over many datasets and passes.

Invariants:
    1. Same arguments, same draw: on every platform, in NumPy and in TensorFlow.
    2. ``order(key, a, b)`` is a permutation; its first m entries are the draw of m.
    3. For one size and key (and block and K), the images of 0 … size−1 are 0 … size−1, each once.
    4. The image of a number depends on that number, its size, its key (its block, K) alone.
    5. ``unpermute`` and ``gather`` of an image are the number.
    6. ``scatter``: the images of one window's numbers are whole blocks, K at most.
    7. Where one window holds all, ``scatter`` is ``permute``, bit by bit.

Not here: what the numbers mean (``sampling.plan``, ``sampling.chains``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from autoloader.host.frozen import frozen

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]  # keys, hashes, and numbers that are hashed
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MASK = 0xFFFFFFFFFFFFFFFF


def constant(value: int) -> Keys:
    """A number [] for arithmetic on small arrays: NumPy makes one of a scalar at each call."""
    return np.array(value, dtype=np.uint64)


_GOLDEN, _MIX_1, _MIX_2 = map(constant, (GOLDEN, MIX_1, MIX_2))
_UNMIX_1, _UNMIX_2 = constant(pow(MIX_1, -1, 2**64)), constant(pow(MIX_2, -1, 2**64))
_27, _30, _31, _54, _60, _62 = map(constant, (27, 30, 31, 54, 60, 62))

PURPOSE_ORDER = 1
PURPOSE_CAMERA = 2
PURPOSE_LANGUAGE = 3
PURPOSE_SHARDS = 4
PURPOSE_PHASE = 5
PURPOSE_SHUFFLE = 6
PURPOSE_CHOICE = 7
PURPOSE_PLAN = 8
PURPOSE_PLAN_REST = 9
PURPOSE_CHAIN_HEAD = 10
PURPOSE_GOAL = 11
PURPOSE_AUGMENT = 12
PURPOSE_WORDS = 13
PURPOSE_BLOCKS = 14
PURPOSE_WINDOW = 15
PURPOSE_SHORT_BLOCK = 16


def splitmix64(value: int) -> int:
    """The hash of one 64-bit number."""
    z = (value + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def splitmix64_array(values: Keys) -> Keys:
    """The hash of each of ``values`` [n] uint64."""
    hashes = np.array(values, dtype=np.uint64)
    splitmix64_in_place(hashes, np.empty_like(hashes))
    return hashes


def splitmix64_in_place(values: Keys, scratch: Keys) -> None:
    """Replace each of ``values`` by its hash; allocates no array.

    Args:
        values: uint64 numbers of any shape; overwritten.
        scratch: another uint64 array of the same shape, whose content is lost.
    """
    values += _GOLDEN
    values ^= np.right_shift(values, _30, out=scratch)
    values *= _MIX_1
    values ^= np.right_shift(values, _27, out=scratch)
    values *= _MIX_2
    values ^= np.right_shift(values, _31, out=scratch)


def unmixed_array(hashes: Keys) -> Keys:
    """Invert ``splitmix64_array``, which is a bijection: hashes [n] back to numbers [n]."""
    z = (hashes ^ (hashes >> _31) ^ (hashes >> _62)) * _UNMIX_2
    z = (z ^ (z >> _27) ^ (z >> _54)) * _UNMIX_1
    return np.asarray((z ^ (z >> _30) ^ (z >> _60)) - _GOLDEN)


def dataset_key(seed: int, name: str) -> int:
    """The 64-bit key that all draws of a dataset start from; never its place in the list."""
    digest = hashlib.blake2b(f"{seed}\x00{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def fold(key: int, *parts: int) -> int:
    """A key derived from ``key``: each part, a 64-bit number, is mixed in by one more hash."""
    for part in parts:
        key = splitmix64(key ^ (part & MASK))
    return key


def fold_array(keys: Keys, *parts: Ints) -> Keys:
    """``fold`` of each of ``keys`` [n] uint64 with the parts [n] beside it."""
    for part in parts:
        keys = splitmix64_array(keys ^ part.astype(np.uint64))
    return keys


def ordered(key: int, numbers: Ints) -> Ints:
    """``numbers`` [n], which ascend, in the order of their hashes under ``key``."""
    hashes = splitmix64_array(numbers.astype(np.uint64) ^ np.uint64(key))
    return np.asarray(numbers[np.argsort(hashes, kind="stable")])


def choose(key: int, count: int) -> int:
    """A number of 0 … count−1, uniform except for a bias of at most count/2⁶⁴."""
    return splitmix64(key) % count


def choose_array(keys: Keys, count: int) -> Ints:
    """``choose`` for each of ``keys`` [n]."""
    return (splitmix64_array(keys) % np.uint64(count)).astype(np.int64)


def words_drawn(keys: Keys, t: Ints) -> Keys:
    """[n] a random number for the words of each sample: of its episode's key, at t [n]."""
    return splitmix64_array(fold_array(keys, np.full(len(t), PURPOSE_WORDS, np.int64), t))


def unit(key: int) -> float:
    """A uniform number in [0, 1), of 53 random bits."""
    return (splitmix64(key) >> 11) * 2.0**-53


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
    """Images by a network, applied again while they are not below ``size``."""
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
    """Images in 0 … a·b−1 by the Feistel network."""
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
    """Numbers that images by ``_network`` are of."""
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
    slot, at = slots.find(first + permute(number - first, length, slots.window_key(turn)))
    return slots.block_in(slot) * block + at


def gather(image: Ints, size: Ints, key: Keys, block: Ints, window: int) -> Ints:
    """The number [n] that each image is of; arguments as of ``scatter``."""
    slots = _Slots.of(size, key, block, window)
    which, at = np.divmod(image, block)
    placed = slots.start(slots.slot_of(which)) + at
    first, length, turn = slots.window_of(placed)
    return first + unpermute(placed - first, length, slots.window_key(turn))


@frozen
class _Slots:
    """Where the blocks of n permutations lie, all [n].

    Attributes:
        key: key of each permutation.
        block: numbers of a whole block.
        full: number of whole blocks.
        slots: number of blocks, the short one included.
        windows: number of windows of slots.
        lacks: numbers that the short block lacks; 0 where there is none.
        short: slot of the short block; ``slots`` where there is none.
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
        """The slots of permutations of ``size`` numbers, all [n]."""
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
        """Key [n] of the permutation within each number's window."""
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
