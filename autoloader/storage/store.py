"""Asks remote file systems, again where they fail for a moment, and not too often.

Theory of operation. Every question goes through one ``Store`` of the process. It repeats what may
pass (``storage.patience``). Where a server says that it is busy, nobody of this process asks that
server before the pause is over. Where a connection was lost, whoever reaches the server again ends
the pauses of the others. What a directory holds is asked for once a start: the answer is
kept on the disk for ``LISTED_FOR_S``, for the other processes and ranks of the same start. (An
object that changes meanwhile is noticed when it is read: the version is part of each request.)

Not here: what is asked how (``storage.clients``), shards (``storage.shards``).
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from xml.etree.ElementTree import ParseError

from autoloader.errors import AutoloaderError
from autoloader.host.clock import Clock, SystemClock
from autoloader.host.files import read_own, write_whole
from autoloader.storage import faults
from autoloader.storage.clients.client import client_of
from autoloader.storage.identity import RemoteIdentity
from autoloader.storage.limits import Limits, Meter, Traffic, check_bytes
from autoloader.storage.patience import Patience
from autoloader.storage.places import cache_root
from autoloader.storage.rates import Rates

LISTED_FOR_S = 60.0
_CLOCK = SystemClock()
_NONSENSE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, ParseError)
"""What a client makes of an answer that is no page, no number or no listing."""
_SAY_EVERY_S = 10.0
_MOST_BYTES = 2**28
"""Of a listing that is kept."""

Answer = TypeVar("Answer")
Listing = dict[str, RemoteIdentity | None]

logger = logging.getLogger(__name__)


class Store:
    """Remote files, for any thread; a process has one, ``store``.

    Args:
        limits: of files and servers, asked for with each file.
        clock: tells the time that answers take.
    """

    def __init__(
        self,
        limits: Callable[[], Limits] = Limits.of_environment,
        clock: Clock = _CLOCK,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self._lock = threading.Lock()
        self._not_before: dict[str, float] = {}
        self._answered: dict[str, float] = {}
        self._said: dict[str, float] = {}
        self._listings: dict[str, tuple[float, Listing]] = {}
        self._listing: dict[str, threading.Lock] = {}
        self._rates = Rates()

    def listing(self, directory: str) -> Listing:
        """Names in a directory: files with what they are, directories with ``None``.

        Raises:
            OSError: as ``storage.faults``; ``NoFileSystemError`` where the server lists nothing.
        """
        with self._lock:
            alone = self._listing.setdefault(directory, threading.Lock())
        with alone:  # many threads ask for files of one directory at a time
            known = self._listings.get(directory) or _kept(directory)
            if known is None or not _fresh(known):
                client = client_of(directory)
                found = self._read(
                    directory, "document_bytes", lambda meter: client.listing(directory, meter)
                )
                known = (time.time(), found)
                _keep(directory, found)
            self._listings[directory] = known
            return known[1]

    def identity(self, path: str) -> RemoteIdentity:
        """What a file is: of the listing of its directory, where there is one.

        Raises:
            OSError: as ``storage.faults``.
        """
        client = client_of(path)
        directory, _, name = path.rpartition("/")
        if client.lists:
            found = self.listing(directory).get(name)
            if found is None:
                raise faults.missing(path)
            return found
        known = _kept(path)
        if known is not None and _fresh(known):
            if (kept := known[1][""]) is None:
                raise faults.missing(path)
            return kept
        with _missing_is_kept(path):
            identity = self._read(
                path, "document_bytes", lambda meter: client.identity(path, meter)
            )
        _keep(path, {"": identity})
        return identity

    def listed(self, path: str) -> RemoteIdentity | None:
        """As ``identity``, where one listing tells it of a whole directory; else ``None``."""
        return self.identity(path) if client_of(path).lists else None

    def now(self, path: str) -> RemoteIdentity:
        """What a file is at this moment. Raises OSError as ``identity``."""
        client = client_of(path)
        return self._read(path, "document_bytes", lambda meter: client.identity(path, meter))

    def read(self, path: str, start: int, stop: int, of: RemoteIdentity) -> bytes:
        """Bytes [start, stop) of a version of a file; see ``read_into``."""
        check_bytes(path, stop - start, "list_bytes", self._limits())
        data = bytearray(stop - start)
        self.read_into(path, start, memoryview(data), of)
        return bytes(data)

    def read_into(
        self,
        path: str,
        start: int,
        view: memoryview,
        of: RemoteIdentity,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Fill ``view`` with the bytes from ``start`` on of a version of a file.

        Args:
            path: path of the local file.
            start: of the first byte.
            view: holds anything where it fails.
            of: the version.
            wanted: whether anybody still waits for it.

        Raises:
            OSError: as ``storage.faults``.
        """
        client = client_of(path)
        with self._rates.measuring(_host(path), len(view)):
            self._read(
                path, "", lambda meter: client.read_into(path, start, view, of, meter), wanted
            )

    def read_all(self, path: str, *, keep: bool = False, most: str = "document_bytes") -> bytes:
        """A small file, by one request.

        Args:
            path: path of the local file.
            keep: on the disk, for the other processes of the machine and the next start.
            most: the field of ``Limits`` that bounds it.

        Raises:
            OSError: as ``read``.
        """
        client = client_of(path)
        fresh = not client.lists and not _fresh(_kept(path) or (0.0, {}))
        of = None if fresh else self.identity(path)
        if of is not None:
            check_bytes(path, of.size, most, self._limits())
        place = _place(path).with_suffix(".content")
        if of is not None and keep and (found := _kept_content(place, path, of)) is not None:
            return found
        with _missing_is_kept(path):
            identity, data = self._read(path, most, lambda meter: client.whole(path, of, meter))
        if not client.lists:
            _keep(path, {"": identity})
        if keep:
            _write(place, identity.key(path).encode() + data)
        return data

    def write(self, path: str, content: bytes) -> None:
        """Put a small file. Raises OSError."""
        client = client_of(path)
        self._read(path, "document_bytes", lambda meter: client.write(path, content, meter))
        self._listings.pop(path.rpartition("/")[0], None)

    def _read(
        self,
        path: str,
        most: str,
        question: Callable[[Meter], Answer],
        wanted: Callable[[], bool] = lambda: True,
    ) -> Answer:
        """An answer within the limits, of a client that may be asked again.

        Args:
            path: of what.
            most: see ``Meter``.
            question: asks the client, and has the meter told of what comes.
            wanted: whether anybody still waits for it.
        """
        meter = Meter(path, self._limits(), self._traffic[_host(path)], most, self._clock)

        def metered() -> Answer:
            meter.begin()
            try:
                return question(meter)
            except _NONSENSE as error:
                if isinstance(error, AutoloaderError):
                    raise
                raise faults.nonsense(error, path) from None

        return self._ask(path, metered, wanted)

    def _ask(
        self,
        path: str,
        question: Callable[[], Answer],
        wanted: Callable[[], bool] = lambda: True,
    ) -> Answer:
        host, lost = _host(path), False

        def asked() -> Answer:
            while (left := self._not_before.get(host, 0.0) - time.monotonic()) > 0:
                if not wanted():
                    raise faults.UnreachableError(errno.EHOSTUNREACH, "not wanted any more", path)
                time.sleep(min(left, 0.25))
            answer = question()
            self._answered[host] = time.monotonic()
            return answer

        def wait(seconds: float) -> bool:
            begun = time.monotonic()
            while wanted() and (left := begun + seconds - time.monotonic()) > 0:
                if lost and self._answered.get(host, 0.0) > begun:
                    break  # another one has reached it
                time.sleep(min(left, 0.25))
            return wanted()

        def told(error: faults.PassingError, pause: float) -> None:
            nonlocal lost
            lost = error.lost
            now = time.monotonic()
            if error.busy:
                self._not_before[host] = max(self._not_before.get(host, 0.0), now + pause)
            if now - self._said.get(host, -_SAY_EVERY_S) >= _SAY_EVERY_S:
                self._said[host] = now
                logger.warning("%s: %s; asked again in %.1f s", path, error.strerror, pause)

        return Patience(wait, told).ask(asked)


def _host(path: str) -> str:
    return urlsplit(path)._replace(path="").geturl()


def _fresh(known: tuple[float, Listing]) -> bool:
    return 0 <= time.time() - known[0] < LISTED_FOR_S


def _place(what: str) -> Path:
    return cache_root() / "listings" / f"{sha256(what.encode()).hexdigest()[:40]}.json"


def _kept(what: str) -> tuple[float, Listing] | None:
    """What another process of this start was told, and when."""
    failures = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
    with contextlib.suppress(*failures):
        told = json.loads(read_own(_place(what), _MOST_BYTES))
        names = told["names"].items()
        return float(told["at_s"]), {k: v and RemoteIdentity(**v) for k, v in names}
    return None


def _keep(what: str, found: Listing) -> None:
    names = {name: one and one.plain() for name, one in found.items()}
    _write(_place(what), json.dumps({"at_s": time.time(), "names": names}).encode())


@contextlib.contextmanager
def _missing_is_kept(path: str) -> Iterator[None]:
    """That there is no such file is as good to know as what there is."""
    try:
        yield
    except FileNotFoundError:
        if not client_of(path).lists:
            _keep(path, {"": None})
        raise


def _kept_content(place: Path, path: str, of: RemoteIdentity) -> bytes | None:
    """A file that was read before, in this version."""
    with contextlib.suppress(OSError):
        found = read_own(place, len(of.key(path)) + of.size)
        key = of.key(path).encode()
        if found.startswith(key) and len(found) == len(key) + of.size:
            return found[len(key) :]
    return None


def _write(place: Path, content: bytes) -> None:
    """Put a file in one step, where the directory can be written to."""
    with contextlib.suppress(OSError):
        write_whole(place, content, mode=0o600)


store = Store()
