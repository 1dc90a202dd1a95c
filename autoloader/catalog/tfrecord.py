"""TFRecord framing without TensorFlow: where the records of a file lie, and whether they are whole.

Not here: what a record means (``autoloader.catalog.example``).

A record is an 8-byte little-endian payload length, a masked CRC-32C of these 8 bytes, the payload,
and a masked CRC-32C of the payload. Nothing in the format marks where a record starts, so a broken
length ends what can be known of the file, while a broken payload costs one record.

Files are read with ``pread`` (the interpreter lock is released, no memory is mapped), in pieces of
at most 1 MiB; remote ones through ``files``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from autoloader.catalog.files import RemoteFile, opened_anywhere, pread, source_bytes

HEADER_BYTES = 12
FOOTER_BYTES = 4

_HEADER = struct.Struct("<QI")
_CHUNK_BYTES = 2**20
_MASK_DELTA = 0xA282EAD8


class MalformedRecordError(ValueError):
    """A record that is not what it should be; the message is the reason.

    Internal to the library and on purpose no ``AutoloaderError``: whoever reads records turns it
    into a quarantined record with dataset, shard and number, and never shows it as it is.
    """


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong at one place of a file.

    Attributes:
        record: number of the record in the file; None where the rest of the file is lost.
        offset: byte offset of the record's header.
        reason: one clause for people.
    """

    record: int | None
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordScan:
    """Where the records of a file are.

    Attributes:
        path: the file.
        size: its bytes.
        offsets: ``[N] int64``, byte offset of every payload, damaged ones included.
        lengths: ``[N] int64``, bytes of every payload.
        damage: at most one entry without a record number, and then it is the last.
    """

    path: str
    size: int
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    damage: tuple[Damage, ...]


def scan_records(
    path: str | Path, *, verify: Literal["none", "lengths", "all"] = "lengths"
) -> RecordScan:
    """Finds all records of a TFRecord file by walking their headers.

    Args:
        path: the file.
        verify: "lengths" checks the CRC of every length, "all" the CRC of every payload too (it
            reads the whole file), "none" only that records end within the file.

    Raises:
        OSError: the file cannot be opened or read.
    """
    offsets: list[int] = []
    lengths: list[int] = []
    damage: list[Damage] = []
    with opened_anywhere(path) as file:
        size = source_bytes(file)
        for start, length, reason in walk_records(file, size, verify=verify != "none"):
            if reason is not None:
                damage.append(Damage(None, start, reason))
                break
            payload = start + HEADER_BYTES
            if verify == "all" and not payload_is_whole(file, payload, length):
                damage.append(Damage(len(offsets), start, "the checksum of the payload is wrong"))
            offsets.append(payload)
            lengths.append(length)
    return RecordScan(
        path=str(path),
        size=size,
        offsets=np.array(offsets, dtype=np.int64),
        lengths=np.array(lengths, dtype=np.int64),
        damage=tuple(damage),
    )


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


def payload_is_whole(file: int | RemoteFile, offset: int, length: int) -> bool:
    """Whether the payload at ``offset`` fits the checksum behind it."""
    crc, position, end = 0, offset, offset + length
    while position < end:
        chunk = pread(file, min(_CHUNK_BYTES, end - position), position)
        if not chunk:
            return False
        crc = google_crc32c.extend(crc, chunk)
        position += len(chunk)
    footer = pread(file, FOOTER_BYTES, end)
    return len(footer) == FOOTER_BYTES and int.from_bytes(footer, "little") == masked(crc)


def read_record(source: int | RemoteFile | str | Path, offset: int, length: int) -> bytes:
    """The ``length`` payload bytes at ``offset`` of a file or an open one.

    Raises:
        MalformedRecordError: the file ends before them.
        OSError: the file cannot be opened or read.
    """
    if isinstance(source, (str, Path)):
        with opened_anywhere(source) as file:
            return read_record(file, offset, length)
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
