"""A stopped process is found and replaced, whichever it is; nothing is lost or comes twice."""

import os
import signal
import socket
import time
from contextlib import suppress

import pytest
from leftovers import ends_within
from streams import endless, opened, rows

from autoloader import AutoLoader, PipelineSpec
from autoloader.host.supervision import Supervisor, is_stopped, read_vitals
from autoloader.process.child import CLOSE_S, Child

FOUND_WITHIN_S = 30.0
ENDED_WITHIN_S = 10.0
"""A killed process writes nothing more, and may still be giving its memory back."""
Row = tuple[int, ...]


@pytest.fixture(scope="module")
def expected(small_spec: PipelineSpec) -> list[Row]:
    """The samples of the first hundred batches."""
    with opened(small_spec, knobs={"reader": "indexed"}) as loader:
        return rows(endless(loader), 100)


@pytest.mark.parametrize("which", [[1], [0, 1, 2]])
def test_stopped_processes_are_found_and_replaced(
    small_spec: PipelineSpec, expected: list[Row], stopped_is_found_soon: None, which: list[int]
):
    """0 is the child, 1 and 2 are its decode processes, which it finds after the full time."""
    knobs = {"reader": "indexed", "decode_processes": 2, "read_ahead": 1, "ring_slots": 4}
    with AutoLoader(
        small_spec, output="numpy", ram_floor="1GB", knobs=knobs, controller=False
    ) as loader:
        batches = endless(loader)
        got = rows(batches, 10)
        pids = loader.statistics().worker_pids
        assert len(pids) == 3
        stopped = [pids[number] for number in which]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        while not all(map(is_stopped, stopped)):
            """A thread that waits for a processor stops when it gets one."""
        longest_s = 0.0
        for _ in range(30):
            began = time.monotonic()
            got += rows(batches, 1)
            longest_s = max(longest_s, time.monotonic() - began)
        ended = {pid: ends_within(pid, ENDED_WITHIN_S) for pid in stopped}
        assert all(ended.values()), (ended, longest_s, [read_vitals(pid) for pid in stopped])
        assert loader.statistics().restarts == (0 in which)
    assert got == expected[: len(got)]
    assert longest_s <= FOUND_WITHIN_S, longest_s
    assert all(ends_within(pid, 1.0) for pid in pids)


@pytest.mark.parametrize("stays", [False, True])
def test_a_stopped_child_that_has_no_room_for_messages_is_replaced(
    small_spec: PipelineSpec,
    expected: list[Row],
    stopped_is_found_soon: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stays: bool,
):
    """Sixty starts are more than a socket holds that nobody reads.

    A child that ``stays`` once it is killed stands for one that a dead disk keeps in the kernel.
    """
    kill = Supervisor.kill
    knobs = {"reader": "indexed", "ring_slots": 4}
    with AutoLoader(
        small_spec, output="numpy", ram_floor="1GB", knobs=knobs, controller=False
    ) as loader:
        child = Child.open_clients()[0].child

        def kill_some(self: Supervisor) -> None:
            if not stays or child._wire.socket.fileno() < 0:  # given up
                kill(self)

        monkeypatch.setattr(Supervisor, "kill", kill_some)
        got = rows(endless(loader), 10)
        os.kill(loader.statistics().worker_pid, signal.SIGSTOP)
        state = loader.state_dict()
        for _ in range(60):
            loader.load_state_dict(state)
        got += rows(endless(loader), 10)
        assert loader.statistics().restarts == 1
    assert got == expected[: len(got)]
    told = [one.getMessage() for one in caplog.records if "is started again" in one.getMessage()]
    assert len(told) == 1
    assert "it has been stopped (SIGSTOP" in told[0]


def test_a_stopped_child_that_has_no_room_for_messages_is_waited_for_once(
    small_spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
):
    let_go, waits = Child._let_go, list[float]()

    def noted(self: Child, timeout_s: float) -> bool:
        waits.append(timeout_s)
        return let_go(self, timeout_s)

    monkeypatch.setattr(Child, "_let_go", noted)
    with AutoLoader(small_spec, output="numpy", ram_floor="1GB", controller=False) as loader:
        rows(endless(loader), 1)
        os.kill(loader.statistics().worker_pid, signal.SIGSTOP)
        child = Child.open_clients()[0].child
        while not is_stopped(child.pid):  # a thread of it may read until then
            pass
        wire = child._wire
        with suppress(BlockingIOError):  # nobody reads this: the process is killed
            while wire.socket.send(bytes(1000), socket.MSG_DONTWAIT):
                pass
    assert waits == [CLOSE_S]
