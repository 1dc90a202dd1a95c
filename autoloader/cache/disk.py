"""Decoded frames in files on a local disk: frames that are slow to decode are decoded once.

Theory of operation. A file has slots for frames of one size. A frame's key names the eight slots,
side by side, that the frame may lie in. Their entries (key, checksum, the run that last used the
frame) say which slot it is. So there is no table to build when a file is opened, and processes need
not agree on anything: each reads and writes entries and slots in place. A slot is written first and
its entry after it. If another process, a kill or a broken disk comes between, the checksum does not
fit, and the frame is decoded and written anew.

Slots are read and written past the page cache (direct I/O), which is left to bytes that are read
once. No frame is evicted that this run or the one before has used: under sampling without
replacement any fixed part of the frames hits equally often.

Invariants:
    1. A loaded frame has the key and the checksum that it was stored with.
    2. The file has all its blocks from the start: writing into it needs no room.
    3. One job has a file at a time (a lock); another goes without, and says so. So does one that
       finds no room, or whose disk fails.
    4. Only a file of this user's is read or written, in a folder that no other user may write to.
       Any other thing of that name is set aside, as it is; a damaged file of ours is begun anew.

Not here: which frames are worth it, and their keys (``decode.decoders``).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoloader.host.files import open_or_begin, open_own, own_folder, set_aside
from autoloader.host.frozen import frozen
from autoloader.host.threads import free_in_forks
from autoloader.host.units import format_bytes

logger = logging.getLogger(__name__)

KEY_BYTES = 24
WAYS = 8
"""Number of slots that a frame may lie in."""
_KIND = b"FRAMES "
_MAGIC = _KIND + b"2"
_HEADER = struct.Struct("<8sQQII")
"""Magic, bytes of a frame, sets, number of the run that opened it last, CRC-32 of these."""
_MOST_RUNS = 2**32 - 2
_ENTRY = struct.Struct(f"<{KEY_BYTES}sII")
_PAGE = mmap.PAGESIZE
_OLD_RUNS = 2
"""Number of runs that did not use a frame which makes room for another."""


@frozen
class DiskRoom:
    """Room for decoded frames on a disk.

    Attributes:
        folder: path of the folder, made if missing; no other user may write to it.
        total_bytes: bytes of the files for all frame sizes of a mixture.
    """

    folder: str
    total_bytes: int


class FramesOnDisk:
    """The files of a mixture, one for each size of its frames; any thread.

    Args:
        room: folder of the files, and their bytes.
        frame_bytes: sizes of decoded frames.
        shared: true if another process of this job holds the lock, and has made the files.

    Attributes:
        loaded: number of frames loaded so far.
    """

    def __init__(
        self, room: DiskRoom, frame_bytes: Collection[int], *, shared: bool = False
    ) -> None:
        sizes = set(frame_bytes)
        self._files: dict[int, SlotFile] = {}
        self._counting = threading.Lock()
        self.loaded = 0
        folder = Path(os.path.realpath(room.folder))
        try:
            own_folder(folder)
        except OSError as error:
            logger.warning("no decoded frames are kept in %s: %s", folder, error.strerror or error)
            return
        for size in sizes:
            path = folder / f"frames-{size}.cache"
            share = room.total_bytes * size // sum(sizes)
            try:
                self._files[size] = _file(path, size, share, shared=shared)
            except OSError as error:
                why = error.strerror or str(error)
                logger.warning("no decoded frames are kept in %s: %s", path, why)

    def __bool__(self) -> bool:
        """True if there is a file."""
        return bool(self._files)

    def load(self, key: bytes, out: NDArray[np.uint8]) -> bool:
        """Load the frame of a key into ``out`` [H, W, 3] uint8; false if it is not there."""
        file = self._files.get(out.nbytes)
        if file is None or not file.load(key, out):
            return False
        with self._counting:
            self.loaded += 1
        return True

    def store(self, key: bytes, picture: NDArray[np.uint8]) -> None:
        """Keep a frame [H, W, 3] uint8, where there is room for it."""
        file = self._files.get(picture.nbytes)
        if file is not None:
            file.store(key, picture)


class SlotFile:
    """One file of slots; see the module.

    Args:
        path: path of the local file.
        frame_bytes: bytes of a frame.
        most_bytes: most bytes of the file.
        shared: true if the file is there, and this job's.

    Raises:
        OSError: another job has it, or there is no room.
    """

    def __init__(self, path: Path, frame_bytes: int, most_bytes: int, *, shared: bool) -> None:
        self.path, self._frame_bytes = path, frame_bytes
        self._stride = -(-frame_bytes // _PAGE) * _PAGE
        self._sets = (most_bytes - 2 * _PAGE) // ((self._stride + _ENTRY.size) * WAYS)
        if self._sets < 1:
            least = 2 * _PAGE + (self._stride + _ENTRY.size) * WAYS
            raise OSError(f"{format_bytes(most_bytes)} are too few: it needs {least} bytes")
        self._slots_at = -(-(_PAGE + self._sets * WAYS * _ENTRY.size) // _PAGE) * _PAGE
        self._size = self._slots_at + self._sets * WAYS * self._stride
        self._failed = False
        self._buffers = threading.local()
        self._entries, header = _opened(path, shared=shared)
        weakref.finalize(self, os.close, self._entries)
        self._run = self._begun(header, shared=shared)
        try:
            self._slots = open_own(path, os.O_RDWR | os.O_DIRECT)
        except OSError:  # a file system without direct I/O
            self._slots = open_own(path, os.O_RDWR)
        weakref.finalize(self, os.close, self._slots)

    def load(self, key: bytes, out: NDArray[np.uint8]) -> bool:
        """See ``FramesOnDisk.load``."""
        if self._failed:
            return False
        try:
            slot, entries = self._entries_of(key)
            mine = next((k for k, entry in enumerate(entries) if entry[0] == key), None)
            if mine is None:
                return False
            _, checksum, run = entries[mine]
            buffer = self._buffer()
            slot += mine
            if os.preadv(self._slots, [buffer], self._slot_at(slot)) != len(buffer):
                return False
            found = memoryview(buffer)[: self._frame_bytes]
            if zlib.crc32(found) != checksum:
                return False
            if run != self._run:
                self._write_entry(slot, key, checksum)
        except OSError as error:
            self._fail(error)
            return False
        out.reshape(-1)[:] = np.frombuffer(found, np.uint8)
        return True

    def store(self, key: bytes, picture: NDArray[np.uint8]) -> None:
        """See ``FramesOnDisk.store``."""
        if self._failed:
            return
        try:
            slot, entries = self._entries_of(key)
            # The frame's own slot, or the one that was used longest ago.
            mine = min(range(WAYS), key=lambda k: (entries[k][0] != key, entries[k][2]))
            if entries[mine][0] != key and entries[mine][2] > max(0, self._run - _OLD_RUNS):
                return
            slot += mine
            buffer = self._buffer()
            kept = memoryview(buffer)[: self._frame_bytes]
            np.frombuffer(kept, np.uint8)[:] = picture.reshape(-1)
            checksum = zlib.crc32(kept)
            if os.pwritev(self._slots, [buffer], self._slot_at(slot)) == len(buffer):
                self._write_entry(slot, key, checksum)
        except OSError as error:
            self._fail(error)

    def _begun(self, header: _Header | None, *, shared: bool) -> int:
        """The number of this run; a file of another size is made anew.

        The header is written when all blocks are there: a file without a header is empty.
        """
        whole = os.fstat(self._entries).st_size == self._size
        asked = (self._frame_bytes, self._sets)
        fits = whole and header is not None and (header.frame_bytes, header.sets) == asked
        run = header.run if fits and header is not None else 0
        if shared:
            if not fits:
                raise OSError("it is not the file that this job's first process made")
            return run
        if not fits or run >= _MOST_RUNS:
            run = 0
            os.ftruncate(self._entries, 0)
            try:
                os.posix_fallocate(self._entries, 0, self._size)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._entries, 0)
                size = format_bytes(self._size)
                raise OSError(f"no room for {size} ({error.strerror})") from error
        os.pwrite(self._entries, _Header(self._frame_bytes, self._sets, run + 1).packed(), 0)
        return run + 1

    def _entries_of(self, key: bytes) -> tuple[int, list[tuple[bytes, int, int]]]:
        """The first slot that a frame may lie in, and the entries of all of its slots."""
        first = int.from_bytes(key[:8], "little") % self._sets * WAYS
        found = os.pread(self._entries, WAYS * _ENTRY.size, _PAGE + first * _ENTRY.size)
        entries = _ENTRY.iter_unpack(found.ljust(WAYS * _ENTRY.size, b"\0"))
        # An entry of a run that is yet to come is damaged, and makes room first.
        return first, [(own, crc, run if run <= self._run else 0) for own, crc, run in entries]

    def _write_entry(self, slot: int, key: bytes, checksum: int) -> None:
        os.pwrite(self._entries, _ENTRY.pack(key, checksum, self._run), _PAGE + slot * _ENTRY.size)

    def _slot_at(self, slot: int) -> int:
        return self._slots_at + slot * self._stride

    def _buffer(self) -> mmap.mmap:
        """This thread's memory for one slot; direct I/O wants whole pages."""
        buffer: mmap.mmap | None = getattr(self._buffers, "buffer", None)
        if buffer is None:
            buffer = self._buffers.buffer = mmap.mmap(-1, self._stride)
        return buffer

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            logger.warning("no decoded frames are kept in %s any more: %s", self.path, error)


class _Header(NamedTuple):
    """Header of a file; see ``_HEADER``."""

    frame_bytes: int
    sets: int
    run: int

    def packed(self) -> bytes:
        """Bytes of the header."""
        told = _HEADER.pack(_MAGIC, *self, 0)[:-4]
        return told + zlib.crc32(told).to_bytes(4, "little")

    @classmethod
    def of(cls, found: bytes) -> _Header | None:
        """Header of these bytes; ``None`` where they are no whole header."""
        if len(found) < _HEADER.size or not found.startswith(_MAGIC):
            return None
        header = cls(*_HEADER.unpack(found)[1:-1])
        return header if header.packed() == found else None


def _opened(path: Path, *, shared: bool) -> tuple[int, _Header | None]:
    """A file of slots, locked unless it is shared, and its header; ``None``: to be begun anew.

    A file of that name that is not ours is set aside.

    Raises:
        OSError: the file cannot be opened, or another job has it; a shared file is not ours.
    """
    while True:
        descriptor = open_own(path, os.O_RDWR) if shared else open_or_begin(path)
        try:
            if not shared:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.pread(descriptor, _HEADER.size, 0)
            header = _Header.of(found)
            if header is not None or shared or not found.strip(b"\0"):
                return descriptor, header
            if found.startswith(_KIND):
                logger.warning("%s is damaged, or of another version: a new one is begun", path)
                return descriptor, None
            set_aside(path, "it holds no decoded frames")
        except BlockingIOError as error:
            os.close(descriptor)
            raise OSError(
                "another job uses it, so frames of this run are kept in memory alone"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


_opening = free_in_forks(threading.Lock())
_open: weakref.WeakValueDictionary[str, SlotFile] = weakref.WeakValueDictionary()


def _file(path: Path, frame_bytes: int, most_bytes: int, *, shared: bool) -> SlotFile:
    """The file, which all pipelines of a process share."""
    with _opening:
        file = _open.get(str(path))
        if file is None:
            file = _open[str(path)] = SlotFile(path, frame_bytes, most_bytes, shared=shared)
        return file
