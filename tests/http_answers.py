"""A server of HTTP requests whose tests say what it answers.

Not here: what is served (each test's own subclass).
"""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer


class Answering(BaseHTTPRequestHandler):
    """Answers with whole bodies, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Send a status, headers (``Content_Type`` is "Content-Type") and, but for HEAD, a body."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextlib.contextmanager
def answering(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on this machine, by its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, running(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"


@contextlib.contextmanager
def running(server: BaseServer) -> Iterator[None]:
    """Requests are answered."""
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
