"""``autoloader profile diff --accept`` and ``show -o``: what is taken over, and passed on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from autoloader.cli.app import main
from autoloader.controller.profile import Profile
from autoloader.controller.profiles import find_profile, user_profiles_dir


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_teammates_profile_is_exported_and_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "show", "mcml_a100", "-o", "lab.yaml", "--json"]) == 0
    assert answer(capsys)["path"] == "lab.yaml"
    words = ["profile", "diff", "lab.yaml", "--accept", "--name", "lab", "--json"]
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
