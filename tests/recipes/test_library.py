"""The library of recipes: every entry is spec language, names lead to it, mixtures are whole."""

from typing import Any

import numpy as np
import pytest
from autoloader.recipes.functions import gnm

from autoloader import recipes
from autoloader.errors import UsageError
from autoloader.spec import PipelineSpec


def spec_with(found: recipes.Recipe) -> PipelineSpec:
    cameras = {camera: {"size": [8, 8]} for camera in found.dataset["images"]}
    dataset = {"name": found.name, "path": "/nowhere", **found.dataset}
    return PipelineSpec.from_mapping({"datasets": [dataset], "cameras": cameras})


@pytest.mark.parametrize("style", recipes.STYLES)
def test_every_recipe_is_a_dataset_of_a_spec(style: str):
    for name in recipes.names(style):
        found = recipes.recipe(name, style)
        (dataset,) = spec_with(found).datasets
        assert (found.name, found.style) == (name, style)
        assert dataset.action is not None


@pytest.mark.parametrize(
    ("other", "name", "style"),
    [
        ("bridge_orig", "bridge_dataset", "openvla"),
        ("bridge_orig", "bridge_dataset", "octo"),
        ("bridge_oxe", "bridge", "openvla"),
        ("fmb", "fmb_dataset", "octo"),
        ("robo_set", "roboset", "octo"),
    ],
)
def test_a_projects_own_name_leads_to_the_recipe(other: str, name: str, style: str):
    assert recipes.recipe(other, style) == recipes.recipe(name, style)


@pytest.mark.parametrize(
    ("name", "style", "words"),
    [
        ("fractal20220817", "octo", ["fractal20220817_data"]),
        ("droid", "octo", ["openvla", "openpi"]),
        ("bridge_orig", "openpi", ["octo", "openvla", "oft"]),
        ("kuka", "rt1", ["style 'rt1'", "octo"]),
    ],
)
def test_a_recipe_that_there_is_not_is_refused_by_name(name: str, style: str, words: list[str]):
    with pytest.raises(UsageError) as error:
        recipes.recipe(name, style)
    for word in words:
        assert word in str(error.value)


def test_mixtures_have_the_datasets_of_their_project():
    counts = {style: {n: len(w) for n, w in recipes.mixtures(style).items()} for style in
              ("octo", "openvla")}  # fmt: skip
    assert counts["octo"] == {
        "bridge": 1, "rtx": 11, "rtx_franka": 25, "oxe_magic_soup": 25, "oxe_flex_act_soup": 32,
    }  # fmt: skip
    assert counts["openvla"] == {
        "bridge": 1, "bridge_rt_1": 2, "rtx": 10, "rtx_franka": 23, "oxe_magic_soup": 23,
        "oxe_magic_soup_plus": 27, "oxe_magic_soup_plus_minus": 25,
    }  # fmt: skip
    for style in recipes.STYLES:
        for weights in recipes.mixtures(style).values():
            assert set(weights) <= set(recipes.names(style))
            assert all(type(weight) is float and weight > 0 for weight in weights.values())


def octo(name: str) -> dict[str, Any]:
    return recipes.recipe(name, "octo").dataset


def test_bridge_is_another_thing_in_each_project():
    assert octo("bridge_dataset")["steps"] == {"drop_last": 1}
    openvla = recipes.recipe("bridge_dataset", "openvla").dataset
    assert openvla["steps"] == {"drop_first": 1, "drop_last": 1}
    assert set(openvla["images"]) == {"primary", "secondary"}


def test_gnm_is_driven_in_its_own_frame():
    random = np.random.default_rng(0)
    position = random.normal(size=(11, 2)).astype(np.float32)
    yaw = random.uniform(-3, 3, 11).astype(np.float32)
    action = random.normal(size=(11, 2)).astype(np.float32)
    observation = {"position": position, "yaw": yaw, "state": position}
    made = gnm({"action": action, "observation": observation, "episode_metadata": {"a": 1}})
    assert made is not None
    factor = np.linalg.norm(action[0]) / np.linalg.norm(position[1] - position[0])
    wanted = []
    for now, after in ((0, 3), (3, 6), (6, 9)):
        turn = [[np.cos(yaw[now]), -np.sin(yaw[now])], [np.sin(yaw[now]), np.cos(yaw[now])]]
        wanted.append((position[after] - position[now]) @ np.asarray(turn) * factor)
    np.testing.assert_allclose(made["action"], wanted, atol=1e-5)
    assert made["observation"]["state"].tolist() == position[[0, 3, 6]].tolist()
    assert made["episode_metadata"] == {"a": 1}
    short = {"action": action[:1], "observation": {"position": position[:1], "yaw": yaw[:1]}}
    assert gnm(short) is None
