"""A child that crashes again and again is given up, though a batch comes in between."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rlds_files import write_steps
from streams import endless, spec_of

from autoloader import AutoLoader
from autoloader.errors import WorkerError
from autoloader.host import supervision

MOST = 2
"""Restarts that each case takes to the limit."""


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AutoLoader]:
    monkeypatch.setattr(supervision, "MAX_RESTARTS", MOST)
    spec = spec_of(write_steps(tmp_path, [[20] * 4]))
    with AutoLoader(spec, output="numpy", ram_floor="256MiB", profile="local_dev") as loader:
        yield loader


def end_behind_batches(loader: AutoLoader, how: signal.Signals, times: int) -> None:
    batches: Iterator[dict[str, Any]] = endless(loader)
    for restarts in range(times):
        next(batches)
        os.kill(loader.statistics().worker_pids[0], how)
        while loader.statistics().restarts == restarts:
            next(batches)


def test_a_child_that_is_killed_behind_each_batch_is_started_again(loader: AutoLoader):
    end_behind_batches(loader, signal.SIGKILL, MOST + 2)
    assert loader.statistics().restarts == MOST + 2


def test_a_child_that_crashes_behind_each_batch_is_given_up_and_the_loader_says_so_each_time(
    loader: AutoLoader,
):
    # A traceback that Python prints at a crash may itself end by SIGSEGV: so one signal stays one.
    with pytest.raises(WorkerError, match=r"3 times by a crash or an error of its own.*SIGSEGV"):
        end_behind_batches(loader, signal.SIGSEGV, MOST + 1)
    for _ in range(2):
        with pytest.raises(WorkerError, match="by a crash or an error of its own"):
            list(itertools.islice(endless(loader), 10))  # one that had come may be first
