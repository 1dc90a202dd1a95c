"""The sharing of batches with helpers that answer, fail, dawdle and go, without a cluster."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from autoloader import AutoLoader, PipelineSpec
from autoloader.cluster.comparison import dataset_of, difference
from autoloader.cluster.driver import Driver
from autoloader.decode.batch_builder import BatchBuilder
from autoloader.decode.quarantine import Quarantine
from autoloader.knobs import Knobs
from autoloader.order.dealing import Deal, Ranks
from autoloader.pipeline.indexed import IndexedReader
from autoloader.pipeline.pipeline import Pipeline
from autoloader.ring.memory import RingMemory
from autoloader.ring.message import BatchMessage
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sharing.builder import SharedBuilder
from autoloader.sharing.patience import Patience

ROOM = 4


class HelpersNearby:
    """Fills batches in this process as helpers do elsewhere, and fails as it is told.

    Args:
        mixture: what is read.
        reader: reads it.
        memory: the ring of the loader.
        answers: gets the answers.
        drawn: what becomes of each batch.
    """

    pid = 0
    settled = True
    possible = 2

    def __init__(
        self,
        mixture: ResolvedMixture,
        reader: IndexedReader,
        memory: RingMemory,
        answers: SharedBuilder,
        drawn: random.Random,
    ) -> None:
        self._layout, self._memory = mixture.layout, memory
        self._own = RingMemory(mixture.layout)
        self._builder = BatchBuilder(
            mixture, reader.source, Knobs.build({}), self._own, Quarantine(mixture)
        )
        self._answers, self._drawn = answers, drawn
        self._orders: list[tuple[str, Any]] = []
        self._kept: dict[int, tuple[np.ndarray, BatchMessage]] = {}
        self._changed = threading.Condition()
        self._idle = True
        self._closed = False
        self.present = self._wanted = 0
        self.wrong = False
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

    def copy(self, number: int, slot: int) -> None:
        self._order("copy", (number, slot))

    def compare(self, number: int, batch: BatchMessage) -> None:
        self._order("compare", (number, batch))

    def drop(self, number: int) -> None:
        self._order("drop", number)

    def restart(self) -> None:
        self._order("restart", None)

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
            self._answers.lost()
        self._answers.changed()

    def _ask(self, order: tuple[int, tuple[int, int]]) -> None:
        number, span = order
        fate = self._drawn.random()
        if fate < 0.1:
            return  # never answered: it is late, and filled elsewhere
        if fate < 0.2:
            self._answers.lost([number])
            return
        self._builder.assign([span])
        self._builder.give(0)
        while (batch := self._builder.next(1.0)) is None:
            pass
        content = self._own.base(0).copy()
        if self.wrong:
            self._layout.views(content)["action"][0] += 1
        self._kept[number] = content, batch
        self._answers.answered(number, 0.001, self.wrong or fate > 0.9)

    def _copy(self, order: tuple[int, int]) -> None:
        number, slot = order
        if number not in self._kept:
            self._answers.lost([number])
            return
        content, batch = self._kept.pop(number)
        self._memory.base(slot)[:] = content
        batch.slot = slot
        self._answers.copied(number, batch)

    def _compare(self, order: tuple[int, BatchMessage]) -> None:
        number, batch = order
        if number not in self._kept:
            return  # never compared: it is handed out as it was filled here
        ours = self._memory.base(batch.slot), batch
        differs = difference(self._layout, ours, self._kept.pop(number))
        self._answers.compared(number, not differs)

    def _drop(self, number: int) -> None:
        self._kept.pop(number, None)

    def _restart(self, _: None) -> None:
        self._answers.lost()


class SharedReader(IndexedReader):
    """Reads by index, and shares with helpers nearby."""

    helpers: HelpersNearby

    def __init__(self, mixture: ResolvedMixture, order: Any, drawn: random.Random) -> None:
        super().__init__(mixture, order)
        self._drawn = drawn

    def shared(self, make: Any, knobs: Any, memory: Any, quarantine: Any) -> SharedBuilder:
        def nearby(answers: SharedBuilder) -> Any:
            self.helpers = HelpersNearby(self._mixture, self, memory, answers, self._drawn)
            return self.helpers

        datasets = len(self._mixture.datasets)
        return SharedBuilder(make, self.processes, knobs, nearby, memory, datasets)


@pytest.fixture(scope="module")
def planned(spec: PipelineSpec) -> Iterator[tuple[AutoLoader, list[np.ndarray]]]:
    """A loader, for its plan, and the slots of its first batches as they are built here."""
    with AutoLoader(
        spec, isolation="thread", controller=False, output="numpy", ram_floor="200MB"
    ) as loader:
        yield loader, list(_played(loader, None, 80, []))


def _played(
    loader: AutoLoader, drawn: random.Random | None, count: int, found: list[Any]
) -> Iterator[np.ndarray]:
    """Contents of the first batches' slots; ``drawn`` shares them with helpers nearby."""
    mixture, order = loader.plan.mixture, loader.plan.order
    memory = RingMemory(mixture.layout)
    reader = SharedReader(mixture, order, drawn) if drawn else IndexedReader(mixture, order)
    knobs = Knobs.build({"reader": "indexed", "ring_slots": 5, "read_ahead": 1})
    deal = Deal.of(order, mixture.spec.batch, Ranks())
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
            if number % 8 == 7 and hasattr(reader, "helpers"):
                reader.helpers.wait_idle()  # however busy the host is, they answer in time
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
) -> None:
    loader, expected = planned
    found: list[Any] = []
    got = list(_played(loader, random.Random(seed), len(expected), found))
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    (activity,) = found
    assert activity.helpers.batches > 0
    assert activity.helpers.again > 0
    size = loader.plan.mixture.spec.batch.size
    taken = sum(one.taken for one in activity.datasets.values())
    assert taken >= activity.helpers.batches * size


def test_a_batch_that_differs_is_counted_and_the_one_filled_here_is_handed_out(
    planned: tuple[AutoLoader, list[np.ndarray]],
) -> None:
    loader, _ = planned
    mixture = loader.plan.mixture
    memory = RingMemory(mixture.layout)
    reader = SharedReader(mixture, loader.plan.order, random.Random(3))
    knobs = Knobs.build({"reader": "indexed", "ring_slots": 5, "helper_slots": 2})
    deal = Deal.of(loader.plan.order, mixture.spec.batch, Ranks())
    pipeline = Pipeline(mixture, reader, knobs, memory, deal=deal)
    pipeline.start()
    try:
        while not hasattr(reader, "helpers"):
            pipeline.next(0.01)
        reader.helpers.wrong = True
        shown = _actions(pipeline, mixture, memory, 30)
        assert pipeline.activity().helpers.different > 0
    finally:
        pipeline.close()
        memory.close()
    memory = RingMemory(mixture.layout)
    plain = Pipeline(mixture, IndexedReader(mixture, loader.plan.order), knobs, memory, deal=deal)
    plain.start()
    try:
        np.testing.assert_array_equal(shown, _actions(plain, mixture, memory, 30))
    finally:
        plain.close()
        memory.close()


def _actions(
    pipeline: Pipeline, mixture: ResolvedMixture, memory: RingMemory, count: int
) -> np.ndarray:
    found: list[np.ndarray] = []
    while len(found) < count:
        if (batch := pipeline.next(1.0)) is not None:
            found.append(mixture.layout.views(memory.base(batch.slot))["action"].copy())
            pipeline.release(batch.slot)
    return np.stack(found)


def test_while_nobody_helps_whoever_wants_a_batch_takes_it_from_its_builder(
    planned: tuple[AutoLoader, list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    takers: list[str] = []
    taken = BatchBuilder.next

    def noted(builder: BatchBuilder, timeout_s: float) -> BatchMessage | None:
        takers.append(threading.current_thread().name)
        return taken(builder, timeout_s)

    monkeypatch.setattr(BatchBuilder, "next", noted)
    loader, _ = planned
    mixture = loader.plan.mixture
    memory = RingMemory(mixture.layout)
    reader = SharedReader(mixture, loader.plan.order, random.Random(5))
    alone = Knobs.build({"reader": "indexed", "ring_slots": 5})
    helped = Knobs.build({"helper_slots": 2}, base=alone)
    deal = Deal.of(loader.plan.order, mixture.spec.batch, Ranks())
    pipeline = Pipeline(mixture, reader, alone, memory, deal=deal)
    pipeline.start()
    try:
        for knobs in (alone, helped, alone):
            pipeline.retune(knobs)
            while bool(pipeline.activity().helpers.present) is not bool(knobs.helper_slots):
                _actions(pipeline, mixture, memory, 1)
            _actions(pipeline, mixture, memory, 10)  # those that were on their way
            takers.clear()
            _actions(pipeline, mixture, memory, 10)
            own = {name for name in takers if name.startswith("autoloader-share-here")}
            assert bool(own) is bool(knobs.helper_slots)
    finally:
        pipeline.close()
        memory.close()


def test_a_difference_names_the_array_the_row_and_the_dataset(
    planned: tuple[AutoLoader, list[np.ndarray]],
) -> None:
    layout = planned[0].plan.mixture.layout
    ours, theirs = (np.zeros(layout.slot_bytes, np.uint8) for _ in range(2))
    batch = BatchMessage(0, layout.batch_size, 0)
    assert difference(layout, (ours, batch), (theirs, batch)) == ""
    layout.views(ours)["dataset_index"][3] = layout.views(theirs)["dataset_index"][3] = 2
    layout.views(theirs)["images/primary"][3, 0, 5, 5] = 1
    said = difference(layout, (ours, batch), (theirs, batch))
    assert said == "images/primary, row 3"
    assert dataset_of(layout, ours, said) == 2
    layout.views(theirs)["provenance"][1] = 1  # told first: what else differs follows from it
    assert difference(layout, (ours, batch), (theirs, batch)) == "provenance, row 1"
    fewer = BatchMessage(0, layout.batch_size - 1, 0)
    assert "rows here" in difference(layout, (ours, batch), (theirs, fewer))


def test_patience_follows_the_answers_and_one_that_hung_does_not_stretch_it() -> None:
    patience = Patience()
    assert patience.limit_s == Patience.FIRST_S
    _noted(patience, [0.1] * 100)
    assert patience.limit_s == pytest.approx(0.15)
    _noted(patience, [60.0])
    assert patience.limit_s == pytest.approx(0.15)
    _noted(patience, [0.001] * 200)
    assert patience.limit_s == Patience.LEAST_S
    _noted(patience, [3.0] * 60)  # some hang: the rest are not waited for so long
    assert patience.limit_s == Patience.FIRST_S
    _noted(patience, [3.0] * 200)  # all are slow, and come late: it grows until they are in time
    assert patience.limit_s == pytest.approx(4.5)


def _noted(patience: Patience, times: Sequence[float]) -> None:
    for took_s in times:
        patience.note(took_s)


def test_where_the_head_answers_no_more_the_process_that_asks_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(Mock(), -1)
    slept_s: list[float] = []

    def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        driver._see([], answered=len(slept_s) <= 30)

    monkeypatch.setattr("autoloader.cluster.driver.time.sleep", sleep)
    monkeypatch.setattr("autoloader.cluster.driver.os._exit", Mock(side_effect=SystemExit))
    with pytest.raises(SystemExit):
        driver._watch_head()
    assert sum(slept_s) == pytest.approx(30 + 20)
