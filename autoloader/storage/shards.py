"""All remote shards that this process reads, over one cache folder.

Not here: one shard (``storage.shard``), the order in which they are fetched ahead
(``pipeline.read.shards``).
"""

from __future__ import annotations

import errno
import os
import platform
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from autoloader.errors import UsageError
from autoloader.host.files import own_folder
from autoloader.host.probes import storage
from autoloader.host.units import expanded
from autoloader.storage.places import (
    DISK_FLOOR_BYTES,
    cache_root,
    disk_floor_of_environment,
)
from autoloader.storage.room import Room
from autoloader.storage.shard import RemoteShard, Stretch, Wanted
from autoloader.storage.store import store

FOLDER_VARIABLE = "AUTOLOADER_SHARDS_DIR"
"""Environment variable: the folder of the cache, on a local disk."""


class ShardCache:
    """The cache of a folder; any thread.

    Args:
        folder: made where it is missing.
        floor_bytes: what must stay free on its disk.

    Raises:
        OSError: it cannot be made, or another user may write to it.
    """

    def __init__(self, folder: Path, floor_bytes: int = DISK_FLOOR_BYTES) -> None:
        folder = own_folder(Path(os.path.realpath(folder)))
        self.room = Room(folder, floor_bytes)
        self._shards: dict[str, RemoteShard] = {}
        self._lock = threading.Lock()

    def shard(self, path: str) -> RemoteShard:
        """A shard, in the version that was the current one at the start.

        Raises:
            OSError: as ``storage.faults``.
        """
        with self._lock:
            found = self._shards.get(path)
        return self.current(path) if found is None else found

    def current(self, path: str) -> RemoteShard:
        """A shard, in the version that the store lists now: for whoever starts.

        Raises:
            OSError: as ``storage.faults``.
        """
        identity = store.identity(path)
        with self._lock:
            found = self._shards.get(path)
            if found is None or found.identity != identity:
                found = self._shards[path] = RemoteShard(self.room, path, identity)
        return found

    def read(
        self, stretches: Mapping[str, Sequence[Stretch]], wanted: Wanted = lambda: True
    ) -> None:
        """Fill stretches of several shards; what is not here of all of them is fetched together.

        Raises:
            OSError: its ``filename`` is the shard's path.
        """
        ends = []
        failed: OSError | None = None
        for path, some in stretches.items():
            try:
                ends.append((path, self.shard(path).begin(some, wanted)))
            except OSError as error:
                failed = failed or self._told(error, path)
        for path, end in ends:
            try:
                end()
            except OSError as error:
                failed = failed or self._told(error, path)
        if failed is not None:
            raise failed

    def _told(self, error: OSError, path: str) -> OSError:
        """An error of the store as it is; one of the local disk says so."""
        if error.filename == path:
            return error
        words = f"the cache in {self.room.folder}: {error.strerror or error}"
        told = OSError(errno.EIO, words, path)
        told.__cause__ = error
        return told


_caches: dict[tuple[int, Path], ShardCache] = {}
_floors: dict[object, int] = {}
"""What each loader of this process keeps free."""
_lock = threading.Lock()


def shards_folder() -> Path:
    """Where shards are kept: in the cache directory, or where the environment says.

    Locks and maps are a machine's own. So on a network file system each machine has a folder of its
    own in it.

    Raises:
        OSError: it cannot be made.
    """
    own = os.environ.get(FOLDER_VARIABLE)
    folder = expanded(own) if own else cache_root() / "shards"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    far = any(storage.is_far(kind) for kind in storage.by_file_system([str(folder)]))
    return folder / platform.node() if far else folder


@contextmanager
def kept_free(floor_bytes: int | None) -> Iterator[None]:
    """As long as this lasts so much stays free on the cache's disk.

    Of several that last in one process the largest counts.

    Args:
        floor_bytes: ``None``: what the environment says.

    Raises:
        UsageError: the environment says no size.
    """
    asked = object()
    with _lock:
        _floors[asked] = disk_floor_of_environment() if floor_bytes is None else floor_bytes
        _set_floors()
    try:
        yield
    finally:
        with _lock:
            del _floors[asked]
            _set_floors()


def shard_cache() -> ShardCache:
    """This process's, in ``shards_folder``.

    Raises:
        OSError: its folder cannot be made.
        UsageError: another user may write to it; as ``disk_floor_of_environment``.
    """
    key = (os.getpid(), shards_folder())
    with _lock:
        if key not in _caches:
            try:
                _caches[key] = ShardCache(key[1])
            except PermissionError as error:
                raise UsageError(
                    f"{key[1]}, the folder of the cache of shards, is not used: {error.strerror}",
                    remedy="give it to this user alone (chmod go-w), or name another folder: "
                    f"{FOLDER_VARIABLE}",
                ) from error
        _set_floors()
        return _caches[key]


def _set_floors() -> None:
    """Tell every cache of this process what stays free; under the lock."""
    floor_bytes = max(_floors.values()) if _floors else disk_floor_of_environment()
    for cache in _caches.values():
        cache.room.floor_bytes = floor_bytes
