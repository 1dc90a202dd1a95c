"""Questions to remote file systems: repeated where they fail for a moment, and not too often.

Example: a server answers 503 with ``Retry-After: 7``. No thread of this process asks that server
within 7 s; then each asks again, at a random moment.

Theory of operation. Every question of the process goes through one ``Store``. The pause before a
repetition is drawn evenly between 0 and a bound that doubles (full jitter; Brooker, "Exponential
Backoff and Jitter", 2015): so clients that failed together do not come back together. A pause that
the server asks for is kept, and the drawn pause is added to it. Where a connection was lost, the
first thread that reaches the server again ends the pauses of the others. The repetitions end after
``PATIENCE_S`` without an answer.

A directory is listed once a start. The answer is kept on the disk for ``LISTED_FOR_S``, for the
other processes and ranks of the same start. An object that changes meanwhile is noticed when it is
read: each request names a version. Rates are kept there too, for the plan of the next run.

Not here: the requests of each scheme (``storage.clients``), shards (``storage.shards``).
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from xml.etree.ElementTree import ParseError

from autoloader.errors import AutoloaderError
from autoloader.host.clock import Clock
from autoloader.host.files import read_own, write_whole
from autoloader.host.threads import free_in_forks
from autoloader.storage import faults
from autoloader.storage.clients.client import RemoteIdentity, client_of
from autoloader.storage.faults import Limits, Meter, Traffic, check_bytes
from autoloader.storage.places import cache_root

FIRST_S, LONGEST_S = 0.25, 32.0
"""Half the bound of the first pause, and the bound of the longest."""
LONGEST_ASKED_S = 300.0
"""A server's longer pause is cut to this."""
PATIENCE_S = 600.0
TRIES = 5
"""Least number of tries, however long each takes; most tries where each answer is wrong."""
LISTED_FOR_S = 60.0
_LISTING_BYTES = 2**28
"""Bytes of a kept listing, at most."""
_RATE_BYTES = 64 * 2**20
"""Bytes that a rate is measured over: fewer bytes tell the latency."""
_SAY_EVERY_S = 10.0
_TOGETHER = 16
"""Small files that are asked for at a time."""
_CLOCK = Clock()
_NONSENSE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, ParseError)
"""Errors of a client over an answer that is no page, no number or no listing."""

Answer = TypeVar("Answer")
Listing = dict[str, RemoteIdentity | None]
"""Names in a directory: files with their versions, directories with ``None``."""

logger = logging.getLogger(__name__)


class _Server:
    """One server, as this process knows it.

    Attributes:
        traffic: bytes that have come from it.
        not_before_s: monotonic time before which it wants no question.
        answered_s: monotonic time of its last answer.
        said_s: monotonic time of the last warning about it.
    """

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.not_before_s = self.answered_s = 0.0
        self.said_s = -math.inf
        self._lock = threading.Lock()
        self._under_way, self._since_s = 0, 0.0
        self._bytes, self._seconds = 0, 0.0

    @contextlib.contextmanager
    def measured(self, host: str, nbytes: int) -> Iterator[None]:
        """Count a request; a rate is bytes by the time in which any request was under way."""
        with self._lock:
            if not self._under_way:
                self._since_s = time.monotonic()
            self._under_way += 1
        came, rate = 0, None
        try:
            yield
            came = nbytes
        finally:
            with self._lock:
                now = time.monotonic()
                self._under_way -= 1
                self._bytes += came
                self._seconds += now - self._since_s
                self._since_s = now
                if self._bytes >= _RATE_BYTES:
                    rate = self._bytes / max(self._seconds, 1e-3)
                    self._bytes, self._seconds = 0, 0.0
            if rate is not None:
                _write(_place("rates", host), json.dumps(rate).encode())

    def waited(self, pause: float, wanted: Callable[[], bool], *, lost: bool) -> bool:
        """Wait before a question; false if nobody wants it any more.

        Args:
            pause: seconds, less where ``lost`` and another thread reaches the server.
            wanted: tells whether anybody still waits for the answer.
            lost: whether the last question found no connection.
        """
        begun_s = time.monotonic()
        while wanted():
            now_s = time.monotonic()
            reached = lost and self.answered_s > begun_s
            until_s = max(self.not_before_s, 0.0 if reached else begun_s + pause)
            if now_s >= until_s:
                return True
            time.sleep(min(until_s - now_s, 0.25))
        return False

    def failed(self, failure: faults.PassingError, path: str, pause: float) -> None:
        """Note a failure that is waited for, and warn of it now and then."""
        now_s = time.monotonic()
        if failure.kind == "busy":
            self.not_before_s = max(self.not_before_s, now_s + pause)
        if now_s - self.said_s >= _SAY_EVERY_S:
            self.said_s = now_s
            logger.warning("%s: %s; asked again in %.1f s", path, failure.strerror, pause)


class Store:
    """Remote files, for any thread; a process has one, ``store``.

    Args:
        limits: function that gives the limits of files and servers.
        clock: clock that times answers and repetitions.
    """

    def __init__(
        self, limits: Callable[[], Limits] = Limits.of_environment, clock: Clock = _CLOCK
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._servers: defaultdict[str, _Server] = defaultdict(_Server)
        self._listings: dict[str, tuple[float, Listing]] = {}
        self._listing: dict[str, threading.Lock] = {}
        self._lock = free_in_forks(threading.Lock(), self._listing.clear, self._servers.clear)

    def listing(self, directory: str) -> Listing:
        """Names in a directory.

        Raises:
            OSError: an error of ``storage.faults``; ``NoFileSystemError``: the server lists none.
        """
        with self._lock:
            alone = self._listing.setdefault(directory, threading.Lock())
        with alone:  # many threads ask for files of one directory at a time
            known = self._listings.get(directory) or _kept(directory)
            if known is None or not _fresh(known):
                client = client_of(directory)
                found = self._metered(directory, lambda meter: client.listing(directory, meter))
                known = (time.time(), found)
                _keep(directory, found)
            self._listings[directory] = known
            return known[1]

    def identity(self, path: str) -> RemoteIdentity:
        """The version of a file: from the listing of its directory, where there is one.

        Raises:
            OSError: an error of ``storage.faults``.
        """
        client = client_of(path)
        directory, _, name = path.rpartition("/")
        if client.lists:
            found = self.listing(directory).get(name)
        elif (known := _kept(path)) is not None and _fresh(known):
            found = known[1][""]
        else:
            try:
                found = self.now(path)
            except FileNotFoundError:
                found = None
            _keep(path, {"": found})
        if found is None:
            raise faults.missing(path)
        return found

    def listed(self, path: str) -> RemoteIdentity | None:
        """The version of a file, by a listing; ``None`` where the server lists no directories."""
        return self.identity(path) if client_of(path).lists else None

    def size(self, path: str) -> int:
        """Bytes of a file; raises as ``identity``."""
        return self.identity(path).size

    def names(self, directory: str) -> list[str]:
        """Names in a directory, those of directories with a slash at the end; as ``listing``."""
        found = self.listing(directory)
        return [name if one is not None else f"{name}/" for name, one in found.items()]

    def is_directory(self, path: str) -> bool:
        """True if anything lies in such a directory; raises as ``listing``."""
        return bool(self.listing(path))

    def now(self, path: str) -> RemoteIdentity:
        """The version of a file at this moment; raises as ``identity``."""
        client = client_of(path)
        return self._metered(path, lambda meter: client.identity(path, meter))

    def read(self, path: str, offset: int, count: int) -> bytes:
        """Bytes of a file from ``offset`` on, ``count`` or to its end; -1: to its end.

        Raises:
            OSError: an error of ``storage.faults``.
        """
        identity = self.identity(path)
        stop = identity.size if count < 0 else min(identity.size, offset + count)
        data = bytearray(max(0, stop - offset))
        check_bytes(path, len(data), "list_bytes", self._limits())
        if data:
            self.read_into(path, offset, memoryview(data), identity)
        return bytes(data)

    def read_into(self, path: str, start: int, view: memoryview, of: RemoteIdentity) -> None:
        """Fill memory with bytes of a version of a file.

        Args:
            path: address of the file.
            start: first byte in the file.
            view: memory of the bytes; holds anything after an error.
            of: version of the file.

        Raises:
            OSError: an error of ``storage.faults``.
        """
        client, host = client_of(path), _host(path)
        with self._servers[host].measured(host, len(view)):
            self._metered(path, lambda meter: client.read_into(path, start, view, of, meter), "")

    def read_all(self, path: str, *, keep: bool = False, most: str = "document_bytes") -> bytes:
        """A small file, by one request.

        Args:
            path: address of the file.
            keep: whether it stays on the disk, for other processes and the next start.
            most: field of ``Limits`` that bounds it.

        Raises:
            OSError: an error of ``storage.faults``.
        """
        client = client_of(path)
        of = self.identity(path) if client.lists or _fresh(_kept(path) or (0.0, {})) else None
        place = _place("listings", path).with_suffix(".content")
        if of is not None:
            check_bytes(path, of.size, most, self._limits())
            if keep and (found := _kept_content(place, path, of)) is not None:
                return found
        try:
            identity, data = self._metered(path, lambda meter: client.whole(path, of, meter), most)
        except FileNotFoundError:
            if not client.lists:
                _keep(path, {"": None})
            raise
        if not client.lists:
            _keep(path, {"": identity})
        if keep:
            _write(place, identity.key(path).encode() + data)
        return data

    def write(self, path: str, content: bytes) -> None:
        """Put a small file. Raises OSError."""
        client = client_of(path)
        self._metered(path, lambda meter: client.write(path, content, meter))
        self._listings.pop(path.rpartition("/")[0], None)

    def _metered(
        self, path: str, question: Callable[[Meter], Answer], most: str = "document_bytes"
    ) -> Answer:
        """The answer of a client, within the limits.

        Args:
            path: address of the file, for errors.
            question: asks the client, which tells the meter of each piece that comes.
            most: field of ``Limits`` that bounds the answer; "": the caller's memory does.
        """
        meter = Meter(path, self._limits(), self._servers[_host(path)].traffic, most, self._clock)

        def asked() -> Answer:
            meter.begin()
            try:
                return question(meter)
            except AutoloaderError:
                raise
            except _NONSENSE as error:
                raise faults.nonsense(error, path) from None

        return self._ask(path, asked)

    def _ask(self, path: str, question: Callable[[], Answer]) -> Answer:
        """The answer, after repetitions; they end early as ``while_wanted`` says.

        Raises:
            UnreachableError: the question failed for longer than ``PATIENCE_S``, or nobody wants
                the answer any more.
            OSError: the question failed, and not for a moment.
        """
        server, begun_s = self._servers[_host(path)], self._clock.now_s()
        failure: faults.PassingError | None = None
        tries, wrong, pause, kind = 0, 0, 0.0, ""
        while server.waited(pause, _asker.wanted, lost=kind == "lost"):
            try:
                answer = question()
            except faults.PassingError as error:
                failure = error.with_traceback(None)  # which would keep the caller's memory
            else:
                server.answered_s = time.monotonic()
                return answer
            tries += 1
            kind, wrong = failure.kind, wrong + 1 if failure.kind == "wrong" else 0
            late = self._clock.now_s() - begun_s > PATIENCE_S
            if (late and tries >= TRIES) or wrong > TRIES:
                break
            # Chance keeps many clients apart; nothing secret hangs on it.
            pause = pause_s(tries, failure.after_s, random.random())  # noqa: S311
            server.failed(failure, path, pause)
        why = "not wanted any more"
        if failure is not None:
            why = f"it cannot be reached in {tries} tries: {failure.strerror}"
        raise faults.UnreachableError(errno.EHOSTUNREACH, why, path)


def pause_s(tries: int, after_s: float | None, draw: float) -> float:
    """Seconds before the next try.

    Args:
        tries: number of tries that have failed, from 1.
        after_s: seconds that the server asks for; ``None``: it does not say.
        draw: random number in [0, 1).
    """
    bound = min(LONGEST_S, FIRST_S * 2 ** min(tries, 16))
    return float(min(after_s or 0.0, LONGEST_ASKED_S) + draw * bound)


def known_rate(path: str) -> float | None:
    """Bytes a second that a file's host gave lately; ``None`` where little was fetched so far."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        found = float(json.loads(read_own(_place("rates", _host(path)), 100)))
        return found if 0 < found < math.inf else None
    return None


def fetch_together(paths: Sequence[str]) -> None:
    """Fetch small files at the same time, and keep them on the disk."""

    def fetch(path: str) -> None:
        with contextlib.suppress(OSError):
            store.read_all(path, keep=True)

    together(fetch, paths)


def together(ask: Callable[[str], Answer], paths: Sequence[str]) -> list[Answer]:
    """The answers about files, which are asked for at the same time. Raises as ``ask``."""
    with ThreadPoolExecutor(_TOGETHER, "autoloader-remote") as pool:
        return list(pool.map(ask, paths))


class _Asker(threading.local):
    wanted: Callable[[], bool] = staticmethod(lambda: True)


_asker = _Asker()


@contextlib.contextmanager
def while_wanted(wanted: Callable[[], bool]) -> Iterator[None]:
    """Give up questions of this thread, instead of repeating them, once ``wanted`` is false."""
    before, _asker.wanted = _asker.wanted, wanted
    try:
        yield
    finally:
        _asker.wanted = before


def _host(path: str) -> str:
    return urlsplit(path)._replace(path="").geturl()


def _fresh(known: tuple[float, Listing]) -> bool:
    return 0 <= time.time() - known[0] < LISTED_FOR_S


def _place(kind: str, what: str) -> Path:
    """File of the cache about an address; ``kind`` is "listings" or "rates"."""
    return cache_root() / kind / f"{sha256(what.encode()).hexdigest()[:40]}.json"


def _kept(what: str) -> tuple[float, Listing] | None:
    """Time and content of a listing that any process was told."""
    failures = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
    with contextlib.suppress(*failures):
        told = json.loads(read_own(_place("listings", what), _LISTING_BYTES))
        return float(told["at_s"]), {k: v and RemoteIdentity(**v) for k, v in told["names"].items()}
    return None


def _keep(what: str, found: Listing) -> None:
    """Keep a listing on the disk, with the time."""
    names = {name: one and asdict(one) for name, one in found.items()}
    _write(_place("listings", what), json.dumps({"at_s": time.time(), "names": names}).encode())


def _kept_content(place: Path, path: str, of: RemoteIdentity) -> bytes | None:
    """A file that was read before, in this version."""
    key = of.key(path).encode()
    with contextlib.suppress(OSError):
        found = read_own(place, len(key) + of.size)
        if found.startswith(key) and len(found) == len(key) + of.size:
            return found[len(key) :]
    return None


def _write(place: Path, content: bytes) -> None:
    """Put a file in one step, where the directory can be written to."""
    with contextlib.suppress(OSError):
        write_whole(place, content, mode=0o600)


store: Store = Store()
