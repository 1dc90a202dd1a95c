"""The interface of a remote file system, the version of a remote file, the client of a scheme.

Theory of operation. Addresses and credentials of a scheme come from its own package (``gcsfs``,
``botocore``, ``huggingface_hub``, ``~/.netrc``), whose caches are not used. Requests are made by
``storage.clients.web``. So a request pins a version (the generation, ``If-Match``), ``Retry-After``
is seen, and length and version of each answer are checked. Bytes go into the caller's memory
without a copy. Any thread may ask.

Invariants:
    1. A read gives all bytes that were asked for, of the version that was named, or an ``OSError``.
    2. An error holds no text of a client, and no address except the user's path.

Not here: the requests of each scheme (its own module).
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import pkgutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import urlsplit

from autoloader.host.extras import needs
from autoloader.host.frozen import frozen
from autoloader.host.threads import free_in_forks
from autoloader.storage.faults import Meter, NoFileSystemError
from autoloader.storage.places import CLIENTS, check_address, scheme_of


@frozen
class RemoteIdentity:
    """One version of a remote object, whose path the caller knows.

    Attributes:
        size: size of the object in bytes.
        number: number that tells versions apart: Cloud Storage's generation; of other stores the
            time of the last change in ns; where there is none, a hash of the tag.
        tag: ETag or generation that pins a request to this version; "": there is none.
        crc32c: checksum of the bytes; ``None``: the store tells none.
    """

    size: int
    number: int
    tag: str = ""
    crc32c: int | None = None

    def key(self, path: str) -> str:
        """Key of this version, which names its files in the caches: 40 hexadecimal digits.

        A hash of path, size, number and tag.

        Args:
            path: address of the object, with its scheme.
        """
        text = repr((path, self.size, self.number, self.tag))
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:40]


def of_entry(entry: Mapping[str, Any]) -> RemoteIdentity:
    """The version that a store tells of a file.

    Args:
        entry: ``size`` and those of ``ETag``, ``generation``, ``crc32c`` and ``Last-Modified`` that
            the store tells.

    Raises:
        ValueError: the size is not known, or the checksum is none.
    """
    size = entry.get("size")
    if not isinstance(size, int) or size < 0:
        raise ValueError("the store does not say how large it is")
    tag = str(entry.get("ETag") or "")
    if generation := entry.get("generation"):
        crc = entry.get("crc32c")
        crc32c = int.from_bytes(base64.b64decode(crc), "big") if crc else None
        return RemoteIdentity(size, int(generation), str(generation), crc32c)
    if changed := entry.get("Last-Modified"):
        if tag.startswith("W/"):  # a weak tag names no bytes
            tag = ""
        return RemoteIdentity(size, _ns(str(changed)), tag)
    return RemoteIdentity(size, _hashed(tag), tag)


def _hashed(tag: str) -> int:
    return int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "big") >> 1


def _ns(changed: str) -> int:
    """A time of HTTP in ns; of no time a hash."""
    try:
        return int(parsedate_to_datetime(changed).timestamp()) * 10**9
    except ValueError:
        return _hashed(changed)


class Client(ABC):
    """Questions to a remote file system. All raise ``OSError``s of ``storage.faults``.

    Each question tells a meter of every piece that comes. An error of the meter ends the question.

    Attributes:
        lists: whether ``listing`` tells all files of a directory at once.
    """

    lists = False

    def listing(self, directory: str, meter: Meter) -> dict[str, RemoteIdentity | None]:
        """Names in a directory: files with their versions, directories with ``None``."""
        raise NoFileSystemError(errno.EOPNOTSUPP, "this server does not list folders", directory)

    @abstractmethod
    def identity(self, path: str, meter: Meter) -> RemoteIdentity:
        """The version of a file now."""

    @abstractmethod
    def read_into(
        self, path: str, start: int, view: memoryview, of: RemoteIdentity, meter: Meter
    ) -> None:
        """Fill ``view`` with the bytes from ``start`` on of a version of a file."""

    def whole(
        self, path: str, of: RemoteIdentity | None, meter: Meter
    ) -> tuple[RemoteIdentity, bytes]:
        """Version and bytes of a small file; ``of`` names the version that is wanted."""
        of = of or self.identity(path, meter)
        content = bytearray(of.size)
        if content:
            self.read_into(path, 0, memoryview(content), of, meter)
        return of, bytes(content)

    def write(self, path: str, content: bytes, meter: Meter) -> None:
        """Write a small file."""
        raise OSError(errno.EROFS, "this server takes no files; copy the file there", path)


_clients: dict[tuple[int, str], Client] = {}
_lock = free_in_forks(threading.Lock())


def client_of(path: str) -> Client:
    """The client of this process for a path's scheme.

    Raises:
        MissingExtraError: its package is not installed.
        NoFileSystemError: no client opens the scheme.
        SpecError: the address holds a secret.
    """
    check_address(path)
    scheme = scheme_of(path)
    if scheme not in CLIENTS:
        raise NoFileSystemError(errno.EPROTONOSUPPORT, f"no package here opens {scheme}://", path)
    host = urlsplit(path).netloc if CLIENTS[scheme].by_host else ""
    key = (os.getpid(), f"{scheme}://{host}")
    with _lock:
        if key not in _clients:
            with needs(f"{scheme}://", extra="remote"):
                kind = pkgutil.resolve_name(f"{__package__}.{CLIENTS[scheme].client}")
                _clients[key] = cast("Client", kind())
        return _clients[key]
