"""A server of files with byte ranges, tags and a dosed link: a web server far away, on this host.

    python -m bench.remote.server FOLDER [--latency 0.05] [--rate 125e6]

serves a folder until its standard input ends. It prints its port first, and for each line that it
reads what it has sent since the last one, as JSON.

Answers ``GET`` (with ``Range`` and ``If-Match``) and ``HEAD`` from a folder. Latency passes before
each answer; all bodies together take no more than the link gives. Faults are the caller's to
inject.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

_PIECE_BYTES = 2**16
_RANGE = re.compile(r"bytes=(\d+)-(\d+)?")


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        method: "GET" or "HEAD".
        name: path below the folder.
        start, stop: the bytes asked for; of the whole file where none are.
        headers: that came with it, names in lower case.
    """

    method: str
    name: str
    start: int
    stop: int
    headers: dict[str, str]


@dataclass
class FileServer:
    """What lies in ``folder``, served; see ``serve``.

    Attributes:
        folder: what is served.
        latency_s: before every answer.
        bytes_per_s: of the link; 0 is as fast as it goes.
        fault: asked before each answer: an HTTP status to fail with, a status and ``Retry-After``,
            "cut" to close the connection in the middle of the body, or ``None``.
        tags: whether answers have an ``ETag``.
        asked: every request so far.
        sent: bytes of bodies so far.
        first_s, last_s: when the first and the last of them began.
        most_at_once: requests under way at a time, at most so far.
        connections: that are open.
    """

    folder: Path
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    fault: Callable[[Asked], int | tuple[int, str] | str | None] = lambda _: None
    tags: bool = True
    asked: list[Asked] = field(default_factory=list)
    sent: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    most_at_once: int = 0
    port: int = 0
    _at_once: int = 0
    _free_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    connections: set[socket.socket] = field(default_factory=set)

    @property
    def address(self) -> str:
        """Of the folder."""
        return f"http://127.0.0.1:{self.port}"

    def of(self, name: str, method: str = "GET") -> list[Asked]:
        """Requests for files whose name contains ``name``."""
        return [one for one in list(self.asked) if one.method == method and name in one.name]

    def begin(self) -> None:
        """One more request is under way."""
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)

    def end(self) -> None:
        """A request is answered."""
        with self._lock:
            self._at_once -= 1

    def cut_all(self) -> None:
        """Cut every connection, whatever it carries."""
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def pace(self, nbytes: int) -> None:
        """Wait until the link has carried so many bytes more."""
        with self._lock:
            self.sent += nbytes
            self.last_s = time.monotonic()
            self.first_s = self.first_s or self.last_s
            if not self.bytes_per_s:
                return
            self._free_at = max(self._free_at, time.monotonic()) + nbytes / self.bytes_per_s
            left = self._free_at - time.monotonic()
        if left > 0.002:
            time.sleep(left)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    files: FileServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client may hang up."""


@contextlib.contextmanager
def serve(folder: Path, port: int = 0) -> Iterator[FileServer]:
    """A server over ``folder``, until the block ends; 0 is any port."""
    with _Server(("127.0.0.1", port), _Handler) as server:
        server.files = FileServer(folder, port=server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.files
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def setup(self) -> None:
        super().setup()
        self.server.files.connections.add(self.connection)

    def finish(self) -> None:
        self.server.files.connections.discard(self.connection)
        with contextlib.suppress(OSError):  # the connection was cut
            super().finish()

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        files = self.server.files
        files.begin()
        try:
            self._answered(files)
        finally:
            files.end()

    def _answered(self, files: FileServer) -> None:
        name = unquote(urlsplit(self.path).path).lstrip("/")
        path = files.folder / name
        size = path.stat().st_size if path.is_file() else 0
        found = _RANGE.fullmatch(self.headers.get("Range") or "")
        start = int(found[1]) if found else 0
        stop = min(size, int(found[2]) + 1) if found and found[2] else size
        headers = {key.lower(): value for key, value in self.headers.items()}
        asked = Asked(self.command, name, start, stop, headers)
        files.asked.append(asked)
        if files.latency_s:
            time.sleep(files.latency_s)
        fault = files.fault(asked)
        if isinstance(fault, tuple):
            self._head(fault[0], 0, {"Retry-After": fault[1]})
            return
        if isinstance(fault, int):
            self._head(fault, 0, {})
            return
        if not path.is_file():
            self._head(404, 0, {})
            return
        stat = path.stat()
        tag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
        told = {"Last-Modified": formatdate(stat.st_mtime, usegmt=True), "Accept-Ranges": "bytes"}
        if files.tags:
            told["ETag"] = tag
            if headers.get("if-match", tag) != tag:
                self._head(412, 0, {})
                return
        if found and start >= size:
            self._head(416, 0, {"Content-Range": f"bytes */{size}"})
            return
        if found:
            told["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self._head(206 if found else 200, stop - start, told)
        if self.command == "GET":
            self._body(files, path, start, stop, cut=fault == "cut")

    def _body(self, files: FileServer, path: Path, start: int, stop: int, *, cut: bool) -> None:
        end = start + (stop - start) // 2 if cut else stop
        with path.open("rb") as file:
            while start < end:
                count = min(_PIECE_BYTES, end - start)
                files.pace(count)
                start += self.connection.sendfile(file, start, count)
        if cut:
            self.close_connection = True

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def main() -> None:
    """Serve a folder to other processes."""
    parser = argparse.ArgumentParser(prog="python -m bench.remote.server")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0)
    chosen = parser.parse_args()
    with serve(chosen.folder) as server:
        server.latency_s, server.bytes_per_s = chosen.latency, chosen.rate
        print(server.port, flush=True)
        for _ in sys.stdin:
            seconds = server.last_s - server.first_s
            print(json.dumps({"sent": server.sent, "seconds": seconds}), flush=True)
            server.sent, server.first_s, server.last_s = 0, 0.0, 0.0


if __name__ == "__main__":
    main()
