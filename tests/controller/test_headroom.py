"""Headroom on fake trees of every kind, and on a real cgroup where one can be made."""

import json
from pathlib import Path
from typing import Any

import pytest
from ended import python

from autoloader.errors import PipelineError
from autoloader.host.headroom import HeadroomProbe
from autoloader.host.machine import memory_bytes
from autoloader.host.units import GIB, MIB

NO_LIMIT_V1 = 9223372036854771712


class Machine:
    """A fake /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.cgroup = root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()
        self.meminfo(available=10 * GIB, total=16 * GIB)
        self.member("")
        self.mounts()

    def meminfo(self, *, available: int, total: int) -> None:
        (self.proc / "meminfo").write_text(
            f"MemTotal:       {total // 1024} kB\nMemFree:         1 kB\n"
            f"MemAvailable:   {available // 1024} kB\nBuffers: 1 kB\n"
        )

    def member(self, text: str) -> None:
        (self.proc / "self" / "cgroup").write_text(text)

    def mounts(self, *lines: str) -> None:
        (self.proc / "self" / "mountinfo").write_text(
            "22 1 0:5 / /proc rw - proc proc rw\n" + "".join(f"{line}\n" for line in lines)
        )

    @staticmethod
    def v2_mount(shown: str = "/", point: str = "/sys/fs/cgroup") -> str:
        return f"30 22 0:26 {shown} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw"

    @staticmethod
    def v1_mount(shown: str = "/", point: str = "/sys/fs/cgroup/memory") -> str:
        return f"35 31 0:32 {shown} {point} rw,relatime - cgroup cgroup rw,memory"

    def v2(
        self, path: str, limit: int | str, current: int, *, files: int = 0, slab: int = 0
    ) -> Path:
        place = self.cgroup / path
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(f"{limit}\n")
        (place / "memory.current").write_text(f"{current}\n")
        (place / "memory.stat").write_text(
            f"anon 5\nfile {files}\nshmem 7\ninactive_anon 1\nactive_anon 2\n"
            f"inactive_file {files // 2}\nactive_file {files - files // 2}\n"
            f"slab_reclaimable {slab}\nslab_unreclaimable 99\nslab {slab + 99}\n"
        )
        return place

    def v1(
        self,
        path: str,
        limit: int,
        usage: int,
        *,
        files: int = 0,
        inherited: int = NO_LIMIT_V1,
        counts_children: bool = True,
    ) -> Path:
        place = self.cgroup / "memory" / path
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (place / "memory.usage_in_bytes").write_text(f"{usage}\n")
        (place / "memory.use_hierarchy").write_text(f"{int(counts_children)}\n")
        (place / "memory.stat").write_text(
            f"cache 1\nrss 2\ninactive_file 3\nactive_file 4\n"
            f"hierarchical_memory_limit {min(limit, inherited)}\ntotal_cache 9\n"
            f"total_inactive_file {files // 2}\ntotal_active_file {files - files // 2}\n"
        )
        return place

    def probe(self) -> HeadroomProbe:
        return HeadroomProbe(self.proc, self.cgroup)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def v1(*words: Any, **more: Any) -> Any:
    return lambda machine: machine.v1(*words, **more)


def v2(*words: Any, **more: Any) -> Any:
    return lambda machine: machine.v2(*words, **more)


V1, V2 = Machine.v1_mount(), Machine.v2_mount()
DOCKER = Machine.v1_mount(shown="/docker/abc")
BOUND: dict[str, tuple[list[str], str, list[Any], int, str]] = {
    "the host where there is no cgroup": ([], "", [], 10 * GIB, "host"),
    "v2, whose file cache and reclaimable slab count as free": (
        [V2], "0::/job", [v2("job", 4 * GIB, 3 * GIB, files=GIB, slab=256 * MIB)],
        2 * GIB + 256 * MIB, "cgroup v2 /job"),
    "v1, where the file cache of the whole subtree counts as free": (
        [V1], "5:cpu:/else\n4:memory:/job\n0::/", [v1("job", 4 * GIB, 3 * GIB, files=GIB)],
        2 * GIB, "cgroup v1 /job"),
    "the ancestor with least room": (
        [V2], "0::/a/b/c",
        [v2("a", 9 * GIB, 8 * GIB), v2("a/b", "max", 5 * GIB), v2("a/b/c", 3 * GIB, GIB)],
        GIB, "cgroup v2 /a"),
    "ancestors in v1 too": (
        [V1], "4:memory:/slurm/job_1/step_0",
        [v1("", NO_LIMIT_V1, 12 * GIB), v1("slurm", NO_LIMIT_V1, 9 * GIB),
         v1("slurm/job_1", 6 * GIB, 5 * GIB), v1("slurm/job_1/step_0", NO_LIMIT_V1, GIB)],
        GIB, "cgroup v1 /slurm/job_1"),
    "no ancestor in v1 that does not count its children": (
        [V1], "4:memory:/a/b",
        [v1("a", GIB, GIB, counts_children=False), v1("a/b", 4 * GIB, GIB, counts_children=False)],
        3 * GIB, "cgroup v1 /a/b"),
    "a container's own cgroup at the mount point": (
        [DOCKER], "4:memory:/docker/abc", [v1("", 2 * GIB, GIB)], GIB, "cgroup v1 /"),
    "a cgroup below a container's own": (
        [DOCKER], "4:memory:/docker/abc/inner", [v1("", 4 * GIB, GIB), v1("inner", 2 * GIB, GIB)],
        GIB, "cgroup v1 /inner"),
    "a limit above what a container sees, in v1": (
        [DOCKER], "4:memory:/docker/abc", [v1("", NO_LIMIT_V1, GIB, inherited=3 * GIB)],
        2 * GIB, "cgroup v1 /"),
    "no level without the memory controller": (
        [V2], "0::/a/b", [v2("a", 4 * GIB, GIB), lambda at: (at.cgroup / "a/b").mkdir()],
        3 * GIB, "cgroup v2 /a"),
    "a cgroup beyond its limit, with no headroom": (
        [V2], "0::/job", [v2("job", GIB, 2 * GIB)], 0, "cgroup v2 /job"),
    "no more than the limit, where the cache is more than the usage": (
        [V2], "0::/job", [v2("job", GIB, 10 * MIB, files=20 * MIB)], GIB, "cgroup v2 /job"),
    **{
        f"the mount point, where the path {path} lies outside of {shown}": (
            [Machine.v2_mount(shown=shown)], f"0::{path}",
            # beside the mount point: no cgroup of this hierarchy
            [v2("", 2 * GIB, GIB), v2("../sibling", MIB, 0)], GIB, "cgroup v2 /")
        for shown, path in (("/", "/../.."), ("/", "/../sibling"), ("/shown", "/../.."),
                            ("/shown", "/elsewhere"))
    },
}  # fmt: skip


@pytest.mark.parametrize("what", BOUND)
def test_what_binds_is(what: str, machine: Machine):
    mounts, member, groups, headroom, source = BOUND[what]
    machine.mounts(*mounts)
    machine.member(f"{member}\n")
    for group in groups:
        group(machine)
    reading = machine.probe().read()
    assert (reading.headroom_bytes, reading.source) == (headroom, source)


def test_the_limit_that_is_told_is_the_least_of_all_levels(machine: Machine):
    assert machine.probe().cgroup_limit_bytes() is None
    machine.mounts(V2)
    machine.member("0::/a/b\n")
    machine.v2("a", 9 * GIB, 8 * GIB)
    machine.v2("a/b", 3 * GIB, 1 * GIB)
    assert machine.probe().cgroup_limit_bytes() == 3 * GIB
    machine.mounts(DOCKER)
    machine.member("4:memory:/docker/abc\n")
    machine.v1("", NO_LIMIT_V1, 1 * GIB, inherited=3 * GIB)
    assert machine.probe().cgroup_limit_bytes() == 3 * GIB


def test_usage_that_cannot_be_read_leaves_that_cgroup_out_and_is_said_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
):
    machine.mounts(machine.v2_mount())
    machine.member("0::/job\n")
    (machine.v2("job", 4 * GIB, 1 * GIB) / "memory.current").unlink()
    probe = machine.probe()
    for _ in range(3):
        assert probe.read().source == "host"
    assert [record.message for record in caplog.records if "usage" in record.message] == [
        "headroom: cgroup v2 /job: its usage cannot be read"
    ]


def test_without_memory_stat_the_page_cache_counts_as_taken(
    machine: Machine, caplog: pytest.LogCaptureFixture
):
    machine.mounts(machine.v2_mount())
    machine.member("0::/job\n")
    (machine.v2("job", 4 * GIB, 3 * GIB, files=2 * GIB) / "memory.stat").unlink()
    assert machine.probe().read().headroom_bytes == 1 * GIB
    assert "page cache" in caplog.text


def test_when_nothing_can_be_read_there_is_no_number(machine: Machine):
    (machine.proc / "meminfo").unlink()
    (machine.proc / "self" / "cgroup").unlink()
    probe = machine.probe()
    with pytest.raises(PipelineError, match="cannot be read"):
        probe.read()


@pytest.mark.parametrize(("limits_for_s", "room"), [(0.0, GIB), (3600.0, 2 * GIB)])
def test_limits_may_be_taken_as_they_were_and_what_is_used_is_always_read(
    machine: Machine, limits_for_s: float, room: int
):
    machine.mounts(V2)
    machine.member("0::/job")
    machine.v2("job", 4 * GIB, 3 * GIB)
    probe = HeadroomProbe(machine.proc, machine.cgroup, limits_for_s=limits_for_s)
    assert probe.read().headroom_bytes == GIB
    machine.v2("job", 3 * GIB, 2 * GIB)
    assert probe.read().headroom_bytes == room


def test_this_machine_can_be_read():
    probe = HeadroomProbe()
    assert 0 < probe.read().headroom_bytes <= memory_bytes()


@pytest.fixture
def real_cgroup(small_group: Path) -> Path:
    (small_group / "memory.limit_in_bytes").write_text(str(256 * MIB))
    return small_group


IN_CGROUP = """
import json, os, sys
from pathlib import Path
place, folder = Path(sys.argv[1]), Path(sys.argv[2])
(place / "cgroup.procs").write_text(str(os.getpid()))
from autoloader.host.headroom import HeadroomProbe
probe = HeadroomProbe()
readings = {}
def note(name):
    reading = probe.read()
    readings[name] = [reading.headroom_bytes, reading.source, probe.cgroup_limit_bytes()]
note("start")
held = bytearray(b"x") * (96 << 20)
note("held")
del held
note("released")
with open(folder / "cached", "wb") as file:
    for _ in range(64):
        file.write(b"y" * (1 << 20))
    file.flush()
    os.fsync(file.fileno())
note("cached")
for _ in range(2):
    (folder / "cached").read_bytes()
note("read_twice")
(place / "memory.limit_in_bytes").write_text(str(192 << 20))
note("shrunk")
from autoloader.controller.profile import host_facts
from autoloader.controller.profiles import load_profile
readings["facts"] = host_facts().usable_bytes
readings["notes"] = load_profile("local_dev").notes
print(json.dumps(readings))
"""


def test_a_real_cgroup_binds_and_its_page_cache_counts_as_free(real_cgroup: Path, tmp_path: Path):
    told = json.loads(python("-c", IN_CGROUP, real_cgroup, tmp_path, timeout=100).stdout)
    start, source, limit = told["start"]
    assert limit == 256 * MIB
    assert real_cgroup.name in source
    assert 150 * MIB < start <= 256 * MIB
    slack = 16 * MIB
    assert abs(start - told["held"][0] - 96 * MIB) < slack
    assert abs(start - told["released"][0]) < slack
    assert abs(start - told["cached"][0]) < slack
    assert abs(start - told["read_twice"][0]) < slack + 8 * MIB
    assert abs(told["read_twice"][0] - told["shrunk"][0] - 64 * MIB) < slack
    assert abs(told["facts"] - 192 * MIB) < 6 * MIB
    assert any("ram_floor: " in note for note in told["notes"])
