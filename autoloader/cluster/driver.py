"""The process that asks helpers: Ray's driver, beside the loader's child.

Theory of operation. One thread reads what the child says, one looks at the cluster's nodes, and
Ray's own threads tell when an answer is there; all of it goes through one queue to the main thread.
An answer stays in the object store of this host until the child wants it copied into a slot.

Each helper has one processor of a node other than this one; the node with the most free processors
gets the next. One that fails, is silent while it has work, or is not the same as this host is let
go, and its node left alone for a while. Helpers are no detached actors: they end with this process,
by whatever it ends.

Not here: the child's side (``sharing.client``), the helper itself (``actor``).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import math
import os
import queue
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from autoloader.cluster import ray_client
from autoloader.cluster.actor import CALLS_AT_A_TIME, Helper
from autoloader.cluster.comparison import dataset_of, difference
from autoloader.cluster.ray_client import ClusterNode
from autoloader.errors import AutoloaderError
from autoloader.host.threads import LoaderThread, become, end_with
from autoloader.knobs import BATCHES_OF_A_HELPER
from autoloader.process import helper_messages, messages
from autoloader.process.messages import Message, Wire
from autoloader.ring.memory import RingMemory
from autoloader.ring.message import BatchMessage
from autoloader.samples.resolve import ResolvedMixture, resolve_plain
from autoloader.sharing.identity import differences

_LOOK_S = 1.0
_SILENT_S = 10.0
"""A helper that has work and answers nothing for so long is let go."""
_HEAD_SILENT_S = 20.0
"""After which a head that does not answer is gone."""
_REST_S = 30.0
"""A node whose helper failed is left alone for so long."""
_COMPARED = 1000
"""One answer in so many is compared."""


@dataclass(slots=True, eq=False)
class _Helper:
    """A helper as it is seen from here."""

    handle: Any
    node: ClusterNode
    asked: dict[int, float] = field(default_factory=dict)
    present: bool = False
    trusted: bool = False
    checking: int | None = None
    heard_s: float = 0.0

    @property
    def room(self) -> int:
        """Batches that it can take now: one alone until that was compared."""
        if not self.present:
            return 0
        if not self.trusted:
            return 0 if self.asked or self.checking is not None else 1
        return BATCHES_OF_A_HELPER - len(self.asked)


@dataclass(frozen=True, slots=True)
class _Answer:
    helper: _Helper
    batch: dict[str, Any]
    bad: list[tuple[list[int], str]]
    content: np.ndarray


class Driver:
    """Serves one connection to the child.

    Args:
        wire: to the child.
        ring: descriptor of the ring's memory.
    """

    def __init__(self, wire: Wire, ring: int) -> None:
        self._wire, self._descriptor = wire, ring
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._helpers: list[_Helper] = []
        self._answers: dict[int, _Answer] = {}
        self._waiting: collections.deque[tuple[int, tuple[int, int]]] = collections.deque()
        self._wanted = self._answered = 0
        self._nodes: list[ClusterNode] = []
        self._left_alone: dict[str, float] = {}
        self._said: set[str] = set()
        self._told = (-1, -1)
        self._looks = 0
        self._ray: Any = None
        self._mixture: ResolvedMixture
        self._memory: RingMemory

    def run(self) -> None:
        """Serve until the child closes the connection."""
        start = self._wire.receive(None)
        assert isinstance(start, helper_messages.HelpersStart)
        try:
            self._ray = ray_client.join(start.address)
        except AutoloaderError as error:
            self._send(messages.Failed.of(0, error))
            return
        self._start = start
        self._mixture = resolve_plain(start.mixture)
        self._memory = RingMemory(self._mixture.layout, descriptor=self._descriptor)
        self._own = ray_client.own_node(self._ray)
        LoaderThread(target=self._read, name="autoloader-read").start()
        LoaderThread(target=self._watch_nodes, name="autoloader-nodes").start()
        LoaderThread(target=self._watch_head, name="autoloader-head").start()
        while True:
            event = self._events.get()
            if event is None:
                return
            event()
            self._ask()

    def end(self) -> None:
        """Let the helpers go."""
        for helper in self._helpers:
            with contextlib.suppress(Exception):
                self._ray.kill(helper.handle)

    # --- threads ----------------------------------------------------------------------------------

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._wire.receive(None)
                assert message is not None
                self._events.put(partial(self._heed, message))
        self._events.put(None)

    def _watch_nodes(self) -> None:
        while True:
            try:
                found = ray_client.other_nodes(self._ray, [self._own])
            except Exception:  # noqa: BLE001 whatever Ray raises, the head has not answered
                self._events.put(partial(self._see, []))
            else:
                self._events.put(partial(self._see, found, answered=True))
            time.sleep(_LOOK_S)

    def _watch_head(self) -> None:
        """End this process where the head is gone; mostly Ray does, but it may wait for it."""
        silent_s, looks = 0.0, self._looks
        while silent_s < _HEAD_SILENT_S:
            time.sleep(_LOOK_S)
            silent_s, looks = (silent_s + _LOOK_S if looks == self._looks else 0.0), self._looks
        os._exit(1)

    # --- events -----------------------------------------------------------------------------------

    def _heed(self, message: Message) -> None:
        if isinstance(message, helper_messages.HelpersWanted):
            self._wanted = message.count
            self._adjust()
        elif isinstance(message, helper_messages.HelperAsk):
            self._waiting.append((message.number, (message.span[0], message.span[1])))
        elif isinstance(message, helper_messages.HelperCopy):
            self._copy(message.number, message.slot)
        elif isinstance(message, helper_messages.HelperCompare):
            self._compare(message.number, BatchMessage.from_plain(message.batch))
        elif isinstance(message, helper_messages.HelperDrop):
            self._forget(message.number)

    def _see(self, nodes: list[ClusterNode], *, answered: bool = False) -> None:
        self._nodes = nodes
        self._looks += answered
        now = time.monotonic()
        for helper in list(self._helpers):
            if helper.asked and helper.present and now - helper.heard_s > _SILENT_S:
                self._let_go(helper, f"it has not answered for {_SILENT_S:.0f} s")
        self._adjust()

    def _joined(self, helper: _Helper, future: Future[dict[str, Any]]) -> None:
        if helper not in self._helpers:
            return
        try:
            found = future.result()
        except Exception as error:  # noqa: BLE001 whatever Ray raises, this helper is none
            self._let_go(helper, ray_client.plain_reason(error), say=True)
            return
        if "failed" in found:
            kind, what, remedy = found["failed"]
            self._let_go(helper, f"{kind}: {what}{remedy and ' → ' + remedy}", say=True)
            return
        differs = differences(self._start.identity, found["identity"])
        if differs:
            self._let_go(
                helper, f"it is not the same: {'; '.join(differs)}", say=True, for_good=True
            )
            return
        helper.present, helper.heard_s = True, time.monotonic()
        self._tell()

    def _take(self, helper: _Helper, number: int, future: Future[Any]) -> None:
        sent_s = helper.asked.pop(number, None)
        if helper not in self._helpers or sent_s is None:
            return
        try:
            said, content = future.result()
        except Exception as error:  # noqa: BLE001 whatever Ray raises, the batch is lost
            self._send(helper_messages.HelpersLost(0, [number]))
            own = isinstance(error, AutoloaderError)
            self._let_go(helper, ray_client.plain_reason(error), say=own)
            return
        helper.heard_s = time.monotonic()
        self._answered += 1
        check = not helper.trusted or self._answered % _COMPARED == 0
        if check:
            helper.checking = number
        self._answers[number] = _Answer(helper, said["batch"], said["bad"], content)
        took_s = helper.heard_s - sent_s
        self._send(helper_messages.HelperAnswer(0, number, took_s, check))

    def _copy(self, number: int, slot: int) -> None:
        answer = self._answers.pop(number, None)
        if answer is None:
            self._send(helper_messages.HelpersLost(0, [number]))
            return
        np.copyto(self._memory.base(slot), answer.content)
        for place, reason in answer.bad:
            self._send(messages.Bad(0, place, reason))
        self._send(helper_messages.HelperCopied(0, number, {**answer.batch, "slot": slot}))

    def _compare(self, number: int, ours: BatchMessage) -> None:
        answer = self._answers.pop(number, None)
        if answer is None:
            self._send(helper_messages.HelperCompared(0, number, True))
            return
        helper, layout = answer.helper, self._mixture.layout
        here = self._memory.base(ours.slot)
        theirs = BatchMessage.from_plain(answer.batch)
        differs = difference(layout, (here, ours), (answer.content, theirs))
        self._send(helper_messages.HelperCompared(0, number, not differs))
        helper.checking = None
        if not differs:
            helper.trusted = True
            return
        dataset = dataset_of(layout, here, differs)
        name = "" if dataset is None else f" (dataset {self._mixture.names[dataset]!r})"
        for other in [one for one in self._helpers if one.node.name == helper.node.name]:
            self._let_go(
                other,
                f"a batch that it filled is not the one that is filled here: {differs}{name}. "
                "Files there are other than here, or an image library decodes otherwise",
                say=True,
                for_good=True,
            )

    def _forget(self, number: int) -> None:
        answer = self._answers.pop(number, None)
        if answer is not None and answer.helper.checking == number:
            answer.helper.checking = None
        self._waiting = collections.deque(one for one in self._waiting if one[0] != number)

    # --- helpers ----------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Give batches that wait to helpers that have room."""
        while self._waiting:
            helper = max(self._helpers, key=lambda one: one.room, default=None)
            if helper is None or helper.room <= 0:
                return
            number, span = self._waiting.popleft()
            now = time.monotonic()
            if not helper.asked:
                helper.heard_s = now
            helper.asked[number] = now
            reference = helper.handle.fill.remote(*span)
            self._when_done(reference, partial(self._take, helper, number))

    def _when_done(self, reference: Any, heed: Callable[[Future[Any]], None]) -> None:
        events = self._events
        reference.future().add_done_callback(lambda done: events.put(partial(heed, done)))

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
            self._begin(node)
        while len(self._helpers) > self._wanted:
            helper = min(self._helpers, key=lambda one: (one.present, len(one.asked)))
            self._let_go(helper, "")
        self._tell()

    def _begin(self, node: ClusterNode) -> None:
        kind = self._ray.remote(max_restarts=0, max_concurrency=CALLS_AT_A_TIME)(Helper)
        handle = kind.options(**ray_client.placed_on(self._ray, node)).remote(asdict(self._start))
        helper = _Helper(handle, node)
        self._helpers.append(helper)
        self._when_done(handle.join.remote(), partial(self._joined, helper))

    def _let_go(
        self, helper: _Helper, reason: str, *, say: bool = False, for_good: bool = False
    ) -> None:
        """End a helper; its batches are lost. With a reason its node is left alone for a while."""
        if helper not in self._helpers:
            return
        self._helpers.remove(helper)
        answers = [number for number, one in self._answers.items() if one.helper is helper]
        for number in answers:
            del self._answers[number]
        if lost := [*helper.asked, *answers]:
            self._send(helper_messages.HelpersLost(0, lost))
        helper.asked.clear()
        if reason:
            rest_s = math.inf if for_good else _REST_S if say else 0.0
            self._left_alone[helper.node.name] = time.monotonic() + rest_s
            text = f"a helper on {helper.node.host} is let go: {reason}"
            if text not in self._said:
                self._said.add(text)
                level = logging.ERROR if for_good else logging.WARNING
                self._send(messages.Logged(0, level, "autoloader.cluster", text))
        with contextlib.suppress(Exception):
            self._ray.kill(helper.handle)
        self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        usable = [one for one in self._nodes if self._left_alone.get(one.name, 0.0) <= now]
        told = sum(one.present for one in self._helpers), sum(one.cpus for one in usable)
        if told != self._told:
            self._told = told
            self._send(helper_messages.HelpersHere(0, *told))

    def _send(self, message: Message) -> None:
        try:
            self._wire.send(message)
        except OSError:
            self.end()
            os._exit(0)


def main(arguments: list[str] | None = None) -> None:
    """Serve the child that started this process."""
    parser = argparse.ArgumentParser(prog="autoloader.cluster.driver")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--ring", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    chosen = parser.parse_args(arguments)
    end_with(chosen.parent)
    become("autoloader-ray")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    driver = Driver(Wire(socket.socket(fileno=chosen.socket)), chosen.ring)
    driver.run()
    driver.end()
    os._exit(0)  # Ray waits for its threads, and the helpers end with this process anyway


if __name__ == "__main__":
    main()
