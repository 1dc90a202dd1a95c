"""A shard that is arriving: a sparse file, and a map of which chunks of it are there.

    KEY.part    as large as the shard; chunks that are not there are holes
    KEY.map     header, then a byte for each chunk (0 missing, 1 there), then its CRC-32C

Theory of operation. Any number of threads and processes fill a part together. A fetcher holds a
lock on its chunk's byte of the map: an open file description's lock, which ends with its process.
So a chunk has one fetcher at a time, also when processes are killed. The chunk is written first,
its checksum next, its byte in the map last: a kill leaves no byte in the map without its chunk. A
machine that went down may have kept the map and lost chunks: a map of an earlier boot is believed
only where the checksums agree. The map names the part by its inode, so it fits no other file.

When all chunks are there the part is read once: each chunk against the checksum of what came, the
whole against the store's, where it has one. Then it is linked to ``KEY.shard``.

Invariants:
    1. Bytes of a chunk that the map has are the store's.
    2. A chunk has one fetcher at a time, except beside a process that may be stopped, and none
       once it is there.
    3. ``KEY.shard`` is whole, and never written to.

Not here: fetching, and when shards are deleted (``storage.shards``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from autoloader.host.files import Waiting, is_at, open_or_begin, open_own, read_whole

logger = logging.getLogger(__name__)

CHUNK_BYTES = 2**18
"""Least number of bytes that is fetched: neighbours of a frame of 25 kB come along."""
_MAGIC = b"ALPART1\0"
_HEADER = struct.Struct("<8sqq16sI")
"""Magic, bytes of the shard, inode of the part, boot, bytes of a chunk."""
_HEADER_BYTES = 64
_FLOCK = struct.Struct("hhqqixxxx")
_THERE = 1
_IN_USE = 2**40
"""Byte behind the map; each process that has the part open holds a shared lock on it."""

_OPENED_WITHIN_S = 300.0
"""Most seconds to open a part: after a crash of the machine all checksums are compared."""


class DamagedError(OSError):
    """The bytes that came are not those that the store tells."""


class ShardPart:
    """One shard that is arriving, as this process sees it; any thread.

    Args:
        folder: folder of the cache.
        key: name of the version of the object.
        size: bytes of the object.

    Attributes:
        path: path of the sparse file; it stays open as ``descriptor`` when it is published.
        chunks: number of chunks, the last one maybe shorter.
        close: closes the files; called when nothing refers to the part any more.

    Raises:
        OSError: the file cannot be made or written.
    """

    def __init__(self, folder: Path, key: str, size: int) -> None:
        self.folder, self.key, self.size = folder, key, size
        self.path = folder / f"{key}.part"
        self.whole_path = folder / f"{key}.shard"
        self.chunks = -(-size // CHUNK_BYTES)
        self._mine: set[int] = set()
        self._leads = False
        self._lock = threading.Lock()
        self.moved = threading.Condition(self._lock)
        self._map_path = folder / f"{key}.map"
        files = [_opened_alone(self._map_path)]  # while it is made: others wait
        self._map_file = files[0]
        try:
            try_lock(self._map_file, fcntl.F_RDLCK, _IN_USE)  # none holds another while it is made
            files.append(open_or_begin(self.path, linked=True))  # its name as a shard comes first
            self.descriptor = files[1]
            os.ftruncate(self.descriptor, size)
            self._open_map()
            fcntl.flock(self._map_file, fcntl.LOCK_UN)
        except BaseException:
            with contextlib.suppress(OSError):
                fcntl.flock(self._map_file, fcntl.LOCK_UN)  # the map holds the file open, too
            for file in files:
                os.close(file)
            raise
        self.close = weakref.finalize(self, _close, self._crcs, self._map, *files)
        self.close.atexit = False  # threads may still use them

    def _open_map(self) -> None:
        crcs = _HEADER_BYTES + self.chunks
        header = _HEADER.pack(
            _MAGIC, self.size, os.fstat(self.descriptor).st_ino, _boot(), CHUNK_BYTES
        )
        found = os.pread(self._map_file, _HEADER.size, 0)
        length = crcs + 4 * self.chunks
        fits = os.fstat(self._map_file).st_size == length
        same = _HEADER.unpack(found) if len(found) == _HEADER.size else None
        ours = _HEADER.unpack(header)
        if not fits or same is None or (same[:3], same[4]) != (ours[:3], ours[4]):
            os.ftruncate(self._map_file, 0)
            os.posix_fallocate(self._map_file, 0, length)  # a full disk kills who writes to a map
        self._map = mmap.mmap(self._map_file, length)
        self._crcs = memoryview(self._map)[crcs:].cast("B")
        if fits and same is not None and same[3] != ours[3]:
            for chunk in range(self.chunks):
                if self.has(chunk) and not self._agrees(chunk):
                    self._map[_HEADER_BYTES + chunk] = 0
        self._map[: _HEADER.size] = header

    @property
    def whole(self) -> bool:
        """True if all chunks are there."""
        return self.missing_bytes == 0

    @property
    def missing_bytes(self) -> int:
        """Bytes of chunks that are not there."""
        flags = self._map[_HEADER_BYTES : _HEADER_BYTES + self.chunks]
        missing = self.chunks - flags.count(_THERE)
        short = self.chunks * CHUNK_BYTES - self.size
        return missing * CHUNK_BYTES - (short if missing and flags[-1] != _THERE else 0)

    @property
    def spent(self) -> bool:
        """True if any process has published it; the shard may have been deleted since."""
        return self.whole and (self.whole_path.exists() or not is_at(self.path, self.descriptor))

    def has(self, chunk: int) -> bool:
        """True if a chunk is there."""
        return self._map[_HEADER_BYTES + chunk] == _THERE

    def lacks(self, start: int, stop: int) -> list[int]:
        """Chunks of the bytes [start, stop) that are missing."""
        chunks = range(start // CHUNK_BYTES, -(-stop // CHUNK_BYTES))
        return [chunk for chunk in chunks if not self.has(chunk)]

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """The bytes of chunks [first, stop)."""
        return first * CHUNK_BYTES, min(self.size, stop * CHUNK_BYTES)

    def claim(self, chunks: Iterable[int], *, shared: bool = False) -> list[int]:
        """Claim the missing chunks that nobody fetches; the caller fills each, or lets it go.

        Args:
            chunks: numbers of the chunks.
            shared: claim also those that another process fetches; what both write is the same.
        """
        got = []
        with self._lock:
            for chunk in chunks:
                if (
                    chunk not in self._mine
                    and not self.has(chunk)
                    and (self._try_lock(chunk) or shared)
                ):
                    if self.has(chunk):  # filled just before
                        self._unlock(chunk)
                        continue
                    self._mine.add(chunk)
                    got.append(chunk)
        return got

    def lead(self) -> bool:
        """True if the caller, of all processes, is the one that prefetches the shard."""
        with self._lock:
            if self._leads or not self._try_lock(self.chunks):
                return False
            self._leads = True
            return True

    def follow(self) -> None:
        """End the caller's prefetching."""
        with self._lock:
            self._leads = False
            self._unlock(self.chunks)

    def let_go(self, chunks: Iterable[int]) -> None:
        """Give claimed chunks back."""
        with self._lock:
            for chunk in chunks:
                if chunk in self._mine:
                    self._mine.discard(chunk)
                    self._unlock(chunk)
            self.moved.notify_all()

    def fill(self, first: int, view: memoryview) -> None:
        """Write claimed chunks from ``first`` on; ``view`` is whole chunks, or the file's end.

        Nothing is written of a chunk that is there: this process may have been stopped, and others
        have brought the chunk and published the file meanwhile.

        Raises:
            OSError: the disk takes no more.
        """
        chunks = range(first, first + -(-len(view) // CHUNK_BYTES))
        whole = np.frombuffer(view, np.uint8)  # slices of it are no copies
        for number, chunk in enumerate(chunks):
            if self.has(chunk):
                continue
            piece = whole[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            written = 0
            while written < len(piece):
                at = chunk * CHUNK_BYTES + written
                written += os.pwrite(self.descriptor, piece[written:].data, at)
            self._crcs[4 * chunk : 4 * chunk + 4] = google_crc32c.value(piece).to_bytes(4, "little")
            self._map[_HEADER_BYTES + chunk] = _THERE
        self.let_go(chunks)

    def read_into(self, view: memoryview, start: int) -> None:
        """Fill ``view`` with the bytes from ``start`` on, whose chunks are there.

        Raises:
            OSError: the file cannot be read.
        """
        read_whole(self.descriptor, view, start)

    def publish(self, crc32c: int | None) -> None:
        """Give the whole shard its name, once its bytes are checked.

        Args:
            crc32c: checksum of the object; ``None``: the store tells none.

        Raises:
            DamagedError: the file is not what the store has; all chunks are missing again.
            OSError: the file cannot be read or linked.
        """
        crc, wrong = 0, []
        memory = np.empty(CHUNK_BYTES, np.uint8)
        for chunk in range(self.chunks):
            piece = self._piece(chunk, memory)
            crc = crc if crc32c is None else google_crc32c.extend(crc, piece)
            if google_crc32c.value(piece) != self._crc_of(chunk):
                wrong.append(chunk)
        if crc32c is not None and crc != crc32c and not wrong:
            wrong = list(range(self.chunks))
        if wrong:
            for chunk in wrong:
                self._map[_HEADER_BYTES + chunk] = 0
            raise DamagedError(errno.EIO, "the checksum of what came is wrong", str(self.path))
        with contextlib.suppress(FileExistsError, FileNotFoundError):  # another one has done so
            os.link(self.path, self.whole_path)
        self.discard()

    def discard(self) -> None:
        """Delete part and map; processes that have them open go on."""
        for path, descriptor in (
            (self._map_path, self._map_file),  # first: a map alone names an inode that is gone
            (self.path, self.descriptor),
        ):
            with contextlib.suppress(OSError):
                if is_at(path, descriptor):
                    path.unlink()

    def _crc_of(self, chunk: int) -> int:
        return int.from_bytes(self._crcs[4 * chunk : 4 * chunk + 4], "little")

    def _agrees(self, chunk: int) -> bool:
        piece = self._piece(chunk, np.empty(CHUNK_BYTES, np.uint8))
        return bool(google_crc32c.value(piece) == self._crc_of(chunk))

    def _piece(self, chunk: int, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A chunk as the disk has it, read into ``memory``."""
        start, stop = self.span(chunk, chunk + 1)
        return memory[: os.preadv(self.descriptor, [memory[: stop - start].data], start)]

    def _try_lock(self, chunk: int) -> bool:
        return try_lock(self._map_file, fcntl.F_WRLCK, chunk)

    def _unlock(self, chunk: int) -> None:
        try_lock(self._map_file, fcntl.F_UNLCK, chunk)


def _close(crcs: memoryview, chunks: mmap.mmap, *files: int) -> None:
    """Close the map and the files of a part."""
    crcs.release()
    chunks.close()
    for file in files:
        os.close(file)


def discard_unused(folder: Path, key: str) -> bool:
    """Delete a part of the cache's that nobody has open, such as one of an object that changed.

    Args:
        folder: folder of the cache.
        key: name of the version of the object.

    Returns:
        True if it was one, and is gone.
    """
    map_path, path = folder / f"{key}.map", folder / f"{key}.part"
    try:
        file = open_own(map_path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not try_lock(file, fcntl.F_WRLCK, _IN_USE):
            return False
        magic, size, inode, *_ = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
        stat = path.lstat()
        if (magic, size, inode) != (_MAGIC, stat.st_size, stat.st_ino):
            return False
        map_path.unlink()
        path.unlink()
    except (OSError, struct.error):  # somebody uses it, or it is none of ours
        return False
    finally:
        os.close(file)
    return True


def _opened_alone(path: Path) -> int:
    """The file of a map, made where it is missing, that nobody else opens before it is unlocked.

    Raises:
        UsageError: another process has had it locked for ``_OPENED_WITHIN_S``.
    """
    waits = Waiting(f"the shard of {path}", _OPENED_WITHIN_S, say=logger.debug)
    while True:
        file = open_or_begin(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(path, file):
                return file
        except BlockingIOError:
            os.close(file)
            waits("the process that has it locked")
        except OSError:  # the file system has no locks
            os.close(file)
            raise
        else:
            os.close(file)  # it was discarded before we had it


def try_lock(file: int, kind: int, at: int) -> bool:
    """Lock a byte of a file for its open file description, or unlock it; never waits.

    Returns:
        False if another open file description has it locked.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, at, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def is_locked(file: int, at: int) -> bool:
    """True if another open file description has locked a byte of a file."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
    kind, *_ = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
    return bool(kind != fcntl.F_UNLCK)


def runs(chunks: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Neighbours among ascending chunks as [first, stop), each at most so many."""
    first = stop = -1
    for chunk in chunks:
        if chunk == stop and stop - first < most:
            stop += 1
            continue
        if first >= 0:
            yield first, stop
        first, stop = chunk, chunk + 1
    if first >= 0:
        yield first, stop


def _boot() -> bytes:
    """This boot of the machine: 16 bytes."""
    with contextlib.suppress(OSError, ValueError):
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return bytes.fromhex(text.strip().replace("-", ""))
    return bytes(16)
