"""The loader's child: runs pipelines for the trainers of a node, and ends with the last of them.

Started as ``python -m autoloader.process.worker`` with a listening socket that the trainers find by
its name (``process.discovery``). Each has its own connection, pipelines and rings:
none of them waits for another one. One thread accepts trainers, one for each trainer reads its
messages, and one for each pipeline hands filled batches over. One more sends heartbeats and watches
the trainers, by a pidfd each and the socket's end. (PR_SET_PDEATHSIG fires when the starting
*thread* ends, so it is not used.) A trainer that is gone takes its own pipelines along and nothing
else.

Any user of the machine may connect to the socket. A stranger's connection is closed before anything
is read from it, and counted; only the first one is logged, and none of them keeps the child alive.

The child ends by ``os._exit``: TensorFlow's threads do not survive an orderly interpreter exit,
and everything it holds is the kernel's to take back.

Not here: what it does for one trainer (``process.control``), the trainer's side
(``process.child``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from pathlib import Path

from autoloader.formats.files import raise_descriptor_limit
from autoloader.host.headroom import HeadroomProbe, memory_cgroup, oom_kills
from autoloader.host.machine import KernelFile
from autoloader.host.supervision import options
from autoloader.host.threads import LoaderThread, become
from autoloader.pipeline import messages
from autoloader.pipeline.messages import peer_of
from autoloader.process.control import Control, TrainerService

logger = logging.getLogger(__name__)

OOM_SCORE_ADJ = 600
_BEAT_S = 0.25
_LIMITS_S = 0.5
"""Cgroups' limits change seldom; a reading of all of them takes four times one of what is used."""
_ADMITTED_AT_ONCE = socket.SOMAXCONN
"""Connections looked at before anything else is done; no more wait at a time."""


class Worker:
    """Serves every trainer that connects, until the last one is gone.

    Args:
        listener: bound and listening; whoever finds it may be served.
        parent: process id of the trainer that started this one.
    """

    def __init__(self, listener: socket.socket, parent: int) -> None:
        self._listener = listener
        self._parent = parent
        self.trainers: list[TrainerService] = []
        self._lock = threading.Lock()
        self._had_trainer = False
        self._refused = 0
        listener.setblocking(False)
        self.control = Control(HeadroomProbe(limits_for_s=_LIMITS_S))
        self._cgroups, self._membership = KernelFile(Path("/proc/self/cgroup")), b""
        self._hello = messages.Hello(-1, os.getpid())
        self._look()

    def end(self, reason: str, gives_way: bool = False) -> None:
        """End the process now; ``gives_way`` to one that begins where this one cannot."""
        for trainer in list(self.trainers) if gives_way else ():
            trainer.wire.send_later(messages.GivesWay(-1))
        logger.info("ending: %s; connections refused: %d", reason, self._refused)
        from autoloader.process.observer import end_all  # in use by now

        end_all()
        logging.shutdown()
        os._exit(0)

    def run(self) -> None:
        """Accept trainers."""
        LoaderThread(target=self._beat, name="autoloader-heartbeat").start()
        watch = select.poll()
        watch.register(self._listener, select.POLLIN)
        while True:
            watch.poll()
            with self._lock:
                self._admit()

    def _admit(self) -> None:
        """Take in the trainers of this user among those that wait; the caller holds the lock."""
        for _ in range(_ADMITTED_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            pid, uid = peer_of(connection)
            if uid != os.geteuid():
                connection.close()
                self._refused += 1
                if self._refused == 1:
                    logger.warning(
                        "process %d of user %d connected to this loader and was refused; more of "
                        "them are refused and counted, and not logged",
                        pid,
                        uid,
                    )
                continue
            trainer = TrainerService(connection, self.control, pid, end=self.end)
            self.trainers.append(trainer)
            self._had_trainer = True
            _use_cores_of(pid)
            LoaderThread(target=self._serve, args=(trainer,), name="autoloader-messages").start()

    def _serve(self, trainer: TrainerService) -> None:
        try:
            trainer.wire.tell(self._hello)
            trainer.serve()
        except Exception:  # the boundary of this thread: one trainer's trouble is no other's
            logger.exception("a trainer's messages cannot be read")
        with self._lock:
            self.trainers.remove(trainer)
            if not self.trainers:
                self._admit()  # another one may have come at this moment
            if not self.trainers:
                self.end("the last trainer is done or gone")
        trainer.wire.shut_down()
        trainer.close()

    def _look(self) -> None:
        """Note which memory cgroup this process is in: it may be moved."""
        membership = self._cgroups.read()
        if membership is not None and membership != self._membership:
            self._membership, cgroup = membership, memory_cgroup()
            self._hello = messages.Hello(-1, os.getpid(), cgroup, oom_kills(cgroup) or 0)

    def _beat(self) -> None:
        parent = -1
        with contextlib.suppress(OSError):
            parent = os.pidfd_open(self._parent)
        while True:
            with self._lock:
                every = list(self.trainers)
            self._look()
            for trainer in every:
                if trainer.wire.torn:
                    logger.critical("a function of the spec closed descriptors of this process")
                    os._exit(1)
                trainer.wire.send_if_read(self._hello)
                trainer.wire.send_waiting()
            trainers = {trainer.pidfd: trainer for trainer in every if trainer.pidfd >= 0}
            watch = select.poll()
            for descriptor in trainers:
                watch.register(descriptor, select.POLLIN)
            if not self._had_trainer and parent >= 0:
                watch.register(parent, select.POLLIN)
            for descriptor, _ in watch.poll(int(_BEAT_S * 1000)):
                if descriptor in trainers:
                    # A sibling that it forked may still hold its end of the socket.
                    trainers[descriptor].wire.shut_down()
                elif not self._had_trainer:
                    self.end("the trainer that started this process is gone")


def _use_cores_of(pid: int) -> None:
    """Run on the cores of every trainer: a launcher may bind each rank to cores of its own."""
    with contextlib.suppress(OSError):
        own = os.sched_getaffinity(0)
        if not (theirs := os.sched_getaffinity(pid)) <= own:
            for thread in Path("/proc/self/task").iterdir():
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    os.sched_setaffinity(int(thread.name), own | theirs)


class _LogsToTrainers(logging.Handler):
    """Hands warnings and worse to the trainers' own logging."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(logging.WARNING)
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        message = messages.Logged(-1, record.levelno, record.name, record.getMessage())
        for trainer in list(self._worker.trainers):
            trainer.wire.send_later(message)


def _prepare_process() -> None:
    """Name the process, have the kernel kill it first, and raise its limit of files."""
    become("autoloader", logging.INFO)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
    raise_descriptor_limit()  # decode processes inherit it


def main() -> None:
    """Serve the trainers that connect; ``--run`` of the command line is for ``ps`` alone."""
    given = options()
    _prepare_process()
    worker = Worker(socket.socket(fileno=given["listener"]), given["parent"])
    logging.getLogger("autoloader").addHandler(_LogsToTrainers(worker))
    # What every pipeline needs of this (OpenCV most of all) is there when the trainer has planned.
    import autoloader.pipeline.pipeline
    import autoloader.pipeline.read.planned  # noqa: F401

    worker.run()


if __name__ == "__main__":
    main()
