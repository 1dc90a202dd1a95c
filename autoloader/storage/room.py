"""Room on the disk of the cache: what must stay free, and which shards make room for others.

Theory of operation. The bytes of ``disk_floor`` stay free, whichever program fills the disk. Where
the next shard would cross the floor, shards are deleted. The first are shards that no plan names in
its horizon, those read longest ago before others; the next are shards that the plan needs last. A
part that no process has open goes like a whole shard: its object may have changed. A shard that the
plan needs sooner stays: then there is no room. Jobs that share the folder lease the shards that
they will need soon. A lease is a lock on a byte of a file, and ends with its process. A shard that
another job leases stays too.

Invariants:
    1. Only a file that the cache has made is deleted: its name is one of the cache's, and the
       record beside it, or its map, names its inode and size.
    2. A leased shard of another job stays.

Not here: what is fetched (``storage.shards``), when the plan needs it
(``pipeline.read.shards``).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path

from autoloader.host.files import open_or_begin, write_whole
from autoloader.host.units import format_bytes
from autoloader.storage.clients.client import RemoteIdentity
from autoloader.storage.part import discard_unused, try_lock

logger = logging.getLogger(__name__)

_OURS = re.compile(r"([0-9a-f]{40})\.(shard|part)")
_LEASES = "leases"


class Room:
    """The disk of one cache folder; any thread.

    Args:
        folder: folder of the cache.
        floor_bytes: bytes that must stay free.

    Attributes:
        folder, floor_bytes: the same; the floor may be changed.
    """

    def __init__(self, folder: Path, floor_bytes: int) -> None:
        self.folder = folder
        self.floor_bytes = floor_bytes
        self._lock = threading.Lock()
        self._plans: dict[object, Mapping[str, float]] = {}
        self._held: set[str] = set()
        self._told_full = False
        self._leases = open_or_begin(folder / _LEASES)
        self._others = open_or_begin(folder / _LEASES)

    def free_bytes(self) -> int:
        """Bytes that may still be written."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize - self.floor_bytes

    def make(self, nbytes: int, needed: float = math.inf) -> bool:
        """Delete shards until there is room; false if there is none.

        Args:
            nbytes: number of bytes that will be written.
            needed: position at which they are needed; shards that are needed sooner stay.
        """
        with self._lock:
            if self.free_bytes() >= nbytes:
                return True
            for key, kind in self._by_use():
                if self.needed(key) < needed:
                    break
                gone = not self._leased_by_others(key) and self._delete(key, kind)
                if gone and self.free_bytes() >= nbytes:
                    return True
            return False

    def say_full(self) -> None:
        """Warn once that the floor is reached, and no shard may go."""
        if not self._told_full:
            self._told_full = True
            logger.warning(
                "%s: the disk floor of %s is reached, and no shard there may go: what else is "
                "needed is fetched each time that it is read",
                self.folder,
                format_bytes(self.floor_bytes),
            )

    def needed(self, key: str, unknown: float = math.inf) -> float:
        """The position at which a plan needs a shard next; ``unknown`` where none names it."""
        told = [plan[key] for plan in list(self._plans.values()) if key in plan]
        return min(told, default=unknown)

    def plan(self, owner: object, future: Mapping[str, float]) -> None:
        """Lease the shards that a plan of this process needs soon, and no others.

        Args:
            owner: object that the plan belongs to.
            future: key of a shard → the position at which it is needed next; empty: the plan ends.
        """
        with self._lock:
            self._plans.pop(owner, None)
            if future:
                self._plans[owner] = future
            keys = set().union(*self._plans.values())
            for key in self._held - keys:
                try_lock(self._leases, fcntl.F_UNLCK, _byte_of(key))
            self._held = {key for key in keys if self._try_lease(key)}

    def record(self, key: str, path: str, identity: RemoteIdentity) -> None:
        """Note that the cache has made a shard; one that is gone already needs no note.

        Raises:
            OSError: it cannot be written.
        """
        try:
            stat = (self.folder / f"{key}.shard").stat()
        except FileNotFoundError:
            return
        document = {"inode": stat.st_ino, "path": path, **identity.plain()}
        note = self.folder / f"{key}.json"
        write_whole(note, json.dumps(document))

    def close(self) -> None:
        """Let go of all leases; the last use of it."""
        os.close(self._leases)
        os.close(self._others)

    def _by_use(self) -> list[tuple[str, str]]:
        """Keys and kinds of shards, whole or arriving, those that are needed last first."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                match = _OURS.fullmatch(entry.name)
                if match is not None:
                    with contextlib.suppress(OSError):
                        stat = entry.stat(follow_symlinks=False)
                        used = max(stat.st_atime, stat.st_mtime if match[2] == "part" else 0.0)
                        found.append((-self.needed(match[1]), used, match.groups()))
        return [(str(key), str(kind)) for _, _, (key, kind) in sorted(found)]

    def _delete(self, key: str, kind: str) -> bool:
        """Delete a shard of ours, or a part that nobody has open; whether it was one."""
        if kind == "part":
            return discard_unused(self.folder, key)
        shard, note = self.folder / f"{key}.shard", self.folder / f"{key}.json"
        try:
            told = json.loads(note.read_text(encoding="utf-8"))
            stat = shard.lstat()
            if (told["inode"], told["size"]) != (stat.st_ino, stat.st_size):
                return False
            shard.unlink()
            note.unlink(missing_ok=True)
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return True

    def _try_lease(self, key: str) -> bool:
        """Lease a shard; false while another job looks at it: it is asked for again soon."""
        with contextlib.suppress(OSError):
            return try_lock(self._leases, fcntl.F_RDLCK, _byte_of(key))
        return False

    def _leased_by_others(self, key: str) -> bool:
        if key in self._held:  # ours would be in the way
            try_lock(self._leases, fcntl.F_UNLCK, _byte_of(key))
        try:
            return not try_lock(self._others, fcntl.F_WRLCK, _byte_of(key))
        finally:
            try_lock(self._others, fcntl.F_UNLCK, _byte_of(key))
            if key in self._held:
                self._try_lease(key)


def _byte_of(key: str) -> int:
    """The byte of the file of leases that stands for a shard."""
    return int(key[:12], 16)
