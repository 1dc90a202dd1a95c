"""``autoloader peek``: what is on the sheet, and what it says stands out."""

import html
import json
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from command_lines import Cli
from rlds_files import PLAIN, Written, episode, image, once, write_dataset
from streams import dataset_of, spec_file, spec_of

from autoloader.cli.app import main
from autoloader.cli.peek import Column, drawn, look_at, not_binary
from autoloader.samples.resolve import resolve

STEPS = 9
FEATURES = {**PLAIN, "observation/dark": image()}
BLACK = bytes(cv2.imencode(".jpg", np.zeros((12, 16, 3), np.uint8))[1])


def of(number: int) -> dict[str, Any]:
    """An episode with a black camera, whose instruction is blank at every third step."""
    words = [b" " if step % 3 == 1 else f"push {number} <b>".encode() for step in range(STEPS)]
    dark = {"observation/dark": [BLACK] * STEPS, "language_instruction": words}
    return episode(number, STEPS, **dark)


written = once(
    lambda folder: [
        write_dataset(folder, [[of(n + k) for n in range(2)]], name=name, features=FEATURES)
        for k, name in ((0, "first_arm"), (4, "second_arm"))
    ]
)


@pytest.fixture(scope="module")
def sheet(written: list[Written], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """The page and the answer of one run."""
    folder = tmp_path_factory.mktemp("sheet")
    plain: dict[str, Any] = {
        "datasets": [
            {"name": one.name, "path": str(one.path), "action": "action",
             "state": "observation/state", "language": "language_instruction",
             "images": {"primary": "observation/image"}}
            for one in written
        ],
        "cameras": {"primary": {"size": [12, 16]}, "third": {"size": [8, 8]}},
        "sample": {"frame_offsets": [0, 2], "goal": "uniform"},
        "normalize": {"action": {"method": "min_max", "dims": "[:-1]"}},
        "augment": {"primary": {"brightness": 0.2}},
    }  # fmt: skip
    plain["datasets"][0]["images"]["third"] = "observation/dark"
    plain["datasets"][0]["keep"] = {"language": "required"}
    plain["datasets"][1]["weight"] = 0.01
    plain["datasets"][1]["action"] = [
        "action[:1]", {"path": "action[1:]", "ops": [{"clip": [0, 1]}, "invert"]},
    ]  # fmt: skip
    (folder / "mix.yaml").write_text(yaml.safe_dump(plain))
    out, told = folder / "sheet.html", folder / "told.json"
    words = ["peek", "--spec", str(folder / "mix.yaml"), "--out", str(out)]
    with told.open("w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        assert main([*words, "--samples", "18", "--ram-floor", "64MiB", "--json"]) == 0
    return out.read_text(), json.loads(told.read_text())


def test_a_page_shows_every_dataset_with_its_words_cameras_and_labelled_frames(
    sheet: tuple[str, Any],
):
    page, answer = sheet
    assert page.startswith("<!DOCTYPE html>")
    assert set(answer["datasets"]) == {"first_arm", "second_arm"}
    for name, found in answer["datasets"].items():
        assert name in page
        assert found["samples"] >= 12
        assert len(found["language"]) == 3
        assert all(html.escape(text) in page for text in found["language"])
        for frame in found["frames"]:
            assert frame["cameras"] == ["primary", "third"]
            assert all(label in page for label in frame["labels"])
            assert frame["labels"][2].startswith("goal t")
            assert f"t = {frame['t']}" in page
    assert page.count('<img src="data:image/jpeg;base64,') == 2 * 3 * 2 * 3
    assert answer["datasets"]["second_arm"]["frames"][0]["absent"] == ["third"]
    assert "third (none)" in page


def test_each_column_is_shown_as_stored_behind_each_op_and_as_the_model_gets_it(
    sheet: tuple[str, Any],
):
    page, answer = sheet
    arm, gripper = answer["datasets"]["second_arm"]["fields"]["action"]
    assert [stage["after"] for stage in arm["stages"]] == ["stored", "to the model: min_max"]
    assert (arm["normalised"], gripper["normalised"]) == (True, False)
    assert -1 <= arm["stages"][1]["low"] < 0 < arm["stages"][1]["high"] <= 1
    stored, clipped, inverted, model = gripper["stages"]
    assert (stored["low"], stored["high"], stored["mean"]) == (0.0, STEPS - 1, (STEPS - 1) / 2)
    assert (clipped["after"], clipped["values"]) == ("clip [0.0, 1.0]", [0.0, 1.0])
    assert (inverted["after"], inverted["mean"]) == ("invert", pytest.approx(1 / STEPS))
    assert model["values"] == [0.0, 1.0]
    assert gripper["flag"] is None
    for word in ("clip [0.0, 1.0]", "invert", "to the model: min_max", "not normalised"):
        assert word in page
    state = answer["datasets"]["second_arm"]["fields"]["state"]
    assert [one["name"] for one in state] == ["0: state 0", "1: state 1", "2: state 2"]


def test_the_steps_that_a_rule_removes_are_shown(sheet: tuple[str, Any]):
    page, answer = sheet
    found = answer["datasets"]["first_arm"]
    assert [one["removed"] for one in found["episodes"]] == [{"keep.language": [1, 4, 7]}] * 2
    assert "keep.language removes 6 steps" in page
    assert answer["datasets"]["second_arm"]["removed"] == {}


def test_the_fields_of_each_episode_are_lines_over_its_steps(sheet: tuple[str, Any]):
    page, _ = sheet
    assert "<b>" not in re.sub(r"<b>\d+: ", "", page), "texts are escaped"
    assert page.count('<div class="episode"') == 4
    assert page.count('data-name="Episode 2 of 2, 9 steps"') == 2
    lines = re.findall(r'data-values="([^"]+)"', page)
    assert len(lines) == 4 * (2 + 3)
    steps = [float(step) for step in range(STEPS)]
    assert lines[0] == json.dumps([step / 100 for step in range(STEPS)])
    assert steps in [json.loads(line) for line in lines]


def test_a_line_leaves_out_what_is_no_finite_number():
    (line,) = drawn([Column("0: lift")], [np.asarray([0, np.inf, 2, np.nan], np.float32)])
    assert (line["told"], line["points"]) == ([0.0, None, 2.0, None], "0.5,28.0 2.5,2.0")


def test_an_op_that_sees_the_episode_is_shown_before_and_after(written: list[Written]):
    action = [{"path": "observation/state[1:]", "ops": ["relabel"]}, {"zeros": 1}]
    spec = spec_of(dataset_of(written[0], action=action, steps={"drop_first": 2, "drop_last": 1}))
    fields, _ = look_at(resolve(spec).datasets[0], spec.datasets[0], 1)
    first, second, constant = fields["action"]
    for column, sign in ((first, 1.0), (second, -1.0)):
        (_, stored), (name, after) = column.stages
        assert stored.tolist() == [sign * step for step in range(2, STEPS - 1)]
        assert (name, after.tolist()) == ("relabel", [sign] * (STEPS - 3))
    assert constant.stages[0][1].shape == (STEPS - 3,)


def test_the_first_samples_are_shown_and_the_file_is_checked_before_they_are_read(
    written: list[Written], tmp_path: Path, cli: Cli
):
    path = spec_file(tmp_path, spec_of(dataset_of(written[0], language="language_instruction")))
    rest = ["peek", str(path), "--samples", "9", "--ram-floor", "64MiB", "--json"]
    told = cli(*rest, "-o", tmp_path / "missing" / "sheet.html", code=2).err
    assert "reading samples" not in told
    (found,) = json.loads(cli(*rest, "-o", tmp_path / "sheet.html").out)["datasets"].values()
    assert len(found["language"]) == len(found["frames"]) == 3 < found["samples"]


def test_a_gripper_with_values_between_is_told_as_such():
    assert not_binary(np.asarray([0, 1, 1], np.float32)) == ""
    assert (
        not_binary(np.asarray([0, 0.5, 1], np.float32))
        == "gripper has values between 0 and 1: 0, 0.5, 1"
    )
    assert not_binary(np.asarray([-1, 1], np.float32)) == "gripper not only 0 and 1: -1, 1"
