"""Writes a small LeRobot dataset with a ``modality.json``, and reads its rows by pyarrow alone."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from lerobot_files import HEIGHT, WIDTH, LeRobotFiles
from numpy.typing import NDArray

TOP = "observation.images.top"
TEXTS = "annotation.human.action.task_description"
MODALITY: dict[str, Any] = {
    "state": {"hand_quat": {"start": 3, "end": 7, "rotation_type": "quaternion"},
              "left_arm": {"start": 0, "end": 3}, "gripper": {"start": 7, "end": 8}},
    "action": {"left_arm": {"start": 0, "end": 3},
               "turn": {"start": 3, "end": 6, "absolute": False},
               "gripper": {"start": 6, "end": 7, "dtype": "bool"},
               "base": {"start": 0, "end": 2, "original_key": "action.base"}},
    "video": {"ego_view": {"original_key": TOP}},
    "annotation": {"human.action.task_description": {},
                   "human.validity": {"original_key": "task_index"}, "human.trace": {}},
}  # fmt: skip
WIDTHS = {"action": 7, "observation.state": 8, "action.base": 2}


@dataclass
class Gr00tFiles(LeRobotFiles):
    """A dataset of v2.1 as GR00T's tools write it; timestamps begin at ``first_time`` frames."""

    version: str = "v2.1"
    lengths: Any = (22, 18, 9)
    first_time: int = 0

    def __post_init__(self) -> None:
        """Declare the features."""
        floats = {name: {"dtype": "float32", "shape": [width]} for name, width in WIDTHS.items()}
        numbers = ("frame_index", "episode_index", "index", "task_index", TEXTS)
        self.info = {
            "features": {
                TOP: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": None},
                **floats,
                "timestamp": {"dtype": "float32", "shape": [1]},
                **{name: {"dtype": "int64", "shape": [1]} for name in numbers},
                "annotation.human.trace": {"dtype": "binary", "shape": [1]},
            }
        }

    def _rows(self, episode: int, first: int) -> dict[str, Any]:
        length = self.lengths[episode]
        found = super()._rows(episode, first)
        random = np.random.default_rng(episode)
        for name, width in WIDTHS.items():
            found[name] = list(random.normal(size=(length, width)).astype(np.float32))
        for row in found["action"]:
            row[6] = row[6] > 0
        for row in found["observation.state"]:
            row[2] = 0.25  # a column that never moves
        times = (np.arange(length) + self.first_time) / self.fps
        found["timestamp"] = times.astype(np.float32)
        found[TEXTS] = np.full(length, 1 - episode % 2)
        found["annotation.human.trace"] = [b"\x00\xff"] * length
        return found

    def write(self, root: Path) -> Path:
        """Write all files below ``root``."""
        super().write(root)
        (root / "meta/modality.json").write_text(json.dumps(MODALITY))
        return root


@functools.cache
def table(root: Path, episode: int) -> dict[str, NDArray[Any]]:
    """Columns of an episode, [T, width] of the numbers."""
    file = root / f"data/chunk-000/episode_{episode:06d}.parquet"
    columns = pq.read_table(file).to_pydict()
    return {
        name: np.asarray(values, np.float32) if name in WIDTHS else np.asarray(values)
        for name, values in columns.items()
        if not isinstance(values[0], bytes)
    }
