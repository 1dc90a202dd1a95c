"""The cookbook's recipes are planned and loaded on small files in their datasets' feature trees."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_lines import Cli
from lerobot_files import LeRobotFiles
from recipe_files import write
from recipe_trees import TREES
from streams import opened

from autoloader import PipelineSpec
from autoloader.spec.reading import parse_yaml

PAGE = Path(__file__).parents[2] / "docs/howto/cookbook.md"
RECIPES = {
    text.splitlines()[0].removeprefix("# "): text
    for text in re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
}


def test_there_are_five_recipes_of_at_most_25_lines():
    assert len(RECIPES) == 5
    assert all(len(text.splitlines()) <= 25 for text in RECIPES.values())


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_gives_batches(name: str, tmp_path: Path, cli: Cli):
    spec: Any = parse_yaml(RECIPES[name])
    for seed, dataset in enumerate(spec["datasets"]):
        place = Path(dataset.get("path") or dataset["tfds"].replace(":", "/"))
        tree = place.parent.name
        dataset.pop("tfds", None)
        if tree in TREES:
            dataset["path"] = str(write(tmp_path, tree, seed).path)
        else:  # the cookbook's LeRobot data
            cameras = dict.fromkeys(dataset["images"].values(), 2)
            dataset["path"] = str(LeRobotFiles(cameras=cameras).write(tmp_path / place.name))
    spec["batch"] = {"size": 2}
    (tmp_path / name).write_text(json.dumps(spec))  # JSON is YAML
    cli("index", tmp_path / name)
    assert cli("plan", tmp_path / name, "--ram-floor", "64MiB").out.startswith("Fits   yes")
    declared = PipelineSpec.from_yaml(tmp_path / name)
    with opened(declared) as loader:
        batch = next(iter(loader))
    assert len(batch["language"]) == 2
    assert batch["action_mask"].any()
    assert set(batch["images"]) == set(spec["cameras"])
