"""A real memory cgroup kills the child: training goes on with smaller knobs."""

import logging
from pathlib import Path

import pytest
from passes import Passes

from autoloader import AutoLoader, PipelineSpec


def test_an_oom_kill_is_survived_with_smaller_knobs(
    small_spec: PipelineSpec, small_group: Path, caplog: pytest.LogCaptureFixture
):
    knobs = {"ring_slots": 12, "queue_samples": 64, "decode_threads": 2}
    with AutoLoader(small_spec, output="numpy", ram_floor="1GB", knobs=knobs) as loader:
        passes = Passes(loader)
        iterator = iter(loader)
        for _ in range(5):
            passes.note(next(iterator))
        child = loader.statistics().worker_pids[0]
        (small_group / "cgroup.procs").write_text(str(child))
        # What the child already holds is charged to its old group: only what comes is counted. It
        # may be killed before it has looked where it is: then the kernel's log says so.
        (small_group / "memory.limit_in_bytes").write_text(str(2 * 2**20))
        with caplog.at_level(logging.WARNING):
            while loader.statistics().restarts == 0:
                for batch in loader:
                    passes.note(batch)
                    break
        while not passes.complete(1):
            for batch in loader:
                passes.note(batch)
        assert passes.faults() == []
        assert loader.knobs.ring_slots < 12
        assert loader.statistics().restarts >= 1
    assert any("out of memory" in record.message for record in caplog.records)
