"""One remote shard, read through the cache folder on a local disk.

    KEY.part, KEY.map   it is arriving (``storage.part``)
    KEY.shard           it is whole, and never written to again
    KEY.json            whose it is: that the cache has made it

Theory of operation. Whoever reads a shard asks for stretches of it. What the disk has is read from
there. What it lacks is fetched, in chunks, by requests of at most ``REQUEST_BYTES``, several at a
time, before all that is only fetched ahead; a chunk that another thread or process is fetching is
waited for. So a shard arrives once, in whatever order it is asked for, by however many jobs. Where
the disk has no room above its floor, what is asked for is fetched and not kept.

Invariants:
    1. What is read is of the version that the index speaks of; another one is an error.
    2. Bytes are fetched once for all processes of the machine, but those of requests that a kill
       cut off, and those for which there was no room.

Not here: all shards of a process (``storage.shards``), requests (``storage.store``).
"""

from __future__ import annotations

import errno
import logging
import math
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from autoloader.host.files import READ_OWN, read_whole, set_aside, written_by_others
from autoloader.storage.faults import changed
from autoloader.storage.identity import RemoteIdentity
from autoloader.storage.part import CHUNK_BYTES, DamagedError, ShardPart, runs
from autoloader.storage.requests import REQUEST_BYTES, requests
from autoloader.storage.room import Room
from autoloader.storage.store import store

_LOOK_S = 0.02
"""How often is looked whether another process has brought a chunk."""
_TRIES = 2
"""So often is a shard fetched whose checksum is wrong."""

logger = logging.getLogger(__name__)

Wanted = Callable[[], bool]
"""Whether anybody still waits."""
Stretch = tuple[int, memoryview]
"""Where a stretch of a file begins, and the memory that it fills."""


class RemoteShard:
    """One version of a remote shard, and what the disk has of it; any thread.

    Args:
        room: where it lies.
        path: path of the local file.
        identity: the version.
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
        """Ask for what is not here of some stretches.

        Returns:
            What fills them, once all is here; it raises as ``fetch_whole``, and is to be called.

        Raises:
            OSError: the disk cannot be written, or a foreign file lies in the shard's place.
        """
        part = self._enter()
        if part is None:
            return partial(self._fill_from_whole, stretches)
        chunks = sorted({c for at, view in stretches for c in part.lacks(at, at + len(view))})
        room = not chunks or self._room.make(len(chunks) * CHUNK_BYTES, self._needed)
        asked = _Asked(len(chunks) if room else len(stretches))
        if room:
            self._ask_for(part, chunks, asked, -math.inf, wanted)
        else:
            self._room.say_full()
            for at, view in stretches:
                job = partial(self._bypass, part, at, view, asked, wanted)
                requests().submit(job, -math.inf, len(view))

        def end() -> None:
            try:
                asked.wait()
                if room:
                    for at, view in stretches:
                        part.read_into(view, at)
            finally:
                self._leave(part)

        return end

    def fetch_whole(self, urgency: float = 0.0, wanted: Wanted = lambda: True) -> Path:
        """The path of the whole shard, once all of it is here.

        Args:
            urgency: the smaller, the sooner, among all that this process fetches ahead.
            wanted: whether it is still to be fetched.

        Raises:
            ChangedError: it is another version now, or what comes is not what the store tells.
            UnreachableError: the store does not answer, or nobody wants it any more.
            OSError: it may not be read, or is not there; ENOSPC: no room above the floor.
        """
        tries = _TRIES
        while tries and (part := self._enter()) is not None:
            try:
                if not self._room.make(part.missing_bytes, self._needed):
                    self._room.say_full()
                    raise OSError(errno.ENOSPC, "no room above the disk floor", self.path)
                chunks = part.lacks(0, part.size)
                asked = _Asked(len(chunks))
                self._ask_for(part, chunks, asked, urgency, wanted)
                asked.wait()
                self._publish(part)
            except DamagedError as error:
                tries -= 1
                logger.warning("%s: %s; it is fetched again", self.path, error.strerror)
            finally:
                self._leave(part)
        if tries or self.whole_path.exists():
            return self.whole_path
        raise changed(self.path)

    def fetch_ahead(self, urgency: float, wanted: Wanted) -> None:
        """Fetch all of it, where no other process of the machine does so already.

        Raises:
            OSError: as ``fetch_whole``.
        """
        part = self._enter()
        if part is None:
            return
        try:
            if part.lead():
                try:
                    self.fetch_whole(urgency, wanted)
                finally:
                    part.follow()
        finally:
            self._leave(part)

    @property
    def missing_bytes(self) -> int:
        """What the disk lacks of it."""
        if self._part is None:
            if self.whole_path.exists():
                return 0
            if not self.whole_path.with_suffix(".map").exists():
                return self.identity.size
        part = self._enter()
        if part is None:
            return 0
        try:
            return part.missing_bytes
        finally:
            self._leave(part)

    @property
    def _needed(self) -> float:
        return self._room.needed(self.key, -math.inf)

    def _enter(self) -> ShardPart | None:
        """The part, which stays open until ``_leave``; ``None`` where the shard is whole."""
        with self._lock:
            if self._part is not None and self._part.spent:
                self._let_go(self._part)
            if self._part is None:
                if self._is_whole():
                    return None
                part = ShardPart(self._room.folder, self.key, self.identity.size)
                if self._is_whole():  # published between the two looks
                    part.discard()
                    part.close()
                    return None
                self._part = part
            self._part.users += 1
            return self._part

    def _leave(self, part: ShardPart) -> None:
        """A use of the part is over; one that was published is closed with its last use."""
        with self._lock:
            part.users -= 1
            if part is not self._part or part.spent:
                self._let_go(part)

    def _let_go(self, part: ShardPart) -> None:
        """Nobody enters a part that was published any more; under the lock."""
        if self._part is part:
            self._part = None
        if not part.users:
            part.close()

    def _is_whole(self) -> bool:
        try:
            found = self.whole_path.lstat()
        except FileNotFoundError:
            return False
        why = "" if stat.S_ISREG(found.st_mode) else "it is no regular file"
        if found.st_size != self.identity.size:  # one of ours is whole
            why = why or f"it holds {found.st_size} bytes, and the shard {self.identity.size}"
        if why := why or written_by_others(self.whole_path, found):
            set_aside(self.whole_path, why)
        return not why

    def _ask_for(
        self, part: ShardPart, chunks: Iterable[int], asked: _Asked, urgency: float, wanted: Wanted
    ) -> None:
        for first, stop in runs(chunks, REQUEST_BYTES // CHUNK_BYTES):
            job = partial(self._bring, part, first, stop, asked, wanted)
            requests().submit(job, urgency, (stop - first) * CHUNK_BYTES)

    def _bring(self, part: ShardPart, first: int, stop: int, asked: _Asked, wanted: Wanted) -> None:
        """Bring chunks [first, stop), or see that others do; a job of ``requests``."""
        left = list(range(first, stop))
        with asked.counting(stop - first):
            while left and not asked.errors:
                if not wanted():
                    raise OSError(errno.ECANCELED, "nobody waits for it", self.path)
                claimed = part.claim(left)
                try:
                    for begin, end in runs(claimed, stop - first):
                        start, behind = part.span(begin, end)
                        view = np.empty(behind - start, np.uint8).data
                        store.read_into(self.path, start, view, self.identity, wanted)
                        part.fill(begin, view)
                finally:
                    part.let_go(claimed)
                left = [chunk for chunk in left if not part.has(chunk)]
                if left and not claimed:
                    with part.moved:
                        part.moved.wait(_LOOK_S)
            if part.whole:
                self._publish(part)

    def _bypass(
        self, part: ShardPart, at: int, view: memoryview, asked: _Asked, wanted: Wanted
    ) -> None:
        """Fill a stretch without the disk, where that lacks it; a job of ``requests``."""
        with asked.counting(1):
            if part.lacks(at, at + len(view)):
                store.read_into(self.path, at, view, self.identity, wanted)
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
            self._room.record(self.key, self.path, self.identity)

    def _fill_from_whole(self, stretches: Sequence[Stretch]) -> None:
        try:
            descriptor = os.open(self.whole_path, READ_OWN)
        except FileNotFoundError:  # it made room for another one just now
            self.begin(stretches, lambda: True)()
            return
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            for at, view in stretches:
                read_whole(descriptor, view, at)
        finally:
            os.close(descriptor)


class _Asked:
    """Counts what is left of something that several jobs bring.

    Attributes:
        left: of it.
        errors: of the jobs that failed.
    """

    def __init__(self, count: int) -> None:
        self.left = count
        self.errors: list[Exception] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        if not count:
            self._over.set()

    @contextmanager
    def counting(self, count: int) -> Iterator[None]:
        """At whose end so much is here, or has failed: errors go to whoever waits."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 the thread goes on; who waits raises it
            self.errors.append(error)
        finally:
            self.done(count)

    def done(self, count: int) -> None:
        """So much is here, or has failed."""
        with self._lock:
            self.left -= count
            if self.left <= 0:
                self._over.set()

    def wait(self) -> None:
        """Until all is here. Raises the first error."""
        self._over.wait()
        if self.errors:
            raise self.errors[0]
