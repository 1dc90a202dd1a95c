"""A decode process: a light process that builds batches for the loader's child.

Started by ``host.supervision`` with inherited descriptors: its end of a socket pair, the ring, and
the memory of the frame cache. It imports neither TensorFlow nor torch, and opens the indexes that
the child has built. It ends when its socket does. If it cannot even see that, the kernel ends it
with the thread that started it.

The frame cache has one decider, in the child. A read thread here sends the frames of the run that
it has planned and waits for the answer: slots to show them from, and slots to fill. The slots are
in memory that both have mapped. When the run's batches are filled this process says which slots it
has filled; the child then unpins them.

Not here: the child's side (``pipeline.builders``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from autoloader.cache.disk import DiskRoom, FramesOnDisk
from autoloader.cache.slab import BLACK, CameraFrames, FrameSlab, Lease, machine_bytes, plain_slots
from autoloader.decode import frames
from autoloader.decode.batch_builder import BatchBuilder
from autoloader.decode.ring import RingMemory
from autoloader.errors import AutoloaderError, as_fault
from autoloader.host.supervision import options
from autoloader.host.threads import LoaderThread, become, end_with
from autoloader.pipeline import messages
from autoloader.pipeline.messages import Message, Wire
from autoloader.pipeline.read.planned import IndexedReader
from autoloader.samples.block import Place
from autoloader.samples.resolve import resolve_plain
from autoloader.sampling.dealing import NodePart
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.knobs import Knobs

_POLL_S = 0.5
_TELL_S = 0.5


class RemoteFrames:
    """The child's frame cache, as a decode process asks it; see ``cache.slab.FrameCache``.

    Args:
        send: function that sends a message to the child.
        slab: the memory, mapped here too.
        budget_bytes: bytes that decoded frames may take, as the knobs say now.
    """

    def __init__(self, send: Callable[[Message], None], slab: FrameSlab, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._send = send
        self._slab = slab
        self._numbers = itertools.count()
        self._asking: dict[int, queue.SimpleQueue[messages.HeldFrames]] = {}

    def ask(
        self, files: Sequence[str], frames: Mapping[str, CameraFrames], now: int, rows: int
    ) -> Lease:
        """Lease of a run, as ``FrameTable.ask`` of the child gives it; waits for the child."""
        number, answer = next(self._numbers), queue.SimpleQueue[messages.HeldFrames]()
        self._asking[number] = answer
        asked = {
            name: [one.key.tolist(), one.next_use.tolist(), one.dataset.tolist(), one.uses.tolist()]
            for name, one in frames.items()
        }
        self._send(messages.AskFrames(0, number, list(files), asked, now, rows))
        told = answer.get()
        lease = Lease(self._slab, rows, partial(self._settle, number), self)
        for camera, plain in told.slots.items():
            slots, cached = np.asarray(plain, np.int64), np.asarray(told.cached[camera], np.bool_)
            there = slots >= 0
            self._slab.written[camera][slots[there]] = cached[there]
            lease.slots[camera], lease.cached[camera] = slots, cached
        return lease

    def told(self, message: messages.HeldFrames) -> None:
        """Take in the child's answer to ``ask``."""
        self._asking.pop(message.number).put(message)

    def _settle(self, number: int, lease: Lease) -> None:
        stored = {
            camera: np.flatnonzero(~lease.cached[camera] & (slots > BLACK) & written[slots])
            for camera, slots in lease.slots.items()
            for written in [lease.written[camera]]
        }
        self._send(messages.FramesStored(0, number, plain_slots(stored)))


class DecodeProcess:
    """Serves one connection to the child.

    Args:
        connection: socket to the loader's child.
        ring: descriptor of the ring's memory.
        frames: descriptor of the frame cache's memory; −1: nothing is held.
    """

    def __init__(self, connection: socket.socket, ring: int, frames: int) -> None:
        self._wire = Wire(connection)
        self._ring = ring
        self._slab = frames
        self._frames: RemoteFrames | None = None
        self._builder: BatchBuilder | None = None
        self._floor = contextlib.ExitStack()

    def _tell_bad(self, place: Place, reason: str) -> None:
        """Tell the child of a bad record, which counts and judges it."""
        self._wire.tell(messages.Bad(0, list(place.numbers()), reason))

    def run(self) -> None:
        """Serve until the child closes the connection."""
        for message in self._wire:
            if isinstance(message, messages.BuildStart):
                try:
                    self._start(message)
                except AutoloaderError as error:
                    self._wire.tell(messages.Failed.of(0, error))
            elif isinstance(message, messages.HeldFrames) and self._frames is not None:
                self._frames.told(message)
            elif self._builder is not None:
                self._hand_on(message, self._builder)
        os._exit(0)

    def _hand_on(self, message: Message, builder: BatchBuilder) -> None:
        """Have the builder do what a message says."""
        if isinstance(message, messages.BuildRun):
            builder.assign([(start, stop) for start, stop in message.spans])
        elif isinstance(message, messages.BuildSlot):
            builder.give(message.slot, (message.span[0], message.span[1]) if message.span else None)
        elif isinstance(message, messages.BuildPast):
            builder.skip()
        elif isinstance(message, messages.Retune):
            knobs = Knobs.build(message.knobs)
            if self._frames is not None:
                self._frames.budget_bytes = knobs.cache_bytes
            builder.retune(knobs)
        elif isinstance(message, messages.Park):
            builder.park(message.parked)

    def _start(self, message: messages.BuildStart) -> None:
        mixture = resolve_plain(message.mixture)
        knobs = Knobs.build(message.knobs)
        if self._slab >= 0:
            slab = FrameSlab(
                mixture.layout.frame_bytes, room_bytes=machine_bytes(), descriptor=self._slab
            )
            self._frames = RemoteFrames(self._wire.tell, slab, knobs.cache_bytes)
        self._floor.enter_context(mixture.disk_kept_free(message.disk_floor_bytes))
        order = MixtureOrder.from_plain(message.order)
        node = None if message.node is None else NodePart(**message.node)
        reader = IndexedReader(mixture, order, others_frames=self._frames, node=node)
        reader.open(self._tell_bad)
        disk = None
        if message.on_disk is not None:
            room = DiskRoom(**message.on_disk)
            disk = FramesOnDisk(room, mixture.layout.colour_bytes, shared=True)
        self._builder = BatchBuilder(
            mixture,
            reader.source,
            knobs,
            RingMemory(mixture.layout, descriptor=self._ring),
            self._tell_bad,
            disk=disk or None,
            begun=lambda: self._wire.tell(messages.BuildBegun(0)),
        )
        LoaderThread(target=self._forward, args=(self._builder,), name="autoloader-deliver").start()

    def _forward(self, builder: BatchBuilder) -> None:
        """Send each batch of the builder to the child, and now and then its activity."""
        told_s = time.monotonic()
        try:
            while True:
                batch = builder.next(_POLL_S)
                if batch is not None:
                    self._wire.tell(messages.BatchReady(0, 0, batch.plain()))
                if time.monotonic() - told_s >= _TELL_S:
                    told_s = time.monotonic()
                    self._wire.tell(messages.Activity(0, builder.activity()))
        except Exception as error:  # noqa: BLE001 the one boundary of this thread: the child must hear of it
            self._wire.tell(messages.Failed.of(0, as_fault(error, "decode")))


def main() -> None:
    """Serve the child that started this process."""
    given = options()
    end_with(given["parent"])
    become("autoloader-fill")
    frames.room.share(given["ring"])
    connection = socket.socket(fileno=given["socket"])
    DecodeProcess(connection, given["ring"], given.get("frames", -1)).run()


if __name__ == "__main__":
    main()
