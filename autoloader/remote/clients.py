"""The clients of remote file systems: fsspec's, asked for listings, byte ranges and nothing else.

Theory of operation. Each scheme has one of fsspec's clients (``gcsfs``, ``s3fs``,
``huggingface_hub``, fsspec's own for ``https``), which finds credentials by its own means. Of those
that speak HTTP, session, addresses and credentials are taken, and the request is made here: so one
request is one request, a version is pinned (the generation, ``If-Match``), ``Retry-After`` is seen,
and an answer's length and version are checked. Of the others the client's ``cat_file`` is called,
whose own repetitions come first. No cache of theirs is used. All questions of a process run in
fsspec's one event loop; any thread may ask.

Invariants:
    1. What is read is ``stop - start`` bytes of the version that was asked for, or an ``OSError``.
    2. No text of a client and no address but the user's path is in an error.

Not here: repetitions (``remote.store``), what errors mean (``remote.faults``).
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from autoloader.extras import needs
from autoloader.remote import faults
from autoloader.remote.identity import RemoteIdentity, of_entry
from autoloader.remote.mounts import MountClient
from autoloader.remote.places import PACKAGES, check_address, scheme_of

CONNECT_S, SILENCE_S = 15.0, 30.0
"""A connection that takes longer, or gives nothing for so long, is given up and tried again."""
_BUFFER_BYTES = 2**20

Answer = TypeVar("Answer")


class Client(Protocol):
    """What is asked of a remote file system. All raise ``OSError``s of ``remote.faults``."""

    lists: bool
    """Whether ``listing`` tells of all files of a directory at once."""

    def listing(self, directory: str) -> dict[str, RemoteIdentity | None]:
        """Names in a directory: files with what they are, directories with ``None``."""
        ...

    def identity(self, path: str) -> RemoteIdentity:
        """What a file is now."""
        ...

    def read(self, path: str, start: int, stop: int, of: RemoteIdentity) -> bytes:
        """Bytes [start, stop) of a version of a file."""
        ...

    def whole(self, path: str, of: RemoteIdentity | None) -> tuple[RemoteIdentity, bytes]:
        """A small file and what it is; of a version, where one is given."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Put a small file."""
        ...


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
            with needs(f"{scheme}://", extra="remote"):
                _clients[key] = _MAKE.get(scheme, FsspecClient)(scheme)
        return _clients[key]


def _run(question: Coroutine[Any, Any, Answer], path: str) -> Answer:
    """The answer of a coroutine in fsspec's loop; what clients raise, translated."""
    from fsspec.asyn import get_loop

    asked = asyncio.run_coroutine_threadsafe(question, get_loop())
    try:
        return asked.result()
    except Exception as error:  # noqa: BLE001 whatever a client raises is translated here
        raise _translated(error, path) from None
    except BaseException:
        asked.cancel()
        raise


def _translated(error: Exception, path: str) -> Exception:
    """What a client's exception means; one that is ours, or a fault of ours, as it is."""
    if isinstance(error, FileNotFoundError):
        return faults.missing(path)
    if isinstance(error, PermissionError):
        return faults.refused(path)
    known = (faults.PassingError, faults.ChangedError, faults.UnreachableError)
    if isinstance(error, known) or (type(error) is OSError and error.filename == path):
        return error
    status = getattr(error, "status", None) or getattr(error, "code", None)
    status = status or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int) and status >= 400:
        return faults.of_status(status, path)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "ClientResponseError" in kinds:
        return OSError(errno.EIO, "the server's answer is not understood", path)
    if kinds & {"ClientError", "ClientConnectorError", "HTTPClientError", "RequestException"}:
        return faults.PassingError(_words(error), path)
    if isinstance(error, OSError | TimeoutError | asyncio.TimeoutError | EOFError):
        return faults.PassingError(_words(error), path)
    return error


def _words(error: Exception) -> str:
    """What happened, by the name of the exception alone."""
    name = type(error).__name__
    if "DNS" in name or "gaierror" in name or "NameResolution" in name:
        return "its name cannot be resolved"
    if "Payload" in name or "ContentLength" in name or "Incomplete" in name:
        return "the answer was cut off"
    if "Timeout" in name:
        return "no answer in time"
    if "SSL" in name or "Certificate" in name:
        return "no trusted connection (TLS)"
    return f"the connection failed ({name})"


class HttpClient:
    """A plain server of files: fsspec's session, requests of our own.

    Args:
        scheme: "http" or "https".
    """

    lists = False

    def __init__(self, scheme: str) -> None:
        from fsspec.implementations.http import HTTPFileSystem

        del scheme
        self._fs: Any = HTTPFileSystem(
            client_kwargs={"trust_env": True},
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def listing(self, directory: str) -> dict[str, RemoteIdentity | None]:
        """See ``Client.listing``; a server of files has none that can be trusted."""
        raise faults.NoFileSystemError(errno.EOPNOTSUPP, "this server lists nothing", directory)

    def identity(self, path: str) -> RemoteIdentity:
        """See ``Client.identity``."""
        return _run(self._identity(path), path)

    def read(self, path: str, start: int, stop: int, of: RemoteIdentity) -> bytes:
        """See ``Client.read``."""
        return _run(self._read(path, start, stop, of), path)

    def whole(self, path: str, of: RemoteIdentity | None) -> tuple[RemoteIdentity, bytes]:
        """See ``Client.whole``; one request in any case."""
        if of is not None:
            return of, (self.read(path, 0, of.size, of) if of.size else b"")
        return _run(self._whole(path), path)

    def write(self, path: str, content: bytes) -> None:
        """See ``Client.write``; a server of files takes none."""
        del content
        raise OSError(errno.EROFS, "a server of files takes none; copy it there", path)

    async def _session(self) -> Any:
        return await self._fs.set_session()

    def _address(self, path: str, of: RemoteIdentity | None) -> tuple[Any, dict[str, str]]:
        """Where a file is asked for, and headers that pin its version."""
        pinned = {"If-Match": of.tag} if of is not None and of.tag else {}
        return self._fs.encode_url(path), {"Accept-Encoding": "identity", **pinned}

    async def _identity(self, path: str) -> RemoteIdentity:
        session, (address, headers) = await self._session(), self._address(path, None)
        async with session.head(
            address, headers=headers, allow_redirects=True, timeout=_timeout()
        ) as answer:
            if answer.status >= 400:
                raise faults.of_status(answer.status, path, answer.headers.get("Retry-After"))
            return _told(answer)

    async def _whole(self, path: str) -> tuple[RemoteIdentity, bytes]:
        session, (address, headers) = await self._session(), self._address(path, None)
        async with session.get(address, headers=headers, timeout=_timeout()) as answer:
            if answer.status >= 400:
                raise faults.of_status(answer.status, path, answer.headers.get("Retry-After"))
            return _told(answer), await answer.read()

    async def _read(self, path: str, start: int, stop: int, of: RemoteIdentity) -> bytes:
        session, (address, headers) = await self._session(), self._address(path, of)
        whole = (start, stop) == (0, of.size)
        if not whole:
            headers["Range"] = f"bytes={start}-{stop - 1}"
        async with session.get(
            address, headers=headers, timeout=_timeout(), read_bufsize=_BUFFER_BYTES
        ) as answer:
            if answer.status == 416 or (answer.status == 404 and self.lists):
                raise faults.changed(path)  # it was there when it was listed
            if answer.status >= 400:
                raise faults.of_status(answer.status, path, answer.headers.get("Retry-After"))
            if answer.status == 200 and not whole:
                raise OSError(errno.EOPNOTSUPP, "the server gives no byte ranges", path)
            if (answer.content_length or 0) > stop - start or self._is_another(answer, of):
                raise faults.changed(path)
            data = await answer.content.read()
        if len(data) > stop - start:
            raise faults.changed(path)
        if len(data) < stop - start:
            raise faults.PassingError("the answer was cut off", path)
        return bytes(data)

    def _is_another(self, answer: Any, of: RemoteIdentity) -> bool:
        """Whether an answer is of another version."""
        size = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if size.isdigit() and int(size) != of.size:
            return True
        tag, changed = answer.headers.get("ETag"), answer.headers.get("Last-Modified")
        if not tag and not changed:
            return False
        found = of_entry({"size": of.size, "ETag": tag, "Last-Modified": changed})
        return (found.number, found.tag) != (of.number, of.tag)


def _told(answer: Any) -> RemoteIdentity:
    """What the headers of a whole file say of it."""
    entry = {name: answer.headers.get(name) for name in ("ETag", "Last-Modified")}
    size = answer.headers.get("Content-Length")
    return of_entry({**entry, "size": None if size is None else int(size)})


class CloudStorageClient(HttpClient):
    """Google Cloud Storage: gcsfs's session, addresses and credentials.

    Args:
        scheme: "gs".
    """

    lists = True

    def __init__(self, scheme: str) -> None:
        del scheme
        if "GCE_METADATA_HOST" not in os.environ:  # elsewhere each start would wait for a server
            os.environ.setdefault("NO_GCE_CHECK", "true")
        from gcsfs.core import GCSFileSystem

        self._fs = GCSFileSystem(
            session_kwargs={"trust_env": True},
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def listing(self, directory: str) -> dict[str, RemoteIdentity | None]:
        """See ``Client.listing``."""
        return _run(self._listing(directory), directory)

    def write(self, path: str, content: bytes) -> None:
        """See ``Client.write``."""
        _run(self._write(path, content), path)

    async def _write(self, path: str, content: bytes) -> None:
        session, (_, headers) = await self._session(), self._address(path, None)
        bucket, _, name = path.partition("://")[2].partition("/")
        address = f"{self._fs.base.replace('/storage/', '/upload/storage/')}b/{bucket}/o"
        asked = {"uploadType": "media", "name": name}
        async with session.post(
            address, params=asked, headers=headers, data=content, timeout=_timeout()
        ) as answer:
            if answer.status >= 400:
                raise faults.of_status(answer.status, path, answer.headers.get("Retry-After"))

    async def _session(self) -> Any:
        return await self._fs._set_session()  # noqa: SLF001 it has no other name

    def _address(self, path: str, of: RemoteIdentity | None) -> tuple[Any, dict[str, str]]:
        headers: dict[str, str] = {}
        self._fs.credentials.apply(headers)
        return self._fs.url(path, generation=of and of.number), headers

    def _is_another(self, answer: Any, of: RemoteIdentity) -> bool:
        found = answer.headers.get("x-goog-generation")
        return found is not None and int(found) != of.number

    async def _identity(self, path: str) -> RemoteIdentity:
        name = path.partition("://")[2].partition("/")[2]
        found = await self._json(path, f"/o/{quote(name, safe='')}", {"fields": _FIELDS})
        return of_entry({**found, "size": int(found["size"])})

    async def _listing(self, directory: str) -> dict[str, RemoteIdentity | None]:
        prefix = directory.partition("://")[2].partition("/")[2].rstrip("/")
        prefix = f"{prefix}/" if prefix else ""
        asked = {
            "prefix": prefix,
            "delimiter": "/",
            "fields": f"prefixes,nextPageToken,items({_FIELDS})",
        }
        names: dict[str, RemoteIdentity | None] = {}
        while True:
            page = await self._json(directory, "/o", asked)
            for one in page.get("prefixes", ()):
                names[one[len(prefix) : -1]] = None
            for one in page.get("items", ()):
                if name := one["name"][len(prefix) :]:
                    names[name] = of_entry({**one, "size": int(one["size"])})
            if not page.get("nextPageToken"):
                return names
            asked["pageToken"] = page["nextPageToken"]

    async def _json(self, path: str, what: str, asked: Mapping[str, str]) -> Any:
        """An answer of the JSON interface about what lies in a path's bucket."""
        from yarl import URL

        session, (_, headers) = await self._session(), self._address(path, None)
        bucket = urlsplit(path).netloc
        address = URL(f"{self._fs.base}b/{bucket}{what}", encoded=True).update_query(asked)
        async with session.get(address, headers=headers, timeout=_timeout()) as answer:
            if answer.status >= 400:
                raise faults.of_status(answer.status, path, answer.headers.get("Retry-After"))
            return await answer.json(content_type=None)


_FIELDS = "name,size,generation,crc32c"


class FsspecClient:
    """Any other of fsspec's clients, by what all of them have.

    A version is not pinned: it is compared before a shard is published.

    Args:
        scheme: of the client.
    """

    lists = True

    def __init__(self, scheme: str) -> None:
        import fsspec

        self._fs: Any = fsspec.filesystem(scheme, skip_instance_cache=True)

    def listing(self, directory: str) -> dict[str, RemoteIdentity | None]:
        """See ``Client.listing``."""
        return {
            str(entry["name"]).rstrip("/").rpartition("/")[2]: of_entry(entry)
            if entry["type"] == "file"
            else None
            for entry in self._ask(directory, "ls", detail=True)
        }

    def identity(self, path: str) -> RemoteIdentity:
        """See ``Client.identity``."""
        return of_entry(self._ask(path, "info"))

    def read(self, path: str, start: int, stop: int, of: RemoteIdentity) -> bytes:
        """See ``Client.read``."""
        del of
        data: bytes = self._ask(path, "cat_file", start=start, end=stop)
        if len(data) != stop - start:
            raise faults.PassingError("the answer was cut off", path)
        return data

    def whole(self, path: str, of: RemoteIdentity | None) -> tuple[RemoteIdentity, bytes]:
        """See ``Client.whole``."""
        of = of or self.identity(path)
        return of, (self.read(path, 0, of.size, of) if of.size else b"")

    def write(self, path: str, content: bytes) -> None:
        """See ``Client.write``."""
        self._ask(path, "pipe_file", value=content)

    def _ask(self, path: str, question: str, **how: Any) -> Any:
        try:
            self._fs.invalidate_cache()
            return getattr(self._fs, question)(path, **how)
        except Exception as error:  # noqa: BLE001 as in ``_run``
            raise _translated(error, path) from None


_MAKE: Mapping[str, type[Any]] = {
    "file": MountClient,
    "gs": CloudStorageClient,
    "http": HttpClient,
    "https": HttpClient,
}


def _timeout() -> Any:
    from aiohttp import ClientTimeout

    return ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
