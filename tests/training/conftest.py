"""A mixture small enough that a run over it takes a second or two."""

from pathlib import Path

import pytest
import rlds_files
from ruamel.yaml import YAML


@pytest.fixture(scope="session")
def small_mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``mix.yaml`` of two datasets; the second has no ``val`` split and no instructions."""
    folder = tmp_path_factory.mktemp("small_mix")
    datasets = []
    for name, first in (("cup", 0), ("drawer", 10)):
        shards = [[rlds_files.episode(first + n, 9)] for n in range(4)]
        written = rlds_files.write_dataset(folder, shards, name=name)
        dataset = {
            "name": name,
            "path": str(written.path),
            "images": {"primary": "observation/image"},
            "action": "action",
            "state": "observation/state",
            "split": {"train": "train[:3]", "val": None},
        }
        if name == "cup":
            dataset["language"] = "language_instruction"
            dataset["split"]["val"] = "train[3:]"
        datasets.append(dataset)
    spec = {
        "datasets": datasets,
        "sample": {"frame_offsets": [0, 2], "action_horizon": 2},
        "cameras": {"primary": {"size": [32, 32]}},
        "batch": {"size": 4},
        "validation": {"samples": 8},
    }
    path = folder / "mix.yaml"
    YAML(typ="safe", pure=True).dump(spec, path)
    return path
