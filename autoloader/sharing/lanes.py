"""Batches on their way through builders of this host and helpers, and who has them here.

Not here: who gets which (``sharing.builder``).
"""

from __future__ import annotations

import collections
import enum
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autoloader.decode.activity import BuilderActivity
from autoloader.decode.source import Spans
from autoloader.host.threads import LoaderThread
from autoloader.knobs import Knobs
from autoloader.ring.message import BatchMessage


class LocalBuilder(Protocol):
    """What builds batches on this host; see ``decode.batch_builder.BatchBuilder``."""

    @property
    def here(self) -> bool:
        """Whether it is in this process."""
        ...

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes."""
        ...

    def assign(self, spans: Spans) -> None:
        """A run to fill."""
        ...

    def give(self, slot: int) -> None:
        """A slot for the next batch."""
        ...

    def next(self, timeout_s: float) -> BatchMessage | None:
        """The next filled batch."""
        ...

    def retune(self, knobs: Knobs) -> None:
        """Move to other knobs."""
        ...

    def park(self, parked: bool) -> None:
        """Stop reading or go on."""
        ...

    def drop(self) -> None:
        """Give back what is read ahead."""
        ...

    @property
    def settled(self) -> bool:
        """Whether it works with its knobs."""
        ...

    def activity(self) -> BuilderActivity:
        """What it has done so far."""
        ...

    def close(self, within_s: float) -> bool:
        """End; whether it has ended in time."""
        ...


class State(enum.Enum):
    """Where a batch is."""

    WAITING = enum.auto()
    HERE = enum.auto()
    AWAY = enum.auto()
    ANSWERED = enum.auto()
    COPYING = enum.auto()
    COMPARING = enum.auto()
    FILLED = enum.auto()


@dataclass(slots=True, eq=False)
class Task:
    """One batch on its way.

    Attributes:
        number: in the order in which batches leave.
        span: its positions [start, stop).
        slot: where it is to lie; ``None``: not known yet.
        state: where it is.
        since_s: since when, on the monotonic clock.
        batch: once it is filled.
        checked: whether a helper's answer is compared with it.
    """

    number: int
    span: tuple[int, int]
    slot: int | None = None
    state: State = State.WAITING
    since_s: float = 0.0
    batch: BatchMessage | None = None
    checked: bool = False


class Lane:
    """A builder of this host, and the batches that it has, in order.

    Args:
        builder: of this host.
        done: run by a thread of its own: takes what the builder has filled until ``closed``.
    """

    def __init__(self, builder: LocalBuilder, done: Callable[[Lane], None]) -> None:
        self.builder = builder
        self.tasks: collections.deque[Task] = collections.deque()
        self.closed = False
        self._thread = LoaderThread(target=done, name="autoloader-share-here", args=(self,))
        self._thread.start()

    def assign(self, tasks: Sequence[Task]) -> None:
        """Have these filled after those that it has."""
        for task in tasks:
            task.state = State.HERE
        self.tasks.extend(tasks)
        self.builder.assign([task.span for task in tasks])
        for task in tasks:
            if task.slot is not None:
                self.builder.give(task.slot)

    def close(self, within_s: float) -> bool:
        """End the builder, and the thread; whether the builder has ended in time."""
        self.closed = True
        ended = self.builder.close(within_s)
        if self._thread is not threading.current_thread():
            self._thread.join(within_s)
        return ended
