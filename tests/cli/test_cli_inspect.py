"""``autoloader inspect``: what it says of a dataset is what the files hold."""

import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from command_lines import Cli
from rlds_files import PLAIN, TEXT, Written, episode, image, numbers, png, write_dataset

from autoloader.cli.app import main

STEPS = 6
FEATURES = {
    **PLAIN,
    "observation/wrist": image(),
    "observation/dark": image(),
    "observation/instruction": numbers(8, dtype="int32"),
    "observation/embedding": numbers(100),
    "packed": numbers(3, encoding="zlib"),
    "observation/nowhere": numbers(2),
    "episode_metadata/file_path": TEXT,
    "episode_metadata/success": numbers(dtype="bool"),
}


def of(number: int) -> dict[str, Any]:
    """Episode ``number``, whose wrist camera is PNG and whose third camera is always black."""
    black = bytes(cv2.imencode(".jpg", np.zeros((12, 16, 3), np.uint8))[1])
    state = [v for step in range(STEPS) for v in (float(number), float(step), float("nan"))]
    return episode(
        number,
        STEPS,
        **{
            "observation/wrist": [png(number, step) for step in range(STEPS)],
            "observation/dark": [black] * STEPS,
            "observation/state": state,
            "observation/instruction": [ord(c) for c in "push\0\0\0\0"] * STEPS,
            "observation/embedding": [0.25] * (100 * STEPS),
            "packed": [zlib.compress(np.arange(3, dtype="<f4").tobytes())] * STEPS,
            "episode_metadata/file_path": [f"/raw/{number}".encode()],
            "episode_metadata/success": [number % 2],
        },
    )


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return write_dataset(
        tmp_path,
        [[of(0), of(1)], [of(2)]],
        name="arm",
        features=FEATURES,
        splits={"val": [[of(9)]]},
    )


def test_it_tells_splits_features_the_first_episode_and_ranges(written: Written, cli: Cli):
    found = cli.json("inspect", written.path)
    assert found["splits"] == {
        "train": {"episodes": 3, "shards": 2}, "val": {"episodes": 1, "shards": 1},
    }  # fmt: skip
    assert set(found["features"]) == set(FEATURES)
    assert found["features"]["packed"]["encoding"] == "zlib"
    assert not found["features"]["episode_metadata/success"]["per_step"]
    read = found["read"]
    assert (read["split"], read["episodes"], read["steps"], read["first_steps"]) == (
        "train", 3, 3 * STEPS, STEPS,
    )  # fmt: skip
    assert read["first"]["action"] == [0.0, 0.0]
    assert read["first"]["observation/instruction"] == ["push"]
    assert read["first"]["language_instruction"] == ["episode 0"]
    assert read["first"]["episode_metadata/file_path"] == ["/raw/0"]
    told = read["first"]["observation/wrist"]
    assert (told["stored_as"], told["height"], told["width"]) == ("png", 12, 16)
    assert read["first"]["observation/image"]["stored_as"] == "jpeg"
    assert read["absent"] == ["observation/nowhere"]
    assert read["first"]["packed"] == [0.0, 1.0, 2.0]
    number, step, nothing = read["ranges"]["observation/state"]
    assert (number["low"], number["high"], number["values"]) == (0.0, 2.0, [0.0, 1.0, 2.0])
    assert (step["low"], step["high"], step["mean"], step["values"]) == (0.0, 5.0, 2.5, None)
    assert (nothing["low"], nothing["not_finite"]) == (None, 3 * STEPS)
    (whole,) = read["ranges"]["observation/embedding"]
    assert (whole["column"], whole["values"]) == (None, [0.25])
    (success,) = read["ranges"]["episode_metadata/success"]
    assert success["mean"] == pytest.approx(1 / 3)


def test_a_folder_of_several_datasets_or_none_is_refused(
    written: Written, tmp_path: Path, cli: Cli
):
    write_dataset(tmp_path, [[episode(0, 3)]], name="hand")
    told = cli("inspect", tmp_path, code=2).err
    assert "holds 2 datasets" in told
    assert str(written.path) in told
    assert main(["inspect", str(tmp_path / "nowhere")]) == 4
    assert "did you mean 'train'?" in cli("inspect", written.path, "--split", "trian", code=2).err
