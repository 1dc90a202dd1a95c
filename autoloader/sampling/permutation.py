"""A keyed permutation of 0 … size−1 that is computed, not stored.

A pass of 36 million samples is shuffled without a list of them: a number is split in two digits
``l + a·r`` with ``a·b ≥ size``, and a Feistel network adds a hash of one digit to the other,
modulo its base, in turn. That permutes 0 … a·b−1; a result at or beyond ``size`` goes in again
until one is below it ("cycle walking"), which permutes 0 … size−1. Both are of Black and Rogaway,
"Ciphers with arbitrary finite domains" (CT-RSA 2002). With ``a = ⌈√size⌉`` and ``b = ⌈size/a⌉``
less than one number in √size walks. The hash is splitmix64; this is no cipher, it mixes.

Everything is elementwise: each number has a size and a key of its own, so one call serves a run
of positions over many datasets and passes.

Invariants:
    1. For one size and key, the images of 0 … size−1 are 0 … size−1, each once.
    2. The image of a number depends on that number, its size and its key alone.
    3. ``unpermute`` of an image is the number.

Not here: what the numbers mean (``plan``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from autoloader.samples.draws import constant, splitmix64_in_place

# Four rounds mix large domains; with a handful of numbers it takes this many until every order of
# up to five, and every pair of neighbours beyond, comes about equally often, which tests count.
ROUNDS = 12
_ROUND_SHIFT = 48
MAX_SIZE = 2**53
_TURNS = [constant(turn << _ROUND_SHIFT) for turn in range(ROUNDS)]
_ONE = constant(1)


def permute(
    number: NDArray[np.int64], size: NDArray[np.int64], key: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """The image of each number under the permutation of its size and key.

    Args:
        number: [n], each in [0, size).
        size: [n], each in [1, 2⁵³].
        key: [n] keys, already hashed (``draws.fold``).

    Returns:
        [n] int64, each in [0, size).
    """
    return _walked(_network, number, size, key)


def unpermute(
    image: NDArray[np.int64], size: NDArray[np.int64], key: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """The number that each image [n] is of; the other arguments as of ``permute``."""
    return _walked(_network_back, image, size, key)


_Network = Callable[
    [NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]],
    NDArray[np.uint64],
]


def _walked(
    network: _Network,
    number: NDArray[np.int64],
    size: NDArray[np.int64],
    key: NDArray[np.uint64],
) -> NDArray[np.int64]:
    limit = size.astype(np.uint64)
    a = np.ceil(np.sqrt(size.astype(np.float64))).astype(np.uint64)
    b = (limit + a - np.uint64(1)) // a
    image = network(number.astype(np.uint64), a, b, key)
    outside = np.flatnonzero(image >= limit)
    while len(outside):
        image[outside] = network(image[outside], a[outside], b[outside], key[outside])
        outside = outside[image[outside] >= limit[outside]]
    return image.astype(np.int64)


def _network(
    number: NDArray[np.uint64],
    a: NDArray[np.uint64],
    b: NDArray[np.uint64],
    key: NDArray[np.uint64],
) -> NDArray[np.uint64]:
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


def _network_back(
    image: NDArray[np.uint64],
    a: NDArray[np.uint64],
    b: NDArray[np.uint64],
    key: NDArray[np.uint64],
) -> NDArray[np.uint64]:
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


def _hash(
    digit: NDArray[np.uint64],
    key: NDArray[np.uint64],
    turn: int,
    mixed: NDArray[np.uint64],
    scratch: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """63 bits of a digit under a key, another function each turn; they lie in ``mixed``."""
    np.bitwise_or(digit, _TURNS[turn], out=mixed)
    np.bitwise_xor(mixed, key, out=mixed)
    splitmix64_in_place(mixed, scratch)
    mixed >>= _ONE
    return mixed
