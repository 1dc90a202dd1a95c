"""The indexed pool in light processes: the same batches, whatever their number and their fate."""

import math
import os
import random
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest
from streams import endless, rows, until
from warm_child import keepers

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import PipelineError, WorkerError
from autoloader.host.supervision import LIMITS_S, Kind, Supervisor
from autoloader.pipeline.builders import RemoteBuilder
from autoloader.pipeline.messages import AskFrames
from autoloader.pipeline.read.planned import IndexedReader

Row = tuple[int, ...]


@contextmanager
def opened(spec: PipelineSpec, *, controller: bool = True, **knobs: Any) -> Iterator[AutoLoader]:
    how: dict[str, Any] = {"isolation": "thread", "output": "numpy", "ram_floor": "1GB"}
    knobs = {"reader": "indexed", **knobs}
    with AutoLoader(spec, **how, knobs=knobs, controller=controller) as loader:
        yield loader


@pytest.fixture(scope="module")
def expected(small_spec: PipelineSpec) -> list[Row]:
    """The samples of the first batches."""
    with opened(small_spec) as loader:
        return rows(endless(loader), 80)


def children() -> set[int]:
    """Process ids of this process's children, without those that keep imports for tests."""
    return {one.pid for one in psutil.Process().children()} - keepers()


def test_processes_come_and_go_without_a_change_of_the_order(
    small_spec: PipelineSpec, expected: list[Row]
):
    drawn = random.Random(2)
    got: list[Row] = []
    before = children()
    with opened(small_spec) as loader:
        batches = endless(loader)
        for processes in (2, 1, 2):
            loader.retune(
                decode_processes=processes,
                decode_threads=drawn.randint(1, 3),
                read_ahead=1,
                ring_slots=drawn.randint(4, 9),
            )
            got += rows(batches, 25)
        assert len(children() - before) == 2
    assert got == expected[: len(got)]
    assert children() <= before


def test_a_process_killed_over_and_over_costs_no_sample(
    small_spec: PipelineSpec, expected: list[Row]
):
    drawn = random.Random(4)
    got: list[Row] = []
    with opened(small_spec, decode_processes=2, read_ahead=1) as loader:
        batches = endless(loader)
        for _ in range(4):
            got += rows(batches, drawn.randint(1, 9))
            with suppress(ProcessLookupError):  # killed just before, and not yet replaced
                os.kill(drawn.choice(loader.statistics().worker_pids), signal.SIGKILL)
        got += rows(batches, 30)
    assert got == expected[: len(got)]


def test_a_process_that_is_late_holds_up_no_other(
    small_spec: PipelineSpec, expected: list[Row], monkeypatch: pytest.MonkeyPatch
):
    """Of twelve slots the trainer has one, and the process that is stopped keeps two."""
    monkeypatch.setitem(LIMITS_S, Kind.STOPPED, math.inf)  # type: ignore[attr-defined]
    with opened(small_spec, controller=False, decode_processes=2, ring_slots=12) as loader:
        batches = endless(loader)
        got = rows(batches, 1)
        until(lambda: loader.statistics().ring.filled >= 11)
        late = loader.statistics().worker_pids[-1]
        os.kill(late, signal.SIGSTOP)
        try:
            got += rows(batches, 8)
            until(lambda: loader.statistics().ring.filled >= 9)
        finally:
            os.kill(late, signal.SIGCONT)
        got += rows(batches, 40)
        assert late in loader.statistics().worker_pids
    assert got == expected[: len(got)]


@pytest.fixture
def sockets_stay(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sockets of decode processes stay open behind their end, as where a fork has them too."""
    start, kept = Supervisor.start, list[int]()

    def keeps(self: Supervisor, descriptors: dict[str, int], *given: Any, **how: Any) -> None:
        kept.append(os.dup(descriptors["socket"]))
        start(self, descriptors, *given, **how)

    monkeypatch.setattr(Supervisor, "start", keeps)
    yield
    for descriptor in kept:
        os.close(descriptor)


def test_a_process_that_ends_is_replaced_though_a_fork_of_it_has_its_socket(
    small_spec: PipelineSpec,
    expected: list[Row],
    sockets_stay: None,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(LIMITS_S, Kind.UNKNOWN, math.inf)  # type: ignore[attr-defined]
    with opened(small_spec, decode_processes=2, read_ahead=1) as loader:
        batches = endless(loader)
        got = rows(batches, 5)
        os.kill(loader.statistics().worker_pids[-1], signal.SIGKILL)
        got += rows(batches, 30)
    assert got == expected[: len(got)]


def test_a_process_that_stops_before_it_has_read_its_answer_is_replaced(
    small_spec: PipelineSpec,
    expected: list[Row],
    stopped_is_found_soon: None,
    sockets_stay: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """The thread that would find the process stopped is the one that answers it.

    Its socket stays open behind the kill, as where a dead disk keeps the process in the kernel.
    """
    take, stopped = RemoteBuilder.take, list[int]()

    def stops(self: RemoteBuilder, message: Any) -> None:
        if isinstance(message, AskFrames) and message.number == 3 and not stopped:
            stopped.extend(self.pids)
            os.kill(*stopped, signal.SIGSTOP)
            assert self.wire is not None
            with suppress(BlockingIOError):  # nobody reads this: the process is killed
                while self.wire.socket.send(bytes(1000), socket.MSG_DONTWAIT):
                    pass
        take(self, message)

    monkeypatch.setattr(RemoteBuilder, "take", stops)
    with opened(small_spec, decode_processes=2, cache_bytes=32 << 20) as loader:
        got = rows(endless(loader), 60)
    assert got == expected[: len(got)]
    assert stopped
    told = [one.getMessage() for one in caplog.records if "is started again" in one.getMessage()]
    assert len(told) == 1
    assert "it has been stopped (SIGSTOP" in told[0]


def test_costs_of_frames_are_one_for_each_dataset_before_any_process_has_told_them(
    small_spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
):
    shapes: list[tuple[int, ...]] = []
    hold = IndexedReader.hold

    def looked(self: IndexedReader, cache_bytes: int, costs: Any) -> None:
        shapes.append(costs().shape)
        hold(self, cache_bytes, costs)

    monkeypatch.setattr(IndexedReader, "hold", looked)
    with opened(small_spec, decode_processes=2, cache_bytes=32 << 20) as loader:
        rows(endless(loader), 2)
    assert set(shapes) == {(len(small_spec.datasets),)}


def test_a_fault_in_what_a_process_is_answered_reaches_the_trainer(
    small_spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
):
    def wrong(self: RemoteBuilder, message: Any) -> None:
        raise ValueError("columns of two lengths")

    monkeypatch.setattr(RemoteBuilder, "take", wrong)
    with (
        opened(small_spec, decode_processes=2) as loader,
        pytest.raises(PipelineError, match="columns of two lengths"),
    ):
        next(iter(loader))


def test_a_process_that_cannot_live_ends_the_loader_with_the_reason(
    small_spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        opened(small_spec, decode_processes=2) as loader,
        pytest.raises(WorkerError, match="status 1"),
    ):
        next(iter(loader))
