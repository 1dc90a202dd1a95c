"""Blocking HTTP connections that are used again, with answers read into the caller's memory.

Theory of operation. Each thread that asks takes a connection to the server, or makes one, and puts
it back when the answer is read to its end. A body goes from the socket into the caller's memory by
few large reads, in which the interpreter is free for others: the processes that fetch decode
pictures meanwhile, on the same cores. Redirections are followed; credentials do not go along to
another host. ``https_proxy`` and ``no_proxy`` are heeded, certificates are the system's
(``SSL_CERT_FILE``). Nothing is logged: an address that a server sends to may be signed.

Not here: what is asked of whom (the clients), repetitions (``storage.store``).
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import http.client
import io
import select
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any, TypeAlias
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from autoloader.storage import faults
from autoloader.storage.limits import Meter

CONNECT_S, SILENCE_S = 15.0, 30.0
"""A connection that takes longer, or gives nothing for so long, is given up and tried again."""
_ELSEWHERE = (301, 302, 303, 307, 308)
_HOPS = 6
_IDLE = 32
"""Connections that are kept for one server."""
_PIECE_BYTES = 2**18
_WORDS_BYTES = 2**16
"""So much of an answer that is an error is read, to use its connection again."""

_Place: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True)
class Answer:
    """What a server answered.

    Attributes:
        status: of HTTP.
        headers: by name, in whatever case.
        body: the whole; empty where it went into the caller's memory.
        count: bytes of the body, more than were wanted where it was too long.
        sent_on_by: headers of the first server, where that one sent elsewhere.
    """

    status: int
    headers: Message
    body: bytes
    count: int
    sent_on_by: Message | None = None


class Connections:
    """Connections of one client to its servers; any thread.

    Args:
        certificates: a file of the authorities that are trusted; ``None`` takes the system's.
    """

    def __init__(self, certificates: str | None = None) -> None:
        self._certificates = certificates
        self._lock = threading.Lock()
        self._idle: dict[_Place, list[http.client.HTTPConnection]] = {}
        self._context: ssl.SSLContext | None = None

    def ask(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        path: str,
        *,
        into: memoryview | None = None,
        content: bytes | None = None,
        follows: bool = True,
        meter: Meter,
    ) -> Answer:
        """One question and its answer.

        Args:
            method: of HTTP.
            address: whom, and for what.
            headers: of the question.
            path: for errors.
            into: takes the body of an answer that is no error, and is filled, or it is too long.
            content: body of the question.
            follows: whether redirections are followed.
            meter: counts what comes.

        Raises:
            PassingError: no whole answer came.
            OSError: a redirection without an end, or to something else.
        """
        first: Message | None = None
        for _ in range(_HOPS):
            answer = self._ask_once(method, address, headers, path, into, content, meter)
            where = answer.headers.get("Location")
            if not follows or answer.status not in _ELSEWHERE or not where:
                return Answer(answer.status, answer.headers, answer.body, answer.count, first)
            first = first or answer.headers
            other = urljoin(address, where)
            if urlsplit(other)[:2] != urlsplit(address)[:2]:
                headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
            address = other
        raise OSError(errno.EIO, "the server sends elsewhere again and again", path)

    def _ask_once(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        path: str,
        into: memoryview | None,
        content: bytes | None,
        meter: Meter,
    ) -> Answer:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OSError(errno.EIO, "the server sends to something that is no web address", path)
        proxy = _proxy_of(parts)
        target = parts._replace(fragment="", scheme="", netloc="").geturl() or "/"
        if proxy and parts.scheme == "http":
            target = parts._replace(fragment="").geturl()
            headers = {**headers, **_proxy_headers(urlsplit(proxy))}
        place = (parts.scheme, parts.netloc, proxy)
        connection: http.client.HTTPConnection | None = None
        try:
            connection = self._taken(place) or self._made(parts, proxy)
            connection.response_class = functools.partial(  # type: ignore[assignment]
                _Response, meter=meter
            )
            connection.request(method, target, body=content, headers=dict(headers))
            with contextlib.closing(connection.getresponse()) as response:
                answer, ended = _read(response, into, path, meter)
        except Exception as error:  # noqa: BLE001 translated, all of them
            if connection is not None:
                connection.close()
            raise _meant(error, path) from None
        if ended:
            self._put_back(place, connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Close what rests; a later question makes new ones."""
        with self._lock:
            resting = [one for some in self._idle.values() for one in some]
            self._idle.clear()
        for connection in resting:
            connection.close()

    def __del__(self) -> None:
        self.close()

    def _taken(self, place: _Place) -> http.client.HTTPConnection | None:
        """A connection that is still open, where there is one."""
        while True:
            with self._lock:
                idle = self._idle.get(place)
                connection = idle.pop() if idle else None
            if connection is None or _is_open(connection):
                return connection
            connection.close()

    def _put_back(self, place: _Place, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(place, [])
            if connection.sock is not None and len(idle) < _IDLE:
                idle.append(connection)
                return
        connection.close()

    def _made(self, parts: SplitResult, proxy: str) -> http.client.HTTPConnection:
        by = urlsplit(proxy) if proxy else parts
        port = by.port or (443 if by.scheme == "https" else 80)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                by.hostname or "", port, timeout=CONNECT_S, context=self._trusted()
            )
            if proxy:
                connection.set_tunnel(parts.hostname or "", parts.port or 443, _proxy_headers(by))
        else:
            connection = http.client.HTTPConnection(by.hostname or "", port, timeout=CONNECT_S)
        connection.connect()
        connection.sock.settimeout(SILENCE_S)
        return connection

    def _trusted(self) -> ssl.SSLContext:
        with self._lock:
            if self._context is None:
                self._context = ssl.create_default_context(cafile=self._certificates)
            return self._context


class _Response(http.client.HTTPResponse):
    """An answer whose every byte passes a meter on its way from the socket, headers too."""

    def __init__(self, *arguments: Any, meter: Meter, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.fp = io.BufferedReader(_Metered(self.fp.detach(), meter))


class _Metered(io.RawIOBase):
    """The bytes of a socket; ``meter`` is told of each piece, and may raise."""

    def __init__(self, raw: io.RawIOBase, meter: Meter) -> None:
        self._raw = raw
        self._meter = meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        self._meter.came(count or 0)
        return int(count or 0)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def _whole(response: http.client.HTTPResponse, path: str) -> bytes:
    """A body of any length, piece by piece: a length that is told may not be true."""
    body = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        body += piece
    if response.length:
        raise faults.cut_off(path)
    return bytes(body)


def _read(
    response: http.client.HTTPResponse,
    into: memoryview | None,
    path: str,
    meter: Meter,
) -> tuple[Answer, bool]:
    """The answer with its body, and whether it was read to its end."""
    status, headers = response.status, response.headers
    if status >= 300:
        with contextlib.suppress(http.client.HTTPException):
            body = response.read(_WORDS_BYTES)
        return Answer(status, headers, body, len(body)), _ended(response)
    if into is None:
        meter.promised(response.length or 0)
        body = _whole(response, path)
        return Answer(status, headers, body, len(body)), _ended(response)
    if (response.length or 0) > len(into):
        return Answer(status, headers, b"", response.length or 0), False
    done = 0
    while done < len(into):
        count = response.readinto(into[done:])
        if not count:
            raise faults.cut_off(path)
        done += count
    done += len(response.read(1))
    return Answer(status, headers, b"", done), _ended(response)


def _ended(response: http.client.HTTPResponse) -> bool:
    return response.isclosed() and not response.will_close


def _is_open(connection: http.client.HTTPConnection) -> bool:
    """Whether a connection that rests was not closed by the server."""
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
    if proxy.username is None:
        return {}
    return {"Proxy-Authorization": basic(unquote(proxy.username), unquote(proxy.password or ""))}


def basic(user: str, password: str) -> str:
    """The header by which a server is told a user and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def _meant(error: Exception, path: str) -> Exception:
    """What went wrong with a connection, in words that hold nothing of its text."""
    if isinstance(error, OSError) and error.filename == path:
        return error
    if isinstance(error, socket.gaierror):
        return faults.PassingError("its name cannot be resolved", path, lost=True)
    if isinstance(error, http.client.IncompleteRead | ssl.SSLEOFError):
        return faults.cut_off(path)
    if isinstance(error, ssl.SSLError):
        return faults.PassingError("no trusted connection (TLS)", path)
    if isinstance(error, TimeoutError):
        return faults.PassingError("no answer in time", path, lost=True)
    if isinstance(error, OSError | http.client.HTTPException):
        why = f"the connection failed ({type(error).__name__})"
        return faults.PassingError(why, path, lost=True)
    return error
