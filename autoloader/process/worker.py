"""The loader's child: runs pipelines for the trainers of a node, and ends with the last of them.

Started as ``python -m autoloader.process.worker`` with a listening socket that the trainers find by
its name (``process.discovery``). Each has its own connection, control page, pipelines and rings:
none of them waits for another one. Threads: one accepts trainers; one for each trainer reads its
messages; one for each pipeline hands filled batches over; one beats the heart and watches the
trainers (a pidfd each, and the socket's end: PR_SET_PDEATHSIG fires when the starting *thread*
ends, so it is not used). A trainer that is gone takes its own pipelines along and nothing else.

Any user of the machine may connect to the socket. A stranger's connection is closed before anything
is read from it, and counted; only the first one is logged, and none of them keeps the child alive.

The child ends by ``os._exit``: TensorFlow's threads do not survive an orderly interpreter exit,
and everything it holds is the kernel's to take back.

Not here: the trainer's side (``process.child``), the parts themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from autoloader.cache.slab import private_bytes
from autoloader.controller.limits import ControlRequest
from autoloader.decode.message import PipelineStart
from autoloader.decode.ring import RingMemory
from autoloader.errors import AutoloaderError
from autoloader.formats.files import is_remote, raise_descriptor_limit
from autoloader.host.headroom import HeadroomProbe, memory_cgroup, oom_kills
from autoloader.host.supervision import extend_import_path
from autoloader.host.threads import LoaderThread, become
from autoloader.pipeline import messages
from autoloader.pipeline.messages import Message, Wire, peer_of
from autoloader.pipeline.read.open_mixture import CompiledMixture
from autoloader.process.control import (
    Control,
    ControlledPipeline,
    give_memory_back,
    stuck_slots,
)
from autoloader.process.setup import ControlPage, PipelineSetup
from autoloader.samples.resolve import resolve_plain
from autoloader.sampling.dealing import Ranks
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.knobs import Knobs

logger = logging.getLogger(__name__)

OOM_SCORE_ADJ = 600
_BEAT_S = 0.1
STUCK_S = 5.0
"""A thread that still writes so long after it was told to end is not waited for."""
_ADMITTED_AT_ONCE = socket.SOMAXCONN
"""Connections looked at before anything else is done; no more wait at a time."""
_LIMITS_FOR_S = 0.5
"""How old a cgroup's limit may be; what is used of it is read ten times a second."""


class _DeclaredMixture(CompiledMixture):
    """A mixture as a trainer declared it, its rank's part, and what that was compiled to."""

    def __init__(self, start: messages.Start, *, own_process: bool) -> None:
        super().__init__(own_process=own_process)
        self.declared = start.mixture
        datasets, streamed = start.mixture["spec"]["datasets"], start.knobs["reader"] == "stream"
        if streamed and any(is_remote(one["path"] or one["data_dir"]) for one in datasets):
            from autoloader.pipeline.graph import files  # metadata too is read by TensorFlow

            files.enter()
        self.mixture = resolve_plain(self.declared)
        if streamed:
            from autoloader.sampling.dealing import mixture_part  # by index a rank knows the whole

            self.mixture = mixture_part(self.mixture, Ranks(start.rank, start.world_size))


class TrainerService:
    """Runs the pipelines of one trainer, as its messages say.

    In the loader's child there is one service for each trainer. With ``isolation="thread"`` a
    thread of the trainer's process runs it.

    Args:
        connection: socket to the trainer.
        control: control of this process.
        pid: process id of the trainer; 0 where it cannot be seen from here.
        restart: ends this process, for a smaller one to begin; ``None``: it cannot.
        give_way: called where threads of an earlier pipeline write into a ring that is wanted
            again; ``None``: their slots stay out of use until they end.
    """

    def __init__(
        self,
        connection: socket.socket,
        control: Control,
        pid: int = 0,
        *,
        restart: Callable[[str], None] | None = None,
        give_way: Callable[[], None] | None = None,
    ) -> None:
        self.wire = Wire(connection)
        self.control = control
        self.restart = restart
        self._give_way = give_way
        self.served: dict[int, ControlledPipeline] = {}
        """Pipeline number → pipeline that runs."""
        self._declared: dict[int, _DeclaredMixture] = {}
        self._earlier: dict[int, list[ControlledPipeline]] = {}
        """Pipeline number → closed pipelines into whose rings threads still write."""
        self._page: ControlPage | None = None
        self._membership = b""
        self.pidfd = -1
        if pid:
            with contextlib.suppress(OSError):
                self.pidfd = os.pidfd_open(pid)

    @property
    def own_process(self) -> bool:
        """True if this process's memory is the loader's alone."""
        return self._give_way is not None

    def serve(self) -> None:
        """Read messages until the trainer is done or gone."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self.wire.receive(None)
                if isinstance(message, messages.Stop) and message.pipeline < 0:
                    return
                if message is not None:
                    self._handle(message)

    def hang_up(self) -> None:
        """Wake ``serve``, and let the trainer go."""
        self.wire.shut_down()

    def close(self) -> None:
        """End its pipelines; the memory they filled is the trainer's own."""
        for number in list(self._declared):
            self._end(number)
        self.wire.close()
        if self._page is not None:
            page, self._page = self._page, None
            page.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)

    def beat(self, now_ns: int) -> None:
        """Show that this process lives, and which memory cgroup it is in: it may be moved."""
        page = self._page
        if page is not None:
            with contextlib.suppress(ValueError):  # closed in between
                page.heartbeat_ns = now_ns
                page.frame_bytes = private_bytes()
                self._note_cgroup(page)

    def _handle(self, message: Message) -> None:
        served = self.served.get(message.pipeline)
        if isinstance(message, messages.Start):
            self._start(message)
        elif isinstance(message, messages.Stop):
            self._end(message.pipeline, message.held_slots)
        elif served is None:
            logger.debug("a message for pipeline %d, which is over", message.pipeline)
        elif isinstance(message, messages.Release):
            served.pipeline.release(message.slot)
        elif isinstance(message, messages.Retune):
            served.retune(Knobs.build(message.knobs))
        elif isinstance(message, messages.Park):
            served.park(message.parked)
        elif isinstance(message, messages.AskActivity):
            self.wire.send(served.activity(message.request))

    def _start(self, start: messages.Start) -> None:
        number = start.pipeline
        ring, page = self.wire.descriptors(2)
        if self._page is None:
            self._page = ControlPage(page)
            self._note_cgroup(self._page)
        else:
            os.close(page)
        declared = self._declared.get(number)
        if number in self.served:
            self._close(number)
            give_memory_back()
        earlier = self._earlier.pop(number, [])
        if self._give_way is not None and not all(one.ended(STUCK_S) for one in earlier):
            self._give_way()
        try:
            extend_import_path(start.import_path)
            if declared is None or declared.declared != start.mixture:
                if declared is not None:
                    declared.let_go()
                declared = _DeclaredMixture(start, own_process=self.own_process)
                self._declared[number] = declared
            place = PipelineStart.from_plain(declared.mixture, start.place)
            setup = PipelineSetup(
                declared.mixture,
                MixtureOrder.from_plain(start.order),
                Knobs.build(start.knobs),
                RingMemory(declared.mixture.layout, descriptor=ring),
                self._page,
                ControlRequest.from_plain(start.control),
                Ranks(start.rank, start.world_size),
                start.ranks_here,
                position=lambda: place,
                lent=lambda: start.held_slots,
                stuck=stuck_slots(earlier),
            )
            self.served[number] = served = ControlledPipeline(
                self.control,
                setup,
                declared,
                wire=self.wire,
                number=number,
                generation=start.generation,
                earlier=earlier,
                restart=self.restart,
            )
            served.start()
        except AutoloaderError as error:  # no further thread, too
            self.wire.send(messages.Failed.of(number, error))

    def _end(self, number: int, held_slots: list[int] | None = None) -> None:
        """End a pipeline for good: its mixture and cached frames go too."""
        self._close(number, held_slots)
        if declared := self._declared.pop(number, None):
            declared.let_go()

    def _close(self, number: int, held_slots: list[int] | None = None) -> None:
        """Close a pipeline; keep it while its threads write on. A child waits for none yet."""
        if (served := self.served.pop(number, None)) is None:
            return
        served.close(held_slots)
        if self._give_way is None and not served.ended(STUCK_S):
            logger.warning(
                "threads that decode have not ended %.0f s after they were told to: what they "
                "write to stays out of use until they do",
                STUCK_S,
            )
        kept = [*self._earlier.pop(number, []), served]
        if kept := [one for one in kept if one.leftovers or not one.ended(0.0)]:
            self._earlier[number] = kept

    def show_gives_way(self) -> None:
        """Tell the trainer that this process ends for another one to begin."""
        if self._page is not None:
            self._page.gives_way = 1
        self.hang_up()

    def _note_cgroup(self, page: ControlPage) -> None:
        try:
            membership = Path("/proc/self/cgroup").read_bytes()
        except OSError:  # no /proc, or one without it
            return
        if membership != self._membership:
            self._membership = membership
            directory = memory_cgroup()
            page.note_cgroup(directory, oom_kills(directory) or 0)


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
        self.control = Control(HeadroomProbe(limits_for_s=_LIMITS_FOR_S))

    def end(self, reason: str) -> None:
        """End the process now."""
        logger.info("ending: %s; connections refused: %d", reason, self._refused)
        from autoloader.process.observer import end_all  # in use by now

        end_all()
        logging.shutdown()
        os._exit(0)

    def give_way(self) -> None:
        """End the process: a ring that is wanted again is written to by threads that do not end."""
        for trainer in list(self.trainers):
            trainer.show_gives_way()
        self.end("threads that decode do not end")

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
            trainer = TrainerService(
                connection, self.control, pid, restart=self.end, give_way=self.give_way
            )
            self.trainers.append(trainer)
            self._had_trainer = True
            _use_cores_of(pid)
            LoaderThread(target=self._serve, args=(trainer,), name="autoloader-messages").start()

    def _serve(self, trainer: TrainerService) -> None:
        try:
            with contextlib.suppress(OSError):
                trainer.wire.send(messages.Hello(-1, os.getpid()))
            trainer.serve()
        except Exception:  # the boundary of this thread: one trainer's trouble is no other's
            logger.exception("a trainer's messages cannot be read")
        with self._lock:
            self.trainers.remove(trainer)
            if not self.trainers:
                self._admit()  # another one may have come at this moment
            if not self.trainers:
                self.end("the last trainer is done or gone")
        trainer.hang_up()
        trainer.close()

    def _beat(self) -> None:
        parent = -1
        with contextlib.suppress(OSError):
            parent = os.pidfd_open(self._parent)
        while True:
            with self._lock:
                every = list(self.trainers)
            for trainer in every:
                trainer.beat(time.monotonic_ns())
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
                    trainers[descriptor].hang_up()
                elif not self._had_trainer:
                    self.end("the trainer that started this process is gone")


def _use_cores_of(pid: int) -> None:
    """Run on the cores of every trainer: a launcher may bind each rank to cores of its own."""
    with contextlib.suppress(OSError):
        own = os.sched_getaffinity(0)
        if not (theirs := os.sched_getaffinity(pid)) <= own:
            for thread in Path("/proc/self/task").iterdir():
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
    become("autoloader")
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
    raise_descriptor_limit()  # decode processes inherit it


def main(arguments: list[str] | None = None) -> None:
    """Serve the trainers that connect."""
    parser = argparse.ArgumentParser(prog="autoloader.process.worker")
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--run", default="", help="shown by ps")
    chosen = parser.parse_args(arguments)
    _prepare_process()
    worker = Worker(socket.socket(fileno=chosen.listener), chosen.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("autoloader").addHandler(_LogsToTrainers(worker))
    # What every pipeline needs of this (OpenCV most of all) is there when the trainer has planned.

    worker.run()


if __name__ == "__main__":
    main()
