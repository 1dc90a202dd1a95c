"""Reads Parquet files: columns by pyarrow, and where the pictures of a column lie in the file.

pyarrow gives values and does not say where they lie. So the footer and the headers of pages are
read here: Thrift's compact protocol, then levels, then values, plain or numbers of a dictionary.
(pyarrow ends the process when it reads chunks whose statistics are damaged.)

Theory of operation of ``read_pictures``. Writers pack the pages of a column by snappy, and a page
may hold a hundred pictures. snappy packs 64 KiB at a time, and no piece needs an earlier one. So
the stretch of a picture is the pieces that it lies in, which are unpacked alone. A page of another
codec is one stretch.

Not here: the meaning of columns (``metadata``, ``tables``), unpacking a picture
(``formats.frames``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from autoloader.formats import files
from autoloader.formats.files import UnreadableError, told_stand_in
from autoloader.formats.frames import PackedPicture
from autoloader.formats.records import read_varint
from autoloader.host.extras import needs
from autoloader.host.frozen import frozen
from autoloader.storage.faults import LimitError, Limits, check_bytes

Ints = NDArray[np.int64]

PIECE_BYTES = 2**16
"""Bytes that snappy packs at a time."""
PLAIN, SNAPPY = "", "snappy"
_DEEPEST = 3
"""Structs within each other in the header of a page."""
_READ = ("uncompressed", SNAPPY, "gzip", "brotli", "zstd")
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_PLAIN_VALUES, _DICTIONARY_VALUES = 0, (2, 8)
_HEADER_BYTES = (2**12, 2**16, 2**20)
"""Read for the header of a page, until it holds the whole header."""
_MOST_UNPACKED_BYTES = 2**30
_LARGEST_RATIO = 4096
"""A page that claims to unpack to more than this many times its bytes is damaged. pyarrow writes
pages of 1,024 rows or more, which may show one picture."""
_LARGEST_PICTURE_BYTES = 2**31 - 1


def read_columns(
    path: str | Path, wanted: Callable[[Sequence[str]], Sequence[str]], most: str = ""
) -> Any:
    """A ``pyarrow.Table`` of some columns of a local file, all rows, by the calling thread alone.

    Args:
        path: path of the Parquet file.
        wanted: chooses from the names of the columns that are there.
        most: field of ``storage.faults.Limits`` that bounds the file and its unpacked values; ""
            for no bound.

    Raises:
        UnreadableError: the file is damaged, or no Parquet file.
        OSError: the file is not there, or may not be read.
        MissingExtraError: pyarrow is not installed.
    """
    with needs("a LeRobot dataset", extra="lerobot"):
        import pyarrow
        import pyarrow.parquet as parquet
    with files.opened_regular(path, most) as source:
        try:
            with parquet.ParquetFile(source, pre_buffer=False) as file:
                names = list(wanted(file.schema_arrow.names))
                if most:  # a list may be small as a file, and large in memory
                    about = file.metadata
                    groups = [about.row_group(k) for k in range(about.num_row_groups)]
                    unpacked = sum(group.total_byte_size for group in groups)
                    unpacked = max(unpacked, 8 * len(names) * about.num_rows)
                    check_bytes(str(path), unpacked, most, Limits.of_environment())
                return file.read(columns=names, use_threads=False)
        except LimitError:
            raise
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            why = told_stand_in(path) or " ".join(str(error).split())[:160]
            raise UnreadableError(why) from error


def values_of(column: Any) -> NDArray[Any]:
    """Values of a pyarrow array or column; NaN for a missing number.

    ``to_numpy`` imports pandas where it is installed, and pandas takes 30 MB of each process.
    """
    from pyarrow import ChunkedArray, types

    values = column.combine_chunks() if isinstance(column, ChunkedArray) else column
    if types.is_boolean(values.type) and not values.null_count:
        return np.from_dlpack(values.cast("uint8")).view(np.bool_)
    if not types.is_integer(values.type) and not types.is_floating(values.type):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    if values.null_count:
        values = values.cast("float64", safe=False).fill_null(float("nan"))
    return np.from_dlpack(values)


@frozen
class PictureTable:
    """Places of the pictures of R rows.

    Attributes:
        codec: packing of the stretches: "" (none), "snappy", "gzip", "zstd" or "brotli". A
            stretch of "snappy" lacks the number of its unpacked bytes in front.
        offset, length: [R] int64 stretch of the file in bytes; offset −1 where a row has no
            picture.
        unpacked: [R] int32 bytes of the stretch, unpacked.
        start, size: [R] int32 place of the picture within the unpacked bytes.
    """

    codec: str
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    unpacked: NDArray[np.int32]
    start: NDArray[np.int32]
    size: NDArray[np.int32]

    def pictures(self, data: memoryview, rows: slice) -> list[PackedPicture]:
        """The pictures of some rows, of the bytes of the file.

        Raises:
            LookupError: a row has no picture.
        """
        found = []
        for row in range(rows.start, rows.stop):
            if self.offset[row] < 0:
                raise LookupError(f"row {row} has no picture")
            stretch = data[int(self.offset[row]) :][: int(self.length[row])]
            places = (int(column[row]) for column in (self.unpacked, self.start, self.size))
            found.append(PackedPicture(stretch, self.codec, *places))
        return found


def read_pictures(path: str, feature: str, rows: int, most: int | None = None) -> PictureTable:
    """Places of the pictures of a feature, which is a struct of ``bytes`` and ``path``.

    Args:
        path: path of the Parquet file.
        feature: name of the column.
        rows: number of rows of the file.
        most: number of rows, from the first on, that are enough; ``None`` for all.

    Raises:
        UnreadableError: the file is damaged, or packed in a way that is not read.
        OSError: the file cannot be opened.
        MissingExtraError: pyarrow is not installed.
    """
    with needs("a LeRobot dataset", extra="lerobot"):
        import pyarrow
    found = np.full((5, rows), -1, np.int64)
    codecs: set[str] = set()
    first, enough = 0, rows if most is None else min(rows, most)
    try:
        with files.opened_regular(path) as source:
            for page, number in _pages(source, f"{feature}.bytes"):
                if first + len(number) <= rows:
                    own = found[:, first : first + len(number)]
                    own[:, number >= 0] = page.places[:, number[number >= 0]]
                codecs.add(page.codec)
                first += len(number)
                if first > rows or (most is not None and first >= most):
                    break
    except UnreadableError:
        raise
    except (LookupError, TypeError) as error:
        raise UnreadableError("the header of a page is damaged") from error
    except (pyarrow.ArrowException, ValueError, OverflowError, MemoryError) as error:
        raise UnreadableError(" ".join(str(error).split())[:160]) from error
    if not enough <= first <= rows:
        raise UnreadableError(f"{feature} has {first} values, and the file has {rows} rows")
    if len(codecs) > 1:
        raise UnreadableError(f"{feature} is compressed in several ways: {sorted(codecs)}")
    offset, length, *within = found
    return PictureTable(
        next(iter(codecs), PLAIN), offset, length, *(one.astype(np.int32) for one in within)
    )


# -- pages --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Values:
    """n byte strings of a page, or of a dictionary, that are unpacked together.

    Attributes:
        offset: place of the page's values in the file.
        codec: pyarrow's name, or "".
        packed, data: the bytes in the file, and unpacked.
        start, size: [n] int64 bytes of each value within ``data``.
    """

    offset: int
    codec: str
    packed: bytes
    data: bytes
    start: Ints
    size: Ints

    @cached_property
    def places(self) -> Ints:
        """[5, n] offset, length and unpacked bytes of each stretch; start and size within it."""
        start, size, none = self.start, self.size, np.zeros_like(self.size)
        if len(size) and int(size.max()) > _LARGEST_PICTURE_BYTES:
            raise UnreadableError("a picture has more than 2 GiB")
        if self.codec == PLAIN:
            return np.stack([self.offset + start, size, size, none, size])
        whole = len(self.data)
        if self.codec != SNAPPY:
            unpacked = none + whole
            return np.stack([none + self.offset, none + len(self.packed), unpacked, start, size])
        marks, piece_bytes = _pieces(self.packed, whole)
        begins = np.asarray(marks, np.int64)
        first = start // piece_bytes
        stop = np.minimum(-(-(start + size) // piece_bytes), len(begins) - 1)
        first = np.minimum(first, np.maximum(stop - 1, 0))
        stop = np.maximum(stop, first + 1)
        begin, end = first * piece_bytes, np.minimum(stop * piece_bytes, whole)
        length = begins[stop] - begins[first]
        return np.stack([self.offset + begins[first], length, end - begin, start - begin, size])


def _pages(source: BinaryIO, column: str) -> Iterator[tuple[_Values, Ints]]:
    """Data pages of a column: (values, [n] number of each row's value there, or −1 for none)."""
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(source, pre_buffer=False) as file:
            about = file.metadata
            paths = [about.schema.column(k).path for k in range(about.num_columns)]
            if column not in paths:
                raise UnreadableError(f"it has no column {column!r}, which meta/info.json lists")
            place = paths.index(column)
            described = about.schema.column(place)
    except OSError as error:  # pyarrow's word for damaged bytes
        raise UnreadableError(" ".join(str(error).split())[:160]) from error
    if described.physical_type != "BYTE_ARRAY" or described.max_repetition_level:
        raise UnreadableError(f"{column} holds no pictures (byte strings)")
    file_bytes = os.fstat(source.fileno()).st_size
    for group in range(about.num_row_groups):
        chunk, level = about.row_group(group).column(place), described.max_definition_level
        yield from _Chunk(source.fileno(), file_bytes, chunk, level)


class _Chunk:
    """One column chunk, page by page.

    Args:
        descriptor: descriptor of the open file.
        file_bytes: size of the file.
        chunk: pyarrow's metadata of the chunk.
        level: definition level of a value that is there.
    """

    def __init__(self, descriptor: int, file_bytes: int, chunk: Any, level: int) -> None:
        self._descriptor = descriptor
        self._level = level
        codec = chunk.compression.lower()
        if codec not in _READ:
            raise UnreadableError(
                f"its Parquet compression is {codec}; supported: {', '.join(sorted(_READ))}"
            )
        self._codec = PLAIN if codec == "uncompressed" else codec
        self._values, data, size = (
            chunk.num_values,
            chunk.data_page_offset,
            chunk.total_compressed_size,
        )
        # A dictionary lies before the data.
        self._at = min(data, chunk.dictionary_page_offset or data)
        self._stop = self._at + size
        if self._at < 4 or size < 0 or self._stop > file_bytes:
            raise UnreadableError("the file is damaged: a column lies behind its end")

    def __iter__(self) -> Iterator[tuple[_Values, Ints]]:
        """See ``_pages``."""
        dictionary: _Values | None = None
        at, left = self._at, self._values
        while left > 0:
            header, size = self._header(at)
            kind, unpacked, packed = header[1], header[2], header[3]
            body, at = at + size, at + size + packed
            if packed < 0 or unpacked < 0 or at > self._stop:
                raise UnreadableError("the file is damaged: a page lies behind its column")
            if kind == _DICTIONARY:
                data = self._unpacked(body, packed, unpacked)
                dictionary = _values(body, self._codec, *data, 0, header[7][1])
            elif kind == _DATA_V2:
                raise UnreadableError(
                    'it has pages of version 2; write it again with data_page_version="1.0"'
                )
            elif kind == _DATA:
                page = self._page(header, body, packed, unpacked, dictionary)
                left -= len(page[1])
                yield page

    def _page(
        self, header: dict[int, Any], body: int, packed: int, unpacked: int,
        dictionary: _Values | None,
    ) -> tuple[_Values, Ints]:  # fmt: skip
        told, first = header[5], 0
        count, encoding = told[1], told[2]
        if not 0 < count <= self._values:
            raise UnreadableError(f"the file is damaged: a page claims {count} values")
        raw, data = self._unpacked(body, packed, unpacked)
        if self._level:  # levels are packed with the values
            first = 4 + int.from_bytes(data[:4], "little")
        number = np.full(count, -1, np.int64)
        there = np.ones(count, np.bool_)
        if self._level:
            there = _runs(data[4:first], self._level.bit_length(), count) == self._level
        present = int(there.sum())
        if encoding == _PLAIN_VALUES:
            number[there] = np.arange(present)
            return _values(body, self._codec, raw, data, first, present), number
        if encoding not in _DICTIONARY_VALUES or dictionary is None:
            raise UnreadableError(f"its strings have an unsupported encoding: {encoding}")
        if present:
            if first >= len(data) or data[first] > 32:
                raise UnreadableError("the file is damaged: a page does not fit its encoding")
            number[there] = _runs(data[first + 1 :], data[first], present)
            if int(number.max()) >= len(dictionary.start):
                raise UnreadableError("the file is damaged: a page names a value that is missing")
        return dictionary, number

    def _header(self, at: int) -> tuple[dict[int, Any], int]:
        """(header of the page there, its bytes)."""
        for size in _HEADER_BYTES:
            front = os.pread(self._descriptor, min(size, self._stop - at), at)
            with contextlib.suppress(IndexError):
                return _struct(front, 0)
        raise UnreadableError("the file is damaged: the header of a page is wrong")

    def _unpacked(self, offset: int, packed: int, unpacked: int) -> tuple[bytes, bytes]:
        """(bytes of a stretch of the file, the same unpacked)."""
        import pyarrow

        data = os.pread(self._descriptor, packed, offset)
        if len(data) < packed:
            raise UnreadableError("the file is damaged: a page is cut off")
        if self._codec == PLAIN:
            return data, data
        if not 0 <= unpacked <= min(_MOST_UNPACKED_BYTES, _LARGEST_RATIO * packed + 2**20):
            raise UnreadableError(f"the file is damaged: {packed} bytes claim to be {unpacked}")
        try:
            return data, pyarrow.decompress(data, unpacked, self._codec, asbytes=True)
        except OSError as error:  # pyarrow's word for damaged bytes
            raise UnreadableError(f"the file is damaged: {error}"[:160]) from error


def _values(offset: int, codec: str, packed: bytes, data: bytes, at: int, count: int) -> _Values:
    """The ``count`` values from ``at`` on in unpacked bytes, each behind its length."""
    if not 0 <= count <= len(data) // 4:
        raise UnreadableError(f"the file is damaged: {len(data)} bytes claim {count} values")
    start, size = np.empty(count, np.int64), np.empty(count, np.int64)
    for k in range(count):
        start[k], size[k] = at + 4, int.from_bytes(data[at : at + 4], "little")
        at = int(start[k] + size[k])
        if at > len(data):
            raise UnreadableError("the file is damaged: a value lies behind its page")
    return _Values(offset, codec, packed, data, start, size)


def _pieces(packed: bytes, whole: int) -> tuple[list[int], int]:
    """(begin of each piece of a snappy stream and end of the last; bytes of a piece, unpacked).

    The whole stream is one piece if a piece needs another.

    Raises:
        UnreadableError: the bytes are no such stream.
    """
    try:
        at = next(k for k, byte in enumerate(packed) if not byte & 0x80) + 1
        begin, done, places, alone = at, 0, [at], True
        while at < len(packed):
            tag, back = packed[at], 0
            kind = tag & 3
            if kind == 0:  # bytes as they are
                more = max(0, (tag >> 2) - 59)
                told = packed[at + 1 : at + 1 + more]
                count = 1 + (int.from_bytes(told, "little") if more else tag >> 2)
                at += 1 + more + count
            elif kind == 1:  # a copy of near bytes
                count, back = 4 + (tag >> 2 & 7), (tag >> 5 << 8) + packed[at + 1]
                at += 2
            else:  # a copy of far bytes
                wide = 2 if kind == 2 else 4
                count = (tag >> 2) + 1
                back = int.from_bytes(packed[at + 1 : at + 1 + wide], "little")
                at += 1 + wide
            room = PIECE_BYTES - done % PIECE_BYTES
            alone = alone and count <= room and back <= done % PIECE_BYTES
            done += count
            if done % PIECE_BYTES == 0:
                places.append(at)
    except (IndexError, StopIteration):
        at, done = -1, -1
    if done != whole or at != len(packed):
        raise UnreadableError("the file is damaged: a page is not valid snappy data")
    if not alone:
        return [begin, at], max(1, whole)
    return places if places[-1] == at else [*places, at], PIECE_BYTES


def _runs(data: bytes, width: int, count: int) -> Ints:
    """[count] numbers of ``width`` bits, in runs that are repeated or packed."""
    found = np.zeros(count, np.int64)
    at = done = 0
    while done < count:
        head, at = read_varint(data, at)
        if head & 1 and width:
            size = (head >> 1) * width
            packed = np.frombuffer(data[at : at + size], np.uint8)
            bits = np.unpackbits(packed, bitorder="little")
            run = bits[: len(bits) // width * width].reshape(-1, width)
            values = run @ (1 << np.arange(width, dtype=np.int64))
            some = min(count - done, len(values))
            found[done : done + some] = values[:some]
        else:
            size = -(-width // 8)
            some = min(count - done, (head >> 1) * (8 if head & 1 else 1))
            found[done : done + some] = int.from_bytes(data[at : at + size], "little")
        at += size
        if some <= 0:
            raise UnreadableError("the file is damaged: a page does not fit its encoding")
        done += some
    return found


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """(field number → value, place behind it) of a struct in Thrift's compact protocol.

    Bytes have no value here. Behind the end it raises ``IndexError``, of what the header of a page
    does not have ``KeyError``.
    """
    found: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        kind, at = head & 15, at + 1
        field += head >> 4
        if not head >> 4:
            field, at = _signed(data, at)
        if kind in (1, 2):
            found[field] = kind == 1
        elif kind in (4, 5, 6):
            found[field], at = _signed(data, at)
        elif kind == 8:
            size, at = read_varint(data, at)
            at += size
        elif kind == 12 and depth < _DEEPEST:
            found[field], at = _struct(data, at, depth + 1)
        else:
            raise KeyError(kind)
    return found, at + 1


def _signed(data: bytes, at: int) -> tuple[int, int]:
    """The signed number there, and the place behind it."""
    value, at = read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at
