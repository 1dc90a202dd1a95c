"""The loader's child: runs pipelines for the trainer that started it, and dies with it.

Started as ``python -m autoloader.worker`` with a listening socket. Threads: one reads messages, one
per pipeline hands filled batches over, one beats the heart and watches the parent (a pidfd, and
the socket's end: PR_SET_PDEATHSIG fires when the starting *thread* ends, so it is not used).

The child ends by ``os._exit``: TensorFlow's threads do not survive an orderly interpreter exit,
and everything it holds is the kernel's to take back.

Not here: the trainer's side (``runtime.child``), the parts themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoloader.controller.oom import memory_cgroup, oom_kills
from autoloader.errors import AutoloaderError
from autoloader.knobs import Knobs
from autoloader.runtime.control_page import ControlPage
from autoloader.runtime.filled import PipelineStart
from autoloader.runtime.launch import open_pipeline
from autoloader.runtime.messages import (
    Activity,
    AskActivity,
    Failed,
    Filled,
    Logged,
    Message,
    Park,
    Release,
    Retune,
    Start,
    Stop,
    Wire,
)
from autoloader.runtime.ring import RingMemory
from autoloader.sampling.cursor import DatasetCursor
from autoloader.sampling.dealing import Ranks
from autoloader.sampling.order import MixtureOrder
from autoloader.sampling.resolve import resolve, resolve_plain
from autoloader.spec import PipelineSpec

logger = logging.getLogger(__name__)

OOM_SCORE_ADJ = 600
_BEAT_S = 0.1
_POLL_S = 0.25


class _Served:
    """One pipeline that this child runs, in its current generation."""

    def __init__(self, worker: Worker, start: Start, memory: RingMemory) -> None:
        self._worker = worker
        self._number = start.pipeline
        self._generation = start.generation
        self._memory = memory
        mixture = resolve_plain(start.spec, start.split, start.statistics)
        order = MixtureOrder.from_plain(start.order)
        cursors = []
        for dataset, state in zip(mixture.datasets, start.cursors, strict=True):
            cursor = DatasetCursor.of(dataset)
            cursor.restore(state)
            cursors.append(cursor)
        self.pipeline = open_pipeline(
            mixture,
            order,
            Knobs.build(start.knobs),
            memory,
            start=PipelineStart(
                tuple(cursors), start.mixer, start.first_number, start.position, start.in_epoch
            ),
            held=start.held_slots,
            ranks=Ranks(start.rank, start.world_size),
        )
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"autoloader-deliver-{self._number}", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        self.pipeline.start()
        self._thread.start()

    def close(self) -> None:
        """End this generation; its ring is the trainer's."""
        self._closed = True
        self.pipeline.close()
        self._memory.close()

    def _run(self) -> None:
        try:
            while not self._closed:
                batch = self.pipeline.next(_POLL_S)
                if batch is not None:
                    self._worker.send(Filled.of(self._number, self._generation, batch))
        except AutoloaderError as error:
            if not self._closed:
                self._worker.send(Failed.of(self._number, error))
        except OSError:
            self._worker.end("the trainer is gone")


class Worker:
    """Serves one connection.

    Args:
        connection: to the trainer.
        parent: its process id.
    """

    def __init__(self, connection: socket.socket, parent: int) -> None:
        self._wire = Wire(connection)
        self._parent = parent
        self._sending = threading.Lock()
        self._served: dict[int, _Served] = {}
        self._page: ControlPage | None = None
        self._membership = b""

    def send(self, message: Message) -> None:
        """Send to the trainer; any thread."""
        with self._sending:
            self._wire.send(message)

    def end(self, reason: str) -> None:
        """End the process now."""
        logger.info("ending: %s", reason)
        logging.shutdown()
        os._exit(0)

    def run(self) -> None:
        """Serve until the trainer is gone or done."""
        threading.Thread(target=self._beat, name="autoloader-heartbeat", daemon=True).start()
        while True:
            try:
                message = self._wire.receive(None)
            except EOFError:
                self.end("the trainer closed the connection")
            if message is not None:
                self._handle(message)

    def _handle(self, message: Message) -> None:
        if isinstance(message, Stop) and (message.pipeline < 0 or len(self._served) <= 1):
            self.end("the trainer is done")
        served = self._served.get(message.pipeline)
        if isinstance(message, Start):
            self._start(message)
        elif served is None:
            logger.debug("a message for pipeline %d, which is over", message.pipeline)
        elif isinstance(message, Release):
            for slot in message.slots:
                served.pipeline.release(slot)
        elif isinstance(message, Retune):
            served.pipeline.retune(Knobs.build(message.knobs))
        elif isinstance(message, Park):
            served.pipeline.park(message.parked)
        elif isinstance(message, AskActivity):
            self.send(
                Activity(
                    message.pipeline,
                    message.request,
                    asdict(served.pipeline.activity()),
                    [asdict(bad) for bad in served.pipeline.quarantined()],
                )
            )
        elif isinstance(message, Stop):
            del self._served[message.pipeline]
            served.close()

    def _start(self, message: Start) -> None:
        ring, page = self._wire.descriptors(2)
        if self._page is None:
            self._page = ControlPage(page)
            self._note_cgroup(self._page)
        else:
            os.close(page)
        earlier = self._served.pop(message.pipeline, None)
        if earlier is not None:
            earlier.close()
        try:
            spec = PipelineSpec.model_validate(message.spec)
            layout = resolve(spec, message.split).layout
            served = _Served(self, message, RingMemory(layout, descriptor=ring))
        except AutoloaderError as error:
            self.send(Failed.of(message.pipeline, error))
            return
        self._served[message.pipeline] = served
        served.start()

    def _note_cgroup(self, page: ControlPage) -> None:
        """Keep the trainer told which memory cgroup this process is in: it may be moved."""
        membership = Path("/proc/self/cgroup").read_bytes()
        if membership != self._membership:
            self._membership = membership
            directory = memory_cgroup()
            page.note_cgroup(directory, oom_kills(directory) or 0)

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(self._parent)
            watch = select.poll()
            watch.register(descriptor, select.POLLIN)
            while True:
                if self._page is not None:
                    self._page.beat(time.monotonic_ns())
                    self._note_cgroup(self._page)
                if watch.poll(int(_BEAT_S * 1000)):
                    break
        self.end("the trainer's process is gone")


class _LogsToTrainer(logging.Handler):
    """Hands warnings and worse to the trainer's own logging."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(logging.WARNING)
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            self._worker.send(Logged(-1, record.levelno, record.name, record.getMessage()))


def _prepare_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("autoloader")
    sys.setswitchinterval(0.001)


def main(arguments: list[str] | None = None) -> None:
    """Accept the trainer's connection and serve it."""
    parser = argparse.ArgumentParser(prog="autoloader.worker")
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--run", default="", help="shown by ps")
    parser.add_argument("--warm", action="store_true", help="import TensorFlow at once")
    chosen = parser.parse_args(arguments)
    _prepare_process()
    with socket.socket(fileno=chosen.listener) as listener:
        connection, _ = listener.accept()
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    if uid != os.getuid() or os.getppid() != chosen.parent:
        sys.exit(f"refusing process {pid} of user {uid}")
    worker = Worker(connection, chosen.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("autoloader").addHandler(_LogsToTrainer(worker))
    if chosen.warm:
        threading.Thread(target=_import_tensorflow, name="autoloader-import", daemon=True).start()
    worker.run()


def _import_tensorflow() -> Any:
    """Begin the slow import while the trainer is still planning."""
    import autoloader.graph.reader

    return autoloader.graph.reader


if __name__ == "__main__":
    main()
