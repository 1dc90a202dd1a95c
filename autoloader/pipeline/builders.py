"""Builders of batches in other processes: decode processes here, and helpers on other hosts.

Theory of operation. A ``BuilderProcess`` works for this one, at the other end of a socket pair. A
thread starts the process, takes what it sends, and starts it again where it ends or hangs
(``host.supervision``). The kernel ends the process with that thread (PR_SET_PDEATHSIG). Otherwise a
stopped process could outlive a child that was killed, and later write into a slot that the next
child uses.

*Decode processes.* ``RemoteBuilder`` does what ``BatchBuilder`` does. It keeps the span of every
batch until it comes, with its slot once that is given. A process that dies, by whatever signal, or
hangs is started again and asked for these batches once more; a batch is filled from the plan, so it
comes out the same. The process sends something every half second.

*Helpers.* A process beside the loader's child is Ray's driver (``integrations.ray.driver``), and
the only one of the loader that imports Ray: it may end when the cluster does, and ends nobody else.
It is started when helpers are first wanted, and ended when none are. It is asked for a batch, and
told the batch's slot once there is one. It answers that the batch lies there, or that it is lost
and written nowhere. Where a slot was given and the process says nothing for a while it is killed,
and waited for, before anybody else fills the slot. Where the process cannot reach the cluster, or
dies again and again, that is said once, and the loader goes on with the builders here. A helper
says what it has in common with this host when it joins, and every field that differs is named.
Modification times are no part of it: a copy of the data is as good.

Invariants:
    1. ``BuilderProcess.gone`` is called when the process has ended, so that it writes nothing any
       more, and before another one starts.
    2. Batches of a decode process come in the order in which it was given their slots, each once.
    3. A slot is filled by one process at a time: the dead one is waited for before another starts,
       and before the frame cache has back what it had lent to it.

Not here: who fills which batch (``pipeline.pipeline``), the sides of the processes
(``pipeline.decode_process``, ``integrations.ray.driver``).
"""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import logging
import platform
import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from autoloader.cache.slab import CameraFrames, Lease, plain_slots
from autoloader.cache.table import FrameTable
from autoloader.decode.batch_builder import Spans
from autoloader.decode.message import BatchMessage, TellBad
from autoloader.errors import as_fault
from autoloader.host.machine import versions
from autoloader.host.supervision import waited
from autoloader.host.threads import LoaderThread, all_ended
from autoloader.index.dataset import DatasetIndex
from autoloader.pipeline import messages
from autoloader.pipeline.messages import Message, Peer, Wire
from autoloader.samples.block import Place
from autoloader.samples.resolve import ResolvedMixture
from autoloader.spec.knobs import BATCHES_OF_A_HELPER, Knobs
from autoloader.telemetry.statistics import Counts, merged, over

logger = logging.getLogger(__name__)

_END_S = 2.0


class BuilderProcess(Peer):
    """A process, and the thread that serves it; who makes one starts ``thread``.

    Args:
        what: the process, in messages.
        module: full name of the module that it runs.
        remedy: what the user can do where the process cannot be kept alive.
        thread: name of the thread.
        bad: told of records to be quarantined; an error that it raises ends this for good.

    Attributes:
        condition: guards what both sides use, and ``wire``.
        wire: connection to the process; ``None`` where there is none.
    """

    look_s = 1.0
    """How often ``look`` is called, at least."""
    leave_s = 0.0
    """So long the process may take to end by itself, before it is killed."""

    def __init__(self, what: str, module: str, *, remedy: str, thread: str, bad: TellBad) -> None:
        super().__init__(what, module, remedy=remedy)
        self.condition = threading.Condition()
        self.wire: Wire | None = None
        self._bad = bad
        self.thread = LoaderThread(target=self._run, name=thread)

    @abstractmethod
    def begin(self) -> Wire | None:
        """Start the process by ``spawn``, and say what it must know; ``None``: it is not wanted."""

    def take(self, message: Message) -> None:
        """Heed what the process says; an error that it raises ends this for good."""
        if isinstance(message, messages.Bad):
            self._bad(Place(*message.place), message.reason)
        elif isinstance(message, messages.Failed):
            raise message.to_error()
        else:
            super().take(message)

    @abstractmethod
    def gone(self) -> None:
        """Called when the process has ended, and all that it was asked for is lost."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """Called when the process cannot be kept alive, or has said that it cannot work."""

    def look(self) -> None:
        """Called by the thread behind each message, and every ``look_s``."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process id of the process; () before it has been started."""
        return (self.supervisor.pid,) if self.wire is not None else ()

    def spawn(self, **descriptors: int) -> Wire:
        """Start the process, which inherits these descriptors."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.supervisor.start({"socket": theirs.fileno(), **descriptors})
        return self.connected(Wire(ours))

    def send(self, message: Message) -> None:
        """Send; a process that is gone is noticed by the thread."""
        if (wire := self.wire) is not None:
            wire.tell(message)

    def close(self, within_s: float) -> bool:
        """End the process; true if it has ended in time, and writes nothing any more."""
        self.closed = True  # first: a thread that has the lock may wait for the process to read
        with self.condition:
            self.condition.notify_all()
            if self.wire is not None:
                self.wire.shut_down()
        return all_ended([self.thread], max(within_s, _END_S))

    def _run(self) -> None:
        try:
            while (wire := self.begin()) is not None:
                while not (reason := self.hear(wire, self.look_s)):
                    self.look()
                wanted = not self.over  # while it ends it may be wanted again, which is no fault
                self._end()
                if wanted and not self.over:
                    self.supervisor.try_again(reason)
        except Exception as error:  # noqa: BLE001 the one boundary of this thread: who waits must hear of it
            with self.condition:
                self.failed(as_fault(error, "decode"))
                self.condition.notify_all()
        finally:
            self._end()
            self.supervisor.close()

    def _end(self) -> None:
        process = self.supervisor.process
        if process is not None and self.over:
            waited(process, self.leave_s)
        self.supervisor.end()
        with self.condition:
            wire, self.wire = self.wire, None
        if wire is not None:
            wire.close()
        self.gone()


class RemoteBuilder(BuilderProcess):
    """Builds the batches of the runs it is assigned, in another process.

    Args:
        start: first message to the process; its knobs are kept up to date here.
        ring: descriptor of the ring's memory.
        frames: the frame cache; its memory is mapped by the process too.
        bad: told of records to be quarantined; an error that it raises ends this builder.

    Attributes:
        to_begin: number of batches that have a slot, and frames that no thread decodes yet.
        begun: called when the process has begun a further batch.
    """

    def __init__(
        self, start: messages.BuildStart, ring: int, frames: FrameTable, *, bad: TellBad
    ) -> None:
        super().__init__(
            "a decode process",
            "autoloader.pipeline.decode_process",
            remedy="see what it printed last; decode_processes=1 starts no such process",
            thread="autoloader-fill-receive",
            bad=bad,
        )
        self._start = start
        self._ring = ring
        self._frames = frames
        self._leases: dict[int, Lease] = {}
        self._runs: collections.deque[collections.deque[tuple[int, int]]] = collections.deque()
        self._given: collections.deque[tuple[int, tuple[int, int]]] = collections.deque()
        self._filled: collections.deque[BatchMessage] = collections.deque()
        self.to_begin = 0
        self.begun: Callable[[], object] = lambda: None
        self._parked = False
        self._failure: BaseException | None = None
        self._before: Counts = {}
        self._now: Counts = {}
        self.thread.start()

    here = False

    def assign(self, spans: Spans) -> None:
        """Have a run filled, after those assigned before."""
        with self.condition:
            self._runs.append(collections.deque(spans))
            self.send(messages.BuildRun(0, [list(span) for span in spans]))

    def give(self, slot: int, span: tuple[int, int] | None = None) -> None:
        """Give a slot to the next batch that has none, or to one that was not assigned."""
        with self.condition:
            self.to_begin += 1
            self._given.append((slot, span or self._next_span()))
            self.send(messages.BuildSlot(0, slot, span=list(span or ())))

    def skip(self) -> None:
        """Pass over the next batch that has no slot: another builder fills it."""
        with self.condition:
            self._next_span()
            self.send(messages.BuildPast(0))

    def _next_span(self) -> tuple[int, int]:
        """The positions of the next batch that has no slot."""
        span = self._runs[0].popleft()
        if not self._runs[0]:
            self._runs.popleft()
        return span

    def next(self, timeout_s: float) -> BatchMessage | None:
        """The next filled batch; ``None`` where none is ready in time.

        Raises:
            AutoloaderError: the error that the process failed with.
            WorkerError: the process cannot be kept alive.
        """
        with self.condition:
            self.condition.wait_for(lambda: self._filled or self._failure or self.closed, timeout_s)
            if self.closed:
                return None
            if self._filled:
                return self._filled.popleft()
            if self._failure is not None:
                raise as_fault(self._failure, "decode")
            return None

    def retune(self, knobs: Knobs) -> None:
        """Have the process move to other knobs."""
        with self.condition:
            plain = knobs.flat()
            if plain != self._start.knobs:
                self._start = replace(self._start, knobs=plain)
                self.send(messages.Retune(0, plain))

    def park(self, parked: bool) -> None:
        """Have the process stop reading (True), or go on."""
        with self.condition:
            self._parked = parked
            self.send(messages.Park(0, parked))

    def drop(self) -> None:
        """Keep what was read ahead: it is little, and the next batches need it."""

    @property
    def settled(self) -> bool:
        """True: the process works with its knobs as soon as they come."""
        return True

    @property
    def filled(self) -> int:
        """Number of batches that are ready to be handed out."""
        return len(self._filled)

    def activity(self) -> Counts:
        """Counts of its processes so far, half a second old at most."""
        return merged(self._before, self._now)

    def begin(self) -> Wire | None:
        """Start the process and ask for everything that has not come."""
        with self.condition:
            if self.closed:
                return None
            slab = self._frames.shared_slab()
            frames = {} if slab is None else {"frames": slab.descriptor}
            self.wire = self.spawn(ring=self._ring, **frames)
            self.send(self._start)
            for run in ([span for _, span in self._given], *self._runs):
                if run:
                    self.send(messages.BuildRun(0, [list(span) for span in run]))
            for slot, _ in self._given:
                self.send(messages.BuildSlot(0, slot))
            self.to_begin = len(self._given)
            if self._parked:
                self.send(messages.Park(0, True))
        self.begun()  # what its forerunner said of beginning may have been lost with it
        return self.wire

    def take(self, message: Message) -> None:
        """See ``BuilderProcess.take``."""
        if isinstance(message, messages.BatchReady):
            batch = BatchMessage.from_plain(message.batch)
            with self.condition:
                self._given.popleft()
                self.supervisor.progress()
                self._filled.append(batch)
                self.condition.notify_all()
        elif isinstance(message, messages.BuildBegun):
            with self.condition:
                self.to_begin -= 1
            self.begun()
        elif isinstance(message, messages.Activity):
            self._now = message.activity
        elif isinstance(message, messages.AskFrames):
            frames = {
                camera: CameraFrames(*(np.asarray(column, np.int64) for column in columns))
                for camera, columns in message.frames.items()
            }
            lease = self._frames.ask(
                message.files, frames, message.now, message.rows, elsewhere=True
            )
            self._leases[message.number] = lease
            slots, cached = plain_slots(lease.slots), plain_slots(lease.cached)
            self.send(messages.HeldFrames(0, message.number, slots, cached))
        elif isinstance(message, messages.FramesStored):
            lease = self._leases.pop(message.number)
            for camera, rows in message.stored.items():
                lease.written[camera][lease.slots[camera][rows]] = True
            lease.give_up()
        else:
            super().take(message)

    def gone(self) -> None:
        """Nobody reads or writes the process's slots of the frame cache."""
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            lease.give_up()
        with self.condition:
            if not self.closed:
                self._before, self._now = over(self.activity()), {}
                self.to_begin = len(self._given)  # it is not idle before another has begun them

    def failed(self, error: BaseException) -> None:
        """The next ``next`` behind what is filled raises it."""
        self._failure = error


_SILENT_S = 2.0
"""A process that has a slot to fill, and says nothing for so long, is killed."""
_LONGEST_CHANGE_S = 60.0
"""After which a change of the number of helpers counts as done, whatever the cluster gave."""
_IDLE_S = 20.0
"""Helpers that had nothing to do for so long are given back, until there is something again."""


class Answers(Protocol):
    """Hears of the helpers' batches, on the thread that serves the driver of helpers."""

    def done(self, number: int, batch: BatchMessage) -> None:
        """Called when a helper's batch is in its slot."""

    def lost(self, numbers: Sequence[int] | None = None, *, late: bool = False) -> None:
        """Called when no helper fills these batches (``None``: any) any more."""

    def helped(self) -> tuple[int, int]:
        """There may be more helpers, or fewer; called many times a second.

        Returns:
            Batches that helpers were asked for and have not filled, and how many have a slot.
        """


class Helpers(BuilderProcess):
    """Asks helpers for batches.

    Args:
        start: makes what the process is told first.
        ring: descriptor of the ring's memory.
        answers: told of what comes; its lock may be held by whoever calls this.
        bad: told of records to be quarantined.

    Attributes:
        present: number of helpers that work now.
        possible: number of helpers that the cluster has processors for; 0: not known.
        compared, different: batches that were filled here too, and those that differed.
    """

    look_s = 0.05
    leave_s = 1.5

    def __init__(
        self,
        start: Callable[[], messages.HelpersStart],
        ring: int,
        answers: Answers,
        *,
        bad: TellBad,
    ) -> None:
        super().__init__(
            "the process that talks to Ray",
            "autoloader.integrations.ray.driver",
            remedy="leave helpers out",
            thread="autoloader-helpers",
            bad=bad,
        )
        self._start, self._ring = start, ring
        self._answers = answers
        self._wanted = 0
        self._changed_s = self._busy_s = self._heard_s = time.monotonic()
        self._gone = False
        self.present = self.possible = self.compared = self.different = 0
        self.thread.start()

    @property
    def over(self) -> bool:
        """True if no helpers are wanted, or none any more."""
        return self.closed or not self._wanted

    @property
    def room(self) -> int:
        """Batches that they may have at a time."""
        return BATCHES_OF_A_HELPER * min(self.present, self._wanted)

    @property
    def settled(self) -> bool:
        """True if there are as many as are wanted, or as the cluster gives."""
        awaited = min(self._wanted, self.possible or self._wanted)
        late = time.monotonic() - self._changed_s > _LONGEST_CHANGE_S
        return self._gone or self.present == awaited or late

    def want(self, count: int) -> None:
        """Have so many helpers from now on; 0 ends the process."""
        with self.condition:
            self._busy_s = time.monotonic()
            if count == self._wanted:
                return
            self._wanted, self._changed_s = count, self._busy_s
            if count:
                self.send(messages.HelpersWanted(0, count))
            elif self.wire is not None:
                self.wire.shut_down()
            self.condition.notify_all()

    def ask(self, number: int, span: tuple[int, int]) -> None:
        """Have a helper fill batch ``number``, of the positions ``span``."""
        self.send(messages.BuildRun(0, [list(span)], number))

    def give(self, number: int, slot: int) -> None:
        """The slot of a batch that was asked for."""
        self.send(messages.BuildSlot(0, slot, number))

    def begin(self) -> Wire | None:
        """See ``BuilderProcess.begin``; waits until helpers are wanted."""
        with self.condition:
            self.condition.wait_for(lambda: self._wanted or self.closed)
            if self.closed:
                return None
        start = self._start()
        wire = self.spawn(ring=self._ring)
        wire.tell(start)  # long, and read when the process has started, not under the lock
        with self.condition:
            wire.tell(messages.HelpersWanted(0, self._wanted))
            self.wire = wire
            if self.over:
                wire.shut_down()
        return wire

    def take(self, message: Message) -> None:
        """See ``BuilderProcess.take``."""
        self._heard_s = time.monotonic()
        if isinstance(message, messages.BatchReady):
            self.supervisor.progress()
            self._answers.done(message.generation, BatchMessage.from_plain(message.batch))
        elif isinstance(message, messages.HelpersLost):
            self._answers.lost(message.numbers, late=message.late)
        elif isinstance(message, messages.HelpersHere):
            self.present, self.possible = message.present, message.possible
        elif isinstance(message, messages.HelperCompared):
            self.compared += 1
            self.different += not message.same
        else:
            super().take(message)

    def look(self) -> None:
        """See ``BuilderProcess.look``."""
        now, (asked, given) = time.monotonic(), self._answers.helped()
        if asked:
            self._busy_s = now
        elif now - self._busy_s > _IDLE_S:
            self.want(0)
        if not given:
            self._heard_s = now
        elif now - self._heard_s > _SILENT_S and self.wire is not None:
            self.kill(self.wire, f"it has said nothing for {_SILENT_S:.0f} s with a slot to fill")

    def gone(self) -> None:
        """See ``BuilderProcess.gone``."""
        self.present = self.possible = 0
        self._answers.lost()

    def failed(self, error: BaseException) -> None:
        """This host builds all batches itself from now on."""
        self._gone = True
        if not self.closed:
            logger.warning("no more helpers: this host builds all batches itself: %s", error)


_PACKAGES = {
    "autoloader": "autoloader-rlds",
    "numpy": "numpy",
    "OpenCV": "opencv-python-headless",
    "simplejpeg": "simplejpeg",
    "av": "av",
}


def identity_of(
    mixture: ResolvedMixture, order: Mapping[str, Any], indexes: Sequence[DatasetIndex]
) -> dict[str, str]:
    """Facts that decide the batches that this host builds; a helper's must be the same.

    Versions of packages and of the code, digests of the spec and of the indexes, by name.

    Args:
        mixture: as it was resolved here.
        order: the mixture's order, as plain values.
        indexes: open index of every dataset.
    """
    spec = json.dumps([mixture.plain(), order], sort_keys=True)
    return {
        **packages(),
        "spec": _digest([spec.encode(), repr(mixture.layout).encode()]),
        **{f"index of {one.dataset.name}": one.digest() for one in indexes},
        **{f"weights of {d.name}": d.weights.digest for d in mixture.datasets if d.weights},
    }


def packages() -> dict[str, str]:
    """Field → value, of what is installed on this host."""
    installed = versions(_PACKAGES.values())
    return {
        "code": _code_digest(),
        "python": platform.python_version(),
        **{name: installed.get(one, "not installed") for name, one in _PACKAGES.items()},
    }


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Every field that differs, for people: "numpy: 2.4.6 here, 2.2.6 there"."""
    return [
        f"{name}: {ours.get(name, 'nothing')} here, {theirs.get(name, 'nothing')} there"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]


@functools.cache
def _code_digest() -> str:
    """Of the source of this package: one version may be two checkouts."""
    folder = Path(__file__).parents[1]

    def sources() -> Iterator[bytes]:
        for path in sorted(folder.rglob("*.py")):
            yield str(path.relative_to(folder)).encode()
            yield path.read_bytes()

    return _digest(sources())


def _digest(parts: Iterable[bytes]) -> str:
    """Hash of byte strings and of their order."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
