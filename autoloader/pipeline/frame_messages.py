"""A decode process's side of the child's frame cache: questions, answers, their packing.

Theory of operation. There is one decider, in the child. A read thread of a decode process sends the
frames of the run that it has planned and waits for the answer: which slots to show them from, and
which to fill. The slots are in memory that both have mapped. When the run's batches are filled the
process says which slots it has filled; the child then lets go of what it had pinned.

Not here: the child's side (``pipeline.decode_client``), what is held (``cache.table``).
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from autoloader.cache.lease import CameraFrames, Ints, Lease
from autoloader.cache.slab import BLACK, FrameSlab
from autoloader.pipeline.messages import AskFrames, ForgetFrames, FramesStored, HeldFrames, Message


def asked(
    number: int, files: Sequence[str], frames: Mapping[str, CameraFrames], now: int, rows: int
) -> AskFrames:
    """The question as a message."""
    plain = {
        camera: [one.key.tolist(), one.next_use.tolist(), one.dataset.tolist(), one.uses.tolist()]
        for camera, one in frames.items()
    }
    return AskFrames(0, number, list(files), plain, now, rows)


def frames_of(message: AskFrames) -> dict[str, CameraFrames]:
    """The frames that a question is about."""
    return {
        camera: CameraFrames(*(np.asarray(column, np.int64) for column in columns))
        for camera, columns in message.frames.items()
    }


def answered(number: int, lease: Lease) -> HeldFrames:
    """The answer as a message."""
    held, kept = {}, {}
    for camera, slots in lease.slots.items():
        held[camera] = np.where(lease.held[camera], slots, -1)
        kept[camera] = np.where(lease.held[camera], -1, slots)
    return HeldFrames(0, number, _plain(held), _plain(kept))


def note_stored(lease: Lease, message: FramesStored) -> None:
    """Note which slots the process has filled."""
    for camera, rows in message.stored.items():
        lease.written[camera][lease.slots[camera][rows]] = True


def _plain(columns: Mapping[str, Ints]) -> dict[str, list[int]]:
    return {camera: column.tolist() for camera, column in columns.items()}


class RemoteFrames:
    """The child's frame cache, as a decode process asks it; see ``cache.lease.FrameCache``.

    Args:
        send: function that sends a message to the child.
        slab: the memory, mapped here too.
        budget_bytes: what the knobs say; kept up to date by who hears of them.
    """

    def __init__(self, send: Callable[[Message], None], slab: FrameSlab, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._send = send
        self._slab = slab
        self._numbers = itertools.count()
        self._asking: dict[int, queue.SimpleQueue[HeldFrames]] = {}
        self._lock = threading.Lock()

    def ask(
        self, files: Sequence[str], frames: Mapping[str, CameraFrames], now: int, rows: int
    ) -> Lease:
        """See ``FrameCache.ask``; waits for the child, which answers or ends this process."""
        number, answer = next(self._numbers), queue.SimpleQueue[HeldFrames]()
        self._asking[number] = answer
        self._send(asked(number, files, frames, now, rows))
        told = answer.get()
        lease = Lease(self._slab, rows, partial(self._settle, number), self)
        for camera, written in self._slab.written.items():
            if camera in told.held:
                held, kept = (
                    np.asarray(slots[camera], np.int64) for slots in (told.held, told.kept)
                )
                written[kept[kept >= 0]] = False
                written[held[held >= 0]] = True
                lease.slots[camera], lease.held[camera] = np.maximum(held, kept), held >= 0
        return lease

    def told(self, message: HeldFrames) -> None:
        """The child's answer has come."""
        self._asking.pop(message.number).put(message)

    def forget(self) -> None:
        """See ``FrameCache.forget``."""
        self._send(ForgetFrames(0))

    def _settle(self, number: int, lease: Lease) -> None:
        with self._lock:
            if lease.over:
                return
            lease.over = True
        stored = {
            camera: np.flatnonzero(~lease.held[camera] & (slots > BLACK) & written[slots])
            for camera, slots in lease.slots.items()
            for written in [lease.written[camera]]
        }
        self._send(FramesStored(0, number, _plain(stored)))
