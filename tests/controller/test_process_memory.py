"""What processes hold, measured on real ones of known size."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from autoloader.cache.slab import FrameSlab
from autoloader.errors import PipelineError
from autoloader.host import processes
from autoloader.host.headroom import Headroom
from autoloader.host.processes import (
    PeakSampler,
    descendants,
    loader_bytes,
    pss_bytes,
    rss_bytes,
    tree_own_bytes,
    tree_pss_bytes,
)
from autoloader.host.units import MIB
from autoloader.process.observer import ProcessMemory

HOLDER = """
import mmap, os, sys
kind, count = sys.argv[1], int(sys.argv[2])
if kind == "private":
    held = bytearray(b"x") * count
else:
    descriptor = os.memfd_create("held")
    os.ftruncate(descriptor, count)
    held = mmap.mmap(descriptor, count)
    held.write(b"x" * count)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["private", "shared"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def holder(kind: str) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, kind, str(64 * MIB)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid


def test_shared_memory_is_left_out_on_demand(holder: int, kind: str) -> None:
    with_shared = pss_bytes(holder)
    without = pss_bytes(holder, shared_memory=False)
    assert with_shared > 64 * MIB
    assert (without > 64 * MIB) == (kind == "private")


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "an old kernel"])
def test_the_kernels_counters_know_what_is_private(
    holder: int, kind: str, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not counted:
        monkeypatch.setattr(processes, "_RSS_LINE", re.compile(rb"(no such)(line)"))
    exact = tree_pss_bytes(holder, shared_memory=False)
    own = tree_own_bytes(holder)
    assert (own > 64 * MIB) == (kind == "private")
    # Above it: code that others map too. Below it: while others start that map it as well.
    assert exact - MIB < own < exact + 32 * MIB


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "looked for"])
@pytest.mark.parametrize("kind", ["private"], indirect=True)
def test_a_tree_is_the_sum_of_its_processes(
    holder: int, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.getpid()
    if not listed:
        monkeypatch.setattr(processes, "_lists_children", lambda: False)
    assert holder in descendants(me)
    assert tree_pss_bytes(holder) > 64 * MIB
    # What the suite's own process holds may change at any moment; it is looked at on both sides.
    for own, whole in (
        (pss_bytes, tree_pss_bytes),
        (lambda _: rss_bytes(), lambda _: loader_bytes()),
    ):
        before, together, after = own(me), whole(me), own(me)
        assert together - min(before, after) > 64 * MIB


def test_a_process_that_is_gone_holds_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait(timeout=60)
    assert rss_bytes(process.pid) == 0
    assert pss_bytes(process.pid) == 0
    assert tree_pss_bytes(process.pid) == 0
    assert tree_own_bytes(process.pid) == 0
    assert descendants(process.pid) == []


def test_frames_in_the_process_own_memory_are_not_what_it_holds() -> None:
    memory = ProcessMemory()
    memory.read(0.0)
    before = memory.held_bytes
    slab = FrameSlab({"primary": MIB}, room_bytes=2**30, private=True)
    for slot in range(1, 65):
        slab.put("primary", slot, np.ones((MIB, 1, 1), np.uint8))
    memory.read(1e6)
    assert before is not None
    assert memory.held_bytes is not None
    assert abs(memory.held_bytes - before) < 8 * MIB
    slab.punch("primary", np.arange(1, 33))
    memory.read(2e6)
    assert abs(memory.held_bytes - before) < 8 * MIB


class _BlindHeadroom:
    def read(self) -> Headroom:
        raise PipelineError("blind", remedy="look elsewhere")

    def total_bytes(self) -> int:
        return 0


def test_headroom_that_cannot_be_read_is_absent() -> None:
    with PeakSampler(_BlindHeadroom(), period_s=60, reading=lambda: 0) as sampler:
        sampler.sample()
    assert sampler.min_headroom_bytes is None
