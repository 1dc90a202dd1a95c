"""The index of one shard file, open: its episode table at once, its sections mapped when touched.

Here is also where index files lie, and how one is published there. Not here: the format
(``index.format``), building (``index.build``), datasets (``index.dataset``).

Theory of operation. Opening reads a few kilobytes and maps nothing, so that tens of thousands of
shards open fast. The first access to a value maps the file. A map holds one of the process's
descriptors; when there are too many, ``formats.descriptors`` drops the oldest map, whose memory
stays until the last view of it is gone. A section's checksum is verified at the first access, by
reads rather than through the map, which would make the whole section resident. A section that fails
is damaged on disk: the index is built anew and used from memory. The library never writes to an
index file again. Somebody else may: readers that have taken values call ``check_unchanged`` before
they use them, which compares the modification time.

Thread-safe. Arrays are read-only views.

An index file lies in the cache directory, under a hash of the shard file's absolute path, or beside
the data, in a folder ``.autoloader-index`` next to the shard files. Both names end with the
fingerprint of the features. A file beside the data is used first, then one in the cache.

Any number of threads, processes and hosts may publish the same index at a time. Each writes a
temporary file with a random name and links it to the final path. The link fails where another
builder was faster; its file then stays, because another host may have mapped it. Only a file that
cannot be used is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from autoloader.formats.descriptors import OUT_OF_DESCRIPTORS, descriptors, too_many_open
from autoloader.formats.files import is_remote, join, opened
from autoloader.host.files import check_file, written_by_others
from autoloader.index.format import (
    HEADER,
    NO_FEATURE,
    NUMBERS,
    Entry,
    Front,
    Section,
    SourceIdentity,
    UnusableIndexError,
    read_front,
)
from autoloader.storage.places import cache_root

_PIECE_BYTES = 2**20
BESIDE_FOLDER = ".autoloader-index"
SUFFIX = ".index"
LEFTOVER_S = 24 * 3600.0
"""Temporary files older than this are of builders that were killed."""

logger = logging.getLogger(__name__)

_Key = tuple[Section, int]
Rebuild = Callable[[bytes | None], bytes]


class ShardIndex:
    """The index of one shard file.

    Args:
        path: path or URL of the shard file.
        front: header and episode table of its index.
        source: the index file, or its content where it could not be written.
        rebuild: builds the index anew, writes it if possible, and gives its content; where it is
            given the content that there is, nothing is written unless it differs. Raises
            ``SourceError``.

    Attributes:
        rebuilt: indexes of this process that proved damaged and were built anew; where it moves,
            what was taken before may be wrong.
    """

    rebuilt: ClassVar[int] = 0

    def __init__(self, path: str, front: Front, source: Path | bytes, rebuild: Rebuild) -> None:
        self.path = path
        self.front = front
        self._source = source
        self._rebuild = rebuild
        self._lock = threading.Lock()
        self._entries: dict[_Key, Entry] = {}
        self._verified: set[_Key] = set()
        self._sections: dict[_Key, NDArray[Any]] = {}
        self._data: Any = None
        self._seen: tuple[int, int] | None = None

    @property
    def steps(self) -> NDArray[np.int32]:
        """[R] int32 steps of every record, -1 for damaged ones."""
        return self.front.steps

    @property
    def nbytes(self) -> int:
        """Bytes of the index file."""
        return self.front.file_bytes

    def section(self, kind: Section, feature: int = NO_FEATURE) -> NDArray[Any]:
        """The values of a section, read-only; those of numbers have a width, ``[F, w]``."""
        found = self._sections.get((kind, feature))
        return self._touch((kind, feature)) if found is None else found

    def has(self, kind: Section, feature: int = NO_FEATURE) -> bool:
        """True if there is such a section."""
        if not self._entries:
            with self._lock:
                self._entries = self.front.entries()
        return (kind, feature) in self._entries

    def text(self, number: int) -> bytes:
        """A text by its id."""
        starts = self.section(Section.TEXT_STARTS)
        return self.section(Section.TEXT_BYTES)[starts[number] : starts[number + 1]].tobytes()

    def texts(self, numbers: NDArray[np.int32]) -> list[bytes]:
        """Texts by their ids [n]."""
        starts = self.section(Section.TEXT_STARTS).data
        data = self.section(Section.TEXT_BYTES).data
        return [bytes(data[starts[number] : starts[number + 1]]) for number in numbers.tolist()]

    def content(self) -> bytes:
        """The index file, verified."""
        self.verify()
        return self._source if isinstance(self._source, bytes) else self._source.read_bytes()

    def verify(self) -> None:
        """Checks every section now; a damaged index is built anew."""
        for key in self.front.entries():
            self._touch(key)

    def derive_again(self) -> bool:
        """True if the shard file still gives this index; one that differs is replaced on disk."""
        held = self.content()
        return self._rebuild(held) == held

    def check_unchanged(self) -> None:
        """Builds the index anew where it was written to and proves damaged; ``rebuilt`` moves then.

        Raises:
            SourceError: it cannot be built anew.
        """
        source = self._source
        if isinstance(source, bytes) or self._seen is None:
            return
        try:
            now = _identity(os.stat(source))  # noqa: PTH116
        except OSError:  # deleted: what is mapped stays as it is
            return
        if now[0] != self._seen[0] or now == self._seen:  # another file does not touch this one
            return
        with self._lock:
            try:
                for key in self._verified:
                    self._verify(self._entries[key])
                self._seen = now
            except (OSError, UnusableIndexError):
                self._build_anew()

    def unmap(self) -> None:
        """Let go of the map; the next value that is wanted maps the file again."""
        self._sections, self._data = {}, None

    def _touch(self, key: _Key) -> NDArray[Any]:
        with self._lock:
            try:
                return self._values(key)
            except (OSError, UnusableIndexError) as error:
                if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
                    raise too_many_open(error, str(self._source), dataset="") from error
                if isinstance(self._source, bytes):
                    raise
                self._build_anew()
                return self._values(key)

    def _build_anew(self) -> None:
        self._source = self._rebuild(None)
        self.unmap()
        self._verified.clear()
        ShardIndex.rebuilt += 1

    def _values(self, key: _Key) -> NDArray[Any]:
        if not self._entries:
            self._entries = self.front.entries()
        entry = self._entries[key]
        if (
            min(entry.offset, entry.items) < 0
            or entry.offset + entry.nbytes > self.front.file_bytes
        ):
            raise UnusableIndexError(f"its {entry.kind.name.lower()} lies outside of it")
        sections, data = self._sections, self._data  # ``unmap`` may replace them at any time
        if data is None:
            data = self._opened()
        if key not in self._verified:
            self._verify(entry)
            self._verified.add(key)
        if self._data is not data:
            sections = {}
            self._sections, self._data = sections, data
            if not isinstance(self._source, bytes):
                descriptors.note_map(self)
        values = np.frombuffer(data, entry.kind.dtype, entry.items * entry.width, entry.offset)
        if entry.kind in NUMBERS.values():
            values = values.reshape(-1, entry.width)
        sections[key] = values
        return values

    def _opened(self) -> Any:
        """A map of the index file, or its content."""
        if isinstance(self._source, bytes):
            return self._source
        with opened(self._source) as fd:
            # Another builder may have replaced the file: by the same content, or it is stale.
            if os.pread(fd, HEADER.size, 0) != self.front.header:
                raise UnusableIndexError("it was replaced")
            found = os.fstat(fd)
            if found.st_size != self.front.file_bytes:
                raise UnusableIndexError("it is cut off")
            if _identity(found) != self._seen:
                self._seen = _identity(found)
                self._verified.clear()
            return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)

    def _verify(self, entry: Entry) -> None:
        if isinstance(self._source, bytes):
            return
        crc, position, end = 0, entry.offset, entry.offset + entry.nbytes
        with opened(self._source) as fd:
            while position < end:
                piece = os.pread(fd, min(_PIECE_BYTES, end - position), position)
                if not piece:
                    raise UnusableIndexError("it is cut off")
                crc = google_crc32c.extend(crc, piece)
                position += len(piece)
        if crc != entry.crc:
            raise UnusableIndexError(f"the checksum of its {entry.kind.name.lower()} is wrong")


def usable_front(
    place: Path, identity: SourceIdentity, fingerprint: bytes, data: os.stat_result | None
) -> Front | None:
    """The front of an index file; ``None`` where there is none that can be used.

    Args:
        place: path of the index file.
        identity: what the indexed file looks like now.
        fingerprint: hash of the indexed features.
        data: of the folder with the data: whoever may write there may write the index. ``None``: of
            no local one.
    """
    try:
        with opened(place, links=False) as fd:
            check_file(fd, place, data)

            def read(count: int, offset: int) -> bytes:
                return os.pread(fd, count, offset)

            return read_front(read, os.fstat(fd).st_size, identity, fingerprint)
    except FileNotFoundError:
        return None
    except (OSError, UnusableIndexError) as error:
        logger.info("the index %s is not used: %s", place, error)
        return None


def front_of(content: bytes, identity: SourceIdentity, fingerprint: bytes) -> Front:
    """The front of an index file that is held. Raises UnusableIndexError."""

    def read(count: int, offset: int) -> bytes:
        return content[offset : offset + count]

    return read_front(read, len(content), identity, fingerprint)


def _identity(stat: os.stat_result) -> tuple[int, int]:
    """(inode, time of the last change in ns) of a file."""
    return stat.st_ino, stat.st_mtime_ns


# -- places of index files -----------------------------------------------------------------------


def index_directory() -> Path:
    """The cache directory of indexes: below ``AUTOLOADER_CACHE_DIR`` if set, else the user's."""
    return cache_root() / "index"


def cached_path(shard: str, fingerprint: bytes, directory: Path) -> Path:
    """Path of a shard file's index in the cache."""
    return directory / f"{_cached_name(shard)}-{fingerprint.hex()[:16]}{SUFFIX}"


def any_index(shard: str) -> bool:
    """True if the cache has an index of a shard file, of any features and age."""
    return any(index_directory().glob(f"{_cached_name(shard)}-*{SUFFIX}"))


def _cached_name(shard: str) -> str:
    path = shard
    if not is_remote(shard):
        path = os.path.abspath(shard)  # noqa: PTH100 a link stays one: its target may be moved
    return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:24]


def beside_data(shard: str, fingerprint: bytes) -> str:
    """Path or URL of a shard file's index beside the data."""
    directory, _, name = shard.rpartition("/")
    return join(directory, BESIDE_FOLDER, f"{name}-{fingerprint.hex()[:16]}{SUFFIX}")


def publish(
    content: bytes, place: Path, *, keep: Callable[[Path], bool], data: os.stat_result | None
) -> None:
    """Writes an index file so that its place holds a whole one at any time.

    Args:
        content: bytes of the index file.
        place: path of the index file; the folder is made.
        keep: whether a file that lies there already can be used; it stays then.
        data: of the folder with the data, see ``usable_front``.

    Raises:
        OSError: it cannot be written, or would not be trusted there.
    """
    shared = 0 if data is None else data.st_mode & 0o022
    place.parent.mkdir(mode=0o755 | shared, parents=True, exist_ok=True)
    if why := written_by_others(place.parent, place.parent.stat(), data):
        raise PermissionError(errno.EPERM, why, str(place.parent))
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, place)
        except OSError:  # taken, or a file system without links: there the last one wins
            if not keep(place):
                temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)


def lie_beside(folders: Collection[str]) -> bool:
    """True if there may be index files beside local data in these folders."""
    return any((Path(one) / BESIDE_FOLDER).is_dir() for one in folders)


def remove_leftovers(directory: Path) -> None:
    """Deletes temporary files of builders that were killed long ago."""
    before = time.time() - LEFTOVER_S
    with contextlib.suppress(OSError):
        for left in directory.glob(f".*{SUFFIX}.*.tmp"):
            if left.stat().st_mtime < before:
                left.unlink(missing_ok=True)
                logger.debug("removed %s, left by a builder that was killed", left)
