"""Shares the batches of one pipeline between the builders here and those of other hosts.

Theory of operation. While nobody helps, rounds go to the builders here as they were dealt, and
whoever wants a batch takes it from them: nothing is added but threads that wait. While others help,
batches wait in one line: a builder here takes the next one that has a slot when it has fewer than
two, helpers take the next ones when they have room. Whoever is faster fills more, and nobody is
told how fast he is.

A helper fills memory of its own host and needs no slot. When its answer is there and the batch has
its slot, the answer is copied into it (``helper_client``). An answer that does not come in time is
given up: a builder here fills the batch, and what comes later is dropped. So a slot has one writer,
and training waits for no helper.

The first answer of every helper, and one in a thousand of all, is not used but compared with the
batch that is filled here.

Invariants:
    1. Batches leave in the order in which they were dealt, each once, whoever fills them.
    2. A batch that is waited for has its slot, and so has every batch before it.
    3. A builder here has no batch without a slot behind one that may still come back from a helper.

Not here: talking to helpers (``sharing.client``), how many there should be
(``controller``), the builders here and the batches on their way (``sharing.lanes``).
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autoloader.decode.activity import BuilderActivity, HelperActivity
from autoloader.decode.source import Spans
from autoloader.errors import as_fault
from autoloader.host.threads import LoaderThread
from autoloader.knobs import Knobs
from autoloader.ring.memory import RingMemory
from autoloader.ring.message import BatchMessage
from autoloader.sharing.lanes import Lane, Lanes, LocalBuilder, State, Task
from autoloader.sharing.patience import Patience

if TYPE_CHECKING:
    from autoloader.sharing.client import HelperClient

logger = logging.getLogger(__name__)

_HERE = 2
"""Batches that a builder here has at a time, while others help."""
_LOOK_S = 0.05
_POLL_S = 0.5
_IDLE_S = 20.0
"""Helpers that had nothing to do for so long are given back, until there is something again."""


class SharedBuilder:
    """Has batches built here and by helpers; to a pipeline it is one builder.

    Args:
        make: makes a builder here: its share of the knobs, and whether it is in this process.
        processes: how many builders here the knobs ask for.
        knobs: to begin with.
        helpers: opens the way to the helpers, for whom its argument is who gets their answers.
        memory: the ring.
        datasets: number of datasets.
    """

    here = True

    def __init__(
        self,
        make: Callable[[Knobs, bool], LocalBuilder],
        processes: Callable[[Knobs], int],
        knobs: Knobs,
        helpers: Callable[[SharedBuilder], HelperClient],
        memory: RingMemory,
        datasets: int,
    ) -> None:
        self._processes, self._open = processes, helpers
        self._memory = memory
        self._knobs = knobs
        self._changed = threading.Condition(threading.RLock())
        self._lanes = Lanes(make, datasets, self._taken_here, self._fail)
        self._tasks: collections.deque[Task] = collections.deque()
        self._by_number: dict[int, Task] = {}
        self._line: collections.deque[Task] = collections.deque()
        self._unslotted: collections.deque[Task] = collections.deque()
        self._number = 0
        self._patience = Patience()
        self._helpers: HelperClient | None = None
        self._taken = np.zeros(datasets, np.int64)
        self._counts = HelperActivity()
        self._asked_s = time.monotonic()
        self._parked = False
        self._alone = True
        self._closed = False
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self.retune(knobs)
        self._watch = LoaderThread(target=self._look, name="autoloader-share")
        self._watch.start()

    @property
    def width(self) -> int:
        """Builders here: how many runs a round has."""
        return len(self._lanes)

    @property
    def ahead(self) -> int:
        """Batches without a slot that should be dealt, so that no helper is idle."""
        return 2 * self._room()

    def deal(self, runs: Sequence[Spans]) -> None:
        """A round: batch k is the next of run k mod n."""
        with self._changed:
            tasks: list[list[Task]] = [[] for _ in runs]
            for k in range(sum(map(len, runs))):
                own = runs[k % len(runs)]
                task = Task(self._number, own[k // len(runs)])
                self._number += 1
                tasks[k % len(runs)].append(task)
                for line in (self._tasks, self._unslotted):
                    line.append(task)
                self._by_number[task.number] = task
            self._want_helpers()
            self._note()
            if self._alone and len(runs) == len(self._lanes):
                self._lanes.assign(tasks)
            else:
                self._line.extend(sorted((t for own in tasks for t in own), key=lambda t: t.number))
                self._pump()

    def assign(self, spans: Spans) -> None:
        """See ``BatchBuilder.assign``."""
        self.deal([spans])

    def give(self, slot: int) -> None:
        """See ``BatchBuilder.give``."""
        with self._changed:
            task = self._unslotted.popleft()
            task.slot = slot
            if task.state is State.HERE:
                assert task.lane is not None
                task.lane.builder.give(slot)
            elif task.state is State.ANSWERED:
                self._use(task)
            self._pump()

    def next(self, timeout_s: float) -> BatchMessage | None:
        """See ``BatchBuilder.next``.

        Raises:
            AutoloaderError: whatever ended a builder here.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._changed:
                self._changed.wait_for(self._to_do, max(0.0, deadline - time.monotonic()))
                if self._failure is not None:
                    raise as_fault(self._failure, "decode")
                first = self._tasks[0] if self._tasks and not self._closed else None
                if first is None or not self._to_do():
                    return None
                if first.state is State.FILLED:
                    self._tasks.popleft()
                    del self._by_number[first.number]
                    return first.batch
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            assert first.lane is not None
            first.lane.take(first, left_s)

    def retune(self, knobs: Knobs) -> None:
        """See ``BatchBuilder.retune``; also adds and closes builders here, and asks for helpers."""
        with self._changed:
            self._knobs = knobs
            self._lanes.adjust(knobs.shares(self._processes(knobs)))
            self._want_helpers()
            self._pump()

    def park(self, parked: bool) -> None:
        """See ``BatchBuilder.park``."""
        with self._changed:
            self._parked = parked
            self._lanes.park(parked)
            self._pump()

    def drop(self) -> None:
        """See ``BatchBuilder.drop``."""
        with self._changed:
            lanes = [*self._lanes]
        for lane in lanes:
            lane.builder.drop()

    @property
    def settled(self) -> bool:
        """Whether as many builders as the knobs say work with them, and as many helpers."""
        with self._changed:
            return self._lanes.settled and (self._helpers is None or self._helpers.settled)

    @property
    def filled(self) -> int:
        """Batches ready to be handed out."""
        with self._changed:
            here = sum(lane.builder.filled for lane in self._lanes)
            return here + sum(task.state is State.FILLED for task in self._tasks)

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes that build here, and the one that asks helpers."""
        with self._changed:
            found = [pid for lane in self._lanes for pid in lane.builder.pids]
            return (*found, *([self._helpers.pid] if self._helpers and self._helpers.pid else []))

    def activity(self) -> BuilderActivity:
        """See ``BatchBuilder.activity``; what helpers decoded is in none of its times."""
        with self._changed:
            done, lanes = self._lanes.ended, [*self._lanes]
            taken, counts = self._taken.tolist(), self._counts
            if self._helpers is not None:
                counts = replace(
                    counts, present=self._helpers.present, possible=self._helpers.possible
                )
        for lane in lanes:
            done = done.plus(lane.builder.activity())
        datasets = [
            replace(own, taken=own.taken + more)
            for own, more in zip(done.datasets, taken, strict=True)
        ]
        return replace(done, datasets=datasets, helpers=counts)

    @property
    def slots(self) -> frozenset[int]:
        """See ``BatchBuilder.slots``."""
        return frozenset().union(*(lane.builder.slots for lane in self._lanes))

    @property
    def leased_frames(self) -> int:
        """See ``BatchBuilder.leased_frames``."""
        return sum(lane.builder.leased_frames for lane in self._lanes)

    def close(self, within_s: float) -> bool:
        """See ``BatchBuilder.close``."""
        with self._changed:
            self._closed = True
            self._over.set()
            lanes, helpers = [*self._lanes], self._helpers
            self._changed.notify_all()
        deadline = time.monotonic() + within_s
        ended = [lane.close(max(0.05, deadline - time.monotonic())) for lane in lanes]
        if helpers is not None:
            ended.append(helpers.close(max(0.05, deadline - time.monotonic())))
        self._watch.ended(max(0.05, deadline - time.monotonic()))  # it writes nothing
        return all(ended)

    def answered(self, number: int, took_s: float, check: bool) -> None:
        """A helper has filled a batch; it waits to be copied."""
        with self._changed:
            self._patience.note(took_s)
            task = self._by_number.get(number)
            if task is None or task.state is not State.AWAY:
                self._drop(number)
                return
            task.checked = check
            task.state = State.ANSWERED
            if task.slot is not None:
                self._use(task)
            self._pump()

    def copied(self, number: int, batch: BatchMessage) -> None:
        """A helper's batch is in its slot."""
        with self._changed:
            task = self._by_number.get(number)
            if task is None or task.state is not State.COPYING:
                return
            rows = self._memory.layout.views(self._memory.base(batch.slot))["dataset_index"]
            self._taken += np.bincount(rows[: batch.rows], minlength=len(self._taken))
            self._counts = replace(self._counts, batches=self._counts.batches + 1)
            self._fill(task, batch)
            self._pump()

    def compared(self, number: int, same: bool) -> None:
        """A batch that a helper has filled too has been compared; it is ours that goes."""
        with self._changed:
            task = self._by_number.get(number)
            counts = self._counts
            self._counts = replace(
                counts, compared=counts.compared + 1, different=counts.different + (not same)
            )
            if task is not None and task.state is State.COMPARING and task.batch is not None:
                self._fill(task, task.batch)

    def lost(self, numbers: Sequence[int] | None = None) -> None:
        """Nobody fills these any more; ``None``: the helpers are gone, all of them."""
        with self._changed:
            for task in list(self._tasks):
                if numbers is not None and task.number not in numbers:
                    continue
                if task.state in (State.AWAY, State.ANSWERED, State.COPYING):
                    self._again(task)
                elif task.state is State.COMPARING and task.batch is not None:
                    self._fill(task, task.batch)
            self._pump()

    def changed(self) -> None:
        """There are more helpers, or fewer."""
        with self._changed:
            self._pump()

    # --- inside, under the lock -------------------------------------------------------------------

    def _want_helpers(self) -> None:
        """Ask for as many as the knobs say; they may have been given back for want of work."""
        if self._helpers is None and self._knobs.helper_slots and not self._closed:
            self._helpers = self._open(self)
        if self._helpers is not None:
            self._asked_s = time.monotonic()
            self._helpers.want(self._knobs.helper_slots)

    def _to_do(self) -> bool:
        """Whether the first batch is there, or is to be taken from a builder here."""
        if self._failure is not None or self._closed:
            return True
        first = self._tasks[0].state if self._tasks else None
        return first is State.FILLED or (self._alone and first is State.HERE)

    def _room(self) -> int:
        """Batches that helpers may have at a time."""
        return 0 if self._helpers is None or self._parked else self._helpers.room

    def _away(self) -> int:
        """Batches that helpers have, or that wait for being copied."""
        if self._helpers is None:
            return 0
        states = (State.AWAY, State.ANSWERED, State.COPYING)
        return sum(task.state in states for task in self._tasks)

    def _pump(self) -> None:
        """Give batches that wait to whoever has room for them."""
        if not self._closed:
            self._hand_on()
            self._note()

    def _note(self) -> None:
        """Have the lanes' threads work while others help, and rest while nobody does."""
        here = not self._room() and not self._line
        alone = here and (self._alone or not self._away())  # alone: nobody has any yet
        if alone is not self._alone:
            self._alone = alone
            self._lanes.rest(alone)
            self._changed.notify_all()

    def _hand_on(self) -> None:
        if not self._line:
            return
        room, away = self._room(), self._away()
        alone = not room and not away
        while self._line:
            lane = self._lanes.shortest
            if alone or (self._line[0].slot is not None and len(lane.tasks) < _HERE):
                lane.assign([self._line.popleft()])
            elif away < room:
                task = self._line.popleft()
                task.state, task.since_s = State.AWAY, time.monotonic()
                assert self._helpers is not None
                self._helpers.ask(task.number, task.span)
                away += 1
            else:
                return

    def _use(self, task: Task) -> None:
        """A helper's answer is there and so is the slot."""
        assert task.slot is not None
        if task.checked:
            self._lanes.shortest.assign([task])
            return
        if self._helpers is not None:
            task.state, task.since_s = State.COPYING, time.monotonic()
            self._helpers.copy(task.number, task.slot)

    def _again(self, task: Task) -> None:
        """A helper's batch is filled here after all, before what waits, once it has its slot."""
        task.checked = False
        self._counts = replace(self._counts, again=self._counts.again + 1)
        if task.slot is not None:
            self._lanes.shortest.assign([task])
            return
        task.state = State.WAITING
        at = sum(waiting.number < task.number for waiting in self._line)
        self._line.insert(at, task)

    def _drop(self, number: int) -> None:
        if self._helpers is not None:
            self._helpers.drop(number)

    def _fill(self, task: Task, batch: BatchMessage) -> None:
        task.batch, task.state = batch, State.FILLED
        self._changed.notify_all()

    def _taken_here(self, lane: Lane, batch: BatchMessage) -> None:
        """What a builder here has filled."""
        with self._changed:
            task = lane.tasks.popleft()
            if task.checked and self._helpers is not None:
                task.batch, task.state = batch, State.COMPARING
                task.since_s = time.monotonic()
                self._helpers.compare(task.number, batch)
            else:
                self._fill(task, batch)
            self._lanes.close_empty()
            self._pump()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if not self._closed:
                self._failure = error
                self._changed.notify_all()

    def _look(self) -> None:
        """Have batches filled here whose helpers take too long."""
        while not self._over.wait(_POLL_S if self._alone else _LOOK_S):
            with self._changed:
                now = time.monotonic()
                stuck = False
                for task in list(self._tasks):
                    late = now - task.since_s > self._patience.limit_s
                    if task.state is State.AWAY and late and task.slot is not None:
                        self._counts = replace(self._counts, late=self._counts.late + 1)
                        self._again(task)
                        self._drop(task.number)
                    elif task.state is State.COPYING:
                        stuck |= now - task.since_s > Patience.COPY_S
                    elif task.state is State.COMPARING and now - task.since_s > Patience.COPY_S:
                        assert task.batch is not None
                        self._fill(task, task.batch)
                helpers = self._helpers
                if helpers and not self._away() and now - self._asked_s > _IDLE_S:
                    helpers.want(0)
            if stuck and helpers is not None:
                helpers.restart()  # waits until nobody writes any more, then tells what is lost
