"""Records of TFRecord files, without TensorFlow: framing, and the ``tf.train.Example`` in them.

Framing. A record is an 8-byte little-endian payload length, a masked CRC-32C of these 8 bytes, the
payload, and a masked CRC-32C of the payload. Nothing marks where a record starts. So a broken
length ends what can be known of the file, while a broken payload costs one record. Files are read
with ``pread``: the interpreter lock is released, no memory is mapped. Whole records are read for
indexes, counts and streams; a batch by index reads its frames by ``host.files.read_whole``.

Examples. The walker tells where values lie and copies no payloads. The writer packs lists and keeps
the order of the keys; an empty list is written, so that it is not taken for a missing one. The wire
format, as far as it concerns us (field number and wire type as one tag byte):

    Example    0x0A Features
    Features   0x0A entry, any number
    entry      0x0A key (UTF-8), 0x12 Feature; in any order, either may be absent
    Feature    0x0A BytesList | 0x12 FloatList | 0x1A Int64List, or nothing
    BytesList  0x0A bytes, any number
    FloatList  0x0A packed little-endian floats | 0x0D one float, any number of both
    Int64List  0x0A packed varints | 0x08 one varint, any number of both

A varint holds seven bits a byte, lowest first; a negative number takes ten bytes.

Invariants:

1. Whatever the bytes are, the walker ends with values that a protobuf parser would give, or with
   :class:`MalformedRecordError`; fields that the format does not have are malformed, not skipped.
2. Time and memory are linear in the bytes that are looked at; what costs memory by the piece
   rather than by the byte is limited (``MAX_STRINGS``, ``MAX_KEYS``, ``MAX_SEGMENTS``).
3. Payloads of keys that were not asked for are not touched.

Not here: what a value means (``autoloader.formats.features``).
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from autoloader.formats import files
from autoloader.host.frozen import frozen
from autoloader.host.threads import free_in_forks

HEADER_BYTES = 12
FOOTER_BYTES = 4

PIECE_BYTES = 2**20
LARGE_BYTES = 2**25
_BEHIND = 16  # zero bytes behind a record; a varint has ten at most
WRONG_CHECKSUM = "the record is damaged: its checksum is wrong"

_large = free_in_forks(threading.Lock())
"""Of records above ``LARGE_BYTES`` one at a time is held in the process."""

_HEADER = struct.Struct("<QI")
_MASK_DELTA = 0xA282EAD8


class MalformedRecordError(files.UnreadableError):
    """A record that is not what it should be; the message is the reason.

    Internal to the library and on purpose no ``AutoloaderError``: whoever reads records turns it
    into a quarantined record with dataset, shard and number, and never shows it as it is.
    """


class FileChangedError(Exception):
    """A file was written to while it was read. Internal: a ``SourceError``, or a quarantine."""


class RecordPlace(NamedTuple):
    """Place of a record in a shard file; as text "PATH, record N", for messages.

    Attributes:
        path: path of the shard file.
        record: number of the record in the file, from 0.
    """

    path: str
    record: int

    def __str__(self) -> str:
        return f"{self.path}, record {self.record}"


class Record(NamedTuple):
    """One record of a file.

    Attributes:
        number: number of the record in the file, from 0; ``None``: the file is lost from here on.
        offset: byte offset of the payload.
        payload: bytes of the payload; ``None`` where it is damaged.
        reason: reason of the damage, one clause for people; "" of a whole record.
    """

    number: int | None
    offset: int
    payload: bytes | None
    reason: str = ""


def read_records(path: str | Path, start: int = 0, stop: int | None = None) -> Iterator[Record]:
    """The records [start, stop) of a file, in order, each held against its checksums.

    Where a length cannot be trusted, the last record has ``number`` ``None``, and says why the rest
    of the file is lost.

    Raises:
        OSError: the file cannot be opened or read.
    """
    with files.opened_anywhere(path) as file:
        reader = RecordReader(file)
        walk = walk_records(file, files.source_bytes(file))
        for number, (at, length, lost) in enumerate(walk):
            if stop is not None and number >= stop:
                break
            if lost is not None:
                yield Record(None, at, None, lost)
            elif number >= start:
                try:
                    with reader.record(at + HEADER_BYTES, length) as data:
                        payload = None if data is None else bytes(memoryview(data)[:length])
                    reason = WRONG_CHECKSUM if payload is None else ""
                except FileChangedError as error:
                    payload, reason = None, str(error)
                yield Record(number, at + HEADER_BYTES, payload, reason)


def walk_records(file: int | files.RemoteFile, size: int) -> Iterator[tuple[int, int, str | None]]:
    """Yield (offset of the header, size of the payload in bytes, ``None``) of every record.

    Where a length cannot be trusted, the last element has the reason in place of ``None``.

    Args:
        file: an open file, local or remote.
        size: size of the file in bytes.
    """
    position, number = 0, 0
    while position < size:
        header = files.pread(file, HEADER_BYTES, position)
        lost = f"the file cannot be read from record {number} on"
        if len(header) < HEADER_BYTES:
            yield position, 0, f"its header is cut off: {lost}"
            return
        length, checksum = _HEADER.unpack(header)
        if masked_crc32c(header[:8]) != checksum:
            yield position, 0, f"the checksum of its length is wrong: {lost}"
            return
        end = position + HEADER_BYTES + length + FOOTER_BYTES
        if end > size:
            left = size - position - HEADER_BYTES
            yield position, 0, f"truncated, {left} of {length + FOOTER_BYTES} bytes: {lost}"
            return
        yield position, length, None
        position, number = end, number + 1


class RecordReader:
    """Reads records into one buffer, which grows to the largest of usual size.

    Args:
        file: an open descriptor, or a remote file.
    """

    def __init__(self, file: int | files.RemoteFile) -> None:
        self._file = file
        self._buffer = bytearray()

    @contextmanager
    def record(self, offset: int, length: int) -> Iterator[bytearray | None]:
        """A buffer that starts with the payload, or ``None`` where the checksum is wrong.

        The next record uses the buffer again. Zeros follow the payload, so that a number that runs
        over its end never meets an earlier record.

        Raises:
            FileChangedError: the file ends within the record.
            OSError: the file cannot be read.
        """
        size = length + FOOTER_BYTES + _BEHIND
        if size > LARGE_BYTES:
            with _large:
                yield self._filled(bytearray(size), offset, length)
            return
        if size > len(self._buffer):
            self._buffer = bytearray(min(LARGE_BYTES, 2 * size))
        yield self._filled(self._buffer, offset, length)

    def _filled(self, buffer: bytearray, offset: int, length: int) -> bytearray | None:
        view, array = memoryview(buffer), np.frombuffer(buffer, np.uint8)
        local = isinstance(self._file, int)
        crc, position, end = 0, 0, length + FOOTER_BYTES
        while position < end:  # of remote files all at once: every question is a round trip
            piece = view[position : min(end, position + PIECE_BYTES) if local else end]
            if isinstance(self._file, int):
                got = os.preadv(self._file, [piece], offset + position)
            else:
                data = self._file.pread(len(piece), offset + position)
                got = len(data)
                piece[:got] = data
            if not got:
                raise FileChangedError(
                    f"the file is cut off: a record needs bytes {offset} to {offset + end}, and "
                    f"the file ends at {offset + position}"
                )
            checked = min(position + got, length)
            if checked > position:
                crc = google_crc32c.extend(crc, array[position:checked])
            position += got
        whole = masked(crc) == int.from_bytes(buffer[length:end], "little")
        buffer[length : length + _BEHIND] = bytes(_BEHIND)
        return buffer if whole else None


def masked_crc32c(data: bytes) -> int:
    """CRC-32C of ``data``, rotated and offset as TFRecord files hold it."""
    return masked(int(google_crc32c.value(data)))


def masked(crc: int) -> int:
    """A CRC-32C, rotated and offset as TFRecord files hold it."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


# -- examples -----------------------------------------------------------------------------------

Buffer = Any
"""Anything that has a length, gives an integer by index and bytes by slice: bytes, mmap, …"""

MAX_STRINGS = 2**22
"""More byte strings in one list are malformed: an episode of days, or a hostile record."""

MAX_KEYS = 2**14
"""More keys in one record are malformed."""

MAX_SEGMENTS = 2**12
"""More pieces of packed numbers in one list are malformed; writers make one."""


@frozen
class FeatureValue:
    """The list that a key of an Example holds.

    Attributes:
        kind: kind of the list; "missing" where the record names the key without a list.
        ranges: (start, stop) in the buffer of every string of a bytes list, or of every stretch of
            numbers that were asked for as stretches.
        values: ``[N] float32`` of a float list, ``[N] int64`` of an int64 list; copies, owned by
            the caller. ``None`` for the other kinds, and for stretches.
    """

    kind: Literal["bytes", "float", "int64", "missing"]
    ranges: list[tuple[int, int]] = field(default_factory=list)
    values: NDArray[np.float32] | NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ranges) if self.values is None else len(self.values)


def parse_example(
    buffer: Buffer,
    *,
    start: int = 0,
    stop: int | None = None,
    only: Collection[str] | None = None,
    stretches: Mapping[str, int] | None = None,
) -> dict[str, FeatureValue]:
    """The values of a serialized ``tf.train.Example``.

    Args:
        buffer: bytes, memoryview or mmap.
        start: first byte of the record in it.
        stop: first byte behind the record; default: the end of the buffer.
        only: keys to take; the payloads of others are neither touched nor checked.
        stretches: key → n: the ranges of every n packed numbers are given, not their values.

    Returns:
        Values by key, a key that comes twice with its last value. Ranges count from the start of
        the buffer, not of the record.

    Raises:
        MalformedRecordError: the bytes are no such record; the message says why.
    """
    if isinstance(buffer, memoryview):
        buffer = buffer.cast("B")
    size = len(buffer)
    stop = size if stop is None else stop
    if not 0 <= start <= stop <= size:
        _refuse(f"the record [{start}, {stop}) leaves its {size} bytes")
    wanted = None if only is None else {key.encode() for key in only}
    found: dict[bytes, tuple[int, int]] = {}
    try:
        for first, last in _messages(buffer, start, stop, "Example"):
            for entry_start, entry_stop in _messages(buffer, first, last, "Features"):
                key, value = _entry(buffer, entry_start, entry_stop)
                if wanted is None or key in wanted:
                    found[key] = value
                    if len(found) > MAX_KEYS:
                        _refuse(f"more than {MAX_KEYS} keys")
        cut = stretches or {}
        names = {key: _text(key) for key in found}
        return {
            names[key]: _feature(buffer, *value, cut.get(names[key], 0))
            for key, value in found.items()
        }
    except IndexError as error:
        raise MalformedRecordError("the record is damaged: it ends within a number") from error


def _refuse(reason: str) -> NoReturn:
    raise MalformedRecordError(f"the record is damaged: {reason}")


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """The unsigned varint at ``position`` and the position behind it.

    Raises:
        MalformedRecordError: the varint has more than 64 bits.
        IndexError: the buffer ends within it.
    """
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            _refuse("a varint has more than ten bytes")
    if value >= 1 << 64:
        _refuse("a varint has more than 64 bits")
    return value, position + 1


def decode_varints(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """All varints of ``data`` (``[M] uint8``) as ``[N] int64``, two's complement.

    Raises:
        MalformedRecordError: the last one is cut off, or one has more than 64 bits.
    """
    last = data < 0x80
    if not len(data) or last.all():
        return data.astype(np.int64)
    if not last[-1]:
        _refuse("a packed list of integers ends within a number")
    ends = np.flatnonzero(last)
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    sizes = ends - starts + 1
    longest = int(sizes.max())
    if longest > 10:
        _refuse("a varint has more than ten bytes")
    numbers = (data[starts] & 0x7F).astype(np.uint64)
    for place in range(1, longest):
        which = np.flatnonzero(sizes > place)
        part = data[starts[which] + place] & 0x7F
        if place == 9 and part.max() > 1:
            _refuse("a varint has more than 64 bits")
        numbers[which] |= part.astype(np.uint64) << np.uint64(7 * place)
    return numbers.view(np.int64)


# -- messages, outermost first ------------------------------------------------------------------


def _messages(buffer: Buffer, start: int, stop: int, owner: str) -> Iterator[tuple[int, int]]:
    """Ranges of the messages in field 1 of a message that has no other field."""
    while start < stop:
        if buffer[start] != 0x0A:
            _refuse(f"unexpected field 0x{buffer[start]:02x} in {owner}")
        length, start = read_varint(buffer, start + 1)
        end = start + length
        if end > stop:
            _refuse(f"{owner} is cut off")
        yield start, end
        start = end


def _entry(buffer: Buffer, start: int, stop: int) -> tuple[bytes, tuple[int, int]]:
    """Key of a map entry and range of its Feature (empty where there is none)."""
    key, value = None, None
    while start < stop:
        tag = buffer[start]
        length, start = read_varint(buffer, start + 1)
        end = start + length
        if end > stop:
            _refuse("an entry of the feature map is cut off")
        if tag == 0x0A and key is None:
            key = bytes(buffer[start:end])
        elif tag == 0x12 and value is None:
            value = (start, end)
        else:
            _refuse(f"unexpected field 0x{tag:02x} in the feature map")
        start = end
    if start > stop:
        _refuse("an entry of the feature map is cut off")
    return key or b"", value or (stop, stop)


def _text(key: bytes) -> str:
    """A key as text; one that is not UTF-8 is malformed."""
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedRecordError(f"the key {key[:40]!r} is not UTF-8") from error


def _feature(buffer: Buffer, start: int, stop: int, cut: int) -> FeatureValue:
    """The list of a ``Feature`` in [start, stop); ``cut`` > 0: ranges of so many numbers each."""
    if start == stop:
        return FeatureValue("missing")
    tag = buffer[start]
    length, start = read_varint(buffer, start + 1)
    if start + length > stop:
        _refuse("a feature is cut off")
    if start + length < stop:
        _refuse("a feature holds more than one list")
    if tag == 0x0A:
        return FeatureValue("bytes", ranges=_bytes_list(buffer, start, stop))
    if tag not in (0x12, 0x1A):
        _refuse(f"unexpected field 0x{tag:02x} in a feature")
    kind: Literal["float", "int64"] = "float" if tag == 0x12 else "int64"
    if cut:
        return FeatureValue(kind, ranges=_stretches(buffer, start, stop, kind, cut))
    return FeatureValue(kind, values=_numbers(buffer, start, stop, kind))


def _bytes_list(buffer: Buffer, position: int, stop: int) -> list[tuple[int, int]]:
    # The hot loop of everything that finds frames, hence the varint in line: a frame of less
    # than 2 MiB takes one, two or three bytes of length.
    """(start, stop) of every string of a bytes list."""
    ranges: list[tuple[int, int]] = []
    append = ranges.append
    limit = MAX_STRINGS
    while position < stop:
        if buffer[position] != 0x0A:
            _refuse(f"unexpected field 0x{buffer[position]:02x} in a bytes list")
        length = buffer[position + 1]
        position += 2
        if length >= 0x80:
            byte = buffer[position]
            length = (length & 0x7F) | (byte & 0x7F) << 7
            position += 1
            if byte >= 0x80:
                byte = buffer[position]
                length |= (byte & 0x7F) << 14
                position += 1
                if byte >= 0x80:
                    length, position = read_varint(buffer, position - 3)
        end = position + length
        append((position, end))
        position = end
        limit -= 1
        if limit < 0:
            _refuse(f"a bytes list has more than {MAX_STRINGS} strings")
    if position > stop:
        _refuse("a bytes list is cut off")
    return ranges


def _numbers(
    buffer: Buffer, position: int, stop: int, kind: Literal["float", "int64"]
) -> NDArray[Any]:
    """[N] float32 or int64 values of a list, packed in any number of pieces, single, or both."""
    data, pieces = bytearray(), 0  # all of them as if packed; no view of the buffer, a mapping
    while position < stop:
        tag = buffer[position]
        if tag == 0x0A:
            start, length = _packed(buffer, position, stop)
            position = start + length
            if length and (length % 4 if kind == "float" else buffer[position - 1] >= 0x80):
                _refuse(f"a packed list of kind {kind} ends within a number")
            pieces += 1
        elif tag == 0x0D and kind == "float":
            start, position = position + 1, position + 5
        elif tag == 0x08 and kind == "int64":
            start, position = position + 1, read_varint(buffer, position + 1)[1]
        else:
            _refuse(f"unexpected field 0x{tag:02x} in a list of kind {kind}")
        if position > stop:
            _refuse(f"a list of kind {kind} is cut off")
        if pieces > MAX_SEGMENTS:
            _refuse(f"a list of kind {kind} is in too many pieces")
        data += buffer[start:position]
    if kind == "float":
        return np.frombuffer(data, "<f4")
    return decode_varints(np.frombuffer(data, np.uint8))


def _stretches(
    buffer: Buffer, position: int, stop: int, kind: Literal["float", "int64"], numbers: int
) -> list[tuple[int, int]]:
    """(start, stop) of every so many packed numbers of a list."""
    if position == stop:
        return []
    if buffer[position] != 0x0A:
        _refuse("numbers of frames are not packed")
    start, length = _packed(buffer, position, stop)
    if start + length != stop:
        _refuse("numbers of frames are in more than one piece")
    if kind == "float":
        count, rest = divmod(length, 4 * numbers)
        marks = [start + 4 * numbers * number for number in range(count + 1)]
    else:
        ends = np.flatnonzero(np.frombuffer(buffer[start:stop], np.uint8) < 0x80) + start + 1
        rest = len(ends) % numbers or (length and buffer[stop - 1] >= 0x80)
        marks = [start, *ends[numbers - 1 :: numbers].tolist()]
    if rest:
        _refuse(f"a list holds no multiple of the {numbers} numbers of a frame")
    return list(pairwise(marks))


def _packed(buffer: Buffer, position: int, stop: int) -> tuple[int, int]:
    """Start and bytes of the packed values whose tag is at ``position``."""
    length, position = read_varint(buffer, position + 1)
    if position + length > stop:
        _refuse("a packed list is cut off")
    return position, length


# -- writing ------------------------------------------------------------------------------------

Values = NDArray[np.float32] | NDArray[np.int64] | Sequence[bytes]


def write_example(values: Mapping[str, Values]) -> bytes:
    """The record that holds these lists.

    Args:
        values: key → [N] float32, [N] int64, or byte strings.
    """
    entries = [
        _field(0x0A, _field(0x0A, key.encode()) + _field(0x12, _feature_bytes(value)))
        for key, value in values.items()
    ]
    return _field(0x0A, b"".join(entries))


def _feature_bytes(value: Values) -> bytes:
    """A ``Feature``: its list, packed. Any array that is not float32 is written as int64."""
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
    """A field of a message: tag byte, length as a varint, payload."""
    return bytes([tag]) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    """A number from 0 on, seven bits in each byte, the lowest first."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
