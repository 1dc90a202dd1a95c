"""Specs that ``init`` writes in a project's style run unedited, on public feature trees."""

import json
from pathlib import Path

import pytest
from command_lines import Cli
from recipe_files import write

from autoloader.cli.app import main

pytestmark = pytest.mark.usefixtures("one_child")

TWELVE = (
    "fractal20220817_data", "bridge_dataset", "taco_play", "jaco_play", "berkeley_cable_routing",
    "viola", "toto", "language_table", "austin_buds_dataset_converted_externally_to_rlds",
    "furniture_bench_dataset_converted_externally_to_rlds", "bc_z", "utaustin_mutex",
)  # fmt: skip
"""Datasets of both projects' large mixtures."""
CASES = {
    "octo": ("oxe_magic_soup", 25, set(TWELVE)),
    "openvla": ("oxe_magic_soup_plus", 27, set(TWELVE)),
    "openpi": ("droid", 1, {"droid"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The twelve, and DROID and one that is in no mixture in a folder of their own each."""
    found = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(TWELVE):
        write(found / "twelve", name, seed)
    for seed, name in enumerate(("droid", "uiuc_d3field")):
        write(found / name, name, 100 + seed)
    return found


@pytest.fixture(scope="module")
def specs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What ``init`` writes in each style, as it is."""
    place = tmp_path_factory.mktemp("specs")
    for style, (mix, _, _) in CASES.items():
        below = folder / ("droid" if style == "openpi" else "twelve")
        with (place / f"{style}.yaml").open("w") as file, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdout", file)
            assert main(["init", str(below), "--style", style, "--mix", mix]) == 0
    return {style: place / f"{style}.yaml" for style in CASES}


FLOOR = ("--ram-floor", "64MiB")


@pytest.mark.parametrize("style", CASES)
def test_a_spec_says_which_datasets_of_its_mixture_are_there_and_takes_recipes_for_all(
    style: str, folder: Path, specs: dict[str, Path], cli: Cli
):
    mix, size, there = CASES[style]
    below = folder / ("droid" if style == "openpi" else "twelve")
    told = cli("init", below, "--style", style, "--mix", mix, "--json")
    answer = json.loads(told.out)
    assert answer["spec"] == specs[style].read_text()
    assert (answer["mix"]["datasets"], set(answer["mix"]["present"])) == (size, there)
    assert len(answer["mix"]["absent"]) == size - len(there)
    assert f"{len(there)} of the {size} datasets of {mix}" in told.err
    assert f"# {len(there)} of its {size} datasets" in answer["spec"]
    assert not any(one["proposed"] for one in answer["datasets"].values()), told.err


@pytest.mark.parametrize("style", CASES)
def test_it_peeks_unedited_and_grippers_that_a_recipe_makes_binary_are(
    style: str, specs: dict[str, Path], tmp_path: Path, cli: Cli
):
    words = ("--out", tmp_path / "sheet.html", "--samples", 1, "--episodes", 2)
    peeked = cli.json("peek", "--spec", specs[style], *words, *FLOOR)["datasets"]
    assert set(peeked) == CASES[style][2]
    for name in {"fractal20220817_data", "jaco_play", "toto", "language_table"} & set(peeked):
        assert not [column["flag"] for column in peeked[name]["fields"]["action"] if column["flag"]]
    if style != "openpi":
        stages = [
            stage["after"]
            for stage in peeked["fractal20220817_data"]["fields"]["action"][6]["stages"]
        ]
        assert stages[:2] == ["stored", "rel2abs"]
        dropped = 2 if style == "openvla" else 1
        bridge = peeked["bridge_dataset"]["episodes"][0]["removed"]
        assert sum(len(steps) for rule, steps in bridge.items() if "steps" in rule) == dropped


@pytest.mark.parametrize("style", CASES)
def test_it_verifies_unedited(style: str, specs: dict[str, Path], cli: Cli):
    there = CASES[style][2]
    verified = cli.json("verify", "--spec", specs[style], "-n", len(there), *FLOOR)
    assert verified["differences"] == []
    assert set(verified["samples"]) == there


def test_a_folder_beside_the_mixture_is_left_out(folder: Path, cli: Cli):
    told = cli("init", folder / "uiuc_d3field", "--style", "octo", "--mix", "rtx", code=4).err
    assert "uiuc_d3field: not part of rtx, left out" in told
    assert "readable dataset of the mixture rtx" in told
