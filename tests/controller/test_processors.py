"""Processors that may be used: affinity and CPU quota, told, written down and set for real."""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles import FakeProcessors
from ended import python

from autoloader.host.machine import CgroupProcessors, Processors, usable_processors
from autoloader.host.processes import ProcessorProbe, ProcessorReading, _Times

ALLOWED = len(os.sched_getaffinity(0))


class Machine:
    """procfs and cgroup files of a process in a group of its own."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()

    def member(self, text: str, *mounts: str) -> None:
        (self.proc / "self" / "cgroup").write_text(text)
        lines = [f"3{n} 1 0:2{n} {one}\n" for n, one in enumerate(mounts)]
        (self.proc / "self" / "mountinfo").write_text("".join(lines))

    def file(self, path: str, text: str) -> None:
        place = self.cgroup / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def read(self) -> Processors:
        return CgroupProcessors(self.proc, self.cgroup).read()


V2 = "/ /sys/fs/cgroup rw - cgroup2 cgroup rw"
V1 = "/ /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
V1_USED = "/ /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def real(machine: Machine, quota: float | None) -> Any:
    machine.member("0::/job\n", V2)
    limit = "max" if quota is None else str(round(quota * 100_000))
    machine.file("job/cpu.max", f"{limit} 100000\n")
    machine.file("job/cpu.stat", "usage_usec 2500000\nuser_usec 1\n")
    return CgroupProcessors(machine.proc, machine.cgroup)


@pytest.mark.parametrize(
    ("allowed", "quota", "count"),
    [(8, None, 8), (8, 2.0, 2), (8, 1.5, 2), (2, 3.0, 2), (8, 0.05, 1), (0, None, 1)],
)
def test_a_part_of_a_processor_counts_as_one_and_affinity_bounds_all(
    allowed: int, quota: float | None, count: int
):
    assert Processors(allowed, quota).count == count


def test_ranks_share_a_quota_and_the_machine_but_not_what_a_launcher_bound_to_each(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert Processors(64).shared_by(4) == 16
    assert Processors(16).shared_by(4) == 16
    assert Processors(64, 8.0).shared_by(4) == 2
    assert Processors(64, 2.0).shared_by(4) == 1


@pytest.mark.parametrize("binding", ["a", "a/b"])
def test_the_least_quota_of_all_ancestors_binds(machine: Machine, binding: str):
    machine.member("0::/a/b\n", V2)
    for group in ("a", "a/b"):
        machine.file(f"{group}/cpu.max", "150000 50000" if group == binding else "400000 100000")
    found = machine.read()
    assert (found.quota, found.source) == (3.0, f"cgroup v2 /{binding}")


def test_v1_quotas_are_read_and_their_use_from_the_controller_that_counts_it(machine: Machine):
    machine.member("4:cpu:/slurm/job\n5:cpuacct:/slurm/job\n0::/\n", V1, V1_USED)
    machine.file("cpu/slurm/cpu.cfs_quota_us", "200000\n")
    machine.file("cpu/slurm/cpu.cfs_period_us", "100000\n")
    machine.file("cpu/slurm/job/cpu.cfs_quota_us", "-1\n")
    machine.file("cpu/slurm/job/cpu.cfs_period_us", "100000\n")
    machine.file("cpuacct/slurm/cpuacct.usage", "7500000000\n")
    assert machine.read() == Processors(ALLOWED, 2.0, "cgroup v1 /slurm", 7.5)
    (machine.cgroup / "cpuacct/slurm/cpuacct.usage").unlink()
    assert machine.read().used_s is None


@pytest.mark.parametrize("content", ["", "max 100000", "0 100000", "rubbish", "100000"])
def test_a_quota_that_says_nothing_binds_nothing(machine: Machine, content: str):
    machine.member("0::/job\n", V2)
    machine.file("job/cpu.max", content)
    assert machine.read() == Processors(ALLOWED)


def test_without_cgroup_files_affinity_alone_counts(machine: Machine):
    assert machine.read() == Processors(ALLOWED)
    assert 1 <= usable_processors() <= max(1, ALLOWED)


def test_idle_processors_are_at_most_what_the_quota_has_left():
    source = FakeProcessors(Processors(8, 2.0, "job", 100.0))
    probe = ProcessorProbe(source)
    # Ten seconds of eight processors pass, of which seven were idle.
    clock = iter(
        _Times(idle=70.0 * n, whole=80.0 * n, count=8, own={1: 4.0 * n}) for n in (1, 2, 3)
    )
    probe._before = _Times()
    probe._times = lambda: next(clock)  # type: ignore[method-assign]
    source.processors = Processors(8, 2.0, "job", 115.0)
    assert probe.read() == ProcessorReading(0.5)
    source.processors = Processors(8, 2.0, "job", 140.0)
    assert probe.read() == ProcessorReading(0.0)
    source.processors = Processors(8)
    # One is not idle; this process used four seconds of its ten.
    assert probe.read() == ProcessorReading(7.0, pytest.approx(0.6))


@pytest.fixture
def throttled() -> Iterator[Path]:
    """A real v1 CPU group with a quota of one processor, and a group below it without one."""
    mount = Path("/sys/fs/cgroup/cpu")
    own = next(
        (
            line.split(":", 2)[2]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if "cpu" in line.split(":")[1].split(",")
        ),
        None,
    )
    if own is None or not (mount / own.lstrip("/") / "cpu.cfs_quota_us").exists():
        pytest.skip("no v1 CPU controller to make a group in")
    group = mount / own.lstrip("/") / f"autoloader-test-{uuid.uuid4().hex[:8]}"
    try:
        (group / "below").mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"a CPU cgroup cannot be made here: {error}")
    (group / "cpu.cfs_quota_us").write_text("100000")
    yield group / "below"
    (group / "below").rmdir()
    group.rmdir()


SCRIPT = """
import json, pathlib, sys, os
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from autoloader.process.planning import cores_of_rank
from autoloader.host.machine import CgroupProcessors, usable_processors
from autoloader.controller.profile import host_facts
found = CgroupProcessors().read()
print(json.dumps([found.quota, found.source, usable_processors(), cores_of_rank(1),
                  host_facts().cpus]))
"""


def test_a_real_quota_above_the_process_bounds_plan_profile_and_threads(throttled: Path):
    quota, source, *counts = json.loads(python("-c", SCRIPT, throttled).stdout)
    assert (quota, counts) == (1.0, [1, 1, 1])
    assert source.startswith("cgroup v1 /")
    assert source.endswith(throttled.parent.name)
