"""A batch builder in a light process of its own; this side does what ``BatchBuilder`` does.

Theory of operation. This side keeps what it has asked for until the batch comes: the spans of every
batch and the slots given. A process that dies, by whatever signal, or hangs is started again and
asked for the same once more; a batch is filled from the plan, so it comes out the same. The process
sends something every half second.

Invariants:
    1. Batches come in the order in which they were assigned, each once.
    2. A slot is filled by one process at a time: the dead one is waited for before another starts,
       and before the frame cache has back what it had lent to it.

Not here: the process's side (``pipeline.decode_process``), starting it again (``process.peer``).
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autoloader.cache.slab import CameraFrames, Lease, plain_slots
from autoloader.cache.table import FrameTable
from autoloader.decode.activity import BuilderActivity
from autoloader.decode.batch_builder import Spans
from autoloader.decode.message import BatchMessage
from autoloader.errors import as_fault
from autoloader.pipeline import messages
from autoloader.pipeline.messages import Message, Peer, Wire
from autoloader.samples.block import Place
from autoloader.spec.knobs import Knobs


class RemoteBuilder(Peer):
    """Builds the batches of the runs it is assigned, in another process.

    Args:
        start: what the process is told first; its knobs are kept up to date here.
        ring: descriptor of the ring's memory.
        frames: the frame cache; its memory is mapped by the process too.
        datasets: number of datasets in the mixture.
        bad: told of records to be quarantined; an error that it raises ends this builder.
    """

    def __init__(
        self,
        start: messages.BuildStart,
        ring: int,
        frames: FrameTable,
        *,
        datasets: int,
        bad: Callable[[Place, str], None],
    ) -> None:
        super().__init__(
            "a decode process",
            "autoloader.pipeline.decode_process",
            remedy="see what it printed last, or use decode_processes=1",
            thread="autoloader-fill-receive",
        )
        self._start = start
        self._ring = ring
        self._frames = frames
        self._leases: dict[int, Lease] = {}
        self._datasets = datasets
        self._bad = bad
        self._runs: collections.deque[collections.deque[tuple[int, int]]] = collections.deque()
        self._given: collections.deque[int] = collections.deque()
        self._filled: collections.deque[BatchMessage] = collections.deque()
        self._count = 0
        self._parked = False
        self._failure: BaseException | None = None
        self._before = self._now = BuilderActivity.none(datasets)
        self.thread.start()

    here = False

    def assign(self, spans: Spans) -> None:
        """See ``BatchBuilder.assign``."""
        with self.condition:
            self._runs.append(collections.deque(spans))
            self.send(messages.BuildRun(0, [list(span) for span in spans]))

    def give(self, slot: int) -> None:
        """See ``BatchBuilder.give``."""
        with self.condition:
            self._given.append(slot)
            self.send(messages.BuildSlot(0, slot))

    def next(self, timeout_s: float) -> BatchMessage | None:
        """See ``BatchBuilder.next``.

        Raises:
            AutoloaderError: what the process failed with.
            WorkerError: it cannot be kept alive.
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
        """See ``BatchBuilder.retune``."""
        with self.condition:
            plain = knobs.flat()
            if plain != self._start.knobs:
                self._start = replace(self._start, knobs=plain)
                self.send(messages.Retune(0, plain))

    def park(self, parked: bool) -> None:
        """See ``BatchBuilder.park``."""
        with self.condition:
            self._parked = parked
            self.send(messages.Park(0, parked))

    def drop(self) -> None:
        """Keep what was read ahead: it is little, and the next batches need it."""

    @property
    def settled(self) -> bool:
        """It heeds its knobs as soon as it hears of them."""
        return True

    @property
    def filled(self) -> int:
        """Batches ready to be handed out."""
        return len(self._filled)

    def activity(self) -> BuilderActivity:
        """Activity of its processes so far, half a second old at most."""
        return self._before.plus(self._now)

    slots: frozenset[int] = frozenset()
    """Slots that are written to though it is closed: a process that was killed writes no more."""

    @property
    def leased_frames(self) -> int:
        """See ``BatchBuilder.leased_frames``."""
        return sum(lease.pinned_frames for lease in list(self._leases.values()))

    def begin(self) -> Wire | None:
        """Start the process and ask for everything that has not come."""
        with self.condition:
            if self.closed:
                return None
            slab = self._frames.shared_slab()
            held = () if slab is None else (slab.descriptor,)
            named = [f"--ring={self._ring}", *(f"--frames={one}" for one in held)]
            self.wire = self.spawn(named, self._ring, *held)
            self.send(self._start)
            for run in self._runs:
                self.send(messages.BuildRun(0, [list(span) for span in run]))
            for slot in self._given:
                self.send(messages.BuildSlot(0, slot))
            if self._parked:
                self.send(messages.Park(0, True))
            return self.wire

    def take(self, message: Message) -> None:
        """See ``Peer.take``."""
        if isinstance(message, messages.BatchReady):
            batch = BatchMessage.from_plain(message.batch)
            with self.condition:
                self._runs[0].popleft()
                if not self._runs[0]:
                    self._runs.popleft()
                self._given.popleft()
                self.supervisor.progress()
                batch.number = self._count
                self._count += 1
                self._filled.append(batch)
                self.condition.notify_all()
        elif isinstance(message, messages.Activity):
            self._now = BuilderActivity.from_plain(message.activity)
        elif isinstance(message, messages.AskFrames):
            lease = self._frames.ask(
                message.files, _frames_of(message), message.now, message.rows, elsewhere=True
            )
            self._leases[message.number] = lease
            self.send(_answered(message.number, lease))
        elif isinstance(message, messages.FramesStored):
            lease = self._leases.pop(message.number)
            for camera, rows in message.stored.items():
                lease.written[camera][lease.slots[camera][rows]] = True
            lease.give_up()
        elif isinstance(message, messages.ForgetFrames):
            self._frames.forget()
        elif isinstance(message, messages.Bad):
            self._bad(Place(*message.place), message.reason)
        elif isinstance(message, messages.Failed):
            raise message.to_error()

    def gone(self) -> None:
        """Nobody reads or writes the process's slots of the frame cache."""
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            lease.give_up()
        with self.condition:
            if not self.closed:
                self._before = self.activity().over()
                self._now = BuilderActivity.none(self._datasets)

    def failed(self, error: BaseException) -> None:
        """The next ``next`` behind what is filled raises it."""
        self._failure = error


def _frames_of(message: messages.AskFrames) -> dict[str, CameraFrames]:
    """The frames that a question is about."""
    return {
        camera: CameraFrames(*(np.asarray(column, np.int64) for column in columns))
        for camera, columns in message.frames.items()
    }


def _answered(number: int, lease: Lease) -> messages.HeldFrames:
    """The answer as a message."""
    held, kept = {}, {}
    for camera, slots in lease.slots.items():
        held[camera] = np.where(lease.cached[camera], slots, -1)
        kept[camera] = np.where(lease.cached[camera], -1, slots)
    return messages.HeldFrames(0, number, plain_slots(held), plain_slots(kept))
