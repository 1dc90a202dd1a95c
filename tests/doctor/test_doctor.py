"""Faults are planted, each where a real one would lie: each is found, and nothing else."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_nvml import FakeNvml, NVMLError
from lerobot_files import LeRobotFiles
from rlds_files import write_pair
from streams import spec_file, until

from autoloader.cli.app import main
from autoloader.cli.doctor import Finding, Machine, Seen, examine
from autoloader.controller.profile import Profile
from autoloader.controller.profiles import load_profile
from bench.control.slow_files import slow_files

LOG = """\
6,3391,77012345,-;python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0
6,3399,77012399,-;Out of memory: Killed process 4711 (train.py) total-vm:98304kB, \
anon-rss:2097152kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0
6,3400,99012399,-;Memory cgroup out of memory: Killed process 812 (pt_data_worker) \
total-vm:9kB, anon-rss:1048576kB, file-rss:0kB
6,3401,99012400,-;oom_reaper: reaped process 812 (pt_data_worker)
"""


REST = {"cameras": {"primary": {"size": [8, 8]}}, "batch": {"size": 4}}
"""Of a spec, beside its datasets."""


class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801, N818  (as NVML calls it)
    """No driver."""


@pytest.fixture
def healthy(tmp_path: Path) -> Machine:
    """A machine on which nothing else runs, without limits, GPU or faults."""
    proc, log = tmp_path / "proc", tmp_path / "kernel.log"
    proc.mkdir()
    for name in ("self", "meminfo", str(os.getpid())):
        (proc / name).symlink_to(f"/proc/{name}")
    log.write_text("6,1,0,-;Linux version 6.1\n")
    environment = {"PYTHONUNBUFFERED": "1"}
    nvml = FakeNvml(dead=NVMLError_DriverNotLoaded("Driver Not Loaded"))
    return Machine(proc, tmp_path / "cgroup", log, nvml, stdout=1, environment=environment)


def found_by(seen: list[Seen]) -> list[Finding]:
    return [one for one in seen if isinstance(one, Finding)]


def found_on(machine: Machine, **more: Any) -> list[Finding]:
    more.setdefault("floor_bytes", 2**20)
    return found_by(examine(machine, **more))


def with_(machine: Machine, **changes: Any) -> Machine:
    return Machine(**{**vars(machine), **changes})


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """The spec file of two small datasets."""
    written = write_pair(tmp_path, left=[[3, 2], [4]], right=[[5]])
    datasets = [
        {
            "name": one.name,
            "path": str(one.path),
            "images": {"primary": "observation/image"},
            "action": "action",
        }
        for one in written
    ]
    return spec_file(tmp_path, {"datasets": datasets, **REST})


# --- the machine ----------------------------------------------------------------------------------


def test_a_floor_that_is_not_free_is_an_error(healthy: Machine):
    (found,) = found_on(healthy, floor_bytes=2**50)
    assert (found.check, found.severity) == ("memory", "error")
    assert "host binds" in found.evidence
    assert "1048576.00 GiB" in found.evidence


def test_a_small_cgroup_is_named(small_group: Path):
    (small_group / "memory.limit_in_bytes").write_text(str(700 * 2**20))
    done = subprocess.run(
        [sys.executable, "-m", "autoloader", "doctor", "--json", "--ram-floor", "1GiB"],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: (small_group / "cgroup.procs").write_text(str(os.getpid())) and None,
        check=False,
    )
    assert done.returncode == 1
    found = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "memory"]
    assert [one["severity"] for one in found] == ["error"]
    assert small_group.name in found[0]["evidence"]


def test_memory_that_slurm_counts_and_no_cgroup_shows_is_told(healthy: Machine):
    environment = {**healthy.environment, "SLURM_MEM_PER_NODE": "2048"}
    (found,) = found_on(with_(healthy, environment=environment))
    assert found.check == "memory"
    assert "2.00 GiB" in found.evidence
    assert "--ram-floor" in found.remedy


def test_kills_for_memory_are_read_from_the_kernels_log(healthy: Machine):
    healthy.kernel_log.write_text(LOG)
    (healthy.proc / "uptime").write_text("7300.0 1.0\n")
    (found,) = found_on(healthy)
    assert found.check == "kills"
    assert "2 processes" in found.evidence
    assert "since the log began, the last 2.0 h ago; " in found.evidence
    assert "pt_data_worker (pid 812, 1.00 GiB, in its cgroup), train.py (pid 4711" in found.evidence


def test_kills_at_the_limit_of_another_cgroup_are_no_finding(healthy: Machine):
    (healthy.proc / "self").unlink()
    (healthy.proc / "self").mkdir()
    membership = healthy.proc / "self" / "cgroup"
    kill = "6,3398,99012398,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/jobs/{},pid=812\n"
    killed = "6,3400,99012399,-;Memory cgroup out of memory: Killed process 812 (python3)\n"
    healthy.kernel_log.write_text(kill.format("7") + killed)
    membership.write_text("4:memory:/jobs/8/step\n0::/\n")
    assert found_on(healthy) == []
    membership.write_text("4:memory:/jobs/7/step\n0::/\n")
    (found,) = found_on(healthy)
    assert "killed 1 process for memory" in found.evidence


@pytest.mark.parametrize(
    ("nvml", "said"),
    [
        (FakeNvml(dead=NVMLError("Driver/library version mismatch")), "version mismatch"),
        (FakeNvml({"pids": {2**22 + 1: 12 * 2**30}, "used": 12 * 2**30}), "12.00 GiB are held by"),
        (FakeNvml({"uncorrected": 3}), "3 memory errors"),
        (FakeNvml({"used": 100 * 2**30}), "no process is named"),
    ],
)
def test_faults_of_the_gpu_are_found(healthy: Machine, nvml: FakeNvml, said: str):
    (found,) = found_on(with_(healthy, nvml=nvml))
    assert found.check == "gpu"
    assert said in found.evidence


def test_a_gpu_in_use_by_a_live_process_is_no_fault(healthy: Machine):
    nvml = FakeNvml({"pids": {os.getpid(): 2**30}, "used": 2**30, "uncorrected": 0})
    assert found_on(with_(healthy, nvml=nvml)) == []


def test_a_profile_for_a_larger_host_is_found(healthy: Machine, tmp_path: Path):
    shipped = load_profile("local_dev").profile
    plain = shipped.model_dump(mode="json", by_alias=True)
    plain["limits"]["ram_floor"] = "900TiB"
    place = tmp_path / "large.yaml"
    place.write_text(Profile.model_validate(plain).to_yaml())
    checks = [one.check for one in found_on(healthy, profile=str(place))]
    assert checks == ["profile"]


def test_the_child_of_a_trainer_that_is_gone_is_found(healthy: Machine, mixture: Path):
    program = (
        "import sys; from autoloader import AutoLoader; "
        "loader = AutoLoader(sys.argv[1], output='numpy', ram_floor='256MB'); "
        "next(iter(loader)); "
        "print(loader.statistics().worker_pids[0], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(mixture)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as trainer:
        child = int(trainer.stdout.readline())
        (healthy.proc / str(child)).symlink_to(f"/proc/{child}")
        assert found_on(healthy) == []
        os.kill(child, signal.SIGSTOP)
        until(lambda: psutil.Process(child).status() == psutil.STATUS_STOPPED)  # it may be late
        trainer.kill()
    try:
        (found,) = found_on(healthy)
        assert found.check == "leftovers"
        assert f"pid {child}" in found.evidence
        assert "stopped" in found.evidence
        assert found.remedy == f"kill -9 {child}"
    finally:
        os.kill(child, signal.SIGKILL)


# --- its data -------------------------------------------------------------------------------------


def test_a_missing_shard_is_found_and_the_other_datasets_are_examined(
    healthy: Machine, mixture: Path
):
    assert found_on(healthy, spec=mixture) == []
    shard = sorted((mixture.parent / "left").rglob("*tfrecord*"))[0]
    shard.unlink()
    (found,) = found_on(healthy, spec=mixture)
    assert (found.check, found.severity) == ("data", "error")
    assert shard.name in found.evidence


def test_an_index_of_other_files_is_found(healthy: Machine, mixture: Path):
    assert main(["index", "--spec", str(mixture)]) == 0
    assert found_on(healthy, spec=mixture) == []
    shard = sorted((mixture.parent / "right").rglob("*tfrecord*"))[0]
    shutil.copy(shard, f"{shard}.new")
    Path(f"{shard}.new").replace(shard)  # the same bytes, written later
    (found,) = found_on(healthy, spec=mixture)
    assert found.check == "index"
    assert "right" in found.evidence
    assert "left" not in found.evidence


def test_missing_videos_are_found(healthy: Machine, tmp_path: Path):
    files = LeRobotFiles(version="v2.1")
    root = files.write(tmp_path / "arm")
    spec = tmp_path / "arm.yaml"
    camera = "observation.images.top"
    entry = {"name": "arm", "path": str(root), "images": {"primary": camera}, "action": "action"}
    spec.write_text(json.dumps({"datasets": [entry], **REST}))
    assert found_on(healthy, spec=spec) == []
    files.video(root, camera, 2).unlink()
    (found,) = found_on(healthy, spec=spec)
    assert found.check == "data"
    assert found.severity == "error"
    assert "1 of 4 videos" in found.evidence
    assert (
        "1 of 4 episodes cannot be read, more than errors.max_corrupt_ratio=0.01" in found.evidence
    )
    allowing = {"datasets": [entry], **REST, "errors": {"max_corrupt_ratio": 0.25}}
    spec.write_text(json.dumps(allowing))
    (found,) = found_on(healthy, spec=spec)
    assert found.severity == "warning"


def test_only_videos_that_the_spec_reads_are_looked_for(healthy: Machine, tmp_path: Path):
    files = LeRobotFiles(version="v2.1")
    root = files.write(tmp_path / "arm")
    spec, camera = tmp_path / "arm.yaml", "observation.images.top"
    entry = {"name": "arm", "path": str(root), "images": {"primary": camera}, "action": "action"}
    files.video(root, camera, 2).unlink()
    for less in ({"episodes": [0, 1, 3]}, {"split": {"train": "train[:2]"}}):
        spec.write_text(json.dumps({"datasets": [entry | less], **REST}))
        assert found_on(healthy, spec=spec) == []


def test_a_slow_file_system_is_found(healthy: Machine, demo_mix: Path, tmp_path: Path):
    try:
        with slow_files(demo_mix.parent, tmp_path / "slow") as files:
            files.say({"storage_ms": 30.0, "stalls": False})
            (found,) = found_on(healthy, spec=tmp_path / "slow" / demo_mix.name)
    except PermissionError as error:
        pytest.skip(str(error))
    assert found.check == "storage"
    assert "fuse" in found.evidence
    assert "cache_bytes" in found.remedy
    assert "mixing: {locality: {block: " in found.remedy
