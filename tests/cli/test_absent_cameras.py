"""Cameras whose flag of presence is 0 in all episodes: what each command says of them."""

import json
import logging
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from command_lines import Cli
from rlds_files import image, jpeg, numbers, write_dataset
from streams import spec_file

from autoloader import AutoLoader
from autoloader.cli.doctor import indexes
from autoloader.samples.resolve import resolve
from autoloader.spec import PipelineSpec

pytestmark = pytest.mark.usefixtures("one_child")

FLAG = "episode_metadata/has_image"
FEATURES = {
    "observation/image": image(),
    "observation/state": numbers(3),
    "action": numbers(2),
    FLAG: numbers(dtype="bool"),
}
FLOOR = ["--ram-floor", "64MiB"]
WHERE = "primary is absent in all 3 episodes"
ABSENT = f"robot: camera {WHERE} ({FLAG} is 0): its frames are zeros → take out"
BLACK = bytes(cv2.imencode(".jpg", np.zeros((12, 16, 3), np.uint8))[1])


def robots(folder: Path, *flags: int, black: bool = False, damaged: bool = False) -> Path:
    """A dataset with an episode for each flag."""
    episodes: list[Any] = [
        {
            "observation/image": [BLACK if black else jpeg(0, step) for step in range(5)],
            "observation/state": [0.0] * 15,
            "action": [0.0] * 10,
            FLAG: [flag],
        }
        for flag in flags
    ]
    episodes += [b"\xff\xff"] * damaged
    return write_dataset(folder, [episodes], features=FEATURES).path


def flat(text: str) -> str:
    """Printed text without the line breaks of its width."""
    return " ".join(text.split())


def mix(data: Path) -> Path:
    entry = {
        "name": "robot",
        "path": str(data),
        "action": "action",
        "images": {"primary": {"path": "observation/image", "present": FLAG}},
    }
    document = {"datasets": [entry], "cameras": {"primary": {"size": [8, 8]}}, "batch": {"size": 2}}
    return spec_file(data.parents[1], document)


def test_a_camera_that_is_absent_everywhere_is_said(
    tmp_path: Path, cli: Cli, caplog: pytest.LogCaptureFixture
):
    spec = mix(robots(tmp_path, 0, 0, 0))
    assert "not known: no frame was decoded" in cli("plan", spec, *FLOOR).out
    with AutoLoader(spec, ram_floor="64MiB", isolation="thread", controller=False) as loader:
        batch = next(iter(loader))
    assert not batch["frame_mask"]["primary"].any()
    (told,) = [one for one in caplog.records if "is absent" in one.message]
    assert told.levelno == logging.WARNING
    assert ABSENT in told.message
    assert ABSENT in flat(cli("plan", spec, *FLOOR).err)
    datasets = list(resolve(PipelineSpec.of(spec)).datasets)
    assert any("primary is absent in all 3" in str(one) for one in indexes(datasets, spec))
    said = flat(cli("peek", spec, "--out", tmp_path / "a.html", *FLOOR).err)
    assert f"robot: camera primary is absent in all samples: {FLAG} is 0" in said


@pytest.mark.parametrize("indexed", [False, True])
def test_a_camera_that_one_episode_has_is_not_called_absent(
    tmp_path: Path, indexed: bool, cli: Cli
):
    spec = mix(robots(tmp_path, 0, 1, 0))
    if indexed:
        cli("index", spec)
    assert "absent" not in cli("plan", spec, *FLOOR).err
    assert "absent" not in cli("peek", spec, "--out", tmp_path / "a.html", *FLOOR).err


@pytest.mark.parametrize(
    ("flags", "how", "used"),
    [
        ((0, 0, 0), {}, False),
        ((0, 1, 0), {}, True),
        ((0, 0, 0), {"black": True}, True),
        ((0, 0), {"damaged": True}, False),
    ],
)
def test_init_takes_no_flag_that_contradicts_the_pictures(
    tmp_path: Path, flags: tuple[int, ...], how: dict[str, bool], used: bool, cli: Cli
):
    robots(tmp_path, *flags, **how)
    said = cli("init", tmp_path, "--json")
    text = json.loads(said.out)["spec"]
    images = yaml.safe_load(text)["datasets"][0]["images"]
    plain = "observation/image"
    assert images == {"primary": {"path": plain, "present": FLAG} if used else plain}
    words = f"camera primary: {FLAG} is 0 in all {len(flags)} episodes read, yet the pictures are"
    assert (f"robot: {words}" in flat(said.err)) == (not used)
    assert (words in " ".join(text.replace("#", "").split())) == (not used)
