"""The surroundings of control scenarios: what they show is true, and nothing of them is left."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoloader.host.probes.gpu import GpuProbe
from bench.control.group import MemoryGroup, NoGroupError
from bench.control.memory import MIB, anonymous_bytes, headroom_bytes, held_bytes
from bench.control.scenario import Event, Scenario
from bench.control.slow_files import SlowFiles
from bench.control.stage import FAKE_MODULES, Stage


def test_a_slow_file_system_shows_the_folder_as_it_is_and_is_gone_afterwards(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a" / "1.0.0").mkdir(parents=True)
    (source / "mix.yaml").write_text("datasets: []\n")
    content = os.urandom(700_000)
    (source / "a" / "1.0.0" / "a.tfrecord").write_bytes(content)
    try:
        with SlowFiles(source, target) as files:
            assert sorted(one.name for one in target.iterdir()) == ["a", "mix.yaml"]
            files.tell({"storage_ms": 0.1, "stalls": False})
            file = target / "a" / "1.0.0" / "a.tfrecord"
            assert file.stat().st_size == len(content)
            assert file.read_bytes() == content
            with file.open("rb") as opened:
                assert os.pread(opened.fileno(), 1000, 300_001) == content[300_001:301_001]
            with pytest.raises(FileNotFoundError):
                (target / "b").stat()
            with pytest.raises(OSError, match="Read-only"):
                (target / "c").write_text("")
    except PermissionError as error:
        pytest.skip(str(error))
    assert list(target.iterdir()) == []


def test_a_memory_group_counts_both_parts_against_its_limit_and_is_gone_afterwards() -> None:
    program = "import sys; from bench.control.group import join; join(sys.argv[1]); "
    program += "held = b'x' * (40 * 2**20); print('there', flush=True); sys.stdin.read()"
    try:
        with MemoryGroup(300 * MIB) as group:
            assert headroom_bytes(group.run) <= 300 * MIB
            children = [
                subprocess.Popen(
                    [sys.executable, "-c", program, part],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                for part in (group.run, group.beside)
            ]
            try:
                for child in children:
                    assert child.stdout is not None
                    assert child.stdout.readline() == b"there\n"
                assert held_bytes(group.place) >= 80 * MIB
                assert headroom_bytes(group.run) <= 220 * MIB
                assert group.oom_kills == 0
            finally:
                for child in children:
                    child.communicate()
            place = group.place
    except NoGroupError as error:
        pytest.skip(str(error))
    assert not place.exists()


def test_a_neighbour_takes_and_gives_back_as_many_bytes_as_it_is_told(tmp_path: Path) -> None:
    script = (Event(at_s=0, neighbour_takes=64 * MIB), Event(at_s=1, neighbour_lets_go=True))
    scenario = Scenario(name="made up", about="a", limit=None, script=script)
    with Stage(scenario, "indexed", tmp_path / "mix.yaml") as stage:
        before = anonymous_bytes(stage.neighbour_pid)
        assert stage.perform(script[0]) == {"reached": True}
        taken = anonymous_bytes(stage.neighbour_pid) - before
        assert 64 * MIB <= taken <= 66 * MIB
        stage.perform(script[1])
        while anonymous_bytes(stage.neighbour_pid) > before + MIB:
            pass
        with pytest.raises(ValueError, match="pace_s"):
            stage.perform(Event(at_s=0, pace_s=0.1))


def test_the_made_up_nvml_answers_the_probe_until_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.spec_from_file_location("nvml", FAKE_MODULES / "pynvml.py")
    assert found is not None
    assert found.loader is not None
    nvml: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(nvml)
    told = tmp_path / "nvml"
    monkeypatch.setenv("BENCH_FAKE_NVML", str(told))
    told.write_text("0.99")
    probe = GpuProbe("0", os.getpid(), nvml=nvml)
    reading = probe.read()
    assert reading is not None
    assert (reading.busy_ratio, reading.shared) == (0.99, False)
    told.write_text("dead")
    with pytest.raises(ValueError, match="NVML"):
        probe.read()
    told.write_text("0.5")
    again = probe.read()
    assert again is not None
    assert again.busy_ratio == 0.5
