"""The pages of a Parquet column of byte strings: where in the file each value lies.

pyarrow gives values, and does not say where they lie. So the headers of a column's pages are read
here: Thrift's compact protocol, then levels, and values that are plain or numbers of a dictionary.
Where its chunks lie is read from the footer in the same way: pyarrow ends the process where the
statistics that stand beside are damaged.

Not here: which rows are which episode's (``rows``), reading and unpacking a value (``pictures``).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from autoloader.formats import files
from autoloader.formats.lerobot.parquet import UnreadableParquetError
from autoloader.host.extras import needs

Ints = NDArray[np.int64]

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_FIRST_HEADER_BYTES, _MOST_HEADER_BYTES = 2**12, 2**20
_DEEPEST = 12
_MOST_UNPACKED_BYTES = 2**30
_LARGEST_RATIO = 64
"""A page that claims to unpack to more than so many times its bytes is damaged."""
_FOOTER = struct.Struct("<I4s")
"""Behind the footer: its length, and Parquet's mark."""
PLAIN_CODEC = ""
CODECS = {"UNCOMPRESSED": PLAIN_CODEC, "SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd",
          "BROTLI": "brotli"}  # fmt: skip
"""Parquet's name of how pages are packed → pyarrow's."""
_CODEC_NAMES = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")


@dataclass(frozen=True, slots=True)
class PackedValues:
    """Values of one page, or of one dictionary: n of them, unpacked together.

    Attributes:
        offset: where it lies in the file.
        codec: of ``CODECS``.
        packed, data: its bytes, as they lie there and unpacked.
        start, size: [n] int64 bytes of each value within ``data``; −1 where there is none.
    """

    offset: int
    codec: str
    packed: bytes
    data: bytes
    start: Ints
    size: Ints


@dataclass(frozen=True, slots=True)
class PageOfValues:
    """A data page: where its n values come from.

    Attributes:
        source: the page's own values, or its column chunk's dictionary.
        number: [n] int64 which of the source's values each is; −1 where there is none.
    """

    source: PackedValues
    number: Ints


def pages_of(path: str, column: str, rows: int) -> Iterator[PageOfValues]:
    """The data pages of a column of byte strings, in the order of the rows.

    Args:
        path: the file.
        column: as Parquet has it: names joined by dots.
        rows: of the file.

    Raises:
        UnreadableParquetError: it is damaged, there is no such column, or it is stored in a way
            that is not read.
        OSError: the file cannot be opened.
        MissingExtraError: pyarrow is not installed.
    """
    with needs("a LeRobot dataset", extra="lerobot"):
        import pyarrow
    try:
        yield from _pages(path, column, rows)
    except UnreadableParquetError:
        raise
    except (pyarrow.ArrowException, ValueError, OverflowError, MemoryError) as error:
        raise UnreadableParquetError(" ".join(str(error).split())[:160]) from error


def _pages(path: str, column: str, rows: int) -> Iterator[PageOfValues]:
    with files.opened_regular(path) as source:
        chunks, most_level = _chunks_of(source, column)
        for chunk in chunks:
            for page in _Chunk(source.fileno(), chunk, most_level).pages():
                rows -= len(page.number)
                if rows < 0:
                    raise UnreadableParquetError(f"{column} has more values than rows")
                yield page


def _chunks_of(source: BinaryIO, column: str) -> tuple[list[dict[int, Any]], int]:
    """The metadata of the column's chunks, and the level of definition of a value that is there."""
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(source, pre_buffer=False) as file:
            schema = file.metadata.schema
            number = next(
                (k for k in range(file.metadata.num_columns) if schema.column(k).path == column), -1
            )
            if number < 0:
                raise UnreadableParquetError(f"it has no column {column!r}")
            described = schema.column(number)
    except OSError as error:  # what pyarrow says of damaged bytes
        raise UnreadableParquetError(" ".join(str(error).split())[:160]) from error
    if described.physical_type != "BYTE_ARRAY" or described.max_repetition_level:
        raise UnreadableParquetError(f"{column} holds no byte strings")
    try:
        groups = _footer(source.fileno())[4]
        chunks = [_inner(group[1][number], 3) for group in groups]
    except (IndexError, KeyError, TypeError) as error:
        raise UnreadableParquetError("its footer is damaged") from error
    return chunks, described.max_definition_level


def _footer(descriptor: int) -> dict[int, Any]:
    """The file's metadata: field number → value."""
    end = os.fstat(descriptor).st_size - _FOOTER.size
    size, _ = _FOOTER.unpack(os.pread(descriptor, _FOOTER.size, max(0, end)))
    return _Thrift(os.pread(descriptor, size, max(0, end - size))).struct()


class _Chunk:
    """One column chunk, page by page."""

    def __init__(self, descriptor: int, chunk: dict[int, Any], most_level: int) -> None:
        self._descriptor = descriptor
        self._most_level = most_level
        packed = _whole(chunk, 4)
        name = _CODEC_NAMES[packed] if 0 <= packed < len(_CODEC_NAMES) else str(packed)
        if name not in CODECS:
            raise UnreadableParquetError(
                f"its pictures are packed by {name}; read are " + ", ".join(sorted(CODECS))
            )
        self._codec = CODECS[name]
        self._values = _whole(chunk, 5)
        at, size = _whole(chunk, 9), _whole(chunk, 7)
        if chunk.get(11):  # a dictionary, which lies before the data
            at = min(at, _whole(chunk, 11))
        self._at, self._stop = at, at + size
        if at < 4 or size < 0 or self._stop > os.fstat(descriptor).st_size:
            raise UnreadableParquetError("a column lies behind the end of the file")

    def pages(self) -> Iterator[PageOfValues]:
        """Its data pages."""
        dictionary: PackedValues | None = None
        at, left = self._at, self._values
        while left > 0:
            header, size = self._header(at)
            kind, unpacked, packed = _whole(header, 1), _whole(header, 2), _whole(header, 3)
            if packed < 0 or unpacked < 0 or at + size + packed > self._stop:
                raise UnreadableParquetError("a page lies behind the end of its column")
            body = at + size
            at = body + packed
            if kind == _DICTIONARY:
                told = _inner(header, 7)
                stretch = self._stretch(body, packed, unpacked, self._codec)
                dictionary = stretch.values(0, _whole(told, 1))
            elif kind in (_DATA, _DATA_V2):
                page = (
                    self._page(header, body, packed, unpacked, dictionary)
                    if kind == _DATA
                    else self._page_v2(header, body, packed, unpacked, dictionary)
                )
                left -= len(page.number)
                yield page

    def _page(
        self, header: dict[int, Any], body: int, packed: int, unpacked: int,
        dictionary: PackedValues | None,
    ) -> PageOfValues:  # fmt: skip
        told = _inner(header, 5)
        count = self._counted(told)
        stretch = self._stretch(body, packed, unpacked, self._codec)
        data = stretch.data
        at, levels = 0, np.full(count, self._most_level, np.int64)
        if self._most_level:
            size = int.from_bytes(data[:4], "little")
            levels = _hybrid(data[4 : 4 + size], self._most_level.bit_length(), count)
            at = 4 + size
        return self._found(stretch, at, levels, _whole(told, 2), dictionary)

    def _page_v2(
        self, header: dict[int, Any], body: int, packed: int, unpacked: int,
        dictionary: PackedValues | None,
    ) -> PageOfValues:  # fmt: skip
        told = _inner(header, 8)
        count, levels_bytes, repeated = self._counted(told), _whole(told, 5), _whole(told, 6)
        if levels_bytes < 0 or repeated < 0 or levels_bytes + repeated > packed:
            raise UnreadableParquetError("the levels of a page are longer than itself")
        before = repeated + levels_bytes
        codec = self._codec if told.get(7, True) else PLAIN_CODEC
        level_bytes = os.pread(self._descriptor, levels_bytes, body + repeated)
        levels = _hybrid(level_bytes, max(1, self._most_level.bit_length()), count)
        if not self._most_level:
            levels = np.zeros(count, np.int64)
        stretch = self._stretch(body + before, packed - before, unpacked - before, codec)
        return self._found(stretch, 0, levels, _whole(told, 4), dictionary)

    def _found(
        self, stretch: _Stretch, at: int, levels: Ints, encoding: int,
        dictionary: PackedValues | None,
    ) -> PageOfValues:  # fmt: skip
        """The values behind ``at`` of a page whose rows have these levels."""
        there = levels == self._most_level
        number = np.full(len(levels), -1, np.int64)
        count = int(there.sum())
        if encoding == _PLAIN:
            number[there] = np.arange(count)
            return PageOfValues(stretch.values(at, count), number)
        if encoding not in (_PLAIN_DICTIONARY, _RLE_DICTIONARY) or dictionary is None:
            raise UnreadableParquetError(f"its byte strings have Parquet's encoding {encoding}")
        if count:
            data = stretch.data[at:]
            if not data or data[0] > 32:
                raise UnreadableParquetError(
                    "a page does not say how wide its dictionary numbers are"
                )
            number[there] = _hybrid(data[1:], data[0], count)
            if int(number.max()) >= len(dictionary.start):
                raise UnreadableParquetError("a page names a value that its dictionary lacks")
        return PageOfValues(dictionary, number)

    def _counted(self, told: dict[int, Any]) -> int:
        count = _whole(told, 1)
        if not 0 < count <= self._values:
            raise UnreadableParquetError(f"a page claims {count} values")
        return count

    def _header(self, at: int) -> tuple[dict[int, Any], int]:
        """A page's header, and its bytes."""
        size = _FIRST_HEADER_BYTES
        while True:
            data = os.pread(self._descriptor, min(size, self._stop - at), at)
            reader = _Thrift(data)
            try:
                return reader.struct(), reader.at
            except IndexError as error:
                if len(data) < size or size >= _MOST_HEADER_BYTES:
                    raise UnreadableParquetError("the header of a page is damaged") from error
            size *= 16

    def _stretch(self, offset: int, packed: int, unpacked: int, codec: str) -> _Stretch:
        """A stretch of the file, unpacked."""
        import pyarrow

        data = os.pread(self._descriptor, packed, offset)
        if len(data) < packed:
            raise UnreadableParquetError("a page is cut off")
        if codec == PLAIN_CODEC:
            return _Stretch(offset, codec, data, data)
        if not 0 <= unpacked <= min(_MOST_UNPACKED_BYTES, _LARGEST_RATIO * packed + 2**20):
            raise UnreadableParquetError(f"a page of {packed} bytes claims {unpacked} unpacked")
        try:
            found = pyarrow.decompress(data, unpacked, codec, asbytes=True)
        except OSError as error:  # what pyarrow says of damaged bytes
            raise UnreadableParquetError(f"a page cannot be unpacked: {error}"[:160]) from error
        return _Stretch(offset, codec, data, found)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What ``PackedValues`` has, but the values."""

    offset: int
    codec: str
    packed: bytes
    data: bytes

    def values(self, at: int, count: int) -> PackedValues:
        """``count`` values from ``at`` on, each behind its length.

        Raises:
            UnreadableParquetError: they are not there.
        """
        if not 0 <= count <= len(self.data) // 4:
            raise UnreadableParquetError(f"a page of {len(self.data)} bytes claims {count} values")
        starts, sizes = np.empty(count, np.int64), np.empty(count, np.int64)
        for k in range(count):
            size = int.from_bytes(self.data[at : at + 4], "little")
            starts[k], sizes[k] = at + 4, size
            at += 4 + size
            if at > len(self.data):
                raise UnreadableParquetError("a value lies behind the end of its page")
        return PackedValues(self.offset, self.codec, self.packed, self.data, starts, sizes)


def _hybrid(data: bytes, width: int, count: int) -> Ints:
    """[count] numbers of so many bits, in runs that are repeated or packed."""
    found = np.zeros(count, np.int64)
    at = done = 0
    whole_bytes = -(-width // 8)
    try:
        while done < count:
            head, at = _varint(data, at)
            if head & 1:
                size = (head >> 1) * width
                bits = np.unpackbits(
                    np.frombuffer(data[at : at + size], np.uint8), bitorder="little"
                )
                values = bits[: len(bits) // max(1, width) * width].reshape(-1, max(1, width))
                run = values @ (1 << np.arange(max(1, width), dtype=np.int64))
                at += size
                some = min(count - done, len(run) if width else (head >> 1) * 8)
                found[done : done + some] = run[:some] if width else 0
            else:
                some = min(count - done, head >> 1)
                value = int.from_bytes(data[at : at + whole_bytes], "little")
                found[done : done + some] = value
                at += whole_bytes
            if some <= 0:
                raise UnreadableParquetError("a run of a page is empty")
            done += some
    except IndexError as error:
        raise UnreadableParquetError("the runs of a page are cut off") from error
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(a number of seven bits a byte, the place behind it)."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise UnreadableParquetError("a number has too many bytes")


class _Thrift:
    """Reads values of Thrift's compact protocol; behind the end it raises ``IndexError``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Field number → value."""
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            found[field] = self._value(head & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise UnreadableParquetError("the header of a page is damaged")
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._unsigned())
        if kind in (9, 10):
            head = self._byte()
            count = self._unsigned() if head >> 4 == 15 else head >> 4
            inner = head & 15
            return [
                self._byte() if inner in (1, 2) else self._value(inner, depth + 1)
                for _ in range(min(count, len(self._data) + 1))
            ]
        if kind == 12:
            return self.struct(depth + 1)
        raise UnreadableParquetError("the header of a page is damaged")

    def _unsigned(self) -> int:
        value, self.at = _varint(self._data, self.at)
        return value

    def _zigzag(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _bytes(self, count: int) -> bytes:
        if self.at + count > len(self._data):
            raise IndexError
        self.at += count
        return self._data[self.at - count : self.at]


def _whole(told: dict[int, Any], field: int) -> int:
    value = told.get(field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnreadableParquetError("the header of a page is damaged")
    return value


def _inner(told: dict[int, Any], field: int) -> dict[int, Any]:
    value = told.get(field)
    if not isinstance(value, dict):
        raise UnreadableParquetError("the header of a page is damaged")
    return value
