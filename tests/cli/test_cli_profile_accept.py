"""``autoloader profile diff --accept`` and ``show -o``: what is taken over, and passed on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from simulated import SCENARIOS, simulate
from simulated.scenarios import FLOOR_BYTES

from autoloader.cli.app import main
from autoloader.controller.decisions import DecisionLog
from autoloader.controller.profile import Profile, find_profile, host_facts, user_profiles_dir
from autoloader.process.proven import LEAST_S, proven_knobs


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a run that began with the smallest knobs, on a simulated machine."""
    path = tmp_path_factory.mktemp("run") / "decisions.jsonl"
    plant = SCENARIOS["steady"].plant("indexed")
    log = DecisionLog(path, run="node7-1")
    simulate(plant, 210.0, limits=plant.limits(FLOOR_BYTES), log=log)
    log.close()
    return path


@pytest.fixture
def log_of_here(run_log: Path, tmp_path: Path) -> Path:
    """The same, of a host with as many processors as this one."""
    cpus = host_facts().cpus
    lines = [json.loads(line) for line in run_log.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "start":
            line["limits"]["knobs"]["cpus"] = cpus
    path = tmp_path / "here.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_what_lasts_was_judged_to_pay_and_is_still_in_force(run_log: Path) -> None:
    lines = run_log.read_text().splitlines(keepends=True)
    found = proven_knobs(lines)
    assert found.knobs["decode_threads"] > 1
    assert all(one.held_s >= LEAST_S for one in found.paid)
    assert found.reader == "indexed"
    last = [json.loads(line) for line in lines if '"decision"' in line][-1]
    in_force = last["observation"]["knobs"]
    assert all(in_force[key] >= value for key, value in found.knobs.items())
    first = next(json.loads(line) for line in lines if json.loads(line)["kind"] == "decision")
    assert all(first["observation"]["knobs"][key] < value for key, value in found.knobs.items())


def test_an_accepted_finding_is_a_profile_that_says_where_it_is_from(
    log_of_here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "diff", str(log_of_here), "--yes", "--name", "lab", "--json"]) == 0
    told = answer(capsys)
    changed = {row["field"]: (row["a"], row["b"]) for row in told["differences"]}
    profile = find_profile("lab").profile
    assert told["path"] == str(user_profiles_dir() / "lab.yaml")
    assert changed["knobs.decode_threads"][1] == profile.knobs.decode_threads
    assert profile.provenance.source == "controller"
    assert "node7-1" in profile.provenance.detail
    assert profile.measurements == {}
    assert profile.knobs.reader == "auto"

    assert main(["profile", "diff", "lab", str(log_of_here), "--yes", "--json"]) == 0
    again = answer(capsys)
    assert again["differences"] == []
    assert again["path"] is None


def test_a_run_of_another_host_and_a_file_that_is_no_log_are_refused(
    run_log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(line) for line in run_log.read_text().splitlines()]
    lines[0]["limits"]["knobs"]["cpus"] = 77
    path = tmp_path / "log"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["profile", "diff", str(path)]) == 2
    assert "77 processors" in capsys.readouterr().err
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("text", "bytes", "nowhere"):
        assert main(["profile", "diff", str(tmp_path / name)]) == 2
        assert name in capsys.readouterr().err


def test_a_teammates_profile_is_exported_and_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "show", "mcml_a100", "-o", "lab.yaml", "--json"]) == 0
    assert answer(capsys)["path"] == "lab.yaml"
    words = ["profile", "diff", "lab.yaml", "--yes", "--name", "lab", "--json"]
    assert main(words) == 0
    told = answer(capsys)
    assert told["path"] == str(user_profiles_dir() / "lab.yaml")
    if os.cpu_count() == 2:
        assert any("clamped to this host: decode_threads" in line for line in told["evidence"])
    assert find_profile("lab").profile.knobs == find_profile("mcml_a100").profile.knobs

    text = (tmp_path / "lab.yaml").read_text().replace("ring_slots: 8", "ring_slots: 9")
    (tmp_path / "lab.yaml").write_text(text)
    assert main(words) == 0
    told = answer(capsys)
    assert told["differences"] == [{"field": "knobs.ring_slots", "a": 8, "b": 9}]
    [kept] = (user_profiles_dir() / "replaced").iterdir()
    assert str(kept) in told["notes"][0]
    assert Profile.from_yaml(kept).knobs.ring_slots == 8
