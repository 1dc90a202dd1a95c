"""A stopped process is found and replaced, whichever it is; nothing is lost or comes twice."""

from __future__ import annotations

import os
import signal
import time

import pytest
from leftovers import ends_within
from streams import endless, rows

from autoloader import AutoLoader, PipelineSpec
from autoloader.host.supervision import ProcessWatch, read_vitals

FOUND_WITHIN_S = 30.0
ENDED_WITHIN_S = 10.0
"""A killed process writes nothing more, and may still be giving its memory back."""
Row = tuple[int, ...]


@pytest.fixture(scope="module")
def expected(small_spec: PipelineSpec) -> list[Row]:
    """The samples of the first hundred batches."""
    with AutoLoader(
        small_spec, isolation="thread", output="numpy", ram_floor="1GB", knobs={"reader": "indexed"}
    ) as loader:
        return rows(endless(loader), 100)


@pytest.mark.parametrize("which", [[1], [0, 1, 2]])
def test_stopped_processes_are_found_and_replaced(
    small_spec: PipelineSpec, expected: list[Row], stopped_is_found_soon: None, which: list[int]
) -> None:
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
        while not all(ProcessWatch("", pid).stopped for pid in stopped):
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


def test_a_stopped_child_that_has_no_room_for_messages_is_replaced(
    small_spec: PipelineSpec, expected: list[Row], stopped_is_found_soon: None
) -> None:
    """Sixty starts are more than a socket holds that nobody reads."""
    knobs = {"reader": "indexed", "ring_slots": 4}
    with AutoLoader(
        small_spec, output="numpy", ram_floor="1GB", knobs=knobs, controller=False
    ) as loader:
        got = rows(endless(loader), 10)
        os.kill(loader.statistics().worker_pid, signal.SIGSTOP)
        state = loader.state_dict()
        for _ in range(60):
            loader.load_state_dict(state)
        got += rows(endless(loader), 10)
        assert loader.statistics().restarts == 1
    assert got == expected[: len(got)]
