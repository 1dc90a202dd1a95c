from pathlib import Path

import pytest

from autoloader.host.headroom import memory_cgroup, named_by_kernel, oom_kills


def test_the_kernels_log_names_the_process_it_killed(tmp_path: Path):
    log = tmp_path / "kmsg"
    log.write_bytes(b"3,1,2,-;Memory cgroup out of memory: Killed process 4321 (python) total-vm\n")
    assert named_by_kernel(4321, log=log)
    assert not named_by_kernel(432, log=log)


def test_a_log_that_may_not_be_read_says_nothing(tmp_path: Path):
    assert not named_by_kernel(1, log=tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.events", "low 0\noom 4\noom_kill 3\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
    ],
)
def test_kills_are_counted_in_both_versions(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text)
    assert oom_kills(str(tmp_path)) == 3


def test_a_cgroup_that_does_not_count_is_unknown(tmp_path: Path):
    assert oom_kills(str(tmp_path)) is None
    assert oom_kills("") is None


def test_no_cgroup_to_be_seen_is_no_directory(tmp_path: Path):
    assert memory_cgroup(proc=tmp_path) == ""
