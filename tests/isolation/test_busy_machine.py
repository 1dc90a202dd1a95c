"""On a machine that is busy with other work nothing is killed for getting no processor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from autoloader import AutoLoader, PipelineSpec
from autoloader.supervision.vitals import LIMITS_S, Kind


@pytest.fixture
def twelve_busy_loops() -> Iterator[None]:
    """On the two processors that this test and all it starts may use."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # no longer than this process
    loops = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(12)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()
    os.sched_setaffinity(0, before)


def test_a_starved_child_and_its_decode_processes_are_left_alone(
    small_spec: PipelineSpec, twelve_busy_loops: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits are a fifth here; ``python -m bench.endurance --only starved`` does it in full."""
    for kind in (Kind.STOPPED, Kind.IDLE, Kind.UNKNOWN):
        monkeypatch.setitem(LIMITS_S, kind, LIMITS_S[kind] / 5)  # type: ignore[attr-defined]
    knobs = {"reader": "indexed", "decode_processes": 2, "read_ahead": 1, "ring_slots": 4}
    with AutoLoader(
        small_spec, output="numpy", ram_floor="1GB", knobs=knobs, controller=False
    ) as loader:
        batches = (batch for _ in iter(int, 1) for batch in loader)
        next(batches)
        pids = loader.statistics().worker_pids
        until_s = time.monotonic() + 6
        while time.monotonic() < until_s:
            next(batches)
        statistics = loader.statistics()
    assert statistics.restarts == 0
    assert statistics.worker_pids == pids
