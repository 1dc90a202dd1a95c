"""What is asked of any remote file system, and which client opens a path.

Theory of operation. Credentials and addresses of a scheme are found by the means of its own package
(``gcsfs``, ``botocore``, ``huggingface_hub``, ``~/.netrc``), none of whose caches is used. The
request is made here (``remote.clients.connections``): so one request is one request, a version is
pinned (the generation, ``If-Match``), ``Retry-After`` is seen, an answer's length and version are
checked, and its bytes go where they are wanted without a copy between. Any thread may ask.

Invariants:
    1. What is read is all bytes that were asked for, of the version that was, or an ``OSError``.
    2. No text of a client and no address but the user's path is in an error.

Not here: what each scheme's requests look like (its own module).
"""

from __future__ import annotations

import errno
import importlib
import os
import threading
from collections.abc import Mapping
from typing import Protocol, cast
from urllib.parse import urlsplit

from autoloader.host.extras import needs
from autoloader.storage import faults
from autoloader.storage.identity import RemoteIdentity
from autoloader.storage.limits import Meter
from autoloader.storage.places import PACKAGES, check_address, scheme_of


class Client(Protocol):
    """What is asked of a remote file system. All raise ``OSError``s of ``storage.faults``.

    Each question tells a meter of what comes, piece by piece. What the meter raises ends it.
    """

    lists: bool
    """Whether ``listing`` tells of all files of a directory at once."""

    def listing(self, directory: str, meter: Meter) -> dict[str, RemoteIdentity | None]:
        """Names in a directory: files with what they are, directories with ``None``."""
        ...

    def identity(self, path: str, meter: Meter) -> RemoteIdentity:
        """What a file is now."""
        ...

    def read_into(
        self,
        path: str,
        start: int,
        view: memoryview,
        of: RemoteIdentity,
        meter: Meter,
    ) -> None:
        """Fill ``view`` with the bytes from ``start`` on of a version of a file."""
        ...

    def whole(
        self, path: str, of: RemoteIdentity | None, meter: Meter
    ) -> tuple[RemoteIdentity, bytes]:
        """A small file and what it is; of a version, where one is given."""
        ...

    def write(self, path: str, content: bytes, meter: Meter) -> None:
        """Put a small file."""
        ...


_CLIENTS: Mapping[str, tuple[str, str]] = {
    "file": ("mounts", "MountClient"),
    "gs": ("cloud_storage", "CloudStorageClient"),
    "hf": ("hugging_face", "HuggingFaceClient"),
    "http": ("web", "WebClient"),
    "https": ("web", "WebClient"),
    "s3": ("s3", "S3Client"),
}
"""Scheme → module and class."""

_clients: dict[tuple[int, str], Client] = {}
_lock = threading.Lock()


def client_of(path: str) -> Client:
    """This process's client for a path's scheme.

    Raises:
        MissingExtraError: it is not installed.
        NoFileSystemError: there is none.
        SpecError: the address holds a secret.
    """
    check_address(path)
    scheme = scheme_of(path)
    if scheme not in PACKAGES:
        raise faults.NoFileSystemError(errno.EPROTONOSUPPORT, f"nothing opens {scheme}://", path)
    host = urlsplit(path).netloc if scheme in ("http", "https") else ""
    key = (os.getpid(), f"{scheme}://{host}")
    with _lock:
        if key not in _clients:
            module, name = _CLIENTS[scheme]
            with needs(f"{scheme}://", extra="remote"):
                kind = getattr(importlib.import_module(f"{__package__}.{module}"), name)
                _clients[key] = cast("Client", kind(scheme))
        return _clients[key]
