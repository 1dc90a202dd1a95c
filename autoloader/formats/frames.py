"""Frames as they lie in files, still encoded: a picture, packets of a video, or a packed picture.

A frame is the bytes of a picture. Three kinds need more: of a video the packets that it takes to
decode a frame; of a file that packs its pictures the stretch that holds one; of an array of
pictures its layout, and the chunks that hold one.

Not here: where frames lie (``formats.tables``), decoding (``decode.frames``).
"""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.arrays import DEFLATE, ArrayCodec
from autoloader.formats.files import UnreadableError
from autoloader.formats.records import varint
from autoloader.host.extras import needs
from autoloader.host.frozen import frozen

MOST_KEPT_BYTES = 32 * 2**20
"""Most bytes of decoded frames that wait, in a process, for the samples that show them."""
_SAVES_MUCH = 8
"""Decodes that a picture must save for all of this room; fewer have a part of it."""

MOST_SLAB_BYTES = 64 * 2**20
"""Most bytes of unpacked slabs that wait, in a process, for further samples."""

TOLD = ("width", "height", "colorspace", "color_range", "color_primaries", "color_trc")
"""What a video's file says beside its packets, by the names of PyAV's ``VideoCodecContext``."""
_SNAPPY = "snappy"


@frozen
class VideoCodec:
    """Parameters that a video decoder is set up with.

    Attributes:
        name: FFmpeg's name of the format: "av1", "h264", "hevc" …
        setup: bytes that a decoder needs before the first packet.
        told: values of ``TOLD``; packets that say otherwise are right.
    """

    name: str
    setup: bytes
    told: tuple[int, ...]

    @property
    def text(self) -> bytes:
        """The parameters as an index has them."""
        return " ".join([self.name, *map(str, self.told)]).encode() + b"\0" + self.setup

    @classmethod
    def of(cls, text: bytes) -> VideoCodec:
        """The parameters of a ``text``."""
        front, _, setup = text.partition(b"\0")
        name, *told = front.decode().split()
        return cls(name, setup, tuple(map(int, told)))


@frozen
class VideoFrame:
    """One frame, still encoded: the packets from its keyframe to itself, in decoding order.

    Attributes:
        data: a stretch of the file that holds all of them.
        packets: of each packet its start in ``data``, its size in bytes, and its frame's number.
        number: number in the video of the frame that is wanted.
        codec: parameters of the video decoder.
        origin: file and place of the keyframe; frames with one keyframe are decoded together.
        shared: this frame and others of its keyframe that were read with it; ``None`` where there
            are no others.
    """

    data: memoryview
    packets: Sequence[tuple[int, int, int]]
    number: int
    codec: VideoCodec
    origin: tuple[str, int]
    shared: SharedFrames | None = None

    def __len__(self) -> int:
        """Number of encoded bytes."""
        return len(self.data)


class SharedFrames:
    """Frames of one keyframe that the samples of a run show, by one camera.

    A thread that decodes some of them also decodes those of later batches, as far as there is room
    for their pictures, which wait here. A batch's frames wait together or not at all: one that does
    not wait has all before it decoded again. A picture that saves few decodes may take a small part
    of the room only.

    Args:
        frames: row among the run's frames of the camera → the encoded frame.

    Attributes:
        frames: the same.
        lock: held by the thread that decodes; all methods need it.
    """

    _room_lock = threading.RLock()  # the collector may call ``__del__`` anywhere
    _kept_bytes = 0

    def __init__(self, frames: Mapping[int, VideoFrame]) -> None:
        self.frames = frames
        self.lock = threading.Lock()
        self._batches: set[int] = set()
        self._uses: dict[int, int] = {}
        self._kept: dict[int, NDArray[np.uint8]] = {}
        self._picture_bytes = 0
        self._made_under = self._room_lock

    def choose(self, batches: Mapping[int, Collection[int]], picture_bytes: int) -> list[int]:
        """Rows of the frames that are to wait from now on; ``keep`` has to follow.

        Args:
            batches: number of a batch to come → rows of its frames; the next batch first.
            picture_bytes: bytes of a picture.
        """
        found: list[int] = []
        self._picture_bytes = picture_bytes
        for batch, rows in batches.items():
            if batch in self._batches:
                continue
            more = [row for row in rows if row not in self._uses]
            saved = max(len(self.frames[row].packets) for row in rows) / len(rows)
            room = int(MOST_KEPT_BYTES * min(1.0, saved / _SAVES_MUCH))
            size = len(more) * picture_bytes
            with self._room_lock:
                if SharedFrames._kept_bytes + size > room:
                    break
                SharedFrames._kept_bytes += size  # no call inside: ``__del__`` could run there
            self._batches.add(batch)
            for row in rows:
                self._uses[row] = self._uses.get(row, 0) + 1
            found += more
        return found

    def keep(self, row: int, picture: NDArray[np.uint8] | None) -> None:
        """Keep the picture of a chosen frame; ``None``: it did not come with the others."""
        if picture is None:
            self._let_go([row])
        else:
            self._kept[row] = picture

    def take(self, row: int, batch: int) -> NDArray[np.uint8] | None:
        """The picture of a frame, for a batch; ``None`` where it does not wait."""
        found = self._kept.get(row)
        if found is not None and batch in self._batches:
            self._uses[row] -= 1
            if not self._uses[row]:
                self._let_go([row])
        return found

    def _let_go(self, rows: Collection[int]) -> None:
        for row in rows:
            del self._uses[row]
            self._kept.pop(row, None)
        if self._made_under is not self._room_lock:
            return  # in a fork, whose room has none of its parent's pictures
        size = len(rows) * self._picture_bytes
        with self._room_lock:
            SharedFrames._kept_bytes -= size  # as in ``choose``

    def __del__(self) -> None:
        self._let_go(list(self._uses))  # of a run that was dropped

    @classmethod
    def forget(cls) -> None:
        """Have an empty room, whose lock no thread holds."""
        cls._room_lock, cls._kept_bytes = threading.RLock(), 0


def share(
    frames: Mapping[int, VideoFrame], datasets: Sequence[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """Frames of a run by their rows, which are shared where they have one keyframe.

    Args:
        frames: row → frame.
        datasets: index of each row's dataset; another dataset may decode the same frame otherwise.
    """
    of: dict[tuple[int, VideoCodec, tuple[str, int]], dict[int, VideoFrame]] = {}
    for row, one in frames.items():
        of.setdefault((datasets[row], one.codec, one.origin), {})[row] = one
    for some in of.values():
        shared = SharedFrames(some) if len(some) > 1 else None
        for row, one in some.items():
            yield row, replace(one, shared=shared)


@frozen
class PackedPicture:
    """One encoded picture, and what it is packed with.

    Attributes:
        data: a stretch of the file.
        codec: compression of the Parquet column; "": none.
        unpacked: number of bytes once unpacked.
        start, size: first byte and number of bytes of the picture, within the unpacked ones.
    """

    data: memoryview
    codec: str
    unpacked: int
    start: int
    size: int

    def __len__(self) -> int:
        """Number of packed bytes."""
        return len(self.data)

    def picture(self) -> memoryview:
        """The encoded picture.

        Raises:
            UnreadableError: the stretch is damaged.
            MissingExtraError: pyarrow is not installed.
        """
        whole = self.data
        if self.codec:
            with needs("a packed picture", extra="lerobot"):
                import pyarrow
            packed: bytes | memoryview = self.data
            if self.codec == _SNAPPY:
                packed = varint(self.unpacked) + bytes(self.data)
            try:
                found = pyarrow.decompress(packed, self.unpacked, self.codec)
            except (pyarrow.ArrowException, OSError, ValueError) as error:
                raise UnreadableError(f"its Parquet page is damaged: {error}"[:120]) from error
            whole = memoryview(found)
        return whole[self.start : self.start + self.size]


@dataclass(eq=False)
class SlabRead:
    """A slab in the bytes of one read; its pictures share it. As long as it lives it is planned.

    Attributes:
        origin: file and place of the slab.
        chunks: of each chunk its start in the bytes, its size and its filter mask.
    """

    origin: tuple[str, int]
    chunks: tuple[tuple[int, int, int], ...]
    _key: object = None

    def key(self, data: memoryview, codec: ArrayCodec) -> object:
        """Key of the unpacked slab: another where the file was written anew.

        With it go the checksums of the chunks: those of gzip, or one of all bytes.
        """
        if self._key is None:
            if codec.filters[-1:] == (DEFLATE,) and not any(mask for *_, mask in self.chunks):
                ends = [start + size for start, size, _ in self.chunks]
                sums: object = b"".join([data[end - 4 : end] for end in ends])
            else:
                sums = zlib.crc32(data)
            self._key = self.origin, codec, self.chunks, sums
            _slabs.planned[hash(self._key)] = self
        return self._key


@frozen
class ArrayPicture:
    """One picture of an array of pictures.

    Attributes:
        data: a stretch of the file that holds the picture, or all chunks of its slab.
        codec: layout of the array.
        number: number of the picture in its slab.
        slab: the slab in ``data``; it has no chunks where the picture lies as it is.
    """

    data: memoryview
    codec: ArrayCodec
    number: int
    slab: SlabRead

    def __post_init__(self) -> None:
        if self.codec.filters:
            self.slab.key(self.data, self.codec)

    def __len__(self) -> int:
        """Number of stored bytes."""
        return len(self.data)

    def stored(self) -> NDArray[np.uint8]:
        """Pixels [H, W, C], or the bytes [n] of an encoded picture; not to be written to.

        Raises:
            ValueError: the bytes are damaged.
        """
        codec = self.codec
        if not codec.chunk:
            return codec.plain(self.data)
        unpacked = (codec.unpacked(self.data, *one) for one in self.slab.chunks)
        if not codec.filters or codec.slab_bytes > MOST_SLAB_BYTES:
            return codec.picture(unpacked, self.number)
        slab = _slabs.of(self.slab.key(self.data, codec), codec.slab_bytes)
        with slab.lock:
            if not slab.chunks:  # kept without the memory of the run
                slab.chunks = [bytes(k) if isinstance(k, memoryview) else k for k in unpacked]
        return codec.picture(slab.chunks, self.number)


@dataclass(slots=True)
class _Slab:
    """An unpacked slab; ``lock`` is held by the thread that unpacks it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    chunks: list[bytes | bytearray | memoryview] = field(default_factory=list)


class _Slabs:
    """The slabs that are planned to be used, and those used last, for all threads of a process.

    Attributes:
        planned: hash of a slab's key → the last read that brought it.
    """

    def __init__(self) -> None:
        self.planned: weakref.WeakValueDictionary[int, SlabRead] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._kept: OrderedDict[object, tuple[_Slab, int, int]] = OrderedDict()
        self._bytes = 0

    def of(self, key: object, nbytes: int) -> _Slab:
        """The slab of this key, of so many bytes; a new one is empty."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found[0]
            self._bytes += nbytes
            while self._bytes > MOST_SLAB_BYTES and self._kept:
                free = (old for old, (*_, one) in self._kept.items() if one not in self.planned)
                self._bytes -= self._kept.pop(next(free, next(iter(self._kept))))[1]
            made = _Slab()
            self._kept[key] = made, nbytes, hash(key)
            return made


_slabs = _Slabs()


def _forget() -> None:
    """In a fork: a thread that is not here may hold a lock."""
    global _slabs
    _slabs = _Slabs()
    SharedFrames.forget()


os.register_at_fork(after_in_child=_forget)


Encoded = bytes | memoryview | VideoFrame | PackedPicture | ArrayPicture
"""A frame as it lies in its file."""
