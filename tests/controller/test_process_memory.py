"""What processes hold, measured on real ones of known size."""

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
from autoloader.host.processes import descendants, tree_own_bytes
from autoloader.host.units import MIB
from autoloader.tune.measurement import Recorder

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
        assert process.stdout.readline() == "ready\n"
        yield process.pid


def test_shared_memory_is_left_out_on_demand(holder: int, kind: str):
    own = tree_own_bytes(holder)
    assert (own > 64 * MIB) == (kind == "private")
    whole = tree_own_bytes(holder, shared_memory=True)
    assert (whole - own > 63 * MIB) == (kind == "shared")


@pytest.mark.parametrize("kind", ["private"], indirect=True)
def test_a_kernel_without_counters_tells_resident_bytes(
    holder: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processes, "_RSS_LINE", re.compile(rb"(no such)(line)"))
    assert tree_own_bytes(holder) > 64 * MIB


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "looked for"])
@pytest.mark.parametrize("kind", ["private"], indirect=True)
def test_a_tree_is_the_sum_of_its_processes(
    holder: int, listed: bool, monkeypatch: pytest.MonkeyPatch
):
    me = os.getpid()
    if not listed:
        monkeypatch.setattr(processes, "_lists_children", lambda: False)
    assert holder in descendants(me)
    assert tree_own_bytes(holder) > 64 * MIB
    assert tree_own_bytes(me) > tree_own_bytes(holder)


def test_a_process_that_is_gone_holds_nothing():
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait(timeout=60)
    assert tree_own_bytes(process.pid) == 0
    assert descendants(process.pid) == []


def test_frames_are_not_what_the_process_holds():
    before = tree_own_bytes(os.getpid())
    slab = FrameSlab({"primary": MIB}, room_bytes=2**30)
    for slot in range(1, 65):
        slab.put("primary", slot, np.ones((MIB, 1, 1), np.uint8))
    assert abs(tree_own_bytes(os.getpid()) - before) < 8 * MIB
    slab.punch("primary", np.arange(1, 33))
    assert abs(tree_own_bytes(os.getpid()) - before) < 8 * MIB


class _BlindHeadroom:
    def read(self) -> Headroom:
        raise PipelineError("blind", remedy="look elsewhere")


def test_headroom_that_cannot_be_read_is_absent():
    with Recorder(_BlindHeadroom(), period_s=60) as sampler:
        sampler.sample()
    assert sampler.min_headroom_bytes is None
