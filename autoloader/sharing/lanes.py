"""Batches on their way through builders of this host and helpers, and who has them here.

Theory of operation. What a builder here has filled is taken by one thread at a time: the consumer's
while nobody helps, which costs nothing more than the builder alone does, and the lane's own while
helpers do, so that the builder gets its next batch at once.

Not here: who gets which (``sharing.builder``).
"""

from __future__ import annotations

import collections
import enum
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from autoloader.decode.activity import BuilderActivity
from autoloader.decode.source import Spans
from autoloader.host.threads import LoaderThread
from autoloader.knobs import Knobs
from autoloader.ring.message import BatchMessage

_POLL_S = 0.5


class LocalBuilder(Protocol):
    """What builds batches on this host; see ``decode.batch_builder.BatchBuilder``."""

    @property
    def here(self) -> bool:
        """Whether it is in this process."""
        ...

    @property
    def slots(self) -> frozenset[int]:
        """Slots that are written to though it is closed."""
        ...

    @property
    def leased_frames(self) -> int:
        """Frames of the frame cache that it has pinned."""
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
    def filled(self) -> int:
        """Batches ready to be taken."""
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
        lane: whose builder has or had it last; ``None``: none here.
        since_s: since when, on the monotonic clock.
        batch: once it is filled.
        checked: whether a helper's answer is compared with it.
    """

    number: int
    span: tuple[int, int]
    slot: int | None = None
    state: State = State.WAITING
    lane: Lane | None = None
    since_s: float = 0.0
    batch: BatchMessage | None = None
    checked: bool = False


class Lane:
    """A builder of this host, and the batches that it has, in order.

    Args:
        builder: of this host.
        taken: told of each batch that is taken from it; any thread.
        failed: told of what ended the builder, where nobody else hears of it.
        alone: whether nobody helps, so the lane's own thread rests.
    """

    def __init__(
        self,
        builder: LocalBuilder,
        taken: Callable[[Lane, BatchMessage], None],
        failed: Callable[[BaseException], None],
        *,
        alone: bool,
    ) -> None:
        self.builder = builder
        self.tasks: collections.deque[Task] = collections.deque()
        self._taken, self._failed = taken, failed
        self._taking = threading.Lock()
        self._by_itself = threading.Event()
        self._closed = False
        self.rest(alone)
        self._thread = LoaderThread(target=self._run, name="autoloader-share-here")
        self._thread.start()

    def assign(self, tasks: Sequence[Task]) -> None:
        """Have these filled after those that it has."""
        for task in tasks:
            task.state, task.lane = State.HERE, self
        self.tasks.extend(tasks)
        self.builder.assign([task.span for task in tasks])
        for task in tasks:
            if task.slot is not None:
                self.builder.give(task.slot)

    def rest(self, alone: bool) -> None:
        """Leave it to the consumer to take what is filled (True), or take it by itself."""
        if alone:
            self._by_itself.clear()
        else:
            self._by_itself.set()

    def take(self, wanted: Task, timeout_s: float) -> None:
        """Take what is filled next, if ``wanted`` is not there yet and it is ready in time.

        Raises:
            AutoloaderError: whatever ended the builder.
        """
        deadline = time.monotonic() + timeout_s
        if self._taking.acquire(timeout=timeout_s):
            try:
                if wanted.state is State.HERE:
                    self._take(max(0.0, deadline - time.monotonic()))
            finally:
                self._taking.release()

    def _take(self, timeout_s: float) -> None:
        batch = self.builder.next(timeout_s)
        if batch is not None and not self._closed:
            self._taken(self, batch)

    def _run(self) -> None:
        try:
            while not self._closed:
                self._by_itself.wait()
                with self._taking:
                    self._take(_POLL_S)
        except Exception as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
            if not self._closed:
                self._failed(error)

    def close(self, within_s: float) -> bool:
        """End the builder, and the thread, which takes nothing from it then.

        Returns:
            Whether nobody writes into slots any more.
        """
        self._closed = True
        self._by_itself.set()
        ended = self.builder.close(within_s)
        if self._thread is not threading.current_thread():
            self._thread.join(within_s)
        return ended


class Lanes:
    """The builders of this host; whoever calls it has the lock of the batches.

    Args:
        make: makes a builder: its share of the knobs, and whether it is in this process.
        datasets: number of datasets.
        taken: see ``Lane``.
        failed: see ``Lane``.

    Attributes:
        ended: what the builders did that are no more.
    """

    def __init__(
        self,
        make: Callable[[Knobs, bool], LocalBuilder],
        datasets: int,
        taken: Callable[[Lane, BatchMessage], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._make, self._taken, self._failed = make, taken, failed
        self._working: list[Lane] = []
        self._leaving: list[Lane] = []
        self._parked, self._alone = False, True
        self.ended = BuilderActivity.none(datasets)

    def __len__(self) -> int:
        """How many get new batches."""
        return len(self._working)

    def __iter__(self) -> Iterator[Lane]:
        """All of them, those that get new batches first."""
        return iter([*self._working, *self._leaving])

    @property
    def shortest(self) -> Lane:
        """The one with the fewest batches."""
        return min(self._working, key=lambda lane: len(lane.tasks))

    def assign(self, runs: Sequence[Sequence[Task]]) -> None:
        """A run for each."""
        for lane, run in zip(self._working, runs, strict=True):
            lane.assign(run)

    def adjust(self, shares: Sequence[Knobs]) -> None:
        """Have one for each share of the knobs."""
        here = len(shares) == 1
        kept = [lane for lane in self._working if lane.builder.here is here][: len(shares)]
        self._leaving += [lane for lane in self._working if lane not in kept]
        for share in shares[len(kept) :]:
            lane = Lane(self._make(share, here), self._taken, self._failed, alone=self._alone)
            lane.builder.park(self._parked)
            kept.append(lane)
        self._working = kept
        for lane, share in zip(self._working, shares, strict=True):
            lane.builder.retune(share)
        self.close_empty()

    def close_empty(self) -> None:
        """Close those that are leaving and have nothing left to fill."""
        for lane in [one for one in self._leaving if not one.tasks]:
            self._leaving.remove(lane)
            self.ended = self.ended.plus(lane.builder.activity().over())
            LoaderThread(target=lane.close, name="autoloader-share-end", args=(_POLL_S,)).start()

    def park(self, parked: bool) -> None:
        """See ``BatchBuilder.park``."""
        self._parked = parked
        for lane in self:
            lane.builder.park(parked)

    def rest(self, alone: bool) -> None:
        """See ``Lane.rest``."""
        self._alone = alone
        for lane in self:
            lane.rest(alone)

    @property
    def settled(self) -> bool:
        """Whether as many work as the knobs say, with them."""
        return not self._leaving and all(lane.builder.settled for lane in self._working)
