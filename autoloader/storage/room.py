"""Room on the disk of the cache: what must stay free, and which shards make room for others.

Theory of operation. As much of the disk as ``disk_floor`` says stays free, whoever fills it. Where
the next shard would cross the floor, whole shards are deleted: those that the plan needs last go
first, those that it does not name in its horizon before them, the ones read longest ago first of
all. What has arrived in part goes like a whole one where no process has it open: it may be of an
object that has changed. A shard that the plan needs sooner stays: then there is no room. Jobs that
share the folder hold a lease on the shards that they will need soon (a lock on a byte of a file
of their own, which ends with the process); what another job leases stays too.

Invariants:
    1. Only a file that the cache has made is deleted: its name is one of the cache's, and the
       record beside it, or its map, names its inode and size.
    2. A leased shard of another job stays.

Not here: what is fetched (``storage.shards``), when the plan needs it
(``pipeline.read.shards``).
"""

from __future__ import annotations

import contextlib
import errno
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
from autoloader.storage.part import discard_unused, set_lock

logger = logging.getLogger(__name__)

_OURS = re.compile(r"([0-9a-f]{40})\.(shard|part)")
_LEASES = "leases"


class Room:
    """The disk of one cache folder; any thread.

    Args:
        folder: of the cache.
        floor_bytes: what must stay free.

    Attributes:
        floor_bytes: as above.
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
        """What may still be written."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize - self.floor_bytes

    def make(self, nbytes: int, needed: float = math.inf) -> bool:
        """Whether there is room for so many bytes, once others have made it.

        Args:
            nbytes: that will be written.
            needed: the position at which they are needed; what is needed sooner stays.
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
        """The floor is reached, and nothing may go; said once."""
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
        """One of the plans of this process needs these shards soon, and no others: all are leased.

        Args:
            owner: whose plan.
            future: key of a shard → the position at which it is needed next; empty: the plan ends.
        """
        with self._lock:
            self._plans.pop(owner, None)
            if future:
                self._plans[owner] = future
            keys = set().union(*self._plans.values())
            for key in self._held - keys:
                set_lock(self._leases, fcntl.F_UNLCK, _byte_of(key))
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
        try:
            set_lock(self._leases, fcntl.F_RDLCK, _byte_of(key))
        except OSError:  # somebody looks at it at this moment; it is asked for again soon
            return False
        return True

    def _leased_by_others(self, key: str) -> bool:
        if key in self._held:  # ours would be in the way
            set_lock(self._leases, fcntl.F_UNLCK, _byte_of(key))
        try:
            set_lock(self._others, fcntl.F_WRLCK, _byte_of(key))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return True
            raise
        finally:
            set_lock(self._others, fcntl.F_UNLCK, _byte_of(key))
            if key in self._held:
                self._try_lease(key)
        return False


def _byte_of(key: str) -> int:
    """The byte of the file of leases that stands for a shard."""
    return int(key[:12], 16)
