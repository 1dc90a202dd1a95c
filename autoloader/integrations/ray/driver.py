"""The process that talks to Ray: Ray's driver, beside the loader's child.

Theory of operation. The main thread heeds what the child says, one thread looks at the cluster's
nodes, and each helper has a thread that keeps it busy. An answer stays in the object store of this
host until its batch has a slot, and is copied there. A batch is given up if its slot waits for
longer than answers lately took, or if its helper is let go. The child is told that the batch is
lost, and it is written nowhere.

The first answer of every helper, and one in a thousand of all, is used only if it is the same as
the batch that this process fills itself.

Each helper has one processor of a node other than this one; the node with the most free processors
gets the next. A helper that fails, is silent while it has work, or differs from this host is let
go, and its node left alone for a while. Helpers are no detached actors: they end with this process,
however it ends.

Not here: the child's side (``pipeline.builders``), the helper itself (``actor``).
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from autoloader.decode.message import BatchMessage, texts_of
from autoloader.decode.ring import RingMemory
from autoloader.errors import AutoloaderError
from autoloader.host.supervision import options
from autoloader.host.threads import LoaderThread, become, end_with
from autoloader.integrations.ray import ray_client
from autoloader.integrations.ray.actor import CALLS_AT_A_TIME, Helper
from autoloader.integrations.ray.ray_client import ClusterNode
from autoloader.pipeline import messages
from autoloader.pipeline.builders import differences
from autoloader.pipeline.messages import Message, Wire
from autoloader.samples.layout import CALLED, BatchLayout
from autoloader.samples.resolve import resolve_plain
from autoloader.spec.knobs import BATCHES_OF_A_HELPER

_TICK_S = 0.05
_LOOK_S = 1.0
_TELL_S = 0.5
_SILENT_S = 10.0
"""A helper that has work and answers nothing for so long is let go."""
_HEAD_SILENT_S = 20.0
"""After which a head that does not answer is gone."""
_REST_S = 30.0
"""A node whose helper failed is left alone for so long."""
_COMPARED = 1000
"""One answer in so many is compared."""


class Patience:
    """Fed with times of answers, says from when on one is late.

    Until answers are known it is ``FIRST_S``. Then it is the 99th percentile of the last two
    hundred and half as much again, and never below ``LEAST_S``. Where most come in time and some
    hang, as while an object store is full, it is ``FIRST_S`` or four times their median at most.
    Answers that come after they were given up count too, so it grows where all helpers are slow.
    """

    FIRST_S = 1.0
    LEAST_S = 0.1
    MOST_S = 30.0

    def __init__(self) -> None:
        self._times: collections.deque[float] = collections.deque(maxlen=200)
        self.limit_s = self.FIRST_S

    def note(self, took_s: float) -> None:
        """An answer came after so long; one that comes late says little, as its helper hung."""
        self._times.append(min(took_s, 2 * self.limit_s))
        ordered = sorted(self._times)
        tail = 1.5 * ordered[math.ceil(0.99 * len(ordered)) - 1]
        known = tail if len(ordered) >= 8 else max(self.FIRST_S, tail)
        most = max(self.FIRST_S, 4.0 * ordered[len(ordered) // 2])
        self.limit_s = min(self.MOST_S, most, max(self.LEAST_S, known))


class _UnfitError(Exception):
    """A helper whose answers may not be used, and why; ``for_good``: none of its node."""

    def __init__(self, reason: str, *, for_good: bool = True) -> None:
        super().__init__(reason)
        self.for_good = for_good


@dataclass(slots=True, eq=False)
class _Task:
    """A batch that the child has asked for.

    Attributes:
        number: number of the batch.
        span: positions [start, stop) of the batch.
        since_s: time at which the child asked.
        slot: slot that the batch goes to; ``None``: not known yet.
        answer: (message, content) of a helper; ``None``: none has come.
    """

    number: int
    span: tuple[int, int]
    since_s: float
    slot: int | None = None
    answer: tuple[dict[str, Any], np.ndarray] | None = None


@dataclass(slots=True, eq=False)
class _Helper:
    """A helper as it is seen from here; ``asked``: what it fills, in order, and since when."""

    node: ClusterNode
    handle: Any = None
    asked: collections.deque[tuple[_Task, Any, float]] = field(default_factory=collections.deque)
    present: bool = False
    trusted: bool = False
    over: bool = False

    @property
    def room(self) -> int:
        """Batches that it can take now: one alone until that was compared."""
        return (BATCHES_OF_A_HELPER if self.trusted else 1) - len(self.asked)


class Driver:
    """Serves one connection to the child.

    Args:
        wire: message channel to the child.
        ring: descriptor of the ring's memory.
    """

    def __init__(self, wire: Wire, ring: int) -> None:
        self._wire, self._descriptor = wire, ring
        self._changed = threading.Condition(threading.RLock())
        self._comparing = threading.Lock()
        self._helpers: list[_Helper] = []
        self._tasks: dict[int, _Task] = {}
        self._line: collections.deque[_Task] = collections.deque()
        self._patience = Patience()
        self._wanted = self._answered = 0
        self._nodes: list[ClusterNode] = []
        self._left_alone: dict[str, float] = {}
        self._said: set[str] = set()
        self._told = (-1, -1)
        self._told_s = 0.0
        self._seen_s = time.monotonic()
        self._own: Helper | None = None
        self._over = False

    def run(self) -> None:
        """Serve until the child closes the connection."""
        start = self._wire.receive(None)
        assert isinstance(start, messages.HelpersStart)
        try:
            self._ray = ray_client.join(start.address)
        except AutoloaderError as error:
            self._wire.tell(messages.Failed.of(0, error))
            return
        self._start = start
        self._mixture = resolve_plain(start.mixture)
        self._memory = RingMemory(self._mixture.layout, descriptor=self._descriptor)
        own = ray_client.own_node(self._ray)
        self._seen_s = time.monotonic()
        LoaderThread(target=self._watch_nodes, args=(own,), name="autoloader-nodes").start()
        with contextlib.suppress(EOFError):
            while True:
                message = self._wire.receive(_TICK_S)
                if message is not None:
                    self.heed(message)
                self.give_up_late()
                with self._changed:
                    self._tell()
                self.check_head()
        with self._changed:
            self._over = True
            for helper in list(self._helpers):
                self._let_go(helper)

    def check_head(self) -> None:
        """End this process where the head is gone; mostly Ray does, but it may wait for it."""
        if time.monotonic() - self._seen_s > _HEAD_SILENT_S:
            os._exit(1)

    def _watch_nodes(self, own: str) -> None:
        while not self._over:
            try:
                found = ray_client.other_nodes(self._ray, own)
            except Exception:  # noqa: BLE001 whatever Ray raises, the head has not answered
                found = []
            else:
                self._seen_s = time.monotonic()
            with self._changed:
                self._nodes = found
                if not self._over:
                    self._adjust()
            time.sleep(_LOOK_S)

    # --- the child's wishes -------------------------------------------------------

    def heed(self, message: Message) -> None:
        """Do what the child wishes."""
        with self._changed:
            if isinstance(message, messages.HelpersWanted):
                self._wanted = message.count
                self._adjust()
            elif isinstance(message, messages.BuildRun):
                (span,) = message.spans
                task = _Task(message.number, (span[0], span[1]), time.monotonic())
                self._tasks[task.number] = task
                self._line.append(task)
                self._changed.notify_all()
            elif isinstance(message, messages.BuildSlot) and message.number in self._tasks:
                task = self._tasks[message.number]
                task.slot = message.slot
                self._hand_in(task)

    def _hand_in(self, task: _Task) -> None:
        """Copy an answer into its slot, if both are there."""
        if task.slot is None or task.answer is None or self._tasks.get(task.number) is not task:
            return
        del self._tasks[task.number]
        said, content = task.answer
        np.copyto(self._memory.base(task.slot), content)
        for place, reason in said["bad"]:
            self._wire.tell(messages.Bad(0, place, reason))
        self._wire.tell(messages.BatchReady(0, task.number, {**said["batch"], "slot": task.slot}))

    def give_up_late(self) -> None:
        """Give up what waits for an answer too long."""
        with self._changed:
            since_s = time.monotonic() - self._patience.limit_s
            waited_for = [one for one in self._tasks.values() if one.slot is not None]
            self._lose([one for one in waited_for if one.since_s < since_s], late=True)

    def _lose(self, tasks: list[_Task], *, late: bool = False) -> None:
        lost = [one.number for one in tasks if self._tasks.pop(one.number, None) is not None]
        if lost:
            self._line = collections.deque(one for one in self._line if one.number not in lost)
            self._wire.tell(messages.HelpersLost(0, lost, late))

    def _adjust(self) -> None:
        """Have as many helpers as are wanted, where nodes have processors for them."""
        now = time.monotonic()
        free = {
            node: node.cpus - sum(one.node.name == node.name for one in self._helpers)
            for node in self._nodes
            if self._left_alone.get(node.name, 0.0) <= now
        }
        while len(self._helpers) < self._wanted and any(left > 0 for left in free.values()):
            node = max(free, key=lambda one: free[one])
            free[node] -= 1
            helper = _Helper(node)
            self._helpers.append(helper)
            LoaderThread(target=self._employ, args=(helper,), name="autoloader-helper").start()
        while len(self._helpers) > self._wanted:
            self._let_go(min(self._helpers, key=lambda one: (one.present, len(one.asked))))

    def _tell(self) -> None:
        now = time.monotonic()
        usable = [one for one in self._nodes if self._left_alone.get(one.name, 0.0) <= now]
        told = sum(one.present for one in self._helpers), sum(one.cpus for one in usable)
        if told != self._told or now - self._told_s >= _TELL_S:
            self._told, self._told_s = told, now
            self._wire.tell(messages.HelpersHere(0, *told))

    # --- the thread of each helper ----------------------------------------------------------------

    def _employ(self, helper: _Helper) -> None:
        """Have a helper begin and fill batches, until it is let go."""
        reason, rest_s, level = "", 0.0, logging.WARNING
        try:
            self._begin(helper)
            self._keep_busy(helper)
        except _UnfitError as error:
            reason, rest_s = str(error), _REST_S
            if error.for_good:
                rest_s, level = math.inf, logging.ERROR
        except Exception as error:  # noqa: BLE001 whatever Ray raises, this helper is none
            reason = ray_client.plain_reason(error)
            rest_s = _REST_S if isinstance(error, AutoloaderError) or not helper.present else 0.0
            if isinstance(error, self._ray.exceptions.GetTimeoutError):
                reason = f"it has not answered for {_SILENT_S:.0f} s"
        with self._changed:
            same_node = [one for one in self._helpers if one.node.name == helper.node.name]
            for one in same_node if rest_s == math.inf else [helper]:
                self._let_go(one, reason, rest_s, level)

    def _begin(self, helper: _Helper) -> None:
        kind = self._ray.remote(max_restarts=0, max_concurrency=CALLS_AT_A_TIME)(Helper)
        placed = ray_client.placed(self._ray, helper.node)
        helper.handle = kind.options(**placed).remote(asdict(self._start))
        found = self._ray.get(helper.handle.join.remote())
        if "failed" in found:
            raise _UnfitError(found["failed"], for_good=False)
        if differs := differences(self._start.identity, found["identity"]):
            raise _UnfitError(f"its data or packages differ: {'; '.join(differs)}")
        with self._changed:
            helper.present = not helper.over
            self._tell()

    def _keep_busy(self, helper: _Helper) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: helper.over or helper.asked or self._line)
                if helper.over:
                    return
                while self._line and helper.room > 0:
                    task = self._line.popleft()
                    reference = helper.handle.fill.remote(*task.span)
                    helper.asked.append((task, reference, time.monotonic()))
            task, reference, asked_s = helper.asked[0]
            answer = self._ray.get(reference, timeout=_SILENT_S)
            self._patience.note(time.monotonic() - asked_s)
            self._answered += 1
            if not helper.trusted or self._answered % _COMPARED == 0:
                self._compare(task, *answer)
                helper.trusted = True
            with self._changed:
                if not helper.over:
                    helper.asked.popleft()
                    task.answer = answer
                    self._hand_in(task)

    def _compare(self, task: _Task, said: dict[str, Any], content: np.ndarray) -> None:
        """Hold an answer against the same batch, filled by this process.

        Raises:
            _UnfitError: they differ, or this process cannot fill it.
        """
        layout = self._mixture.layout
        with self._comparing:
            if self._own is None:
                own = Helper({**asdict(self._start), "ram_floor_bytes": 0})
                if "failed" in (found := own.join()):
                    raise _UnfitError(f"no batch to compare: {found['failed']}", for_good=False)
                self._own = own
            ours, memory = self._own.fill(*task.span)
        here = memory, BatchMessage.from_plain(ours["batch"])
        there = content, BatchMessage.from_plain(said["batch"])
        differs = difference(layout, here, there, self._mixture.names)
        self._wire.tell(messages.HelperCompared(0, not differs))
        if differs:
            raise _UnfitError(
                f"its batch differs from the same batch of this host: {differs}. Its files, or "
                "its image libraries, are other ones"
            )

    def _let_go(
        self, helper: _Helper, reason: str = "", rest_s: float = 0.0, level: int = logging.WARNING
    ) -> None:
        """End a helper, under the lock; its batches are lost, and its node rests."""
        if helper.over:
            return
        helper.over, helper.present = True, False
        self._helpers.remove(helper)
        self._lose([task for task, _, _ in helper.asked])
        if reason:
            self._left_alone[helper.node.name] = time.monotonic() + rest_s
            text = f"a helper on {helper.node.host} is let go: {reason}"
            if text not in self._said:
                self._said.add(text)
                self._wire.tell(messages.Logged(0, level, "autoloader.integrations.ray", text))
        with contextlib.suppress(Exception):
            self._ray.kill(helper.handle)
        self._changed.notify_all()
        self._tell()


def difference(
    layout: BatchLayout,
    ours: tuple[np.ndarray, BatchMessage],
    theirs: tuple[np.ndarray, BatchMessage],
    names: Sequence[str],
) -> str:
    """The first thing that differs between two batches, for people; "" where all is the same.

    Args:
        layout: layout of the batches in a slot.
        ours: a slot's memory, and what is said of it.
        theirs: the same values, as the helper sent them.
        names: names of the datasets.
    """
    (our_memory, our_batch), (their_memory, their_batch) = ours, theirs
    if our_batch.rows != their_batch.rows:
        return f"{our_batch.rows} rows here, {their_batch.rows} there"
    mine, other = layout.views(our_memory), layout.views(their_memory)
    shown = slice(our_batch.rows)
    # Where a sample comes from is told first: what else differs mostly follows from it.
    for name in sorted(mine, key=lambda name: name not in ("ledger", "provenance")):
        if name in ("language_text", "language_end") or name.startswith(CALLED):
            continue
        here, there = mine[name][shown], other[name][shown]
        if not np.array_equal(here, there, equal_nan=here.dtype.kind == "f"):
            row = int(np.flatnonzero((here != there).reshape(our_batch.rows, -1).any(axis=1))[0])
            return f"{name}, row {row} (dataset {names[mine['dataset_index'][row]]!r})"
    if texts_of(layout, mine, our_batch) != texts_of(layout, other, their_batch):
        return "language"
    return ""


def main() -> None:
    """Serve the child that started this process."""
    given = options()
    end_with(given["parent"])
    become("autoloader-ray")
    Driver(Wire(socket.socket(fileno=given["socket"])), given["ring"]).run()
    os._exit(0)  # Ray waits for its threads, and the helpers end with this process anyway


if __name__ == "__main__":
    main()
