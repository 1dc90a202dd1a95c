"""Pictures as rows of an array on disk: raw pixels, encoded pictures, or chunks under filters.

A *slab* is the row of chunks that a picture lies in. Its chunks are unpacked as a whole, so that
their checksums are checked, and the pictures that are wanted are put together from them.

Not here: where chunks lie (``hdf5.places``), decoding JPEG and PNG (``decode.frames``).
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache, cached_property, lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000
"""Numbers of HDF5's filters that are undone here."""
FILTERS = (DEFLATE, SHUFFLE, FLETCHER32, LZF)
_Packed: TypeAlias = "bytes | bytearray | memoryview"
_CHECKSUM_BYTES = 4
_WORDS = 2**22
"""16-bit words whose weighted sum fits 64 bits."""


@dataclass(frozen=True)
class ArrayCodec:
    """Layout of an array's pictures.

    Attributes:
        row: shape of a picture in bytes: (H, W, C) of pixels, (n,) of an encoded picture,
            (0,) of one of any length.
        chunk: shape of a chunk in bytes, pictures first; (): pictures lie as they are.
        filters: numbers of the filters in the order in which they were applied.
        itemsize: bytes of an item, for the shuffle filter.
        bgr: whether the first and last channels change places.
        rotated: whether pictures are turned by 180 degrees.
    """

    row: tuple[int, ...]
    chunk: tuple[int, ...] = ()
    filters: tuple[int, ...] = ()
    itemsize: int = 1
    bgr: bool = False
    rotated: bool = False

    @property
    def text(self) -> bytes:
        """The codec as an index holds it; b"" of encoded pictures that are taken as they lie."""
        if self == ArrayCodec(self.row) and self.encoded:
            return b""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @property
    def encoded(self) -> bool:
        """True of JPEG or PNG."""
        return len(self.row) == 1

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of a slab's chunks along each axis of a picture."""
        return tuple(-(-size // part) for size, part in zip(self.row, self.chunk[1:], strict=True))

    @property
    def slab_chunks(self) -> int:
        """Number of a slab's chunks; 0 without chunks."""
        return math.prod(self.grid) if self.chunk else 0

    @property
    def slab_bytes(self) -> int:
        """Bytes of an unpacked slab."""
        return math.prod(self.chunk) * self.slab_chunks

    def plain(self, data: memoryview) -> NDArray[np.uint8]:
        """A picture that lies as it is."""
        return np.frombuffer(data, np.uint8).reshape((-1,) if self.encoded else self.row)

    def picture(self, chunks: Iterable[_Packed], number: int) -> NDArray[np.uint8]:
        """A picture of a slab, put together from its unpacked chunks."""
        part, axes = math.prod(self.chunk[1:]), len(self.row)
        own = slice(number * part, (number + 1) * part)
        found = np.frombuffer(b"".join([chunk[own] for chunk in chunks]), np.uint8)
        if self.chunk[1:] == self.row:
            return found.reshape(self.row)
        cells = found.reshape(*self.grid, *self.chunk[1:])
        cells = cells.transpose([k + side for k in range(axes) for side in (0, axes)])
        found = np.empty((*cells.shape[:-2], self.row[-1]), np.uint8)
        last = self.chunk[-1]
        step = last if axes < 3 else 1  # a copy of all channels would go by two or three bytes
        for at in range(0, self.row[-1], step):
            target = found[..., at : at + step]
            target[...] = cells[..., at // last, at % last :][..., : target.shape[-1]]
        sides = (a * b for a, b in zip(self.grid[:-1], self.chunk[1:-1], strict=True))
        found = found.reshape(*sides, self.row[-1])
        return np.ascontiguousarray(found[tuple(map(slice, self.row[:-1]))])

    def unpacked(self, data: memoryview, start: int, size: int, mask: int) -> _Packed:
        """A chunk, its filters undone, except those that ``mask`` says were left out.

        Args:
            data: stretch of the file.
            start: first byte of the chunk in it.
            size: bytes of the chunk there.
            mask: bits of the filters that were left out.

        Raises:
            ValueError: the bytes are damaged.
        """
        whole = math.prod(self.chunk)
        found: _Packed = data[start : start + size]
        for number, kind in reversed(list(enumerate(self.filters))):
            if not mask >> number & 1:
                found = _undone(kind, found, whole, self.itemsize)
        if len(found) != whole:
            raise ValueError(f"a chunk unpacks to {len(found)} bytes instead of {whole}")
        return found


@lru_cache(maxsize=4096)
def codec_of(text: bytes) -> ArrayCodec:
    """The codec that an index holds."""
    known = json.loads(text)
    known |= {key: tuple(known[key]) for key in ("row", "chunk", "filters")}
    return ArrayCodec(**known)


def _undone(kind: int, data: _Packed, whole: int, itemsize: int) -> _Packed:
    """A chunk before one filter; ``whole`` is its size without any."""
    most = whole + _CHECKSUM_BYTES
    if kind == DEFLATE:
        return _inflate()(data, most)
    if kind == LZF:
        return lzf(bytes(data), most)
    if kind == SHUFFLE:
        count = len(data) // itemsize
        items = np.frombuffer(data, np.uint8)
        order = items[: count * itemsize].reshape(itemsize, count).T
        return order.tobytes() + items[count * itemsize :].tobytes()
    body, told = data[:-_CHECKSUM_BYTES], bytes(data[-_CHECKSUM_BYTES:])
    if len(data) < _CHECKSUM_BYTES or not _is_checksum(body, told):
        raise ValueError("a chunk's checksum (fletcher32) is wrong")
    return body


@cache
def _inflate() -> Callable[[_Packed, int], bytes | bytearray]:
    """Function that inflates a chunk: by libdeflate, in half of zlib's time, where it is there."""
    try:
        from deflate import DeflateError, zlib_decompress
    except ImportError:
        return inflated_by_zlib

    def inflated(data: _Packed, most: int) -> bytes | bytearray:
        try:
            found: bytearray = zlib_decompress(data, most)
        except DeflateError:
            return inflated_by_zlib(data, most)  # says what is wrong
        return found

    return inflated


def inflated_by_zlib(data: _Packed, most: int) -> bytes:
    """Inflate a chunk of ``most`` bytes at most.

    Raises:
        ValueError: the data are damaged, or larger.
    """
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"a chunk's gzip data is damaged: {error}") from error
    if not inflater.eof:
        raise ValueError("a chunk's gzip data is cut off, or larger than the chunk")
    return found


def _is_checksum(body: _Packed, told: bytes) -> bool:
    """True if ``told`` is the Fletcher-32 sum of ``body``, by either order of bytes."""
    padded = bytes(body) + b"\0" * (len(body) % 2)
    words = np.frombuffer(padded, ">u2").astype(np.uint64)
    first = second = 0
    for at in range(0, len(words), _WORDS):
        part = words[at : at + _WORDS]
        weights = np.arange(len(part), 0, -1, dtype=np.uint64)
        second += first * len(part) + int((part * weights).sum())
        first += int(part.sum())
    sums = first % 65535, second % 65535
    low, high = (int.from_bytes(told[at : at + 2], "little") for at in (0, 2))
    swapped = tuple((one >> 8 | one << 8 & 0xFF00) % 65535 for one in (low, high))
    return sums in ((low % 65535, high % 65535), swapped)


def lzf(data: bytes, most: int) -> bytes:
    """Unpack what LZF has packed, ``most`` bytes at most.

    Raises:
        ValueError: the data are damaged, or larger.
    """
    found, at, end = bytearray(), 0, len(data)
    try:
        while at < end:
            control = data[at]
            at += 1
            if control < 32:
                found += data[at : at + control + 1]
                at += control + 1
                continue
            size = control >> 5
            if size == 7:
                size += data[at]
                at += 1
            start = len(found) - ((control & 31) << 8 | data[at]) - 1
            at += 1
            size += 2
            if start < 0:
                raise ValueError("a chunk's lzf data is damaged")
            if start + size <= len(found):
                found += found[start : start + size]
            else:
                pattern = bytes(found[start:])
                found += (pattern * (size // len(pattern) + 1))[:size]
            if len(found) > most:
                raise ValueError("a chunk's lzf data is larger than the chunk")
    except IndexError as error:
        raise ValueError("a chunk's lzf data is cut off") from error
    return bytes(found)
