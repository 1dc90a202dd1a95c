"""Reading planned runs: many threads read, one of them plans."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from rlds_files import write_steps
from streams import spec_of

from autoloader import AutoLoader
from autoloader.index.planned import PlannedReads, RunPlanner
from autoloader.samples.block import SampleBlock
from autoloader.sampling.plan import PlannedSamples

THREADS, BATCHES = 4, 40


def test_one_thread_plans_at_a_time_and_all_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "cache"))
    planning, never = threading.Lock(), threading.Event()
    together: list[bool] = []
    planners: set[int] = set()
    run = RunPlanner.run

    def watched(self: RunPlanner, samples: PlannedSamples) -> tuple[SampleBlock, PlannedReads]:
        alone = planning.acquire(blocking=False)
        together.append(not alone)
        planners.add(threading.get_ident())
        try:
            never.wait(0.005)  # another thread that may plan begins to now
            return run(self, samples)
        finally:
            if alone:
                planning.release()

    monkeypatch.setattr(RunPlanner, "run", watched)
    written = write_steps(tmp_path, [[40] * 20], name="a")
    spec = spec_of(written, mixing={"epoch": "forever"}, reader="indexed", batch={"size": 32})
    knobs = {"io_threads": THREADS, "read_ahead": 2 * THREADS}
    with AutoLoader(
        spec, isolation="thread", output="numpy", controller=False, knobs=knobs
    ) as loader:
        batches = iter(loader)
        for _ in range(BATCHES):
            next(batches)
    assert len(planners) > 1
    assert not any(together)
