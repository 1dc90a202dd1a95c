"""The paths of index files, and how a file is published at its path.

Not here: their content (``index.format``), which ones are needed (``index.opening``).

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
import os
import secrets
import time
from collections.abc import Callable, Collection
from pathlib import Path

from autoloader.formats.files import is_remote, join
from autoloader.host.files import written_by_others
from autoloader.storage.places import cache_root

BESIDE_FOLDER = ".autoloader-index"
SUFFIX = ".index"
LEFTOVER_S = 24 * 3600.0
"""Temporary files older than this are of builders that were killed."""

logger = logging.getLogger(__name__)


def index_directory() -> Path:
    """The cache directory of indexes: below ``AUTOLOADER_CACHE_DIR`` if set, else the user's."""
    return cache_root() / "index"


def cached_path(shard: str, fingerprint: bytes, directory: Path) -> Path:
    """Where the index of a shard file lies in the cache."""
    return directory / f"{_cached_name(shard)}-{fingerprint.hex()[:16]}{SUFFIX}"


def any_index(shard: str) -> bool:
    """Whether the cache has an index of a shard file, of whatever features and age."""
    return any(index_directory().glob(f"{_cached_name(shard)}-*{SUFFIX}"))


def _cached_name(shard: str) -> str:
    path = shard
    if not is_remote(shard):
        path = os.path.abspath(shard)  # noqa: PTH100 a link stays one: its target may be moved
    return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:24]


def path_beside_data(shard: str, fingerprint: bytes) -> Path:
    """Where the index of a shard file lies beside the data."""
    path = Path(shard)
    return path.parent / BESIDE_FOLDER / f"{path.name}-{fingerprint.hex()[:16]}{SUFFIX}"


def address_beside_data(shard: str, fingerprint: bytes) -> str:
    """The same of a remote shard file."""
    directory, _, name = shard.rpartition("/")
    return join(directory, BESIDE_FOLDER, f"{name}-{fingerprint.hex()[:16]}{SUFFIX}")


def publish(
    content: bytes, place: Path, *, keep: Callable[[Path], bool], data: os.stat_result | None
) -> None:
    """Writes an index file so that its place holds a whole one at any time.

    Args:
        content: the file.
        place: where it shall lie; the folder is made.
        keep: whether a file that lies there already can be used; it stays then.
        data: of the folder with the data, see ``shard.usable_front``.

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
        if not _linked(temporary, place) and not keep(place):
            temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)


def _linked(temporary: Path, place: Path) -> bool:
    """Whether ``place`` was free and is now the same file."""
    try:
        os.link(temporary, place)
    except OSError:  # taken, or a file system without links: there the last one wins
        return False
    return True


def lie_beside(folders: Collection[str]) -> bool:
    """Whether there may be index files beside local data in these folders."""
    return any((Path(one) / BESIDE_FOLDER).is_dir() for one in folders)


def remove_leftovers(directory: Path) -> None:
    """Deletes temporary files of builders that were killed long ago."""
    before = time.time() - LEFTOVER_S
    with contextlib.suppress(OSError):
        for left in directory.glob(f".*{SUFFIX}.*.tmp"):
            if left.stat().st_mtime < before:
                left.unlink(missing_ok=True)
                logger.debug("removed %s, left by a builder that was killed", left)
