"""The worked specs of ``examples/`` run as they are on the demo mixture, and explain every line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command_lines import Cli

from autoloader.loader import validation_specs
from autoloader.spec import PipelineSpec

pytestmark = pytest.mark.usefixtures("one_child")

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("octo", "openvla", "droid", "stage2", "validation", "transforms")


@pytest.fixture(scope="module")
def folder(kept_demo: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The specs as they are, beside a small demo mixture as ``data``."""
    place = tmp_path_factory.mktemp("examples")
    (place / "data").symlink_to(kept_demo(datasets=29, scale=0.01, seed=0).parent)
    for path in (*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("*.py")):
        (place / path.name).write_text(path.read_text())
    return place


def test_the_folder_holds_the_specs_that_are_tried_here_and_no_other():
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_explained_where_it_first_comes(name: str):
    lines = (EXAMPLES / f"{name}.yaml").read_text().splitlines()
    known: set[str] = set()
    for number, line in enumerate(lines):
        key = re.match(r"[\s-]*(\w+):", line)
        if key is None or key[1] in known:
            continue
        known.add(key[1])
        # A key that opens a block and the block's first line may share their words.
        assert any("# " in near for near in lines[max(0, number - 1) : number + 2]), line


@pytest.mark.parametrize("name", NAMES)
def test_a_worked_spec_can_be_planned(name: str, folder: Path, cli: Cli):
    spec = str(folder / f"{name}.yaml")
    cli("index", "--spec", spec)
    found = cli.json("plan", "--spec", spec, "--ram-floor", "64MiB")
    assert all(one["samples"] > 0 for one in found["datasets"].values())
    if name == "stage2":
        assert len(found["datasets"]) == 29
    if name == "droid":
        assert re.search(r"ranges leaves out [1-9]", found["datasets"]["wild_homes"]["lost"][-1])


@pytest.mark.parametrize("name", NAMES)
def test_all_values_of_a_worked_spec_are_those_of_plain_tfds(name: str, folder: Path, cli: Cli):
    found = cli.json("verify", "--spec", folder / f"{name}.yaml", "-n", 8, "--ram-floor", "64MiB")
    assert found["differences"] == []
    assert sum(found["samples"].values()) == 8


def test_each_dataset_that_does_not_say_null_has_a_validation_set(folder: Path):
    sets = validation_specs(PipelineSpec.from_yaml(folder / "validation.yaml"))
    assert list(sets) == ["kitchen_sink", "teacup_24", "mobile_drawers"]
