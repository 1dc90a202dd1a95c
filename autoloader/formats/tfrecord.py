"""TFRecord framing without TensorFlow: where the records of a file lie, and whether they are whole.

Not here: what a record means (``autoloader.formats.example``).

A record is an 8-byte little-endian payload length, a masked CRC-32C of these 8 bytes, the payload,
and a masked CRC-32C of the payload. Nothing in the format marks where a record starts, so a broken
length ends what can be known of the file, while a broken payload costs one record.

Files are read with ``pread`` (the interpreter lock is released, no memory is mapped); remote ones
through ``files``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from autoloader.formats.files import RemoteFile, opened_anywhere, pread, source_bytes

HEADER_BYTES = 12
FOOTER_BYTES = 4

_HEADER = struct.Struct("<QI")
_MASK_DELTA = 0xA282EAD8


class MalformedRecordError(ValueError):
    """A record that is not what it should be; the message is the reason.

    Internal to the library and on purpose no ``AutoloaderError``: whoever reads records turns it
    into a quarantined record with dataset, shard and number, and never shows it as it is.
    """


class Record(NamedTuple):
    """What stands at one place of a file.

    Attributes:
        number: of the record in the file; ``None``: the rest of the file is lost from here on.
        offset: byte offset of its payload.
        payload: ``None`` where it is damaged.
        reason: why it is, one clause for people.
    """

    number: int | None
    offset: int
    payload: bytes | None
    reason: str = ""


def read_records(path: str | Path, start: int = 0, stop: int | None = None) -> Iterator[Record]:
    """The records [start, stop) of a file, in order, each held against its checksums.

    Where a length cannot be trusted the last one speaks of the rest of the file.

    Raises:
        OSError: the file cannot be opened or read.
    """
    with opened_anywhere(path) as file:
        walk = walk_records(file, source_bytes(file), verify=True)
        for number, (at, length, lost) in enumerate(walk):
            if stop is not None and number >= stop:
                break
            if lost is not None:
                yield Record(None, at, None, lost)
            elif number >= start:
                yield _checked(file, number, at + HEADER_BYTES, length)


def _checked(file: int | RemoteFile, number: int, offset: int, length: int) -> Record:
    try:
        data = read_record(file, offset, length + FOOTER_BYTES)
    except MalformedRecordError as error:
        return Record(number, offset, None, str(error))
    payload = data[:length]
    if masked_crc32c(payload) != int.from_bytes(data[length:], "little"):
        return Record(number, offset, None, "the checksum of the payload is wrong")
    return Record(number, offset, payload)


def walk_records(
    file: int | RemoteFile, size: int, *, verify: bool
) -> Iterator[tuple[int, int, str | None]]:
    """Yields (header offset, payload bytes, None) of every record of an open file.

    Where a length cannot be trusted the last element carries the reason, and nothing follows it.
    """
    position, number = 0, 0
    while position < size:
        header = pread(file, HEADER_BYTES, position)
        lost = f"the file is lost from record {number} on"
        if len(header) < HEADER_BYTES:
            yield position, 0, f"truncated in the header: {lost}"
            return
        length, checksum = _HEADER.unpack(header)
        if verify and masked_crc32c(header[:8]) != checksum:
            yield position, 0, f"the checksum of the length is wrong: {lost}"
            return
        end = position + HEADER_BYTES + length + FOOTER_BYTES
        if end > size:
            left = size - position - HEADER_BYTES
            yield position, 0, f"truncated, {left} of {length + FOOTER_BYTES} bytes: {lost}"
            return
        yield position, length, None
        position, number = end, number + 1


def read_record(source: int | RemoteFile, offset: int, length: int) -> bytes:
    """The ``length`` bytes at ``offset`` of an open file.

    Raises:
        MalformedRecordError: the file ends before them.
        OSError: the file cannot be read.
    """
    if offset + length > source_bytes(source):
        raise MalformedRecordError(f"the file ends within the {length} bytes at {offset}")
    data = pread(source, length, offset)
    if len(data) == length:
        return data
    pieces = [data]  # one call reads at most 2 GiB
    missing = length - len(data)
    while missing:
        piece = pread(source, missing, offset + length - missing)
        if not piece:
            raise MalformedRecordError(f"the file ends within the {length} bytes at {offset}")
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def masked_crc32c(data: bytes) -> int:
    """CRC-32C of ``data``, rotated and offset as TFRecord files hold it."""
    return masked(int(google_crc32c.value(data)))


def masked(crc: int) -> int:
    """A CRC-32C, rotated and offset as TFRecord files hold it."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
