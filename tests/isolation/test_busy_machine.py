"""On a machine that is busy with other work nothing is killed for getting no processor."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from autoloader import AutoLoader, PipelineSpec
from autoloader.host.supervision import LIMITS_S, Kind


@contextmanager
def among_six_busy_loops(*pids: int) -> Iterator[None]:
    """These processes have one processor, and six more want it all the time."""
    one = [min(os.sched_getaffinity(0))]
    threads = [int(task.name) for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # no longer than this process
    with ExitStack() as loops:
        for _ in range(6):
            loop = loops.enter_context(subprocess.Popen([sys.executable, "-S", "-c", code]))
            loops.callback(loop.kill)
            threads.append(loop.pid)
        for thread in threads:
            with suppress(ProcessLookupError):  # a thread that has ended meanwhile
                os.sched_setaffinity(thread, one)
        yield


def test_a_starved_child_and_its_decode_processes_are_left_alone(
    small_spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
):
    """Limits are a tenth here; ``python -m bench.endurance --only starved`` does it in full."""
    for kind in (Kind.STOPPED, Kind.IDLE, Kind.UNKNOWN):
        monkeypatch.setitem(LIMITS_S, kind, LIMITS_S[kind] / 10)  # type: ignore[attr-defined]
    knobs = {"reader": "indexed", "decode_processes": 2, "read_ahead": 1, "ring_slots": 4}
    with AutoLoader(
        small_spec, output="numpy", ram_floor="1GB", knobs=knobs, controller=False
    ) as loader:
        batches = (batch for _ in iter(int, 1) for batch in loader)
        next(batches)
        pids = loader.statistics().worker_pids
        with among_six_busy_loops(*pids):
            until_s = time.monotonic() + 3
            while time.monotonic() < until_s:
                next(batches)
        statistics = loader.statistics()
    assert statistics.restarts == 0
    assert statistics.worker_pids == pids
