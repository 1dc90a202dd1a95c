"""Helpers of a real cluster: the same batches, whatever becomes of helpers, nodes and the head."""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from ray_cluster import RayCluster
from streams import endless

from autoloader import AutoLoader, PipelineSpec
from autoloader.telemetry.statistics import HelperStatistics

KNOBS = {"reader": "indexed", "helper_slots": 3, "decode_threads": 1, "ring_slots": 6}
LONGEST_S = 150.0
STEP_S = 0.05


class Compared:
    """Takes batches of a loader, and holds each against the one that is built here."""

    def __init__(self, loader: AutoLoader, expected: AutoLoader) -> None:
        self._loader = loader
        self._ours, self._theirs = endless(loader), endless(expected)
        self.taken = 0
        self._ends = time.monotonic() + LONGEST_S

    def take(self) -> None:
        # A training step: two loaders at full speed keep Ray's processes from starting.
        time.sleep(STEP_S)
        ours, theirs = next(self._ours), next(self._theirs)
        self.taken += 1
        assert ours["language"] == theirs["language"]
        for name in ("provenance", "action", "action_mask", "state", "frame_offset"):
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
        for camera, frames in ours["images"].items():
            np.testing.assert_array_equal(frames, theirs["images"][camera])

    def until(self, done: Callable[[HelperStatistics], bool]) -> HelperStatistics:
        """Take batches until helpers have done so much."""
        while True:
            self.take()
            found = self._loader.statistics().helpers
            assert found is not None
            if done(found):
                return found
            assert time.monotonic() < self._ends, found


def processes(of: psutil.Process, named: str) -> list[psutil.Process]:
    """Those that live: one that has just ended has no command line any more."""
    found = []
    for one in of.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(named in argument for argument in one.cmdline()):
                found.append(one)
    return found


def helper_pids(cluster: RayCluster) -> list[int]:
    return [one.pid for one in processes(psutil.Process(cluster.pid), "ray::Helper")]


def other_numpy(place: Path) -> Path:
    """Where NumPy is said to have another version."""
    own = place / "numpy-0.0.1.dist-info"
    own.mkdir()
    (own / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n")
    return place


def test_batches_are_the_same_while_a_stranger_is_refused_and_helpers_and_the_head_die(
    spec: PipelineSpec, cluster: RayCluster, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    caplog.set_level(logging.WARNING, "autoloader")
    cluster.tell(f"add {other_numpy(tmp_path)}")
    refused = f"is let go: its data or packages differ: numpy: {np.__version__} here, 0.0.1 there"
    common: dict[str, Any] = {"ram_floor": "200MB", "output": "numpy", "controller": False}
    helped = AutoLoader(spec, helpers=f"ray@{cluster.address}", knobs=KNOBS, **common)
    alone = AutoLoader(spec, isolation="thread", knobs={"reader": "indexed"}, **common)
    with helped, alone:
        compared = Compared(helped, alone)
        # Each helper's first batch is compared before any of its batches is used.
        before = compared.until(
            lambda seen: seen.compared >= 2 and seen.batches > 20 and refused in caplog.text
        )
        assert before.different == 0

        killed, stopped = helper_pids(cluster)[:2]
        os.kill(stopped, signal.SIGSTOP)
        os.kill(killed, signal.SIGKILL)
        seen = compared.until(lambda seen: seen.late > 0 and seen.present == 1)
        os.kill(stopped, signal.SIGCONT)
        compared.until(lambda now: now.batches > seen.batches + 5)

        cluster.tell("head")
        compared.until(lambda seen: seen.present == 0 and "no more helpers" in caplog.text)
        for _ in range(20):
            compared.take()
        assert caplog.text.count("no more helpers") == 1
        assert "ray" not in sys.modules
        assert helped.statistics().restarts == 0
    assert not processes(psutil.Process(), "autoloader.integrations.ray.driver")
