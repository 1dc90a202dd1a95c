"""Google Cloud Storage on this machine: TensorFlow's own ``gs://`` client and gcsfs talk to it.

TensorFlow's takes its way through ``https_proxy`` and trusts ``CURL_CA_BUNDLE``. So this is a proxy
that ends every tunnel itself, with a certificate of an authority of its own, and answers what the
client asks of storage.googleapis.com and www.googleapis.com from ``folder/bucket/object``. gcsfs
asks the same port in the clear (``STORAGE_EMULATOR_HOST``). An object's generation is its time.
Latency and failures are the caller's to inject.
"""

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c
import trustme
from http_answers import Answering


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        host: whom the client thinks it talks to.
        target: "media", "metadata", "listing", "bucket", or "other".
        name: "bucket/object".
        start, stop: the range of bytes asked for, where it is media.
        authorised: whether the client sent a token.
    """

    host: str
    target: str
    name: str
    start: int = 0
    stop: int = -1
    authorised: bool = False


@dataclass
class CloudStorage:
    """What lies in ``folder`` as buckets; see ``serve``.

    Attributes:
        folder: a bucket is a folder in it.
        latency_s: before every answer.
        fault: asked before each answer: an HTTP status to fail with, a status and ``Retry-After``,
            "cut" to close the connection in the middle of the body, or ``None``.
        asked: every request so far.
    """

    folder: Path
    latency_s: float = 0.0
    fault: Callable[[Asked], int | tuple[int, str] | str | None] = lambda _: None
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    def of(self, target: str, name: str = "") -> list[Asked]:
        """Requests of one kind whose name contains ``name``."""
        return [one for one in list(self.asked) if one.target == target and name in one.name]


@contextlib.contextmanager
def serve(folder: Path, certificates: Path) -> Iterator[tuple[CloudStorage, dict[str, str]]]:
    """A storage over ``folder``, and the environment in which the client finds it."""
    authority = trustme.CA()
    bundle = certificates / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("storage.googleapis.com", "www.googleapis.com").configure_cert(context)
    storage = CloudStorage(folder)
    listener = socket.create_server(("127.0.0.1", 0))
    storage.port = listener.getsockname()[1]
    threading.Thread(target=_accept, args=(listener, context, storage), daemon=True).start()
    proxy = f"http://127.0.0.1:{storage.port}"
    try:
        yield (
            storage,
            {
                "https_proxy": proxy,
                "http_proxy": proxy,
                "no_proxy": "",
                "STORAGE_EMULATOR_HOST": proxy,
                "CURL_CA_BUNDLE": str(bundle),
                "CLOUDSDK_CONFIG": str(certificates),
                "GOOGLE_APPLICATION_CREDENTIALS": "",
            },
        )
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, context: ssl.SSLContext, storage: CloudStorage) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_talk, args=(connection, context, storage), daemon=True).start()


def _talk(connection: socket.socket, context: ssl.SSLContext, storage: CloudStorage) -> None:
    """One connection: the proxy's CONNECT, then requests inside the tunnel."""
    with contextlib.suppress(OSError), connection:
        first = connection.recv(4096, socket.MSG_PEEK)
        own = f"http://127.0.0.1:{storage.port}/".encode()
        if first.partition(b" ")[2].startswith((b"/", own)):
            _Handler(connection, ("storage.googleapis.com", 80), storage)  # type: ignore[arg-type]
            return
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(1)  # not a byte of what follows
            if not piece:
                return
            head += piece
        method, target, *_ = head.split(b" ", 2)
        if method != b"CONNECT":  # the metadata server of a cloud machine is asked in the clear
            host = urlsplit(target.decode()).hostname or ""
            storage.asked.append(Asked(host, "other", target.decode()))
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        host = target.decode().partition(":")[0]
        with context.wrap_socket(connection, server_side=True) as tunnel:
            _Handler(tunnel, (host, 443), storage)  # type: ignore[arg-type]


class _Handler(Answering, BaseHTTPRequestHandler):
    """Answers requests inside one tunnel; ``client_address`` is whom the client thinks to ask."""

    protocol_version = "HTTP/1.1"
    server: CloudStorage  # type: ignore[assignment]

    def do_GET(self) -> None:
        asked = self._asked()
        self.server.asked.append(asked)
        if self.server.latency_s:
            time.sleep(self.server.latency_s)
        fault = self.server.fault(asked)
        if isinstance(fault, tuple):
            self.answer(fault[0], Retry_After=fault[1])
        elif isinstance(fault, int):
            self.answer(fault, json.dumps({"error": {"code": fault}}).encode())
        elif asked.target == "media":
            self._media(asked, cut=fault == "cut")
        elif asked.target == "metadata":
            self._metadata(asked)
        elif asked.target == "listing":
            self._listing(asked)
        else:
            there = asked.target == "bucket" and (self.server.folder / asked.name).is_dir()
            self.answer(200 if there else 404, b"{}")

    def do_POST(self) -> None:
        """One upload: ``uploadType=media``."""
        parts = urlsplit(self.path)
        bucket = parts.path.split("/b/")[1].partition("/")[0]
        path = self.server.folder / bucket / parse_qs(parts.query)["name"][0]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(Asked("storage.googleapis.com", "upload", f"{bucket}/{path.name}"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        self.answer(200, b"{}")

    def _asked(self) -> Asked:
        host = str(self.client_address[0])
        parts = urlsplit(self.path)
        authorised = "Authorization" in self.headers
        media = parse_qs(parts.query).get("alt") == ["media"]
        if media or (host == "storage.googleapis.com" and "/storage/v1/b" not in parts.path):
            name = unquote(parts.path).lstrip("/")
            if media:
                name = name.partition("/b/")[2].replace("/o/", "/", 1)
            first, _, last = (self.headers.get("Range") or "bytes=0-")[6:].partition("-")
            stop = int(last) + 1 if last else -1
            return Asked(host, "media", name, int(first), stop, authorised)
        _, _, place = parts.path.partition("/storage/v1/b/")
        bucket, found, name = place.partition("/o")
        if not found:
            return Asked(host, "bucket", unquote(bucket), authorised=authorised)
        if name.startswith("/"):
            full = f"{unquote(bucket)}/{unquote(name[1:])}"
            return Asked(host, "metadata", full, authorised=authorised)
        prefix = parse_qs(parts.query).get("prefix", [""])[0]
        return Asked(host, "listing", f"{unquote(bucket)}/{prefix}", authorised=authorised)

    def _media(self, asked: Asked, *, cut: bool) -> None:
        path = self.server.folder / asked.name
        if not path.is_file():
            self.answer(404, b"")
            return
        pinned = parse_qs(urlsplit(self.path).query).get("generation")
        generation = {"x-goog-generation": str(path.stat().st_mtime_ns)}
        if pinned and pinned != [generation["x-goog-generation"]]:
            self.answer(404, b"")
            return
        data = path.read_bytes()
        if asked.start >= len(data):
            self.answer(416, b"")
            return
        body = data[asked.start : asked.stop if asked.stop >= 0 else None]
        if not cut:
            self.answer(206, body, **generation)
            return
        self.send_response(206)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.close_connection = True

    def _metadata(self, asked: Asked) -> None:
        path = self.server.folder / asked.name
        if not path.is_file():
            self.answer(404, b"{}")
            return
        self.answer(200, json.dumps(_object(path, path.name)).encode())

    def _listing(self, asked: Asked) -> None:
        query = parse_qs(urlsplit(self.path).query)
        bucket, _, prefix = asked.name.partition("/")
        root = self.server.folder / bucket
        if not root.is_dir():
            self.answer(404, b"{}")
            return
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        names = [name for name in names if name.startswith(prefix)]
        document: dict[str, object] = {}
        if query.get("delimiter") == ["/"]:
            inner = [(name, name[len(prefix) :].partition("/")) for name in names]
            document["prefixes"] = sorted({prefix + p[0] + "/" for _, p in inner if p[1]})
            names = [name for name, p in inner if not p[1]]
        limit = int(query.get("maxResults", ["1000"])[0])
        document["items"] = [_object(root / name, name) for name in names[:limit]]
        self.answer(200, json.dumps(document).encode())


def _object(path: Path, name: str) -> dict[str, str]:
    """What the store says of an object."""
    stat = path.stat()
    crc = google_crc32c.value(path.read_bytes())
    return {
        "name": name,
        "size": str(stat.st_size),
        "generation": str(stat.st_mtime_ns),
        "crc32c": base64.b64encode(crc.to_bytes(4, "big")).decode(),
        "updated": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stat.st_mtime)),
    }
