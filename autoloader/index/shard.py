"""The index file of one shard: its bytes, where it lies, and an index that is open.

``docs/reference/index-format.md`` describes every byte: a header, a directory, sections.

Theory of operation. Opening reads a few kilobytes and maps nothing, so that tens of thousands of
shards open fast. The first access to a value maps the file. A map holds one of the process's
descriptors; when there are too many, ``formats.files`` drops the oldest map, whose memory
stays until the last view of it is gone.

An index file is written once and never changed. Its identity is the version of the format, the
stamp of all files that it was made from, and the fingerprint of the indexed features. The header
carries a checksum of itself and of the directory, the directory one of each section. A section's
checksum is verified at the first access, by reads: through the map the whole section would become
resident. A damaged section has the index built anew and used from memory. The library never writes
to an index file again. Somebody else may: readers that have taken values call ``check_unchanged``
before they use them, which compares the modification time.

An index file lies in the cache directory, under a hash of the shard file's absolute path. Or it
lies beside the data, in a folder ``.autoloader-index`` next to the shard files. Both names end with
the fingerprint of the features. A file beside the data is used first, then one in the cache.

Any number of threads, processes and hosts may publish the same index at a time. Each writes a
temporary file with a random name and links it to the final path. The link fails where another
builder was faster; its file then stays, because another host may have mapped it. Only a file that
cannot be used is replaced.

Thread-safe. Arrays are read-only views.

Not here: what is in the tables (``formats.tables``), datasets (``index.dataset``), which shards
need an index (``index.opening``).
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import mmap
import os
import secrets
import struct
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from autoloader.formats import files
from autoloader.formats.tables import (
    FIRST_NOTE,
    NO_FEATURE,
    NUMBERS,
    Key,
    Section,
    ShardTables,
    SourceIdentity,
)
from autoloader.host.files import check_file, written_by_others
from autoloader.host.frozen import frozen
from autoloader.samples.schema import RecordSchema
from autoloader.storage.places import cache_root

MAGIC = b"ALINDEX\0"
VERSION = 4
"""Raised whenever a file of before would give other rows than one that is built today."""
ALIGNMENT = 64
"""Sections start at multiples of this, in bytes."""
FIRST_READ_BYTES = 8192
"""One read of this gives the header, the directory and, of most files, the episode table."""
HEADER = struct.Struct("<8sIIqq32sqqqII")
"""Magic, version, sections, source size, source stamp, fingerprint, records, rows, bytes of this
file, zero, CRC-32C of header (with 0 in this place) and directory."""
ENTRY = struct.Struct("<HHIqqII")
"""Kind, feature, CRC-32C, offset, items, numbers an item, zero."""
_CRC_AT = HEADER.size - 4


class UnusableIndexError(Exception):
    """An index file that is stale, damaged or of another version; the message is the reason.

    Internal: whoever meets it builds the index anew.
    """


class Entry(NamedTuple):
    """One section in the directory: ``items`` × ``width`` numbers of the kind's type."""

    kind: Section
    feature: int
    crc: int
    offset: int
    items: int
    width: int

    @property
    def nbytes(self) -> int:
        """Size of the section in bytes."""
        return int(self.items * self.width * self.kind.dtype.itemsize)


def pack(tables: ShardTables, schema: RecordSchema) -> bytes:
    """The bytes of an index file; the same tables give the same bytes."""
    first_rows = np.zeros(len(tables.steps) + 1, np.int64)
    np.cumsum(np.maximum(tables.steps, 0), out=first_rows[1:])
    text_starts = np.zeros(len(tables.texts) + 1, np.int64)
    text_starts[1:] = np.cumsum([len(text) for text in tables.texts], dtype=np.int64)
    damage = json.dumps(sorted(tables.damage.items())).encode() if tables.damage else b""
    rows: dict[Key, NDArray[Any]] = {
        (Section.RECORD_LENGTHS, NO_FEATURE): tables.record_lengths,
        (Section.FIRST_ROWS, NO_FEATURE): first_rows,
    }
    if len(tables.steps) and not len(tables.record_lengths):
        rows = {}  # row k is record k
    parts: dict[Key, NDArray[Any]] = {
        (Section.STEPS, NO_FEATURE): tables.steps,
        (Section.DAMAGE, NO_FEATURE): np.frombuffer(damage, np.uint8),
        (Section.SCHEMA, NO_FEATURE): np.frombuffer(schema.document, np.uint8),
        (Section.RECORD_OFFSETS, NO_FEATURE): tables.record_offsets,
        **rows,
        **tables.sections,
        (Section.TEXT_STARTS, NO_FEATURE): text_starts,
        (Section.TEXT_BYTES, NO_FEATURE): np.frombuffer(b"".join(tables.texts), np.uint8),
    }
    position = _aligned(HEADER.size + len(parts) * ENTRY.size)
    listed, bodies = b"", []
    for (kind, feature), values in parts.items():
        body = np.ascontiguousarray(values, kind.dtype).tobytes()
        width = values.shape[1] if values.ndim > 1 else 1
        crc = google_crc32c.value(body)
        listed += ENTRY.pack(kind, feature, crc, position, len(values), width, 0)
        bodies.append((position, body))
        position = _aligned(position + len(body))
    records, steps = len(tables.steps), int(first_rows[-1])
    header = [MAGIC, VERSION, len(parts), *tables.source, schema.fingerprint]
    header += [records, steps, position, 0]
    file = bytearray(position)
    file[: HEADER.size + len(listed)] = _sealed(header, listed) + listed
    for offset, body in bodies:
        file[offset : offset + len(body)] = body
    return bytes(file)


def _sealed(header: list[Any], directory: bytes) -> bytes:
    """The header, with the checksum of itself and of the directory."""
    crc = google_crc32c.value(HEADER.pack(*header, 0) + directory)
    return HEADER.pack(*header, crc)


def source_of(content: bytes) -> SourceIdentity:
    """The file that an index file was made of; of what is none, of no file."""
    if len(content) < HEADER.size:
        return SourceIdentity(-1, -1)
    return SourceIdentity(*HEADER.unpack(content[: HEADER.size])[3:5])


def with_source(content: bytes, source: SourceIdentity) -> bytes:
    """An index file, of a copy of the file that it was made of."""
    *header, _ = HEADER.unpack(content[: HEADER.size])
    header[3:5] = source
    listed = content[HEADER.size : HEADER.size + header[2] * ENTRY.size]
    return _sealed(header, listed) + content[HEADER.size :]


@frozen
class Front:
    """The front of an index file: enough to count episodes without mapping it.

    Attributes:
        header: bytes of the header, which no other content has.
        steps: [R] int32, -1 for damaged records.
        damage: record → reason, as of ``ShardTables``.
        rows: frames of the whole records.
        file_bytes: size of the index file.
        directory: packed entries of the sections.
    """

    header: bytes
    steps: NDArray[np.int32]
    damage: Mapping[int, str]
    rows: int
    file_bytes: int
    directory: bytes

    @property
    def notes(self) -> list[str]:
        """Facts about the shard file that a person should know."""
        return [told for record, told in self.damage.items() if record <= FIRST_NOTE]

    def entries(self) -> dict[Key, Entry]:
        """The directory, by kind and feature."""
        return {(entry.kind, entry.feature): entry for entry in _entries(self.directory)}


def read_front(
    read: Callable[[int, int], bytes], size: int, source: SourceIdentity, fingerprint: bytes
) -> Front:
    """Checks header, directory and episode table of an index file.

    Args:
        read: gives (count, offset) bytes of it, fewer at its end.
        size: bytes of the index file.
        source: identity of the source file now.
        fingerprint: hash of the features that are wanted.

    Raises:
        UnusableIndexError: the file is stale, damaged, cut off, of another version or schema.
        OSError: the file cannot be read.
    """
    front = read(FIRST_READ_BYTES, 0)
    if len(front) < HEADER.size or front[:8] != MAGIC:
        raise UnusableIndexError("it is not an index file")
    header = front[: HEADER.size]
    _, version, count, *identity, found, _, rows, file_bytes, _, crc = HEADER.unpack(header)
    if version != VERSION:
        raise UnusableIndexError(f"it has version {version}, not {VERSION}")
    if size != file_bytes:
        raise UnusableIndexError("it is cut off")
    if not 2 * ENTRY.size <= count * ENTRY.size <= size - HEADER.size:
        raise UnusableIndexError("its header is damaged")
    front = _longer(read, front, HEADER.size + count * ENTRY.size)
    directory = front[HEADER.size : HEADER.size + count * ENTRY.size]
    if google_crc32c.value(header[:_CRC_AT] + bytes(4) + directory) != crc:
        raise UnusableIndexError("the checksum of its header is wrong")
    if found != fingerprint:
        raise UnusableIndexError("it was built for other features")
    if tuple(identity) != source:
        raise UnusableIndexError("the file that it indexes has changed")
    steps, damage = _entries(directory[: 2 * ENTRY.size])
    front = _longer(read, front, damage.offset + damage.nbytes)
    bodies = [front[one.offset : one.offset + one.nbytes] for one in (steps, damage)]
    if [google_crc32c.value(body) for body in bodies] != [steps.crc, damage.crc]:
        raise UnusableIndexError("the checksum of its episode table is wrong")
    return Front(
        header=header,
        steps=np.frombuffer(bodies[0], Section.STEPS.dtype).astype(np.int32, copy=False),
        damage=dict(json.loads(bodies[1])) if bodies[1] else {},
        rows=rows,
        file_bytes=file_bytes,
        directory=directory,
    )


def _entries(directory: bytes) -> list[Entry]:
    """Entries of the directory, whose checksum was right."""
    return [Entry(Section(kind), *rest) for kind, *rest, _ in ENTRY.iter_unpack(directory)]


def _longer(read: Callable[[int, int], bytes], front: bytes, size: int) -> bytes:
    """At least ``size`` bytes of the file; ``front`` are its first."""
    if len(front) < size:
        front += read(size - len(front), len(front))
    if len(front) < size:
        raise UnusableIndexError("it is cut off")
    return front


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


# -- an open index -------------------------------------------------------------------------------

_PIECE_BYTES = 2**20
BESIDE_FOLDER = ".autoloader-index"
SUFFIX = ".index"
_TEXT_STARTS = Section.TEXT_STARTS, NO_FEATURE
_TEXT_BYTES = Section.TEXT_BYTES, NO_FEATURE

logger = logging.getLogger(__name__)

Rebuild = Callable[[bytes | None], bytes]


class _Sections(dict[Key, NDArray[Any]]):
    """Sections of an index by kind and feature; one is mapped at its first use."""

    def __init__(self, touch: Callable[[Key], NDArray[Any]]) -> None:
        super().__init__()
        self._touch = weakref.WeakMethod(touch)  # an index that is dropped lets go of its map

    def __missing__(self, key: Key) -> NDArray[Any]:
        touch = self._touch()
        assert touch is not None, "its index is asked for it"
        return touch(key)


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
        rebuilds: number of this process's indexes that proved damaged and were built anew. Where it
            moves, values that were taken before may be wrong.
        path, front: path and front that it was made with.
        sections: values of each section, read-only; numbers have a width, ``[F, w]``.
    """

    rebuilds: ClassVar[int] = 0

    def __init__(self, path: str, front: Front, source: Path | bytes, rebuild: Rebuild) -> None:
        self.path = path
        self.front = front
        self.sections = _Sections(self._touch)
        self._source = source
        self._rebuild = rebuild
        self._lock = threading.Lock()
        self._verified: set[Key] = set()
        self._data: Any = None
        self._seen: tuple[int, int] | None = None

    @cached_property
    def _entries(self) -> dict[Key, Entry]:
        return self.front.entries()

    def has(self, kind: Section, feature: int) -> bool:
        """True if there are values of this section and feature."""
        return (kind, feature) in self._entries

    def text(self, number: int) -> bytes:
        """The text with this id."""
        starts = self.sections[_TEXT_STARTS]
        return self.sections[_TEXT_BYTES][starts[number] : starts[number + 1]].tobytes()

    def texts(self, numbers: NDArray[np.int32]) -> list[bytes]:
        """Texts with these ids [n]."""
        starts, data = self.sections[_TEXT_STARTS].data, self.sections[_TEXT_BYTES].data
        return [bytes(data[starts[number] : starts[number + 1]]) for number in numbers.tolist()]

    def take(self, key: Key, at: NDArray[Any]) -> NDArray[Any]:
        """Values of a section at some places [n]; no page of the map stays resident for them."""
        found: NDArray[Any] = self.sections[key][at]
        if isinstance(data := self._data, mmap.mmap):
            data.madvise(mmap.MADV_DONTNEED)
        return found

    def content(self) -> bytes:
        """All bytes of the index file, after its checksums were verified."""
        self.verify()
        return self._source if isinstance(self._source, bytes) else self._source.read_bytes()

    def verify(self) -> None:
        """Checks every section now; a damaged index is built anew."""
        for key in self._entries:
            self._touch(key)

    def derive_again(self) -> bool:
        """True if the shard file still gives this index; one that differs is replaced on disk."""
        now = self.content()
        return self._rebuild(now) == now

    def check_unchanged(self) -> None:
        """Builds the index anew where it was written to and proves damaged; that is counted.

        Raises:
            SourceError: the index cannot be built anew.
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
        self.sections, self._data = _Sections(self._touch), None

    def _touch(self, key: Key) -> NDArray[Any]:
        with self._lock:
            try:
                return self._values(key)
            except (OSError, UnusableIndexError) as error:
                if isinstance(error, OSError) and error.errno in files.OUT_OF_DESCRIPTORS:
                    raise files.no_descriptor_left(error, str(self._source), dataset="") from error
                if isinstance(self._source, bytes):
                    raise
                self._build_anew()
                return self._values(key)

    def _build_anew(self) -> None:
        self._source = self._rebuild(None)
        self.unmap()
        self._verified.clear()
        ShardIndex.rebuilds += 1

    def _values(self, key: Key) -> NDArray[Any]:
        entry = self._entries[key]
        sections, data = self.sections, self._data  # ``unmap`` may replace them at any time
        if data is None:
            data = self._opened()
        if key not in self._verified:
            self._verify(entry)
            self._verified.add(key)
        if self._data is not data:
            sections = _Sections(self._touch)
            self.sections, self._data = sections, data
            if not isinstance(self._source, bytes):
                files.descriptors.note_map(self.unmap)
        values = np.frombuffer(data, entry.kind.dtype, entry.items * entry.width, entry.offset)
        if entry.kind in NUMBERS.values():
            values = values.reshape(-1, entry.width)
        sections[key] = values
        return values

    def _opened(self) -> Any:
        """A map of the index file, or its content."""
        if isinstance(self._source, bytes):
            return self._source
        with files.opened(self._source) as fd:
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
        with files.opened(self._source) as fd:
            crc = crc_of(fd, entry.offset, entry.offset + entry.nbytes)
        if crc != entry.crc:
            raise UnusableIndexError(f"the checksum of its {entry.kind.name.lower()} is wrong")


def crc_of(descriptor: int, position: int, end: int) -> int:
    """CRC-32C of bytes [position, end) of a file. Raises UnusableIndexError where it is cut off."""
    crc = 0
    while position < end:
        piece = os.pread(descriptor, min(_PIECE_BYTES, end - position), position)
        if not piece:
            raise UnusableIndexError("it is cut off")
        crc, position = google_crc32c.extend(crc, piece), position + len(piece)
    return crc


def usable_front(
    place: Path, identity: SourceIdentity, fingerprint: bytes, data: os.stat_result | None
) -> Front | None:
    """The front of an index file; ``None`` where there is none that can be used.

    Args:
        place: path of the index file.
        identity: identity of the indexed file now.
        fingerprint: hash of the indexed features.
        data: ``stat`` of the folder with the data: a user who may write there may write the index.
            ``None``: the folder is not local.
    """
    try:
        with files.opened(place, links=False) as fd:
            check_file(fd, place, data)
            return read_front(partial(os.pread, fd), os.fstat(fd).st_size, identity, fingerprint)
    except FileNotFoundError:
        return None
    except (OSError, UnusableIndexError) as error:
        logger.info("the index %s is not used: %s", place, error)
        return None


def front_of(content: bytes, identity: SourceIdentity, fingerprint: bytes) -> Front:
    """The front of an index file in memory. Raises UnusableIndexError."""
    return read_front(
        lambda count, offset: content[offset : offset + count], len(content), identity, fingerprint
    )


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
    """Front of the names of a shard's indexes in the cache."""
    path = shard
    if not files.is_remote(shard):
        path = os.path.abspath(shard)  # noqa: PTH100 a link stays one: its target may be moved
    return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:24]


def beside_data(shard: str, fingerprint: bytes) -> str:
    """Path or URL of a shard file's index beside the data."""
    directory, _, name = shard.rpartition("/")
    return files.join(directory, BESIDE_FOLDER, f"{name}-{fingerprint.hex()[:16]}{SUFFIX}")


def publish(
    content: bytes, place: Path, *, keep: Callable[[Path], bool], data: os.stat_result | None
) -> None:
    """Writes an index file so that its place holds a whole one at any time.

    Args:
        content: bytes of the index file.
        place: path of the index file; the folder is made.
        keep: whether a file that lies there already can be used; it stays then.
        data: ``stat`` of the folder with the data, see ``usable_front``.

    Raises:
        OSError: the file cannot be written, or would not be trusted there.
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
