"""Depth cameras in the commands that look at data: ``inspect``, ``init``, ``peek``, ``verify``."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from command_lines import Cli
from rlds_files import PLAIN, Written, episode, image, numbers, once, png, write_dataset
from streams import spec_file

from autoloader.cli.peek import coloured

HEIGHT, WIDTH, STEPS = 18, 24, 5
FEATURES = {
    **PLAIN,
    "observation/depth": image(HEIGHT, WIDTH, dtype="uint16", channels=1),
    "observation/wrist_depth": numbers(HEIGHT, WIDTH),
    "camera_matrix": numbers(4, 4),
    "task": numbers(dtype="int64"),
    "has_image": numbers(dtype="bool"),
    "instructions": numbers(2, dtype="string"),
}


def millimetres(number: int, step: int) -> np.ndarray:
    values = np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH) + 500
    values[0, 0] = 0  # not measured
    return values + 1000 * step + number


def of(number: int) -> dict[str, Any]:
    frames = [millimetres(number, step) for step in range(STEPS)]
    return episode(
        number,
        STEPS,
        encode=png,
        **{
            "observation/depth": [bytes(cv2.imencode(".png", one)[1]) for one in frames],
            "observation/wrist_depth": [float(v) / 1000 for one in frames for v in one.ravel()],
            "camera_matrix": [0.0] * 16 * STEPS,
            "task": [step % 3 for step in range(STEPS)],
            "has_image": [step > 0 for step in range(STEPS)],
            "instructions": [one for step in range(STEPS) for one in (b"", b"push %d" % step)],
        },
    )


written = once(
    lambda folder: write_dataset(folder, [[of(number) for number in range(3)]], features=FEATURES)
)


@pytest.fixture(scope="module")
def mix(written: Written) -> Path:
    common = {
        "path": str(written.path),
        "action": "action",
        "images": {
            "primary": {"path": "observation/image", "present": "has_image"},
            "depth": "observation/depth",
            "wrist_depth": "observation/wrist_depth",
        },
    }
    named = {"path": "task", "names": {0: "pick", 1: " "}}
    spec = {
        "datasets": [
            {"name": "named", "language": named, **common},
            {"name": "drawn", "language": {"path": "instructions", "several": "draw"},
             "keep": {"language": "required"}, **common},
        ],
        "cameras": {
            "primary": {"size": [12, 16]},
            "depth": {"size": [10, 30], "depth": "uint16", "fit": "pad"},
            "wrist_depth": {"size": [HEIGHT, WIDTH], "depth": "float32"},
        },
        "sample": {"frame_offsets": [0, 2], "edges": {"end": "zero"}},
        "normalize": {"action": {"method": "min_max"}},
    }  # fmt: skip
    return spec_file(written.path.parent, spec)


def test_init_names_depth_in_a_comment(written: Written, cli: Cli):
    text = " ".join(cli.json("init", (written.path.parent))["spec"].split())
    text = text.replace(" # ", " ")
    for name, dtype in (("depth", "uint16"), ("wrist_depth", "float32")):
        assert (
            f"depth, as a camera: images: {{{name}: observation/{name}}}, and below cameras: "
            f"{name}: {{size: [256, 256], depth: {dtype}}}"
        ) in text
    assert text.count("depth, as a camera") == 2


def test_peek_draws_depth_with_its_scale(mix: Path, tmp_path: Path, cli: Cli):
    sheet = tmp_path / "sheet.html"
    found = cli.json("peek", "--spec", mix, "--out", sheet, "--ram-floor", "64MiB", "--samples", 16)
    for panel in found["datasets"].values():
        shown = panel["frames"][0]
        assert shown["depth"].keys() == {"depth", "wrist_depth"}
        low, high = shown["depth"]["depth"]["low"], shown["depth"]["depth"]["high"]
        assert 500 <= low < high
        assert f"{low:.3g}" in sheet.read_text()
        assert f"{high:.3g}" in sheet.read_text()


def test_colours_go_from_the_least_to_the_greatest_value_that_was_measured():
    frames = np.zeros((2, 2, 3, 1), np.float32)
    frames[0, 0, :, 0] = (1, 2, 5)
    frames[1, 1, 0, 0] = np.nan
    pictures, scale = coloured(frames)
    assert scale == (1, 5)
    assert pictures.shape == (2, 2, 3, 3)
    assert len({tuple(pictures[0, 0, k].tolist()) for k in range(3)}) == 3
    assert not pictures[1].any()
    assert coloured(np.zeros((1, 2, 2, 1), np.uint16))[1] is None
