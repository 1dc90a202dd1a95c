"""HTTP: requests over connections that are used again, and web servers of files.

Theory of operation. A thread takes a connection to the server, or makes one, and puts it back when
the answer is read to its end. A body goes from the socket into the caller's memory by few large
reads, during which the interpreter is free: other threads decode pictures meanwhile. Redirections
are followed; credentials do not go along to another host. ``https_proxy`` and ``no_proxy`` are
heeded, certificates are the system's (``SSL_CERT_FILE``). Nothing is logged: an address that a
server sends to may be signed.

Not here: the requests of object stores (their modules), repetitions (``storage.store``).
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import http.client
import io
import netrc
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from autoloader.storage import faults
from autoloader.storage.clients.client import Client, RemoteIdentity, of_entry
from autoloader.storage.faults import Meter
from autoloader.storage.places import CLIENTS

CONNECT_S, SILENCE_S = 15.0, 30.0
"""Seconds for a connection, and without a byte of an answer; then it is tried again."""
_ELSEWHERE = (301, 302, 303, 307, 308)
_HOPS = 6
_IDLE = 32
"""Connections that are kept for one server."""
_PIECE_BYTES = 2**18
_WORDS_BYTES = 2**16
"""Bytes that are read of an error's body, so that its connection can be used again."""
_REFUSALS = {"FileNotFoundError", "PermissionError", *(one.refusal for one in CLIENTS.values())}


@dataclass(frozen=True)
class Request:
    """One HTTP request.

    Attributes:
        method: HTTP method, such as "GET".
        address: address that is asked.
        path: address of the file as the user wrote it, for errors.
        meter: counts the bytes of the answer, and may end it.
        headers: values of the headers, by name.
        content: body; ``None``: there is none.
        into: memory for the body of an answer that is no error; ``None``: the answer keeps it.
    """

    method: str
    address: str
    path: str
    meter: Meter
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    into: memoryview | None = None


@dataclass(frozen=True)
class Answer:
    """A server's answer.

    Attributes:
        status: number of the HTTP status.
        headers: headers, by name in any case.
        body: whole body; empty where it went into the caller's memory.
        count: bytes of the body; more than were wanted where it is too long.
        sent_on_by: headers of the first server, where that one sent elsewhere; else ``None``.
    """

    status: int
    headers: Message
    body: bytes
    count: int
    sent_on_by: Message | None = None


class Connections:
    """Connections of one client to its servers; any thread.

    Args:
        certificates: file of the trusted authorities; ``None``: the system's.
    """

    def __init__(self, certificates: str | None = None) -> None:
        self._certificates = certificates
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, ...], list[http.client.HTTPConnection]] = {}

    def ask(self, request: Request, *, follows: bool = True) -> Answer:
        """The answer to a request; redirections are followed if ``follows``.

        Raises:
            PassingError: no whole answer came.
            OSError: redirections without an end, or to something else than a web address.
        """
        first: Message | None = None
        for _ in range(_HOPS):
            answer = self._ask_once(request)
            where = answer.headers.get("Location")
            if not follows or answer.status not in _ELSEWHERE or not where:
                return replace(answer, sent_on_by=first)
            first = first or answer.headers
            headers, address = request.headers, urljoin(request.address, where)
            if urlsplit(address)[:2] != urlsplit(request.address)[:2]:
                headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
            request = replace(request, address=address, headers=headers)
        raise OSError(errno.EIO, "the server redirects again and again", request.path)

    def _ask_once(self, request: Request) -> Answer:
        parts, headers = urlsplit(request.address), dict(request.headers)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            why = "the server redirects to something that is not a web address"
            raise OSError(errno.EIO, why, request.path)
        proxy = _proxy_of(parts)
        target = parts._replace(fragment="", scheme="", netloc="").geturl() or "/"
        if proxy and parts.scheme == "http":
            target = parts._replace(fragment="").geturl()
            headers |= _proxy_headers(urlsplit(proxy))
        place = (parts.scheme, parts.netloc, proxy)
        connection: http.client.HTTPConnection | None = None
        try:
            connection = self._taken(place) or self._made(parts, proxy)
            connection.response_class = functools.partial(  # type: ignore[assignment]
                _Response, meter=request.meter
            )
            connection.request(request.method, target, body=request.content, headers=headers)
            with contextlib.closing(connection.getresponse()) as response:
                answer = _read(response, request)
                ended = response.isclosed() and not response.will_close
        except Exception as error:  # noqa: BLE001 translated, all of them
            if connection is not None:
                connection.close()
            raise _meant(error, request.path) from None
        self._put_back(place, connection, ended)
        return answer

    def __del__(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()

    def _taken(self, place: tuple[str, ...]) -> http.client.HTTPConnection | None:
        """A connection that is still open, where there is one."""
        while True:
            with self._lock:
                idle = self._idle.get(place)
                connection = idle.pop() if idle else None
            if connection is None or _is_open(connection):
                return connection
            connection.close()

    def _put_back(
        self, place: tuple[str, ...], connection: http.client.HTTPConnection, ended: bool
    ) -> None:
        """Keep a connection whose answer has ended, or close it."""
        with self._lock:
            idle = self._idle.setdefault(place, [])
            if ended and connection.sock is not None and len(idle) < _IDLE:
                idle.append(connection)
                return
        connection.close()

    def _made(self, parts: SplitResult, proxy: str) -> http.client.HTTPConnection:
        by = urlsplit(proxy) if proxy else parts
        host, port = by.hostname or "", by.port or (443 if by.scheme == "https" else 80)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                host, port, timeout=CONNECT_S, context=self._trusted
            )
            if proxy:
                connection.set_tunnel(parts.hostname or "", parts.port or 443, _proxy_headers(by))
        else:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_S)
        connection.connect()
        connection.sock.settimeout(SILENCE_S)
        return connection

    @functools.cached_property
    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._certificates)


class _Response(http.client.HTTPResponse):
    """An answer whose every byte passes a meter on its way from the socket, headers too."""

    def __init__(self, *arguments: Any, meter: Meter, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.fp = io.BufferedReader(_Metered(self.fp.detach(), meter))


class _Metered(io.RawIOBase):
    """Bytes of a socket; ``meter`` counts each piece, and may raise."""

    def __init__(self, raw: io.RawIOBase, meter: Meter) -> None:
        self._raw = raw
        self._meter = meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read some bytes, and tell the meter their number."""
        count = self._raw.readinto(buffer)
        self._meter.came(count or 0)
        return int(count or 0)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def _read(response: http.client.HTTPResponse, request: Request) -> Answer:
    """The answer with its body."""
    status, headers, into = response.status, response.headers, request.into
    body, count = b"", 0
    if status >= 300:
        with contextlib.suppress(http.client.HTTPException):
            body = response.read(_WORDS_BYTES)
    elif into is None:
        request.meter.promised(response.length or 0)
        pieces = bytearray()  # a length that is announced may not be true
        while piece := response.read1(_PIECE_BYTES):
            pieces += piece
        if response.length:
            raise faults.cut_off(request.path)
        body = bytes(pieces)
    elif (response.length or 0) > len(into):
        count = response.length or 0
    else:
        while count < len(into):
            more = response.readinto(into[count:])
            if not more:
                raise faults.cut_off(request.path)
            count += more
        count += len(response.read(1))
    return Answer(status, headers, body, count or len(body))


def _is_open(connection: http.client.HTTPConnection) -> bool:
    """True if the server has not closed an idle connection."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)  # nothing is due: what is there to read is its end


def _proxy_of(parts: SplitResult) -> str:
    """The proxy for an address; "" where there is none."""
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    """Headers that a proxy with a user wants."""
    if proxy.username is None:
        return {}
    return {"Proxy-Authorization": basic(unquote(proxy.username), unquote(proxy.password or ""))}


def basic(user: str, password: str) -> str:
    """Value of the header that tells a server a user and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def _meant(error: Exception, path: str) -> Exception:
    """An error of a connection, in words that hold nothing of its text."""
    if isinstance(error, OSError) and error.filename == path:
        return error
    if isinstance(error, socket.gaierror):
        return faults.PassingError("the server's name cannot be resolved", path, "lost")
    if isinstance(error, http.client.IncompleteRead | ssl.SSLEOFError):
        return faults.cut_off(path)
    if isinstance(error, ssl.SSLError):
        return faults.PassingError("the server's TLS certificate is not trusted", path)
    if isinstance(error, TimeoutError):
        return faults.PassingError("no answer in time", path, "lost")
    if isinstance(error, OSError | http.client.HTTPException):
        return faults.PassingError(f"the connection failed ({type(error).__name__})", path, "lost")
    return error


class WebClient(Client):
    """A server of files; see ``storage.clients.client.Client``. Object stores build on it.

    Args:
        certificates: file of the trusted authorities; ``None``: the system's.
    """

    def __init__(self, certificates: str | None = None) -> None:
        self._connections = Connections(certificates)

    def identity(self, path: str, meter: Meter) -> RemoteIdentity:
        """See ``Client.identity``."""
        return self._told(self._ask("HEAD", path, meter))

    def read_into(
        self, path: str, start: int, view: memoryview, of: RemoteIdentity, meter: Meter
    ) -> None:
        """See ``Client.read_into``."""
        whole = (start, len(view)) == (0, of.size)
        own = {} if whole else {"Range": f"bytes={start}-{start + len(view) - 1}"}
        answer = self._ask("GET", path, meter, of, own, view)
        if answer.status == 200 and not whole:
            raise OSError(errno.EOPNOTSUPP, "the server serves no byte ranges", path)
        size = answer.headers.get("Content-Range", "").rpartition("/")[2]
        another = size.isdigit() and int(size) != of.size
        if another or answer.count != len(view) or self._is_another(answer, of):
            raise faults.changed(path)

    def whole(
        self, path: str, of: RemoteIdentity | None, meter: Meter
    ) -> tuple[RemoteIdentity, bytes]:
        """See ``Client.whole``; one request in any case."""
        if of is None:
            answer = self._ask("GET", path, meter)
            return self._told(answer), answer.body
        return super().whole(path, of, meter)

    def _ask(
        self,
        method: str,
        path: str,
        meter: Meter,
        of: RemoteIdentity | None = None,
        own: Mapping[str, str] | None = None,
        into: memoryview | None = None,
    ) -> Answer:
        """An answer about a file, of a version where one is given, that is no error."""
        address, headers = self._address(path, of)
        request = Request(method, address, path, meter, {**headers, **(own or {})}, into=into)
        return self._answered(request, pinned=of is not None)

    def _answered(self, request: Request, *, pinned: bool = False) -> Answer:
        """The answer to a request, if it is no error."""
        answer = self._send(request)
        if answer.status == 416 or (answer.status == 404 and self.lists and pinned):
            raise faults.changed(request.path)  # it was there when it was listed
        if answer.status >= 300:
            after = answer.headers.get("Retry-After")
            raise faults.of_status(answer.status, request.path, after)
        return answer

    def _send(self, request: Request) -> Answer:
        return self._connections.ask(request)

    def _address(self, path: str, of: RemoteIdentity | None) -> tuple[str, dict[str, str]]:
        """Address of a file, and headers that say who asks and pin its version."""
        parts = urlsplit(path)
        address = parts._replace(path=quote(parts.path, safe="/%:@!$&'()*+,;=~")).geturl()
        return address, pin_header(of) | _own_credentials(parts.hostname or "")

    def _told(self, answer: Answer) -> RemoteIdentity:
        """The version that the headers of a whole file tell."""
        size = answer.headers.get("Content-Length")
        return of_entry({**_marks(answer.headers), "size": None if size is None else int(size)})

    def _is_another(self, answer: Answer, of: RemoteIdentity) -> bool:
        """True if an answer is of another version."""
        marks = _marks(answer.headers)
        found = of_entry({**marks, "size": of.size})
        return any(marks.values()) and (found.number, found.tag) != (of.number, of.tag)


@contextlib.contextmanager
def finding_credentials(path: str) -> Iterator[None]:
    """Translate errors of a package that looks for credentials; their text is not kept."""
    try:
        yield
    except Exception as error:  # a package's own kinds, told apart by name
        name, kinds = type(error).__name__, {kind.__name__ for kind in type(error).__mro__}
        if kinds & _REFUSALS and "Transport" not in name:
            raise faults.refused(path) from None
        if kinds & {"ClientError", "OSError", "TransportError"}:
            raise faults.PassingError(f"the connection failed ({name})", path) from None
        raise


def pin_header(of: RemoteIdentity | None) -> dict[str, str]:
    """The header that makes a server refuse another version of a file."""
    return {"If-Match": of.tag} if of is not None and of.tag else {}


def _marks(headers: Message) -> dict[str, str | None]:
    return {name: headers.get(name) for name in ("ETag", "Last-Modified")}


def _own_credentials(host: str) -> dict[str, str]:
    """Credentials of a host from ``~/.netrc``, or the file that ``NETRC`` names."""
    place = os.environ.get("NETRC") or Path("~/.netrc").expanduser()
    try:
        found = netrc.netrc(str(place)).authenticators(host)
    except (OSError, RuntimeError, netrc.NetrcParseError):
        return {}
    return {} if found is None else {"Authorization": basic(found[0], found[2] or "")}
