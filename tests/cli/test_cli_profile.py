"""The command line's shell, and ``autoloader profile``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoloader.cli import app as cli
from autoloader.controller.profiles import find_profile, keep_profile
from autoloader.errors import BudgetInfeasibleError, SourceError


@pytest.fixture(autouse=True)
def config_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    """The one JSON document on stdout; trailing words make this fail."""
    return json.loads(capsys.readouterr().out)


def test_list_names_every_shipped_profile_and_marks_the_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["profile", "list"]) == 0
    out = capsys.readouterr().out
    for name in ("local_dev", "lrz_a100", "mcml_a100", "l40s", "h200"):
        assert name in out
    assert [line.split()[0] for line in out.splitlines() if " yes " in line] == ["local_dev"]


def test_check_exits_2_for_a_broken_profile_and_names_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(find_profile("h200").profile.to_yaml().replace("cpus: 16", "cpus: none"))
    assert cli.main(["profile", "check", str(bad), "local_dev", "--json"]) == 2
    rows = {row["profile"]: row for row in document(capsys)["profiles"]}
    assert rows["local_dev"]["ok"]
    assert "host.cpus" in rows[str(bad)]["problems"][0]


def test_check_strict_refuses_what_this_host_would_clamp(tmp_path: Path) -> None:
    text = find_profile("local_dev").profile.to_yaml()
    path = tmp_path / "huge.yaml"
    path.write_text(text.replace("decode_threads: 2", "decode_threads: 512"))
    assert cli.main(["profile", "check", str(path)]) == 0
    assert cli.main(["profile", "check", "--strict", str(path)]) == 2


@pytest.mark.parametrize("command", ["plan", "measure"])
def test_strict_refuses_before_the_data_is_looked_at(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = find_profile("local_dev").profile.to_yaml()
    path = tmp_path / "huge.yaml"
    path.write_text(text.replace("decode_threads: 2", "decode_threads: 512"))
    words = [command, "--spec", str(tmp_path / "none.yaml"), "--profile", str(path)]
    assert cli.main([*words, "--strict"]) == 2
    assert "decode_threads: 512" in capsys.readouterr().err
    assert cli.main(words) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_a_saved_profile_is_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    mine = find_profile("h200").profile.model_copy(update={"name": "mine"})
    path = keep_profile(mine, tuned_from=None).path
    assert cli.main(["profile", "show", "mine", "--json"]) == 0
    assert document(capsys)["origin"] == str(path)


def test_a_teammates_profile_is_exported_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["profile", "show", "mcml_a100"]) == 0
    Path("lab.yaml").write_text(capsys.readouterr().out)
    assert cli.main(["profile", "diff", "mcml_a100", "lab.yaml"]) == 0
    assert "no field differs" in capsys.readouterr().err

    text = (tmp_path / "lab.yaml").read_text().replace("ring_slots: 8", "ring_slots: 9")
    (tmp_path / "lab.yaml").write_text(text)
    assert cli.main(["profile", "diff", "mcml_a100", "lab.yaml", "--json"]) == 0
    told = document(capsys)
    assert told["differences"] == [{"field": "knobs.ring_slots", "a": 8, "b": 9}]
    if os.cpu_count() == 2:
        assert any("clamped to this host: decode_threads" in line for line in told["clamped_here"])

    assert cli.main(["profile", "diff", "lab.yaml"]) == 0
    shown = capsys.readouterr().out.splitlines()
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
    raised: BaseException,
    code: int,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setattr("autoloader.cli.tune.show_list", fail)
    assert cli.main(["profile", "list"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert shown in captured.err


@pytest.mark.parametrize("kind", ["spec", "profile"])
def test_schema_prints_a_json_schema(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--schema", kind]) == 0
    assert "schema_version" in document(capsys)["properties"]


def test_help_and_version_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "profile" in capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("autoloader ")


def test_demo_says_where_its_spec_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert cli.main(words) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told["spec"] == str(tmp_path / "mix.yaml")
    assert told["built"] is True
    assert seen == {"directory": tmp_path, "datasets": 3, "scale": 0.1, "seed": 7}
    assert captured.err == ""  # it took no five seconds


def test_python_dash_m_autoloader_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autoloader", "profile", "show", "nobody"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "nobody" in done.stderr
