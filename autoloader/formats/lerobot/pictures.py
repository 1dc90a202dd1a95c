"""Where the pictures of a Parquet file lie: a stretch of the file for each, mostly little more.

Theory of operation. Writers pack the pages of a column by snappy, and a page may hold a hundred
pictures. snappy packs 64 KiB at a time, and no piece needs the ones before it: so the stretch of a
picture is the pieces that it lies in, which are unpacked by themselves. Where a page is packed in
another way, the stretch is the page.

Not here: pages (``pages``), unpacking a stretch for its picture (``samples.encoded``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.lerobot.pages import PLAIN_CODEC, PackedValues, pages_of
from autoloader.formats.lerobot.parquet import UnreadableParquetError

SNAPPY = "snappy"
PIECE_BYTES = 2**16
"""What snappy packs at a time."""
_LARGEST = 2**31 - 1
_LITERAL, _NEAR, _FAR = 0, 1, 2


@dataclass(frozen=True, slots=True)
class PictureTable:
    """Where each row's picture lies; R rows.

    Attributes:
        codec: how stretches are packed: "" (not at all), "snappy", "gzip", "zstd" or "brotli". A
            stretch of "snappy" lacks the number of its unpacked bytes in front.
        offset, length: [R] int64 the stretch of the file; offset −1 where a row has no picture.
        unpacked: [R] int32 its bytes, unpacked.
        start, size: [R] int32 the picture within them.
    """

    codec: str
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    unpacked: NDArray[np.int32]
    start: NDArray[np.int32]
    size: NDArray[np.int32]


def read_pictures(path: str, feature: str, rows: int, most: int | None = None) -> PictureTable:
    """The pictures of a feature, which is a struct of ``bytes`` and ``path``.

    Args:
        path: the Parquet file.
        feature: its column.
        rows: of the file.
        most: look for so many at least, from the first on; default: all.

    Raises:
        UnreadableParquetError: the file is damaged, or packed in a way that is not read.
        OSError: it cannot be opened.
        MissingExtraError: pyarrow is not installed.
    """
    found = np.full((5, rows), -1, np.int64)
    codecs: set[str] = set()
    known: tuple[PackedValues, NDArray[np.int64]] | None = None
    first = 0
    for page in pages_of(path, f"{feature}.bytes", rows):
        if known is None or known[0] is not page.source:
            known = page.source, _stretches(page.source)
        there = page.number >= 0
        own = found[:, first : first + len(there)]
        own[:, there] = known[1][:, page.number[there]]
        codecs.add(page.source.codec)
        first += len(there)
        if most is not None and first >= most:
            break
    if first < (rows if most is None else min(rows, most)):
        raise UnreadableParquetError(f"{feature} has {first} values, and the file {rows} rows")
    if len(codecs) > 1:
        raise UnreadableParquetError(f"{feature} is packed in several ways: {sorted(codecs)}")
    offset, length, unpacked, start, size = found
    narrow = (one.astype(np.int32) for one in (unpacked, start, size))
    return PictureTable(next(iter(codecs), PLAIN_CODEC), offset, length, *narrow)


def _stretches(source: PackedValues) -> NDArray[np.int64]:
    """[5, n] offset, length, unpacked bytes, start and size of each value's stretch."""
    start, size = source.start, source.size
    if len(size) and int(size.max()) > _LARGEST:
        raise UnreadableParquetError("a picture has more than 2 GiB")
    if source.codec == PLAIN_CODEC:
        return np.stack([source.offset + start, size, size, np.zeros_like(size), size])
    if source.codec == SNAPPY:
        return _snappy_stretches(source)
    whole = np.ones_like(size)
    unpacked = len(source.data) * whole
    return np.stack([source.offset * whole, len(source.packed) * whole, unpacked, start, size])


def _snappy_stretches(source: PackedValues) -> NDArray[np.int64]:
    """As ``_stretches``: of each value the pieces that it lies in."""
    whole = len(source.data)
    places, piece_bytes = _pieces(source.packed, whole)
    begins = np.asarray(places, np.int64)
    first = source.start // piece_bytes
    stop = np.minimum(-(-(source.start + source.size) // piece_bytes), len(begins) - 1)
    first = np.minimum(first, np.maximum(stop - 1, 0))
    stop = np.maximum(stop, first + 1)
    begin = first * piece_bytes
    return np.stack(
        [
            source.offset + begins[first],
            begins[stop] - begins[first],
            np.minimum(stop * piece_bytes, whole) - begin,
            source.start - begin,
            source.size,
        ]
    )


def _pieces(packed: bytes, whole: int) -> tuple[list[int], int]:
    """(where each piece of a snappy stream begins, and the last one ends; bytes of one, unpacked).

    One piece where some need others.

    Raises:
        UnreadableParquetError: it is no such stream.
    """
    at = 0
    try:
        while packed[at] & 0x80:
            at += 1
        at += 1
        begin, done, places, alone = at, 0, [at], True
        while at < len(packed):
            tag = packed[at]
            kind, back = tag & 3, 0
            if kind == _LITERAL:
                more = max(0, (tag >> 2) - 59)
                told = (
                    int.from_bytes(packed[at + 1 : at + 1 + more], "little") if more else tag >> 2
                )
                count = told + 1
                at += 1 + more + count
            elif kind == _NEAR:
                count, back = 4 + (tag >> 2 & 7), (tag >> 5 << 8) + packed[at + 1]
                at += 2
            else:
                wide = 2 if kind == _FAR else 4
                count = (tag >> 2) + 1
                back = int.from_bytes(packed[at + 1 : at + 1 + wide], "little")
                at += 1 + wide
            room = PIECE_BYTES - done % PIECE_BYTES
            alone = alone and count <= room and back <= done % PIECE_BYTES
            done += count
            if done % PIECE_BYTES == 0:
                places.append(at)
    except IndexError:
        done = -1
    if done != whole or at != len(packed):
        raise UnreadableParquetError("a page is no whole snappy stream")
    if not alone:
        return [begin, len(packed)], max(1, whole)
    return places if places[-1] == at else [*places, at], PIECE_BYTES
