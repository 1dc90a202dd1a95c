"""The sharing of batches with helpers that answer, fail, dawdle and go, without a cluster."""

import itertools
import logging
import random
import socket
import threading
import types
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from streams import opened

from autoloader import AutoLoader, PipelineSpec
from autoloader.decode.batch_builder import BatchBuilder
from autoloader.decode.message import BatchMessage, Quarantine
from autoloader.decode.ring import RingMemory
from autoloader.index import open_indexes
from autoloader.integrations.ray.actor import Helper
from autoloader.integrations.ray.driver import Driver, Patience, difference
from autoloader.pipeline.builders import identity_of
from autoloader.pipeline.messages import (
    BuildRun,
    BuildSlot,
    HelpersLost,
    HelpersStart,
    HelpersWanted,
    Wire,
)
from autoloader.pipeline.pipeline import Pipeline
from autoloader.pipeline.read.planned import IndexedReader
from autoloader.samples.resolve import ResolvedMixture, resolve_plain
from autoloader.sampling.dealing import Deal, Ranks
from autoloader.spec.knobs import Knobs

ROOM = 4


class HelpersNearby:
    """Fills batches in this process as helpers do elsewhere, and fails as it is told.

    Args:
        mixture: what is read.
        reader: reads it.
        memory: the ring of the loader.
        answers: gets the answers.
    """

    pids = ()
    settled = True
    possible = 2
    compared = different = 0

    def __init__(
        self, mixture: ResolvedMixture, reader: IndexedReader, memory: RingMemory, answers: Any
    ) -> None:
        self._memory = memory
        self._own = RingMemory(mixture.layout)
        self._builder = BatchBuilder(
            mixture, reader.source, Knobs.build({}), self._own, Quarantine(mixture).add
        )
        self._answers, self._fates = answers, itertools.count()
        self._orders: list[tuple[str, Any]] = []
        self._kept: dict[int, tuple[np.ndarray, BatchMessage] | None] = {}
        self._slots: dict[int, int] = {}
        self._changed = threading.Condition()
        self._idle = True
        self._closed = False
        self.present = self._wanted = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def room(self) -> int:
        return ROOM if self.present else 0

    def want(self, count: int) -> None:
        if count != self._wanted:
            self._wanted = count
            self._order("want", count)

    def ask(self, number: int, span: tuple[int, int]) -> None:
        self._order("ask", (number, span))

    def give(self, number: int, slot: int) -> None:
        self._order("give", (number, slot))

    def wait_idle(self) -> None:
        """Until all that was ordered is done."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._idle and not self._orders, 30)

    def close(self, within_s: float) -> bool:
        self._closed = True
        self._order("close", None)
        self._thread.join(10)
        self._builder.close(within_s)
        self._own.close()
        return not self._thread.is_alive()

    def _order(self, what: str, rest: Any) -> None:
        with self._changed:
            self._orders.append((what, rest))
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._orders)
                self._idle = False
                what, rest = self._orders.pop(0)
            if what == "close":
                return
            getattr(self, f"_{what}")(rest)

    def _want(self, count: int) -> None:
        self.present = count
        if not count:
            self._kept.clear()
            self._slots.clear()
            self._answers.lost()
        self._answers.helped()

    def _ask(self, order: tuple[int, tuple[int, int]]) -> None:
        number, span = order
        fate = next(self._fates) % 6  # by the count of asks: no thread's timing decides
        if fate == 1:
            self._kept[number] = None  # given up where its slot is told
        elif fate == 3:
            self._answers.lost([number])
            return
        else:
            self._builder.assign([span])
            self._builder.give(0)
            while (batch := self._builder.next(1.0)) is None:
                pass
            self._kept[number] = self._own.base(0).copy(), batch
        if number in self._slots:
            self._give((number, self._slots.pop(number)))

    def _give(self, order: tuple[int, int]) -> None:
        number, slot = order
        if number not in self._kept:
            self._slots[number] = slot
            return
        kept = self._kept.pop(number)
        if kept is None:
            self._answers.lost([number], late=True)
            return
        content, batch = kept
        self._memory.base(slot)[:] = content
        batch.slot = slot
        self._answers.done(number, batch)


class SharedReader(IndexedReader):
    """Reads by index, and shares with helpers nearby."""

    nearby: HelpersNearby

    def helpers(self, memory: Any, quarantine: Any, answers: Any) -> Any:
        self.nearby = HelpersNearby(self.mixture, self, memory, answers)
        return self.nearby


@pytest.fixture(scope="module")
def planned(spec: PipelineSpec) -> Iterator[tuple[AutoLoader, list[np.ndarray]]]:
    """A loader, for its plan, and the slots of its first batches as they are built here."""
    with opened(spec, controller=False) as loader:
        yield loader, list(_played(loader, None, 80, []))


def _played(
    loader: AutoLoader, drawn: random.Random | None, count: int, found: list[Any]
) -> Iterator[np.ndarray]:
    """Contents of the first batches' slots; ``drawn`` shares them with helpers as knobs move."""
    mixture, order = loader.plan.mixture, loader.plan.order
    memory = RingMemory(mixture.layout)
    reader = (SharedReader if drawn else IndexedReader)(mixture, order)
    knobs = Knobs.build({"reader": "indexed", "ring_slots": 5, "read_ahead": 1})
    batch = mixture.spec.batch
    deal = Deal(Ranks(), batch.size, batch.drop_last, order.epoch_samples)
    pipeline = Pipeline(mixture, reader, knobs, memory, deal=deal)
    pipeline.start()
    try:
        for number in range(count):
            if drawn is not None and number % 8 == 4:
                changes = {
                    # They are asked for batches some twenty ahead: they stay for longer than that.
                    "helper_slots": 0 if number // 8 % 5 == 4 else 2,
                    "ring_slots": drawn.randint(4, 9),
                    "decode_processes": 1 if number < 40 else drawn.randint(1, 2),
                }
                pipeline.retune(Knobs.build(changes, base=knobs))
            if number % 8 == 7 and hasattr(reader, "nearby"):
                reader.nearby.wait_idle()  # however busy the host is, they answer in time
            while (batch := pipeline.next(1.0)) is None:
                pass
            assert batch.number == number
            views = mixture.layout.views(memory.base(batch.slot))
            rows = slice(batch.rows)
            parts = [
                views[name][rows].ravel().view(np.uint8)
                for name in sorted(views)
                if name != "language_text"
            ]
            yield np.concatenate(parts)
            pipeline.release(batch.slot)
        found.append(pipeline.activity())
    finally:
        pipeline.close()
        memory.close()


@pytest.mark.parametrize("seed", range(2))
def test_order_and_content_stay_whatever_helpers_do(
    planned: tuple[AutoLoader, list[np.ndarray]], seed: int
):
    loader, expected = planned
    found: list[Any] = []
    got = list(_played(loader, random.Random(seed), len(expected), found))
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    (activity,) = found
    assert activity.helpers.batches > 0
    assert activity.helpers.again > activity.helpers.late > 0
    size = loader.plan.mixture.spec.batch.size
    taken = sum(one.samples for one in activity.datasets.values())
    assert taken >= activity.helpers.batches * size


def test_a_difference_names_the_array_the_row_and_the_dataset(
    planned: tuple[AutoLoader, list[np.ndarray]],
):
    layout, names = planned[0].plan.mixture.layout, planned[0].dataset_names
    ours, theirs = (np.zeros(layout.slot_bytes, np.uint8) for _ in range(2))
    batch = BatchMessage(0, layout.batch_size, 0)
    assert difference(layout, (ours, batch), (theirs, batch), names) == ""
    layout.views(ours)["dataset_index"][3] = layout.views(theirs)["dataset_index"][3] = 2
    layout.views(theirs)["images/primary"][3, 0, 5, 5] = 1
    said = difference(layout, (ours, batch), (theirs, batch), names)
    assert said == f"images/primary, row 3 (dataset {names[2]!r})"
    layout.views(theirs)["provenance"][1] = 1  # told first: what else differs follows from it
    assert (
        difference(layout, (ours, batch), (theirs, batch), names)
        == f"provenance, row 1 (dataset {names[0]!r})"
    )
    fewer = BatchMessage(0, layout.batch_size - 1, 0)
    assert "rows here" in difference(layout, (ours, batch), (theirs, fewer), names)


class RayHere:
    """What the driver asks of Ray, done in this process; the helper's actions are wrong."""

    exceptions = types.SimpleNamespace(GetTimeoutError=TimeoutError)
    util = types.SimpleNamespace(
        scheduling_strategies=types.SimpleNamespace(NodeAffinitySchedulingStrategy=Mock())
    )

    def nodes(self) -> list[dict[str, Any]]:
        node = {"NodeManagerAddress": "there.lan", "Alive": True, "Resources": {"CPU": 1.0}}
        return [{"NodeID": "there", **node}]

    def get_runtime_context(self) -> Any:
        return types.SimpleNamespace(get_node_id=lambda: "here")

    def remote(self, **_: Any) -> Any:
        return lambda kind: types.SimpleNamespace(options=lambda **_: self._made(kind))

    def _made(self, kind: type[Helper]) -> Any:
        def made(start: dict[str, Any]) -> Any:
            helper, layout = kind(start), resolve_plain(start["mixture"]).layout

            def fill(*span: int) -> Any:
                said, content = helper.fill(*span)
                layout.views(content)["action"][0] += 1
                return said, content

            return types.SimpleNamespace(
                join=types.SimpleNamespace(remote=helper.join),
                fill=types.SimpleNamespace(remote=fill),
            )

        return types.SimpleNamespace(remote=made)

    def get(self, answer: Any, timeout: float | None = None) -> Any:
        del timeout
        return answer

    def kill(self, handle: Any) -> None:
        del handle


def test_a_helper_whose_first_batch_differs_is_let_go_for_good_and_the_batch_is_not_used(
    planned: tuple[AutoLoader, list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
):
    mixture, order = planned[0].plan.mixture, asdict(planned[0].plan.order)
    monkeypatch.setattr("autoloader.integrations.ray.ray_client.join", lambda _: RayHere())
    identity = identity_of(mixture, order, open_indexes(mixture.datasets))
    memory = RingMemory(mixture.layout)
    ours, theirs = map(Wire, socket.socketpair())
    driver = threading.Thread(target=Driver(theirs, memory.descriptor).run, daemon=True)
    driver.start()
    ours.send(HelpersStart(0, mixture.plain(), order, identity, "there:1", 0, []))
    ours.send(HelpersWanted(0, 1))
    ours.send(BuildRun(0, [[0, mixture.spec.batch.size]], 7))
    said: dict[str, Any] = {}
    while not {"HelperCompared", "HelpersLost", "Logged"} <= said.keys():
        if (message := ours.receive(1.0)) is not None:
            said[type(message).__name__] = message
    assert not said["HelperCompared"].same
    assert said["HelpersLost"].numbers == [7]
    assert "BatchReady" not in said
    assert "action, row 0 (dataset" in said["Logged"].text
    assert said["Logged"].level == logging.ERROR
    ours.close()
    driver.join(10)
    assert not driver.is_alive()
    theirs.close()


def test_a_late_batch_is_given_up_once_its_slot_waits_for_it_and_is_written_nowhere(
    monkeypatch: pytest.MonkeyPatch,
):
    wire = Mock()
    driver = Driver(wire, -1)
    now_s = 100.0
    monkeypatch.setattr("autoloader.integrations.ray.driver.time.monotonic", lambda: now_s)
    driver.heed(HelpersWanted(0, 1))
    for number in (4, 5):
        driver.heed(BuildRun(0, [[0, 8]], number))
    driver.heed(BuildSlot(0, 2, 4))
    now_s += Patience.FIRST_S / 2
    driver.give_up_late()
    assert not wire.tell.called
    now_s += Patience.FIRST_S
    driver.give_up_late()
    (sent,) = wire.tell.call_args_list
    assert sent.args == (HelpersLost(0, [4], late=True),)  # nobody waits for the other one yet
    driver.heed(BuildSlot(0, 2, 4))  # it crossed the answer: a builder has this slot now
    assert wire.tell.call_count == 1
