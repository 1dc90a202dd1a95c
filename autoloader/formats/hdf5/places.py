"""Where the pictures of an HDF5 dataset lie in its file: stretches, chunks, heaps.

h5py tells the places, once; nothing that lies there is read here but the tables of heaps. A layout
that cannot be read by places is refused by its name, and so is one that claims more than the file
has.

    contiguous               picture t lies t pictures behind the start
    a chunk of whole rows    as within the chunk, where no filter is applied
    other chunks, filters    the slab of picture t: chunks (t // c, …), all unpacked together
    rows of any length       a table of 16 bytes a row leads to an object of a heap

Not here: unpacking chunks (``formats.arrays``).
"""

from __future__ import annotations

import math
import os
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.formats import files
from autoloader.formats.arrays import FILTERS, ArrayCodec
from autoloader.formats.files import UnreadableError
from autoloader.formats.tables import Section
from autoloader.host.frozen import frozen
from autoloader.host.units import MIB, format_bytes

Ints = NDArray[np.int64]
MOST_PICTURE_BYTES = 192_000_000
"""Of the largest frame of any camera, 64 million pixels."""
MOST_CHUNK_BYTES = 64 * MIB
MOST_CHUNKS = 2**22
_SPREAD, _SLACK_BYTES = 4, MIB
"""A slab's chunks lie in a stretch of so many times their bytes, and so many more, at most."""
_NAMES = {4: "szip", 5: "nbit", 6: "scaleoffset", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle",
          32015: "zstd", 32026: "blosc2"}  # fmt: skip
_COPY = "copy the values into this file"
_TOLD_WITH_USER_BLOCK = 1, 14, 4
"""HDF5 of h5py 3.12. In 1.14.2 places of chunks lack the bytes of the user block."""
_REPACK = "write the file again: `h5repack -f GZIP=4 IN OUT`"
_ROW = np.dtype([("length", "<u4"), ("heap", "<u8"), ("object", "<u4")])
_HEAP_MAGIC, _HEAP_HEADER = b"GCOL", 16


@frozen
class ArrayFrames:
    """Pictures of an episode; an ``episodes.PackedFrames``.

    Attributes:
        codec: layout of the array.
        offset, length: [T] stretch of the file that holds each picture, or its slab.
        number: [T] number of each picture in its slab.
        key: [T] first chunk of each slab.
        chunks: [P, 3] place, size and filter mask of each chunk.
    """

    codec: ArrayCodec
    offset: Ints
    length: Ints
    number: Ints
    key: Ints
    chunks: Ints = field(default_factory=lambda: np.zeros((0, 3), np.int64))

    def __call__(self, steps: Ints) -> tuple[dict[Section, Any], list[bytes]]:
        """See ``episodes.PackedFrames``."""
        return {
            Section.FRAME_OFFSETS: self.offset[steps],
            Section.FRAME_LENGTHS: self.length[steps],
            Section.FRAME_CODECS: np.zeros(1, np.int64),
            Section.FRAME_KEYS: self.key[steps],
            Section.PICTURE_STARTS: self.number[steps],
            Section.PACKET_OFFSETS: self.chunks[:, 0],
            Section.PACKET_SIZES: self.chunks[:, 1],
            Section.PACKET_NUMBERS: self.chunks[:, 2],
        }, [self.codec.text]


def frames_of(array: Any, path: str, *, bgr: bool, rotated: bool) -> ArrayFrames:
    """The pictures of a dataset, one a row.

    Args:
        array: the ``h5py.Dataset``.
        path: path of its file.
        bgr: as of ``ArrayCodec``.
        rotated: as of ``ArrayCodec``.

    Raises:
        UnreadableError: the layout is not read, or leaves the file.
    """
    refuse(array)
    if array.dtype.kind == "O":
        return _in_heaps(array, path, ArrayCodec((0,), bgr=bgr, rotated=rotated))
    rows = len(array)
    if array.dtype.byteorder == ">":
        raise UnreadableError(
            f"its numbers are big-endian ({array.dtype.str}), which is not supported"
        )
    row = _in_bytes(array, array.shape)[1:]
    nbytes = math.prod(row)
    if not 0 < nbytes <= MOST_PICTURE_BYTES:
        shape = "×".join(map(str, row))
        raise UnreadableError(
            f"a picture has {shape} bytes, and 1 to {MOST_PICTURE_BYTES:,} are supported"
        )
    size, none = os.stat(path).st_size, np.zeros(rows, np.int64)  # noqa: PTH116
    codec = ArrayCodec(row, bgr=bgr, rotated=rotated)
    if array.chunks is None:
        offset = array.id.get_offset()
        if offset is None:
            raise UnreadableError(
                "its values lie in the file's header (compact storage), or were never written"
            )
        places = offset + np.arange(rows, dtype=np.int64) * nbytes
        _within(offset, rows * nbytes, size)
        return ArrayFrames(codec, places, none + nbytes, none, none)
    chunk = _in_bytes(array, array.chunks)
    filters = _filters(array)
    if math.prod(chunk) > MOST_CHUNK_BYTES:
        raise UnreadableError(
            f"its chunks have {format_bytes(math.prod(chunk))}, and the limit is "
            f"{format_bytes(MOST_CHUNK_BYTES)}",
            _REPACK,
        )
    grid = [-(-rows // chunk[0]), *(-(-n // c) for n, c in zip(row, chunk[1:], strict=True))]
    table = _chunks(array, chunk, grid, size)
    slab, number = np.divmod(np.arange(rows, dtype=np.int64), chunk[0])
    if not filters and chunk[1:] == row:
        if (table[:, 1] != math.prod(chunk)).any():
            raise UnreadableError("the size of a chunk does not fit its shape")
        places = table[slab, 0] + number * nbytes
        return ArrayFrames(codec, places, none + nbytes, none, none)
    codec = ArrayCodec(row, chunk, filters, int(array.dtype.itemsize), bgr, rotated)
    by_slab = table.reshape(grid[0], -1, 3)
    begin = by_slab[..., 0].min(axis=1)
    span = (by_slab[..., 0] + by_slab[..., 1]).max(axis=1) - begin
    if (span > _SPREAD * by_slab[..., 1].sum(axis=1) + _SLACK_BYTES).any() or span.max() >= 2**31:
        raise UnreadableError(
            f"the {codec.slab_chunks} chunks of a picture lie far apart in the file", _REPACK
        )
    return ArrayFrames(codec, begin[slab], span[slab], number, slab * codec.slab_chunks, table)


def _in_bytes(array: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of the array in bytes; a byte is an item, or one more axis of strings."""
    sizes, itemsize = [int(size) for size in shape], int(array.dtype.itemsize)
    if array.dtype.kind == "S":
        return (*sizes, itemsize)
    if itemsize > 1:  # depth: an axis of one channel adds nothing
        sizes = sizes[:3]
        sizes[-1] *= itemsize
    return tuple(sizes)


def refuse(array: Any) -> None:
    """Refuse a dataset whose values lie outside its file. Raises UnreadableError."""
    if array.is_virtual:
        raise UnreadableError("it is a virtual dataset: its values lie in other files", _COPY)
    if array.external:
        raise UnreadableError("its values lie in other files", _COPY)


def _filters(array: Any) -> tuple[int, ...]:
    known = array.id.get_create_plist()
    found = tuple(int(known.get_filter(number)[0]) for number in range(known.get_nfilters()))
    for one in found:
        if one not in FILTERS:
            name = _NAMES.get(one, "unknown")
            raise UnreadableError(f"the filter {name} ({one}) is not supported", _REPACK)
    return found


def _chunks(array: Any, chunk: tuple[int, ...], grid: list[int], size: int) -> Ints:
    """[P, 3] place, size and filter mask of every chunk, in the order of the grid."""
    count = math.prod(grid)
    if count > MOST_CHUNKS:
        raise UnreadableError(f"it has {count} chunks, and the limit is {MOST_CHUNKS}", _REPACK)
    from h5py.version import hdf5_version_tuple  # h5py is there: it has opened the file

    if array.file.userblock_size and hdf5_version_tuple < _TOLD_WITH_USER_BLOCK:
        raise UnreadableError(
            "the installed HDF5 library tells wrong places of chunks in a file with a user block",
            "pip install -U h5py, or write the file without a user block",
        )
    table = np.full((count, 3), -1, np.int64)
    steps = [math.prod(grid[axis + 1 :]) for axis in range(len(grid))]

    def note(one: Any) -> None:
        at = sum(o // c * s for o, c, s in zip(one.chunk_offset, chunk, steps, strict=False))
        table[at] = one.byte_offset, one.size, one.filter_mask

    array.id.chunk_iter(note)
    if (table[:, 0] < 0).any():
        raise UnreadableError(f"{int((table[:, 0] < 0).sum())} chunks were never written")
    _within(int(table[:, 0].min()), 0, size)
    _within(int((table[:, 0] + table[:, 1]).max()), 0, size)
    if table[:, 1].max() > 2 * math.prod(chunk) + _SLACK_BYTES:
        raise UnreadableError("it is damaged: a chunk is larger compressed than unpacked")
    return table


def _within(offset: int, nbytes: int, size: int) -> None:
    if not 0 <= offset <= offset + nbytes <= size:
        raise UnreadableError(f"its pictures end at byte {offset + nbytes:,}, the file at {size:,}")


def _in_heaps(array: Any, path: str, codec: ArrayCodec) -> ArrayFrames:
    """Pictures whose rows lead to global heaps."""
    rows, none = len(array), np.zeros(len(array), np.int64)
    with files.opened(path) as file:
        size = os.fstat(file).st_size
        if array.chunks is None:
            offset = array.id.get_offset()
            if offset is None:
                raise UnreadableError("its rows were never written to the file")
            stretches = [(offset, rows)]
        else:
            if _filters(array):
                raise UnreadableError(
                    "compressed rows of varying length are not supported", _REPACK
                )
            chunk = tuple(map(int, array.chunks))
            table = _chunks(array, chunk, [-(-rows // chunk[0])], size)
            stretches = [(int(one), chunk[0]) for one in table[:, 0]]
        parts = []
        for offset, count in stretches:
            _within(offset, count * _ROW.itemsize, size)
            parts.append(np.frombuffer(os.pread(file, count * _ROW.itemsize, offset), _ROW))
        listed, base = np.concatenate(parts)[:rows], int(array.file.userblock_size)
        heaps = {int(one): _heap(file, base + int(one), size) for one in np.unique(listed["heap"])}
    offset = none.copy()
    for row, (length, heap, number) in enumerate(listed.tolist()):
        at, room = heaps[heap].get(number, (0, -1))
        if not 0 < length <= min(room, MOST_PICTURE_BYTES):
            raise UnreadableError(
                f"row {row} is damaged: the {length} bytes of its picture are not in the file"
            )
        offset[row] = at
    return ArrayFrames(codec, offset, listed["length"].astype(np.int64), none, none)


def _heap(file: int, address: int, size: int) -> dict[int, tuple[int, int]]:
    """Objects of a global heap: number → (place in the file, bytes)."""
    header = os.pread(file, _HEAP_HEADER, address) if 0 < address < size else b""
    nbytes = int.from_bytes(header[8:], "little")
    if header[:4] != _HEAP_MAGIC or not _HEAP_HEADER < nbytes <= size - address:
        raise UnreadableError(f"the file is damaged: there are no rows at byte {address:,}")
    found: dict[int, tuple[int, int]] = {}
    at = address + _HEAP_HEADER
    while at + _HEAP_HEADER <= address + nbytes:
        one = os.pread(file, _HEAP_HEADER, at)
        number, length = int.from_bytes(one[:2], "little"), int.from_bytes(one[8:], "little")
        if not number:
            break
        at += _HEAP_HEADER
        if number in found or at + length > address + nbytes:
            raise UnreadableError(f"the file is damaged at its rows, from byte {address:,} on")
        found[number] = at, length
        at += -(-length // 8) * 8
    return found
