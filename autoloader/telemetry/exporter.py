"""Metrics as Prometheus text: as a file, and at ``127.0.0.1:PORT/metrics``.

Theory of operation. Whatever process runs pipelines (the loader's child) keeps the latest moment of
each and serves them all, so one port has every rank of a node. The text is made when it is asked
for, at most once for a moment; nobody who asks can hold up a loader. Each pipeline is told apart by
``rank``, ``split`` and ``pipeline``.

The text is written here and not by a client library: the values are there already, and a library's
registry takes ten times as long to print them (29 datasets: 1.4 ms against 0.17).

Not here: the metrics (``metrics``), taking moments (``actuation.moments``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from autoloader.host.threads import LoaderThread
from autoloader.telemetry.metrics import METRICS, labelled
from autoloader.telemetry.snapshot import Snapshot

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CLIENT_S = 5.0
"""A client that says nothing for so long is hung up on."""


def text_of(moments: Iterable[Snapshot]) -> str:
    """The metrics of several pipelines in Prometheus' text format."""
    every = [
        (f'rank="{one.rank}",split="{_escaped(one.split)}",pipeline="{one.pipeline}"', one)
        for one in moments
    ]
    lines = []
    for metric in METRICS:
        values = [
            (common, name, value)
            for common, one in every
            for name, value in labelled(metric.seen(one))
        ]
        if not values:
            continue
        name = metric.exported_name
        lines.append(f"# HELP {name} {_escaped(metric.meaning)} ({metric.unit})")
        lines.append(f"# TYPE {name} {metric.kind}")
        for common, own, value in values:
            label = f',{metric.label}="{_escaped(own)}"' if metric.label else ""
            lines.append(f"{name}{{{common}{label}}} {float(value)!r}")
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class _Shown:
    """The latest moments of the pipelines of this process, and their text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moments: dict[tuple[str, int], Snapshot] = {}
        self._text: str | None = None

    def put(self, key: tuple[str, int], moment: Snapshot | None) -> None:
        """One pipeline's latest moment; ``None``: it has ended."""
        with self._lock:
            if moment is None:
                self._moments.pop(key, None)
            else:
                self._moments[key] = moment
            self._text = None

    def text(self) -> str:
        """Of all that are there."""
        with self._lock:
            if self._text is None:
                self._text = text_of(self._moments[key] for key in sorted(self._moments))
            return self._text


class _Answers(BaseHTTPRequestHandler):
    timeout = _CLIENT_S
    shown: _Shown

    def do_GET(self) -> None:
        """``/metrics``."""
        if self.path.partition("?")[0] not in ("/metrics", "/"):
            self.send_error(404, "metrics are at /metrics")
            return
        body = self.shown.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is no fault of the loader."""
        del request
        logger.debug("a client of the metrics went away: %s", client_address)


class _Port:
    """One port of this process, served while anybody shows anything there."""

    def __init__(self, port: int, shown: _Shown) -> None:
        answers = type("_BoundAnswers", (_Answers,), {"shown": shown})
        self._server = _Server(("127.0.0.1", port), answers)
        self._thread = LoaderThread(
            target=self._server.serve_forever, args=(0.25,), name="autoloader-metrics"
        )
        self._thread.start()
        self.users = 0

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2.0)


_lock = threading.Lock()
_shown = _Shown()
_ports: dict[int, _Port] = {}
_open: weakref.WeakSet[Exporter] = weakref.WeakSet()


def _forget() -> None:
    """In a fork: the threads that served are not here."""
    _ports.clear()
    _open.clear()


os.register_at_fork(after_in_child=_forget)


class Exporter:
    """Shows one pipeline's metrics; see ``actuation.sinks.Sink``.

    Args:
        run: the trainer's process.
        pipeline: which loader of it.
        port: of 127.0.0.1; 0: none.
        file: "" : none.
    """

    def __init__(self, run: str, pipeline: int, *, port: int = 0, file: str = "") -> None:
        self._key = (run, pipeline)
        self._file = Path(file) if file else None
        self._port = port if port and _opened(port) else 0
        self._said = ""
        _open.add(self)

    def write(self, moment: Snapshot) -> None:
        """Show ``moment`` from now on."""
        _shown.put(self._key, moment)
        if self._file is not None:
            new = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            try:
                new.write_text(_shown.text(), encoding="utf-8")
                new.replace(self._file)
            except OSError as error:
                if str(error) != self._said:
                    self._said = str(error)
                    logger.warning("no metrics in %s: %s", self._file, error)

    def close(self) -> None:
        """The pipeline has ended: nothing is shown of it any more. May be called twice."""
        _open.discard(self)
        _shown.put(self._key, None)
        port, self._port = self._port, 0
        if port:
            _left(port)
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                if rest := _shown.text():
                    file.write_text(rest, encoding="utf-8")
                else:
                    file.unlink()


def end_exports() -> None:
    """Take the files of this process away, which ends without closing its pipelines."""
    for one in list(_open):
        one.close()


def _opened(port: int) -> bool:
    with _lock:
        if port not in _ports:
            try:
                _ports[port] = _Port(port, _shown)
            except OSError as error:
                logger.warning(
                    "no metrics at 127.0.0.1:%d: %s; give AUTOLOADER_METRICS_PORT a free one",
                    port,
                    error,
                )
                return False
        _ports[port].users += 1
        return True


def _left(port: int) -> None:
    with _lock:
        _ports[port].users -= 1
        if _ports[port].users:
            return
        unused = _ports.pop(port)
    unused.close()
