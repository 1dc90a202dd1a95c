"""TFRecord framing without TensorFlow: where the records of a file lie, and whether they are whole.

Not here: what a record means (``autoloader.formats.example``).

A record is an 8-byte little-endian payload length, a masked CRC-32C of these 8 bytes, the payload,
and a masked CRC-32C of the payload. Nothing in the format marks where a record starts, so a broken
length ends what can be known of the file, while a broken payload costs one record.

Files are read with ``pread`` (the interpreter lock is released, no memory is mapped); remote ones
through ``files``.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np

from autoloader.formats.files import RemoteFile, opened_anywhere, pread, source_bytes

HEADER_BYTES = 12
FOOTER_BYTES = 4

PIECE_BYTES = 2**20
LARGE_BYTES = 2**25
_BEHIND = 16  # zero bytes behind a record; a varint has ten at most
WRONG_CHECKSUM = "the checksum of the payload is wrong"

_large = threading.Lock()
"""Of records above ``LARGE_BYTES`` one at a time is held in the process."""

_HEADER = struct.Struct("<QI")
_MASK_DELTA = 0xA282EAD8


class MalformedRecordError(ValueError):
    """A record that is not what it should be; the message is the reason.

    Internal to the library and on purpose no ``AutoloaderError``: whoever reads records turns it
    into a quarantined record with dataset, shard and number, and never shows it as it is.
    """


class FileChangedError(Exception):
    """A file was written to while it was read. Internal: a ``SourceError``, or a quarantine."""


class Record(NamedTuple):
    """One record of a file.

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
        reader = RecordReader(file)
        walk = walk_records(file, source_bytes(file), verify=True)
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


class RecordReader:
    """Reads records into one buffer, which grows to the largest of usual size.

    Args:
        file: an open descriptor, or a remote file.
    """

    def __init__(self, file: int | RemoteFile) -> None:
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
                raise FileChangedError(f"the file ends within the {end} bytes at {offset}")
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
