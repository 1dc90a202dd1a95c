"""A running pipeline over readers without TensorFlow: order, faults, stalls, its end."""

import itertools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doubles import ManualClock
from record_source import RecordSource, record_sources
from rlds_files import episode, png, write_dataset, write_steps
from streams import Running, dataset_of, mixture_of

from autoloader.decode import batch_builder as builder_module
from autoloader.decode.frames import FrameDecoder
from autoloader.errors import PipelineError, SourceError
from autoloader.pipeline import pipeline as pipeline_module
from autoloader.pipeline.read import streams as streams_module
from autoloader.samples.block import Place, SourceInterruptedError
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.spec.knobs import Knobs

SHARDS = [[3, 5, 1], [4, 2], [6]]


def build(folder: Path, *names: str, **top: Any) -> ResolvedMixture:
    """One dataset for each name: 21 samples in three shards, weights 1, 2, …"""
    datasets = []
    for weight, name in enumerate(names, start=1):
        written = write_steps(folder, SHARDS, encode=png, name=name)
        datasets.append(dataset_of(written, weight=weight))
    return mixture_of(*datasets, **top)


def run(mixture: ResolvedMixture, knobs: dict[str, Any] | None = None, **own: Any) -> Running:
    own.setdefault("source", record_sources(mixture))
    return Running(mixture, knobs, **own)


pytestmark = pytest.mark.usefixtures("no_thread_left_behind")


# --- what comes out -----------------------------------------------------------------------------


def test_an_order_that_waits_is_the_schedules_whatever_the_threads_do(tmp_path: Path):
    mixture = build(tmp_path, "a", "b", "c", mixing={"on_stall": "wait"})
    orders = set()
    for threads in (1, 3):
        with run(mixture, {"decode_threads": threads, "queue_samples": threads}) as running:
            orders.add(tuple(running.batches(30).samples))
    assert len(orders) == 1


def test_words_too_long_for_the_slot_travel_beside_it(tmp_path: Path):
    words = ["x" * 3000, "yes", "z" * 2000, "", "ünï" * 100]
    shards = [
        [episode(i, 2, encode=png, language_instruction=[word.encode()] * 2)]
        for i, word in enumerate(words)
    ]
    mixture = mixture_of(write_dataset(tmp_path, shards))
    with run(mixture) as running:
        got = running.until_pass(2)
    assert any(filled.texts for filled in got.filled)
    for row, sample in enumerate(got.samples):
        assert got.texts[row].decode() == words[sample[2]]


# --- retune and resume --------------------------------------------------------------------------


# --- faults -------------------------------------------------------------------------------------


def failing(at: tuple[str, int], error: Exception) -> Callable[[ResolvedDataset, Place], None]:
    def before(dataset: ResolvedDataset, place: Place) -> None:
        if (dataset.name, place.pass_) == at:
            raise error

    return before


def test_an_exception_in_decoding_reaches_the_loop_with_dataset_stage_and_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mixture = build(tmp_path, "a")
    fault = RuntimeError("a fault in a decode thread")

    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(FrameDecoder, "decode_into", fail)
    with run(mixture) as running, pytest.raises(PipelineError) as caught:
        running.batches(3)
    assert (caught.value.dataset, caught.value.stage) == ("a", "decode")
    assert caught.value.__cause__ is fault


def test_a_stream_that_just_ends_is_an_error_and_no_end(tmp_path: Path):
    mixture = build(tmp_path, "a")

    class Short(RecordSource):
        def open(self, start: Any, knobs: Any) -> Any:
            return iter([next(super().open(start, knobs))])

    def make(dataset: ResolvedDataset) -> RecordSource:
        return Short(dataset, mixture.layout, None)

    with run(mixture, source=make) as running, pytest.raises(PipelineError, match="stage 'read'"):
        running.batches(5)


@pytest.mark.parametrize("every", [2, 1])
def test_a_source_is_asked_again_until_it_fails_too_often_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
):
    monkeypatch.setattr(streams_module, "PAUSES_S", (0.0, 0.0))
    mixture, asked = build(tmp_path, "a"), itertools.count(1)

    def before(dataset: ResolvedDataset, place: Place) -> None:
        if next(asked) % every == 0:
            raise SourceInterruptedError("away")

    with run(mixture, source=record_sources(mixture, before)) as running:
        if every == 1:
            with pytest.raises(SourceError, match="could not be read in 3 tries: away"):
                running.until_pass(1)
            return
        running.until_pass(1)
        assert running.pipeline.activity().datasets["a"].interruptions > 2


def test_a_failed_pipeline_goes_on_failing(tmp_path: Path):
    mixture = build(tmp_path, "a")
    sources = record_sources(mixture, failing(("a", 0), ValueError("broken")))
    with run(mixture, source=sources) as running:
        for _ in range(3):
            with pytest.raises(PipelineError, match="broken"):
                running.batch()


# --- stalls -------------------------------------------------------------------------------------


class TickingCondition(threading.Condition):
    """A condition whose waits take no time and move a clock instead."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._ticks = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._ticks.advance(timeout or 0.0)
        return False


def test_a_dataset_that_stalls_is_named_every_five_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    mixture = build(tmp_path, "quick", "late")
    running = run(mixture)
    clock = ManualClock()
    builder = running.pipeline._new_builder(running.pipeline.knobs, here=True)
    source = builder._source
    builder._clock = clock
    builder._arrived = TickingCondition(clock)

    source._begun, source._mixer.waiting_for = True, 1
    found = (None, 0, 1)
    monkeypatch.setattr(source, "take", lambda _: found if clock.now_s() >= 12 else None)
    with caplog.at_level(logging.WARNING, logger="autoloader.pipeline.read.streams"):
        assert builder._wait(1) is found
    assert [record.getMessage() for record in caplog.records] == [
        "dataset late has given nothing for 5 s; the mixture waits for it",
        "dataset late has given nothing for 10 s; the mixture waits for it",
    ]
    assert [one["stalls"] for one in builder.activity()["datasets"].values()] == [0, 2]
    assert clock.now_s() == pytest.approx(12, abs=0.5)
    assert builder_module.STALL_S == 5.0
    builder.close(5.0)
    running.pipeline.close()


# --- threads ------------------------------------------------------------------------------------


def test_at_most_two_readers_open_anew_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert [streams_module.opening_at_once(cpus) for cpus in (1, 2, 4, 64)] == [1, 1, 2, 2]
    monkeypatch.setattr(streams_module, "opening_at_once", lambda cpus: 2)
    mixture = build(tmp_path, "a", "b", "c", "d", "e")
    lock, now, most = threading.Lock(), [0], [0]
    both = threading.Event()
    retuned = threading.Event()

    class Slow(RecordSource):
        def open(self, start: Any, knobs: Any) -> Any:
            if retuned.is_set():
                with lock:
                    now[0] += 1
                    most[0] = max(most[0], now[0])
                    if now[0] == 2:
                        both.set()
                both.wait(30)
                with lock:
                    now[0] -= 1
            return super().open(start, knobs)

    def make(dataset: ResolvedDataset) -> RecordSource:
        return Slow(dataset, mixture.layout, None)

    with run(mixture, source=make) as running:
        running.batches(2)
        retuned.set()
        running.pipeline.retune(Knobs.build({"ring_slots": 4, "stream_prefetch": 5}))
        while min(a.generations for a in running.pipeline.activity().datasets.values()) < 2:
            running.batch()
    assert most[0] == 2


def of_the_loader() -> set[str]:
    """Names of its threads that are alive."""
    names = {thread.name for thread in threading.enumerate()}
    return {name for name in names if name.startswith("autoloader-")}


def test_closing_waits_for_all_threads_also_with_full_queues_and_a_full_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mixture, before = build(tmp_path, "a", "b", "c"), of_the_loader()
    with run(mixture, {"decode_threads": 3}) as running:
        running.batch()
        acquire = running.pipeline._slots.acquire

        def slow_at_the_end() -> int | None:
            if (slot := acquire()) is None:
                threading.Event().wait(0.3)
            return slot

        monkeypatch.setattr(running.pipeline._slots, "acquire", slow_at_the_end)
        for _ in range(20):  # past the turn in which the thread still waits in the old one
            running.batch()
        assert {"autoloader-mix", "autoloader-read-a", "autoloader-decode-0"} <= of_the_loader()
        running.pipeline.close()
        assert of_the_loader() <= before
        running.pipeline.close()


def test_closing_does_not_wait_for_a_source_that_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):

    monkeypatch.setattr(pipeline_module, "CLOSE_S", 0.05)
    mixture = build(tmp_path, "a")
    asked, gate = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        asked.set()
        gate.wait(60)

    running = run(mixture, source=record_sources(mixture, hang))
    with running, caplog.at_level(logging.WARNING):
        assert running.pipeline.next(0.01) is None
        asked.wait(60)
    assert "still waiting for their source" in caplog.text
    gate.set()
