"""Metrics for Prometheus: in a file, and at ``127.0.0.1:PORT/metrics``.

The loader's child keeps the latest snapshot of each of its pipelines. It serves all of them, so one
port has every rank of a node. Pipelines differ by the labels ``rank``, ``split`` and ``pipeline``.
prometheus-client makes the text when somebody asks; no reader can hold up a loader. Any user of the
machine may ask, so the number of clients is bounded.

Not here: the metrics (``metrics``), taking snapshots (``process.observer``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from autoloader.host.threads import LoaderThread, free_in_forks
from autoloader.telemetry.metrics import METRICS, labelled
from autoloader.telemetry.statistics import Statistics

logger = logging.getLogger(__name__)

_CLIENT_S = 5.0
"""A client that takes so long is hung up on."""
_MOST_CLIENTS = 8


class PipelineMetrics(Collector):
    """The latest snapshot of each pipeline of this process, as metric families."""

    def __init__(self) -> None:
        self._lock = free_in_forks(threading.Lock())
        self._snapshots: dict[tuple[str, int], Statistics] = {}

    def put(self, key: tuple[str, int], snapshot: Statistics | None) -> bool:
        """Replace the snapshot of a pipeline; ``None`` removes it. Returns whether any is left."""
        with self._lock:
            if snapshot is None:
                self._snapshots.pop(key, None)
            else:
                self._snapshots[key] = snapshot
            return bool(self._snapshots)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that at least one pipeline has measured."""
        with self._lock:
            snapshots = [self._snapshots[key] for key in sorted(self._snapshots)]
        for metric in METRICS:
            kind = CounterMetricFamily if metric.counter else GaugeMetricFamily
            names = ["rank", "split", "pipeline", *([metric.label] if metric.label else [])]
            about = f"{metric.meaning} ({metric.unit})"
            family = kind(metric.exported_name, about, labels=names)
            for one in snapshots:
                common = [str(one.rank), one.split, str(one.pipeline)]
                for name, value in labelled(metric.read(one)):
                    family.add_metric([*common, *([name] if metric.label else [])], float(value))
            if family.samples:
                yield family


class _Answers(WSGIRequestHandler):
    """Request of one client; nothing is logged of it."""

    timeout = _CLIENT_S

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _Server(ThreadingWSGIServer):
    """A port of this process, open while a pipeline of it exports metrics there.

    It answers a few clients at a time; when one more comes, the oldest loses its connection.

    Attributes:
        users: pipelines that export metrics there.
    """

    request_queue_size = socket.SOMAXCONN

    def __init__(self, port: int) -> None:
        self.users: set[tuple[str, int]] = set()
        self._clients: list[socket.socket] = []
        self._asking = threading.Condition()
        super().__init__(("127.0.0.1", port), _Answers)
        self.set_app(make_wsgi_app(_registry))
        self._thread = LoaderThread(self.serve_forever, "autoloader-metrics", (0.25,))
        self._thread.start()

    def close(self) -> None:
        """Close the port."""
        self.shutdown()
        self.server_close()
        self._thread.join(2.0)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread."""
        with self._asking:
            for oldest in self._clients[: 1 - _MOST_CLIENTS]:
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # wakes its thread
            self._asking.wait_for(lambda: len(self._clients) < _MOST_CLIENTS, _CLIENT_S)
            self._clients.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a client's request, or lose the client."""
        with self._asking, contextlib.suppress(ValueError):
            self._clients.remove(request)
            self._asking.notify()
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that hung up is no fault of the loader."""


_latest = PipelineMetrics()
_registry = CollectorRegistry()
_registry.register(_latest)
_ports: dict[int, _Server] = {}
_lock = free_in_forks(threading.Lock(), _ports.clear)


class Exporter:
    """Exports the metrics of one pipeline; see ``process.observer.Sink``.

    Args:
        run: name of the trainer's process.
        pipeline: number of the loader within the run.
        port: port of 127.0.0.1; 0 opens none.
        file: path of the text file; "" writes none.
    """

    def __init__(self, run: str, pipeline: int, *, port: int = 0, file: str = "") -> None:
        self._key = (run, pipeline)
        self._file = file
        if os.path.exists(file) and not os.path.isfile(file):  # it would be replaced, and removed
            logger.warning("no metrics in %s: it is no regular file", file)
            self._file = ""
        self._port = port
        self._last_error = ""
        try:
            with _lock:
                if port and port not in _ports:
                    _ports[port] = _Server(port)
                if port:
                    _ports[port].users.add(self._key)
        except OSError as error:
            advice = "give AUTOLOADER_METRICS_PORT a free one"
            logger.warning("no metrics at 127.0.0.1:%d: %s; %s", port, error, advice)

    def write(self, moment: Statistics) -> None:
        """Answer with the metrics of ``moment`` from now on."""
        _latest.put(self._key, moment)
        self._write_file()

    def close(self) -> None:
        """Remove the metrics of the pipeline. A second call does nothing."""
        others = _latest.put(self._key, None)
        with _lock:
            opened = _ports.get(self._port)
            if opened is not None:
                opened.users.discard(self._key)
                if not opened.users:
                    _ports.pop(self._port).close()
        if others:
            self._write_file()
        elif self._file:
            Path(self._file).unlink(missing_ok=True)
        self._file = ""

    def _write_file(self) -> None:
        if not self._file:
            return
        try:
            write_to_textfile(self._file, _registry)
        except OSError as error:
            if str(error) != self._last_error:
                self._last_error = str(error)
                logger.warning("no metrics in %s: %s", self._file, error)
