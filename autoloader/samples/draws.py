"""Keyed draws: which t, which camera, which order, without a stateful generator.

A draw is a hash of its place. It does not depend on draws before it, on threads, or on the position
at which a run was resumed. The n drawn t of an episode are the n smallest of
``splitmix64(key(dataset name, pass, shard, episode) xor t)``: uniform, without replacement, and
their sorted order is the order in which the episode's samples come.

splitmix64 is the finaliser of Steele, Lea and Flood, "Fast splittable pseudorandom number
generators" (OOPSLA 2014). ``pipeline.graph.tensorflow`` holds the same function in TensorFlow.

Invariants:
    1. Same arguments, same draw: on every platform, in NumPy and in TensorFlow.
    2. ``order(key, a, b)`` is a permutation; its first m entries are the draw of m.

Not here: the order of samples over a whole pass (``sampling.plan``).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]
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
    """``values`` become their hashes; ``scratch`` is of their shape. No array is allocated."""
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
    """A key for a place below ``key``: each part is mixed in by one more hash."""
    for part in parts:
        key = splitmix64(key ^ (part & MASK))
    return key


def fold_array(keys: Keys, *parts: Ints) -> Keys:
    """``fold`` of each of ``keys`` [n] uint64 with the parts [n] beside it."""
    for part in parts:
        keys = splitmix64_array(keys ^ part.astype(np.uint64))
    return keys


def order(key: int, first: int, stop: int) -> Ints:
    """Numbers first … stop−1 in the order of their hashes under ``key``; ties by number."""
    return ordered(key, np.arange(first, stop, dtype=np.int64))


def ordered(key: int, numbers: Ints) -> Ints:
    """``numbers`` [n], which ascend, in the order of their hashes under ``key``."""
    hashes = splitmix64_array(numbers.astype(np.uint64) ^ np.uint64(key))
    return np.asarray(numbers[np.argsort(hashes, kind="stable")])


def choose(key: int, count: int) -> int:
    """One of 0 … count−1, uniform up to 2⁻⁵⁰ or so."""
    return splitmix64(key) % count


def choose_array(keys: Keys, count: int) -> Ints:
    """``choose`` for each of ``keys`` [n]."""
    return (splitmix64_array(keys) % np.uint64(count)).astype(np.int64)


def words_drawn(keys: Keys, t: Ints) -> Keys:
    """[n] a random number for the words of each sample: of its episode's key, at t [n]."""
    return splitmix64_array(fold_array(keys, np.full(len(t), PURPOSE_WORDS, np.int64), t))


def unit(key: int) -> float:
    """A number in [0, 1)."""
    return (splitmix64(key) >> 11) * 2.0**-53
