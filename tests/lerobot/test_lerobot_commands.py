"""The commands that look at datasets know LeRobot's too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from lerobot_checks import SIDE, TOP
from lerobot_files import LeRobotFiles

from autoloader.cli.app import main

pytestmark = pytest.mark.usefixtures("one_child")

FILES = LeRobotFiles(lengths=(6, 5, 7), pictures=[SIDE], gop=20)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec file of one dataset as it lies, and as a function and the spec's words leave it."""
    folder = tmp_path_factory.mktemp("commands")
    path = str(FILES.write(folder / "arm"))
    plain = {
        "name": "arm",
        "path": path,
        "images": {"top": TOP, "side": SIDE},
        "action": "action",
        "state": "observation.state",
        "language": "task",
    }
    made = {
        "name": "turned",
        "path": path,
        "transform": {"call": "lerobot_functions:backwards"},
        "steps": {"drop_last": 1},
        "images": {"top": "cameras/front", "side": "cameras/wrist"},
        "action": [{"path": "joints[:1]", "ops": ["relabel"]}, "moves[1:]"],
        "state": "joints",
        "language": "words",
    }
    written = folder / "mix.yaml"
    sizes = {"top": {"size": [64, 96]}, "side": {"size": [64, 96]}}
    document = {
        "datasets": [plain, made],
        "cameras": sizes,
        "sample": {"delta_timestamps": {"frames": [-0.1, 0]}},
    }
    written.write_text(yaml.safe_dump(document))
    return written


def test_verify_compares_with_what_pyarrow_and_pyav_read(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["verify", "--spec", str(spec), "-n", "24", "--ram-floor", "64MiB", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["differences"] == []
    assert told["samples"] == {"arm": 12, "turned": 12}
    assert told["frames"] == 24 * 2 * 2
    assert told["largest_frame_difference"] == 0


def test_peek_shows_pictures_and_what_columns_hold(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["peek", "--spec", str(spec), "--out", str(tmp_path / "sheet.html"), "--ram-floor"]
    assert main([*words, "64MiB"]) == 0
    assert "arm" in capsys.readouterr().out + (tmp_path / "sheet.html").read_text()
