"""Real pipelines under control: the reflex and the policy drive what really runs."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from doubles import FakeHeadroom
from governed import controlled_of, knobs_of, loop_of, reacting
from rlds_files import Written, written_steps
from situations import FLOOR
from streams import spec_of

import autoloader.loader
import autoloader.process.control
from autoloader import AutoLoader
from autoloader.cli.app import main
from autoloader.controller.limits import DECISIONS_VARIABLE
from autoloader.controller.policy import Decision
from autoloader.controller.states import ControllerState, Event, State
from autoloader.errors import PipelineError
from autoloader.host.clock import Watched
from autoloader.host.processes import ProcessorReading
from autoloader.host.units import GIB, MIB
from autoloader.spec.knobs import STAGES, Knobs
from autoloader.telemetry.statistics import DatasetStatistics, StageMoment, Statistics

pytestmark = pytest.mark.usefixtures("no_thread_left_behind")


written = written_steps([[40] * 8] * 3, name="a")


LARGE = {"ring_slots": 12, "decode_threads": 2, "read_ahead": 3, "queue_samples": 64}


def load(written: Written, **own: Any) -> AutoLoader:
    spec = spec_of(written, mixing={"epoch": "forever"}, reader=own.pop("reader", "indexed"))
    values = {"isolation": "thread", "ram_floor": FLOOR, "knobs": LARGE, "output": "numpy"}
    return AutoLoader(spec, **{**values, **own})


def take(stream: Iterator[Any], count: int) -> list[tuple[int, ...]]:
    return [tuple(row) for _ in range(count) for row in next(stream)["provenance"].tolist()]


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_below_the_floor_the_loader_is_at_minimum_at_once_and_batches_still_come(
    written: Written, headroom: FakeHeadroom, reader: str
):
    with load(written, reader=reader) as calm:
        # Queues of the stream reader may be filled in another order between shards, not here:
        # one dataset, one shard at a time.
        wanted = take(iter(calm), 60)
    with load(written, reader=reader) as loader:
        stream, loop = iter(loader), loop_of(loader)
        got = take(stream, 10)
        headroom.headroom_bytes = FLOOR - MIB
        loop.react_once()
        assert (knobs_of(loader).ring_slots, loader.knobs.decode_threads) == (4, 2)
        if reader == "indexed":
            assert loader.knobs.read_ahead == 1
        else:
            assert loader.knobs.queue_samples == 1
        with reacting(loop):
            got += take(stream, 20)
        loop.govern_once()
        assert knobs_of(loader).ring_slots == 4
        assert loader.statistics().state == State.EMERGENCY.value
        counted = loader.statistics().controller
        assert counted.drops >= 1
        assert counted.decisions == 1
        headroom.headroom_bytes = FLOOR + 4 * GIB
        loop.react_once()
        got += take(stream, 30)
    # Nothing lost, nothing twice, and in order, whatever was dropped and read again.
    assert got == wanted


def test_within_the_margin_nothing_is_read_but_for_the_consumers_next_batches(
    written: Written, headroom: FakeHeadroom
):
    with load(written) as loader:
        stream, loop = iter(loader), loop_of(loader)
        take(stream, 2)
        while loader.statistics().ring.filled < 8:
            take(stream, 0)
        assert loop.react_once() == pytest.approx(0.2)
        headroom.headroom_bytes = FLOOR + 100 * MIB
        assert loop.react_once() == pytest.approx(0.1)
        assert not controlled_of(loader)._admit
        assert loader.knobs.ring_slots == 12
        loop.govern_once()
        assert knobs_of(loader).ring_slots == 6
        assert loader.statistics().state == State.SHRINK.value
        for _ in range(30):
            take(stream, 1)
            loop.react_once()


def test_a_parked_pipeline_is_looked_at_every_second_time_and_at_once_when_it_is_back(
    written: Written, headroom: FakeHeadroom
):
    with load(written) as loader:
        controlled = controlled_of(loader)
        take(iter(loader), 1)
        decided = []
        for second in range(12):
            if second == 4:
                loader.park()
            if second == 9:
                loader.park(False)
            loader.statistics()  # the service has heeded that
            controlled.govern(float(second), 0)
            decided.append(controlled.activity().activity["controller"]["decisions"])
        assert decided == [1, 2, 3, 4, 5, 5, 6, 6, 7, 8, 9, 10]


def test_a_look_makes_the_statistics_of_a_dataset_once_and_reads_the_processors_every_second_time(
    written: Written, headroom: FakeHeadroom
):
    made: list[str] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is DatasetStatistics.__init__.__code__:
            made.append("statistics")

    def use() -> ProcessorReading:
        made.append("processors")
        return ProcessorReading(1.0)

    with load(written, reader="stream") as loader:
        controlled = controlled_of(loader)
        take(iter(loader), 1)
        second = 0.0
        probe = controlled._observer._probes.processors
        probe.probe, probe.now_s, probe._next_s = use, lambda: second, 0.0
        for _ in range(8):
            sys.setprofile(count)
            controlled.govern(second, 0)
            sys.setprofile(None)
            second += 1.0
    assert Counter(made) == {"statistics": 8, "processors": 4}


def test_a_persons_retune_stands_and_the_policy_goes_on_from_it(
    written: Written, headroom: FakeHeadroom
):
    with load(written) as loader:
        loader.retune(ring_slots=5)
        assert loader.knobs.ring_slots == 5
        take(iter(loader), 3)
        loop_of(loader).govern_once()
        assert knobs_of(loader).ring_slots == 5


@pytest.mark.parametrize("error", [PipelineError("gone", remedy="mount /proc"), KeyError("Mem")])
def test_a_fault_of_headroom_or_policy_leaves_things_as_they_are(
    written: Written, headroom: FakeHeadroom, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def broken() -> Any:
        raise error

    with load(written) as loader:
        loop, before = loop_of(loader), loader.knobs
        monkeypatch.setattr(headroom, "read", broken)
        for _ in range(5):
            loop.react_once()
            loop.govern_once()
        assert loop.faults >= 5
        take(iter(loader), 5)
        assert loader.knobs == before
        monkeypatch.undo()


def test_no_batch_waits_for_a_policy_or_a_probe_that_hangs(
    written: Written, headroom: FakeHeadroom, monkeypatch: pytest.MonkeyPatch
):
    released = threading.Event()
    hanging = {"policy": threading.Event(), "headroom": threading.Event()}

    def hang(what: str) -> Any:
        hanging[what].set()
        released.wait()
        raise KeyError(what)

    with load(written) as loader:
        stream, loop = iter(loader), loop_of(loader)
        take(stream, 1)
        monkeypatch.setattr(autoloader.process.control, "decide", lambda *_: hang("policy"))
        policy = threading.Thread(target=loop.govern_once)
        policy.start()
        hanging["policy"].wait()
        monkeypatch.setattr(headroom, "read", lambda: hang("headroom"))
        reflex = threading.Thread(target=loop.react_once)
        reflex.start()
        hanging["headroom"].wait()
        take(stream, 3 * LARGE["ring_slots"])
        assert policy.is_alive()
        assert reflex.is_alive()
        released.set()
        policy.join()
        reflex.join()
        assert loop.faults == 2
        monkeypatch.undo()


def test_without_a_controller_nothing_governs(written: Written, headroom: FakeHeadroom):
    with load(written, controller=False) as loader:
        loop_of(loader).react_once()
        assert loader.statistics().state is None
        assert headroom.reads > 0
        assert loop_of(loader)._governed == ()


def test_promised_orders_reach_the_limits(written: Written, headroom: FakeHeadroom):
    with load(written, reproducible=True) as loader:
        assert controlled_of(loader)._limits.order_fixed


def test_the_child_is_governed_tells_its_state_and_its_log_replays(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = tmp_path / "run" / "decisions.jsonl"
    monkeypatch.setenv(DECISIONS_VARIABLE, str(log))
    with load(written, isolation="process", ram_floor="64MiB") as loader:
        stream = iter(loader)
        while not log.exists() or len(log.read_text().splitlines()) < 4:
            take(stream, 1)
        assert loader.statistics().state in {state.value for state in State}
        loader.retune(ring_slots=9)
        take(stream, 3)
        assert loader.knobs.ring_slots >= 4
        counted = loader.statistics().controller
    assert main(["replay", str(log)]) == 0
    assert counted.decisions > 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = {line["kind"] for line in lines}
    assert {"start", "decision"} <= kinds
    seen = [line["observation"] for line in lines if line["kind"] == "decision"]
    assert {one["stage"] for one in seen[-1]["stages"]} == set(STAGES)
    assert seen[-1]["headroom_bytes"] > 0


def test_a_child_far_above_its_minimum_is_restarted_small_once(
    written: Written, headroom: FakeHeadroom
):
    with load(written) as loader:
        controlled = controlled_of(loader)
        take(iter(loader), 2)
        asked: list[str] = []
        controlled._end = lambda why, _: asked.append(why)
        observer = controlled._observer
        observer._own_process = True
        observer._probes.memory = Watched(lambda: 4 * GIB, "memory")
        for tenth in range(120):
            controlled.reflex(tenth / 10, FLOOR - MIB, 0)
        assert len(asked) == 1
        assert knobs_of(loader).ring_slots == 4


def test_loaders_of_a_process_share_what_is_above_the_floor(
    written: Written, headroom: FakeHeadroom
):
    left = headroom.headroom_bytes - FLOOR - 256 * MIB
    with load(written) as one, load(written) as two:
        first, second = controlled_of(one), controlled_of(two)
        rooms = [each.observe(0.0, 0).room_bytes or 0 for each in (first, second)]
        assert min(rooms) > 0
        assert sum(rooms) <= left
        two.park()
        two.statistics()
        assert second.observe(0.0, 0).room_bytes == 0
        assert rooms[0] < (first.observe(0.0, 0).room_bytes or 0) <= left
    with load(written) as alone:
        assert rooms[0] < (controlled_of(alone).observe(0.0, 0).room_bytes or 0)


def test_a_batch_that_is_asked_for_ends_a_stop(written: Written, headroom: FakeHeadroom):
    with load(written) as loader:
        batches = iter(loader)
        take(batches, 1)
        loader.park()
        take(batches, 3 * loader.knobs.ring_slots)


def test_a_loader_could_give_what_training_took(written: Written, headroom: FakeHeadroom):
    with load(written) as loader:
        controlled = controlled_of(loader)
        seen = controlled.observe(0.0, 0)
        stages, size = (
            (StageMoment("decode", "", 2, 0.002, 0.9, 100.0),),
            loader.plan.mixture.layout.batch_size,
        )
        observer = controlled._observer
        for step_s, bound_per_s in ((0.001, size / 0.001), (10.0, 100.0), (None, 100.0)):
            moment = replace(seen, step_s=step_s, stages=stages)
            observer.publish(moment, Statistics(), opened=True)
            assert observer.told(Statistics()).bound_per_s == bound_per_s
        observer.publish(replace(seen, stages=()), Statistics(), opened=True)
        assert observer.told(Statistics()).bound_per_s is None


def test_a_growth_is_refused_where_the_room_has_gone_before_it_is_applied(
    written: Written, headroom: FakeHeadroom
):
    with load(written) as loader:
        controlled, before = controlled_of(loader), loader.knobs
        seen = controlled.observe(0.0, 0)
        larger = Knobs.build({"ring_slots": 16, "read_ahead": 5}, base=before)
        answer = Decision(ControllerState(), Event.HUNGRY, "grow", knobs=larger)
        headroom.headroom_bytes = FLOOR + 257 * MIB
        controlled._apply(seen, answer)
        assert knobs_of(loader) == before
        headroom.headroom_bytes = FLOOR + 4 * GIB
        controlled._apply(seen, answer)
        assert knobs_of(loader) == larger
        told = controlled.activity().activity["controller"]
        assert (told["refused"], told["changes"]) == (1, 1)
