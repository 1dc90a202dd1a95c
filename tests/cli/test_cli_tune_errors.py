"""What ``autoloader tune`` says to wrong input: before anything is measured, with nothing left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import rlds_files

from autoloader.cli.app import main
from autoloader.controller.profile import find_profile
from autoloader.tune import trial

SPEC = """
datasets: [{name: robot, path: robot/1.0.0, images: {primary: observation/image}}]
cameras: {primary: {size: [12, 16]}}
batch: {size: 2}
"""


@pytest.fixture
def mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    rlds_files.write_dataset(tmp_path, [[rlds_files.episode(0, 5)]])
    path = tmp_path / "mix.yaml"
    path.write_text(SPEC)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a measurement was begun")

    monkeypatch.setattr(trial.TrialRunner, "__call__", never)
    return path


def garbage(folder: Path) -> str:
    (folder / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    return str(folder / "bad.yaml")


def newer(folder: Path) -> str:
    text = find_profile("local_dev").profile.to_yaml()
    (folder / "newer.yaml").write_text(text.replace("schema_version: 2", "schema_version: 7"))
    return str(folder / "newer.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--step-time", "0ms"], "nothing to feed"),
        (["--name", "local_dev"], "ships with autoloader"),
        (["--name", "a/b"], "--name 'a/b' is no name"),
        (["--host-profile", "nobody"], "'nobody'"),
        (["--host-profile", garbage], "bad.yaml"),
        (["--host-profile", newer], "newer autoloader"),
        (["--ram-floor", "lots"], "--ram-floor"),
        (["--storage", "postgresql://me:secret@127.0.0.1:9/none"], "cannot be used"),
        (["--storage", "postgresql://me:secret@nowhere.invalid/none"], "cannot be used"),
        (["--storage", "nosuch://x"], "nosuch://x"),
        (["--resume", "--study", "gone"], "no study 'gone'"),
        (["--out", "/proc/nowhere"], "/proc/nowhere"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_input_ends_with_2_says_what_and_writes_no_profile(
    words: list[str | Callable[[Path], str]],
    said: str,
    mix: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [word if isinstance(word, str) else word(mix.parent) for word in words]
    code = main(["tune", "--spec", str(mix), "--ram-floor", "64MiB", *given, "--json"])
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert code == 2
    assert error["exit_code"] == 2
    assert said in error["what"]
    assert error["remedy"]
    assert "secret" not in captured.out + captured.err
    assert "Traceback" not in captured.err
    assert not (mix.parent / "config").exists()
    assert not list(mix.parent.rglob("*.html"))
