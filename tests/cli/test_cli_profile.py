"""The command line's shell, and ``autoloader profile``."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_lines import Cli
from ended import python

from autoloader.controller.profiles import find_profile, keep_profile
from autoloader.errors import BudgetInfeasibleError, SourceError


@pytest.fixture(autouse=True)
def config_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"


def test_list_names_every_shipped_profile_and_marks_the_default(cli: Cli):
    out = cli("profile", "list").out
    for name in ("local_dev", "lrz_a100", "mcml_a100", "l40s", "h200"):
        assert name in out
    assert [line.split()[0] for line in out.splitlines() if " yes " in line] == ["local_dev"]


def test_check_exits_2_for_a_broken_profile_and_names_the_field(tmp_path: Path, cli: Cli):
    bad = tmp_path / "bad.yaml"
    bad.write_text(find_profile("h200").profile.to_yaml().replace("cpus: 16", "cpus: none"))
    found = cli.json("profile", "check", bad, "local_dev", code=2)["profiles"]
    rows = {row["profile"]: row for row in found}
    assert rows["local_dev"]["ok"]
    assert "host.cpus" in rows[str(bad)]["problems"][0]


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """A profile of more threads than any host has."""
    text = find_profile("local_dev").profile.to_yaml()
    path = tmp_path / "huge.yaml"
    path.write_text(text.replace("decode_threads: 2", "decode_threads: 512"))
    return path


def test_check_strict_refuses_what_this_host_would_clamp(huge: Path, cli: Cli):
    cli("profile", "check", huge)
    cli("profile", "check", "--strict", huge, code=2)


@pytest.mark.parametrize("command", ["plan", "measure"])
def test_strict_refuses_before_the_data_is_looked_at(command: str, huge: Path, cli: Cli):
    words = [command, "--spec", "none.yaml", "--profile", huge]
    assert "decode_threads: 512" in cli(*words, "--strict", code=2).err
    assert "none.yaml" in cli(*words, code=2).err


def test_a_saved_profile_is_found_by_name(cli: Cli):
    mine = find_profile("h200").profile.model_copy(update={"name": "mine"})
    path = keep_profile(mine, tuned_from=None).path
    assert cli.json("profile", "show", "mine")["origin"] == str(path)


def test_a_teammates_profile_is_exported_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
):
    monkeypatch.chdir(tmp_path)
    Path("lab.yaml").write_text(cli("profile", "show", "mcml_a100").out)
    assert "no field differs" in cli("profile", "diff", "mcml_a100", "lab.yaml").err

    text = (tmp_path / "lab.yaml").read_text().replace("ring_slots: 8", "ring_slots: 9")
    (tmp_path / "lab.yaml").write_text(text)
    told = cli.json("profile", "diff", "mcml_a100", "lab.yaml")
    assert told["differences"] == [{"field": "knobs.ring_slots", "a": 8, "b": 9}]
    if os.cpu_count() == 2:
        assert any("clamped to this host: decode_threads" in line for line in told["clamped_here"])

    shown = cli("profile", "diff", "lab.yaml").out.splitlines()
    assert shown[0].split() == ["field", "local_dev", "mcml_a100"]
    assert any(line.startswith("knobs.ring_slots") for line in shown)


@pytest.mark.parametrize(
    ("raised", "code", "shown"),
    [
        (BudgetInfeasibleError("too little", remedy="lower it"), 3, "too little"),
        (SourceError("torn shard", remedy="fetch it again"), 4, "torn shard"),
        (RuntimeError("a bug"), 70, "Traceback"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["infeasible", "source", "bug", "interrupt"],
)
def test_every_end_has_its_exit_code(
    raised: BaseException, code: int, shown: str, monkeypatch: pytest.MonkeyPatch, cli: Cli
):
    def fail() -> None:
        raise raised

    monkeypatch.setattr("autoloader.cli.tune.show_list", fail)
    captured = cli("profile", "list", code=code)
    assert captured.out == ""
    assert shown in captured.err


@pytest.mark.parametrize("kind", ["spec", "profile"])
def test_schema_prints_a_json_schema(kind: str, cli: Cli):
    assert "schema_version" in json.loads(cli("--schema", kind).out)["properties"]


def test_help_and_version_exit_0(cli: Cli):
    assert "profile" in cli("--help").out
    assert cli("--version").out.startswith("autoloader ")


def test_demo_says_where_its_spec_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli):
    import autoloader.cli.demo as catalog_demo

    seen: dict[str, Any] = {}

    def ensure_demo(directory: Path, **arguments: Any) -> Path:
        progress = arguments.pop("progress")
        seen.update(directory=directory, **arguments)
        for done in range(1, 11):
            progress(done, 10)
        return directory / "mix.yaml"

    monkeypatch.setattr(catalog_demo, "ensure_demo", ensure_demo)
    words = ["demo", str(tmp_path), "--datasets", "3", "--scale", "0.1", "--seed", "7", "--json"]
    captured = cli(*words)
    told = json.loads(captured.out)
    assert told["spec"] == str(tmp_path / "mix.yaml")
    assert told["built"] is True
    assert seen == {"directory": tmp_path, "datasets": 3, "scale": 0.1, "seed": 7}
    assert captured.err == ""  # it took no five seconds


def test_python_dash_m_autoloader_is_the_same_command():
    done = python("-m", "autoloader", "profile", "show", "nobody", code=2)
    assert done.stdout == ""
    assert "nobody" in done.stderr
