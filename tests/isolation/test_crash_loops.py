"""A child that crashes again and again is given up, though a batch comes in between."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from rlds_files import episode, write_dataset
from streams import endless, spec_of

from autoloader import AutoLoader
from autoloader.errors import WorkerError
from autoloader.supervision.supervisor import MAX_RESTARTS


def test_a_child_that_crashes_behind_each_batch_is_given_up_and_one_that_is_killed_is_not(
    tmp_path: Path,
) -> None:
    spec = spec_of(write_dataset(tmp_path, [[episode(number, 20) for number in range(4)]]))
    arguments = {"output": "numpy", "ram_floor": "256MiB", "profile": "local_dev"}

    def end_behind_each_batch(how: signal.Signals, times: int) -> int:
        with AutoLoader(spec, **arguments) as loader:
            batches = endless(loader)
            for _ in range(times):
                next(batches)
                os.kill(loader.statistics().worker_pids[0], how)
            for _ in range(40):  # those that had come, and one from a new child
                next(batches)
            return loader.statistics().restarts

    assert end_behind_each_batch(signal.SIGKILL, MAX_RESTARTS + 1) == MAX_RESTARTS + 1
    with pytest.raises(WorkerError, match=r"6 times by its own fault.*SIGABRT"):
        end_behind_each_batch(signal.SIGABRT, MAX_RESTARTS + 1)


def test_a_loader_whose_child_was_given_up_says_so_each_time(tmp_path: Path) -> None:
    spec = spec_of(write_dataset(tmp_path, [[episode(number, 20) for number in range(4)]]))
    with AutoLoader(spec, output="numpy", ram_floor="256MiB", profile="local_dev") as loader:

        def crash_on() -> None:
            while True:
                next(endless(loader))
                os.kill(loader.statistics().worker_pids[0], signal.SIGABRT)

        with pytest.raises(WorkerError):
            crash_on()
        for _ in range(2):
            with pytest.raises(WorkerError, match="by its own fault"):
                next(endless(loader))
