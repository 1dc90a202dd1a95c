"""``autoloader peek``: what is on the sheet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from rlds_files import episode, write_dataset

from autoloader.cli.app import main
from autoloader.cli.contact_sheet import Panel, draw_sheet, strip


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    written = [
        write_dataset(tmp_path, [[episode(n + k, 9) for n in range(2)]], name=name)
        for k, name in ((0, "first_arm"), (4, "second_arm"))
    ]
    plain: dict[str, Any] = {
        "datasets": [
            {"name": one.name, "path": str(one.path), "action": "action",
             "images": {"primary": "observation/image"}, "language": "language_instruction"}
            for one in written
        ],
        "cameras": {"primary": {"size": [12, 16]}},
        "sample": {"frame_offsets": [0, 2]},
        "normalize": {"action": {"method": "min_max"}},
        "augment": {"primary": {"brightness": 0.2}},
        "metadata": "full",
    }  # fmt: skip
    plain["datasets"][1]["weight"] = 0.01
    path = tmp_path / "mix.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def test_a_page_shows_every_dataset_with_its_words_and_both_histograms(
    mix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sheet.html"
    words = ["peek", "--spec", str(mix), "--out", str(out), "--frames", "2", "--samples", "6"]
    assert main([*words, "--ram-floor", "1MB", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["sheet"] == str(out)
    page = out.read_text()
    assert page.startswith("<!doctype html>")
    for name, found in answer["datasets"].items():
        assert name in page
        assert found["samples"] >= 6
        assert len(found["language"]) == 2
        assert all(text in page for text in found["language"])
    assert set(answer["datasets"]) == {"first_arm", "second_arm"}
    assert page.count("normalised") == 2
    assert page.count("<image ") == 4


def test_a_picture_is_drawn_of_what_was_given(tmp_path: Path) -> None:
    panel = Panel()
    frames = np.zeros((2, 12, 16, 3), np.uint8)
    frames[..., 0] = 200
    panel.add_sample({"primary": frames}, "costs $5 and $6")
    panel.add_actions(np.ones((3, 2), np.float32), normalised=True)
    draw_sheet({"arm": panel}, tmp_path / "sheet.png", title="one", normalised=False)
    picture = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB"))
    assert (picture == [200, 0, 0]).all(axis=-1).mean() > 0.05


def test_cameras_stand_below_each_other_and_frames_in_a_row() -> None:
    high, low = np.full((3, 8, 8, 3), 10, np.uint8), np.full((3, 4, 4, 3), 20, np.uint8)
    found = strip([high, low])
    assert found.shape == (8 + 4 + 4 + 4, 3 * 12, 3)
    assert (found[:8, :8] == 10).all()
    assert (found[12:16, 8:12] == 20).all()
    assert (found[12:, 24:] == 255).all()


def test_a_file_of_another_kind_or_in_no_folder_is_refused(
    mix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["peek", "--spec", str(mix), "--out", str(tmp_path / "sheet.bmp")]) == 2
    assert ".png, .html" in capsys.readouterr().err
