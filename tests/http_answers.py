"""A handler of HTTP requests whose tests say what it answers.

Not here: what is served (each test's own subclass).
"""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler


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
