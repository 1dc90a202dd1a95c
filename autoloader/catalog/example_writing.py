"""Writes ``tf.train.Example`` records: for parsers that take a record and nothing else.

Lists are packed, keys in the order given; an empty list is written, so that it is not a missing
one.

Not here: reading them (``example``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32] | NDArray[np.int64] | Sequence[bytes]


def write_example(values: Mapping[str, Values]) -> bytes:
    """The record that holds these lists.

    Args:
        values: key → float32 numbers, int64 numbers or byte strings, flat.
    """
    entries = [
        _field(0x0A, _field(0x0A, key.encode()) + _field(0x12, _list(value)))
        for key, value in values.items()
    ]
    return _field(0x0A, b"".join(entries))


def _list(value: Values) -> bytes:
    if not isinstance(value, np.ndarray):
        return _field(0x0A, b"".join([_field(0x0A, one) for one in value]))
    if value.dtype == np.float32:
        return _field(0x12, _field(0x0A, value.astype("<f4", copy=False).tobytes()))
    return _field(0x1A, _field(0x0A, encode_varints(value)))


def encode_varints(values: NDArray[Any]) -> bytes:
    """int64 numbers [N] as varints, two's complement, one behind the other."""
    numbers = np.ascontiguousarray(values, np.int64).view(np.uint64)
    shifted = numbers[:, None] >> (7 * np.arange(10, dtype=np.uint64))
    used = shifted > 0
    used[:, 0] = True
    digits = (shifted & np.uint64(0x7F)).astype(np.uint8)
    digits[:, :-1] |= used[:, 1:].astype(np.uint8) << 7
    return digits[used].tobytes()


def _field(tag: int, payload: bytes) -> bytes:
    size = len(payload)
    head = bytearray([tag])
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + payload
