"""TFRecord files and ``tf.train.Example`` messages, without TensorFlow.

Written from the public formats: a TFRecord is length (u64), masked CRC32C of the length (u32),
data, masked CRC32C of the data (u32); an Example is a map from feature name to a list of bytes,
floats or integers. Reading does not check the sums: the bench writes or trusts its files.

Not here: which files and features (``bench.mixture``), synthetic data (``bench.data``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

Values = list[bytes] | NDArray[np.float32] | NDArray[np.int64]
"""A feature's values: bytes, float32 or int64, flat."""

_MASK_DELTA = 0xA282EAD8
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a TFRecord file, in order."""
    with path.open("rb") as file:
        while header := file.read(12):
            (length,) = struct.unpack_from("<Q", header)
            yield file.read(length)
            file.read(4)


def write_records(path: Path, records: Iterable[bytes]) -> int:
    """Writes a TFRecord file; returns how many records went in."""
    count = 0
    with path.open("wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            file.write(length + struct.pack("<I", _masked(length)))
            file.write(record)
            file.write(struct.pack("<I", _masked(record)))
            count += 1
    return count


def _masked(data: bytes) -> int:
    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


# --- Example messages ------------------------------------------------------------------------


def parse_example(record: bytes, wanted: Iterable[str] | None = None) -> dict[str, Values]:
    """The features of an Example, or only the ``wanted`` ones."""
    names = None if wanted is None else set(wanted)
    data = memoryview(record)
    found: dict[str, Values] = {}
    for _, features in _fields(data):
        for _, entry in _fields(features):
            name, feature = "", memoryview(b"")
            for number, part in _fields(entry):
                if number == 1:
                    name = bytes(part).decode()
                else:
                    feature = part
            if names is None or name in names:
                found[name] = _values(feature)
    return found


def example_bytes(features: Mapping[str, Values]) -> bytes:
    """An Example of these features; what ``parse_example`` reads."""
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _feature(values)))
        for name, values in features.items()
    )
    return _field(1, entries)


def _feature(values: Values) -> bytes:
    if isinstance(values, list):
        return _field(_BYTES, b"".join(_field(1, value) for value in values))
    if values.dtype.kind == "f":
        return _field(_FLOATS, _field(1, values.astype("<f4").tobytes()))
    packed = b"".join(_as_varint(value % (1 << 64)) for value in values.tolist())
    return _field(_INTEGERS, _field(1, packed))


def _field(number: int, content: bytes) -> bytes:
    return _as_varint(number << 3 | 2) + _as_varint(len(content)) + content


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _values(feature: memoryview) -> Values:
    for kind, content in _fields(feature):
        if kind == _BYTES:
            return [bytes(part) for _, part in _fields(content)]
        if kind == _FLOATS:
            parts = [bytes(part) for _, part in _fields(content)]
            return np.frombuffer(b"".join(parts), "<f4")
        numbers: list[int] = []
        for _, part in _fields(content):
            at = 0
            while at < len(part):
                value, at = _varint(part, at)
                numbers.append(value - (1 << 64) if value >> 63 else value)
        return np.array(numbers, np.int64)
    return []


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(field number, content) of a message; fixed and plain varint fields as their raw bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 2:
            length, at = _varint(data, at)
        elif wire == 0:
            _, end = _varint(data, at)
            length = end - at
        else:
            length = 8 if wire == 1 else 4
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
