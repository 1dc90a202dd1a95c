"""Remote shards, read through a cache folder on a local disk.

    KEY.part, KEY.map   a shard that is arriving (``storage.part``)
    KEY.shard           a whole shard, which is never written to again
    KEY.json            note of its address and version: the cache has made the shard

Example: a reader asks for bytes 10 to 30 of a shard. The chunk that holds them is fetched once,
kept, and read from the disk by every later reader.

Theory of operation. A reader asks for stretches of shards. Chunks that the disk lacks are fetched
by requests of at most ``REQUEST_BYTES``, before all that is only fetched ahead. A chunk that
another thread or process is fetching is waited for. So a shard arrives once, in any order, by any
number of jobs. Where the disk has no room above its floor, bytes are fetched and not kept.

Room. The bytes of ``disk_floor`` stay free, whichever program fills the disk. Where the next shard
would cross the floor, shards are deleted. The first are shards that no plan names in its horizon,
those read longest ago before others; the next are shards that the plan needs last. A part that no
process has open goes like a whole shard: its object may have changed. A shard that the plan needs
sooner stays: then there is no room. Jobs that share the folder lease the shards that they will need
soon. A lease is a lock on a byte of a file, and ends with its process.

A link is full only while it carries many answers at a time. A sample that is wanted now asks for
single chunks, prefetching for long stretches. So requests under way are bounded by their bytes, and
small requests may be many.

Invariants:
    1. Bytes are of the version that the index speaks of; another version is an error.
    2. Bytes are fetched once for all processes of the machine, except those of requests that a kill
       cut off, and those for which there was no room.
    3. Only a file that the cache has made is deleted: its name is one of the cache's, and the
       note beside it, or its map, names its inode and size.
    4. A leased shard of another job stays.

Not here: the requests themselves (``storage.store``), the order in which shards are fetched ahead
(``pipeline.read.shards``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import heapq
import itertools
import json
import logging
import math
import os
import platform
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from autoloader.errors import UsageError
from autoloader.host import files, storage
from autoloader.host.threads import LoaderThread, free_in_forks
from autoloader.host.units import expanded, format_bytes
from autoloader.storage.clients.client import RemoteIdentity
from autoloader.storage.faults import changed
from autoloader.storage.part import (
    CHUNK_BYTES,
    DamagedError,
    ShardPart,
    discard_unused,
    is_locked,
    runs,
    try_lock,
)
from autoloader.storage.places import DISK_FLOOR_BYTES, cache_root, disk_floor_of_environment
from autoloader.storage.store import store, while_wanted

FOLDER_VARIABLE = "AUTOLOADER_SHARDS_DIR"
"""Environment variable: the folder of the cache, on a local disk."""
REQUEST_BYTES = 2 * 2**20
"""Bytes of one request, at most."""
IN_FLIGHT_BYTES = 12 * REQUEST_BYTES
"""Bytes of all requests under way in a process: keeps 1 Gb/s busy over 150 ms."""
IN_FLIGHT = 48
"""Requests under way in a process: of 256 KiB, enough to keep 1 Gb/s busy over 100 ms."""
_LOOK_S = 0.02
"""Seconds between two looks whether another process has brought a chunk."""
_STOPPED_S = 60.0
"""Seconds after which chunks that another process fetches are fetched here too: a scheduler, or
Ctrl-Z, may have stopped that process."""
_TRIES = 2
"""Times that a shard is fetched whose checksum is wrong."""

logger = logging.getLogger(__name__)

Wanted = Callable[[], bool]
"""Tells whether anybody still waits."""
Stretch = tuple[int, memoryview]
"""First byte of a stretch of a file, and the memory that it fills."""

_requests: dict[int, Requests] = {}
_caches: dict[tuple[int, Path], ShardCache] = {}
_floors: dict[object, int] = {}
"""Bytes that each loader of this process keeps free."""
_lock = free_in_forks(threading.Lock())
_OURS = re.compile(r"([0-9a-f]{40})\.(shard|part)")
_LEASES = "leases"


class Requests:
    """Threads that do jobs, the most urgent first.

    ``IN_FLIGHT`` are under way at a time, of ``IN_FLIGHT_BYTES`` in all; one may be larger.
    """

    def __init__(self) -> None:
        self._under_way_bytes = 0
        self._waiting: list[tuple[float, int, int, Future[None], Callable[[], None]]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._threads = self._idle = 0

    def submit(self, job: Callable[[], None], urgency: float, nbytes: int) -> Future[None]:
        """Have a job done; the smaller ``urgency``, the sooner.

        Args:
            job: asks a store for bytes.
            urgency: rank among all jobs that wait.
            nbytes: number of bytes that the job asks for.
        """
        future: Future[None] = Future()
        with self._changed:
            heapq.heappush(self._waiting, (urgency, next(self._number), nbytes, future, job))
            if len(self._waiting) > self._idle and self._threads < IN_FLIGHT:
                self._threads += 1
                LoaderThread(target=self._work, name="autoloader-remote").start()
            self._changed.notify()
        return future

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(self._may_begin)
                self._idle -= 1
                _, _, nbytes, future, job = heapq.heappop(self._waiting)
                self._under_way_bytes += nbytes
            if future.set_running_or_notify_cancel():
                try:
                    job()
                except Exception as error:  # noqa: BLE001 the waiting thread raises it
                    future.set_exception(error)
                else:
                    future.set_result(None)
            del future, job  # an idle thread holds no memory of its last job
            with self._changed:
                self._under_way_bytes -= nbytes
                self._changed.notify()

    def _may_begin(self) -> bool:
        """True if the most urgent job fits beside those under way."""
        if not self._waiting:
            return False
        together = self._under_way_bytes + self._waiting[0][2]
        return not self._under_way_bytes or together <= IN_FLIGHT_BYTES


def _finish(requests: list[Future[None]]) -> None:
    """Wait until all requests have ended, and forget them; an error cancels the rest.

    Raises:
        Exception: first error of a request.
    """
    error = _first_error(requests)
    requests.clear()
    try:
        if error is not None:
            raise error
    finally:
        del error  # whose traceback holds this frame, and so the memory of the requests


def _first_error(requests: Sequence[Future[None]]) -> BaseException | None:
    """First error of the requests, once none is under way; ``None``: all went well."""
    _, left = wait(requests, return_when=FIRST_EXCEPTION)
    under_way = [one for one in left if not one.cancel()]
    wait(under_way)  # they still fill the caller's memory
    errors = (one.exception() for one in requests if not one.cancelled())
    return next((error for error in errors if error is not None), None)


def _submit(job: Callable[[], None], urgency: float, nbytes: int) -> Future[None]:
    """``Requests.submit`` of this process."""
    with _lock:
        requests = _requests.setdefault(os.getpid(), Requests())
    return requests.submit(job, urgency, nbytes)


class Room:
    """Space of one cache folder: makes room, deletes shards, leases shards; thread-safe.

    Args:
        folder: folder of the cache.
        floor_bytes: bytes that must stay free.

    Attributes:
        folder, floor_bytes: as given; the floor may be changed.
    """

    def __init__(self, folder: Path, floor_bytes: int) -> None:
        self.folder = folder
        self.floor_bytes = floor_bytes
        self._lock = threading.Lock()
        self._plans: dict[object, Mapping[str, float]] = {}
        self._held: set[str] = set()
        self._told_full = False
        self._leases = files.open_or_begin(folder / _LEASES)

    def free_bytes(self) -> int:
        """Bytes that may still be written above the floor."""
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
                gone = not is_locked(self._leases, _byte_of(key)) and self._delete(key, kind)
                if gone and self.free_bytes() >= nbytes:
                    return True
            return False

    def say_full(self) -> None:
        """Warn once that the floor is reached, and no shard may go."""
        if not self._told_full:
            self._told_full = True
            logger.warning(
                "%s: the disk floor of %s is reached, and all shards there are needed: others are "
                "fetched each time that they are read",
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
            with contextlib.suppress(OSError):  # leased at the next look, if it can be
                for key in self._held - keys:
                    try_lock(self._leases, fcntl.F_UNLCK, _byte_of(key))
                for key in keys:
                    try_lock(self._leases, fcntl.F_RDLCK, _byte_of(key))
            self._held = keys

    def note_shard(self, key: str, path: str, identity: RemoteIdentity) -> None:
        """Write the note by which ``make`` knows a whole shard as the cache's own.

        Nothing is written where the shard is gone already.

        Args:
            key: key of the shard (``RemoteIdentity.key``).
            path: address of the shard.
            identity: version of the shard.

        Raises:
            OSError: the note cannot be written.
        """
        try:
            found = (self.folder / f"{key}.shard").stat()
        except FileNotFoundError:
            return
        note = {"inode": found.st_ino, "path": path, **asdict(identity)}
        files.write_whole(self.folder / f"{key}.json", json.dumps(note))

    def close(self) -> None:
        """Let go of all leases; the last use of it."""
        os.close(self._leases)

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


def _byte_of(key: str) -> int:
    """The byte of the file of leases that stands for a shard."""
    return int(key[:12], 16)


class RemoteShard:
    """One version of a remote shard, and its chunks on the disk; any thread.

    Args:
        room: disk of the cache.
        path: address of the shard.
        identity: version of the shard.
    """

    def __init__(self, room: Room, path: str, identity: RemoteIdentity) -> None:
        self.path, self.identity = path, identity
        self.key = identity.key(path)
        self.whole_path = room.folder / f"{self.key}.shard"
        self._room = room
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._part: ShardPart | None = None

    def begin(self, stretches: Sequence[Stretch], wanted: Wanted) -> Callable[[], None]:
        """Ask for the chunks of stretches that the disk lacks.

        Returns:
            Function that waits for them and fills the stretches. It raises as ``fetch_whole``.

        Raises:
            OSError: the disk cannot be written, or a foreign file lies in the shard's place.
        """
        part = self._open()
        if part is None:
            return partial(self._fill_from_whole, stretches)
        chunks = sorted({c for at, view in stretches for c in part.lacks(at, at + len(view))})
        room = not chunks or self._room.make(len(chunks) * CHUNK_BYTES, self._needed)
        if room:
            requests = self._ask_for(part, chunks, -math.inf, wanted)
        else:
            self._room.say_full()
            requests = [
                _submit(partial(self._bypass, part, at, view, wanted), -math.inf, len(view))
                for at, view in stretches
            ]

        def end() -> None:
            _finish(requests)
            for at, view in stretches if room else ():
                part.read_into(view, at)

        return end

    def fetch_whole(self, urgency: float = 0.0, wanted: Wanted = lambda: True) -> Path:
        """The path of the whole shard, once all of it is here.

        Args:
            urgency: rank among all that this process fetches ahead; the smaller, the sooner.
            wanted: tells whether it is still to be fetched.

        Raises:
            ChangedError: the store has another version now, or other bytes than it tells.
            UnreachableError: the store does not answer, or nobody wants it any more.
            OSError: the shard may not be read, or is not there; ENOSPC: no room above the floor.
        """
        tries = _TRIES
        while tries and (part := self._open()) is not None:
            try:
                if not self._room.make(part.missing_bytes, self._needed):
                    self._room.say_full()
                    raise OSError(errno.ENOSPC, "no room above the disk floor", self.path)
                _finish(self._ask_for(part, part.lacks(0, part.size), urgency, wanted))
                self._publish(part)
            except DamagedError as error:
                tries -= 1
                logger.warning("%s: %s; it is fetched again", self.path, error.strerror)
        if tries or self.whole_path.exists():
            return self.whole_path
        raise changed(self.path)

    def fetch_ahead(self, urgency: float, wanted: Wanted) -> None:
        """Fetch all of it, where no other process of the machine does so already.

        Raises:
            OSError: an error of ``fetch_whole``.
        """
        part = self._open()
        if part is not None and part.lead():
            try:
                self.fetch_whole(urgency, wanted)
            finally:
                part.follow()

    @property
    def missing_bytes(self) -> int:
        """Bytes of the shard that the disk lacks."""
        if self._part is None:
            if self.whole_path.exists():
                return 0
            if not self.whole_path.with_suffix(".map").exists():
                return self.identity.size
        part = self._open()
        return 0 if part is None else part.missing_bytes

    @property
    def _needed(self) -> float:
        return self._room.needed(self.key, -math.inf)

    def _open(self) -> ShardPart | None:
        """The part, open while anything refers to it; ``None`` where the shard is whole."""
        with self._lock:
            if self._part is not None and self._part.spent:
                self._part = None
            if self._part is None and not self._is_whole():
                part = ShardPart(self._room.folder, self.key, self.identity.size)
                if self._is_whole():  # published between the two looks
                    part.discard()
                else:
                    self._part = part
            return self._part

    def _is_whole(self) -> bool:
        try:
            found = self.whole_path.lstat()
        except FileNotFoundError:
            return False
        why = "" if stat.S_ISREG(found.st_mode) else "it is no regular file"
        if found.st_size != self.identity.size:  # one of ours is whole
            why = why or f"it holds {found.st_size} bytes, and the shard {self.identity.size}"
        if why := why or files.written_by_others(self.whole_path, found):
            files.set_aside(self.whole_path, why)
        return not why

    def _ask_for(
        self, part: ShardPart, chunks: Iterable[int], urgency: float, wanted: Wanted
    ) -> list[Future[None]]:
        """Requests for chunks that the disk lacks."""
        return [
            _submit(
                partial(self._bring, part, first, stop, wanted),
                urgency,
                (stop - first) * CHUNK_BYTES,
            )
            for first, stop in runs(chunks, REQUEST_BYTES // CHUNK_BYTES)
        ]

    def _bring(self, part: ShardPart, first: int, stop: int, wanted: Wanted) -> None:
        """Bring chunks [first, stop), or wait until others have; a job of ``Requests``."""
        left, stopped_s = list(range(first, stop)), time.monotonic() + _STOPPED_S
        while left:
            if not wanted():
                raise OSError(errno.ECANCELED, "nobody waits for it", self.path)
            claimed = part.claim(left, shared=time.monotonic() > stopped_s)
            try:
                for begin, end in runs(claimed, stop - first):
                    start, behind = part.span(begin, end)
                    view = np.empty(behind - start, np.uint8).data
                    with while_wanted(wanted):
                        store.read_into(self.path, start, view, self.identity)
                    part.fill(begin, view)
            finally:
                part.let_go(claimed)
            left = [chunk for chunk in left if not part.has(chunk)]
            if left and not claimed:
                with part.moved:
                    part.moved.wait(_LOOK_S)
        if part.whole:
            self._publish(part)

    def _bypass(self, part: ShardPart, at: int, view: memoryview, wanted: Wanted) -> None:
        """Fill a stretch without the disk, where that lacks it; a job of ``Requests``."""
        if part.lacks(at, at + len(view)):
            with while_wanted(wanted):
                store.read_into(self.path, at, view, self.identity)
        else:
            part.read_into(view, at)

    def _publish(self, part: ShardPart) -> None:
        """Give the part its name where it is whole, once."""
        with self._publishing:
            if not part.whole or part.spent:
                return
            if not self.identity.tag and store.now(self.path) != self.identity:
                raise changed(self.path)  # nothing pinned the version of what came
            part.publish(self.identity.crc32c)
            self._room.note_shard(self.key, self.path, self.identity)
            with self._lock:
                if self._part is part:
                    self._part = None

    def _fill_from_whole(self, stretches: Sequence[Stretch]) -> None:
        try:
            descriptor = os.open(self.whole_path, files.READ_OWN)
        except FileNotFoundError:  # it made room for another one just now
            self.begin(stretches, lambda: True)()
            return
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            for at, view in stretches:
                files.read_whole(descriptor, view, at)
        finally:
            os.close(descriptor)


class ShardCache:
    """All remote shards that this process reads through one folder; any thread.

    Args:
        folder: folder of the cache, made where it is missing.
        floor_bytes: bytes that must stay free on its disk.

    Raises:
        OSError: the folder cannot be made, or another user may write to it.
    """

    def __init__(self, folder: Path, floor_bytes: int = DISK_FLOOR_BYTES) -> None:
        folder = files.own_folder(Path(os.path.realpath(folder)))
        self.room = Room(folder, floor_bytes)
        self._shards: dict[str, RemoteShard] = {}
        self._lock = threading.Lock()

    def shard(self, path: str) -> RemoteShard:
        """A shard, in the version that was current at the start; raises as ``current``."""
        with self._lock:
            found = self._shards.get(path)
        return self.current(path) if found is None else found

    def current(self, path: str) -> RemoteShard:
        """A shard, in the version that the store lists now.

        Raises:
            OSError: an error of ``storage.faults``.
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
        """Fill stretches of several shards; chunks that the disk lacks are fetched together.

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
        try:
            if failed is not None:
                raise failed
        finally:
            del failed  # whose traceback holds this frame, and so the stretches

    def _told(self, error: OSError, path: str) -> OSError:
        """An error of the store as it is; one of the local disk says so."""
        if error.filename == path:
            return error
        words = f"the cache in {self.room.folder}: {error.strerror or error}"
        told = OSError(errno.EIO, words, path)
        told.__cause__ = error
        return told


def shards_folder() -> Path:
    """Folder of the shards: in the cache directory, or the one that the environment names.

    Locks are not shared between machines. So on a network file system each machine has a folder of
    its own in it.

    Raises:
        OSError: the folder cannot be made.
    """
    own = os.environ.get(FOLDER_VARIABLE)
    folder = expanded(own) if own else cache_root() / "shards"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    far = any(storage.is_far(kind) for kind in storage.by_file_system([str(folder)]))
    return folder / platform.node() if far else folder


@contextlib.contextmanager
def kept_free(floor_bytes: int | None) -> Iterator[None]:
    """Keep bytes free on the cache's disk while the context lasts.

    Of several contexts of one process the largest floor counts.

    Args:
        floor_bytes: bytes that stay free; ``None``: the floor that the environment names.

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
    """The cache of this process, in ``shards_folder``.

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
                    f"{key[1]}, the cache of remote files, is not used: {error.strerror}",
                    remedy=f"chmod go-w {key[1]}, or set the environment variable "
                    f"{FOLDER_VARIABLE} to another folder",
                ) from error
        _set_floors()
        return _caches[key]


def _set_floors() -> None:
    """Tell every cache of this process its floor; under the lock."""
    floor_bytes = max(_floors.values()) if _floors else disk_floor_of_environment()
    for cache in _caches.values():
        cache.room.floor_bytes = floor_bytes
