"""Every recipe on files in its dataset's public feature tree, against what the project does.

The files are of TFDS's own encoders, with random values; the reference (``recipe_values``) is
written from what the projects do, not from recipes or ops.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipe_files import Files, leaves_of, picture, write
from recipe_trees import TREES
from recipe_values import Wanted, wanted
from rlds_files import once
from test_both_readers import read_from_index, read_from_stream

from autoloader import recipes
from autoloader.samples.resolve import ResolvedMixture, resolve
from autoloader.spec import PipelineSpec

HORIZON = 3
STYLES = ("octo", "openvla", "oft", "openpi")
UNTESTED = {
    "gnm_dataset", "aloha_static_dataset", "aloha_dagger_dataset", "droid_wipe", "roboset", "rh20t",
    "mujoco_manip", "cmu_playing_with_food", "tdroid_carrot_in_bowl", "tdroid_pour_corn_in_pot",
    "tdroid_flip_pot_upright", "tdroid_move_object_onto_plate", "tdroid_knock_object_over",
    "tdroid_cover_object_with_towel",
}  # fmt: skip
"""Datasets whose feature trees are not public, or not wholly."""


files = once(lambda folder: {name: write(folder, name, seed) for seed, name in enumerate(TREES)})


def test_every_dataset_has_a_known_tree_or_says_that_it_is_untested():
    every = {name for style in recipes.STYLES for name in recipes.names(style)}
    assert set(TREES) == every - UNTESTED
    for style in recipes.STYLES:
        for name in recipes.names(style):
            notes = recipes.recipe(name, style).notes
            assert any("untested" in note for note in notes) == (name in UNTESTED)


def mixture_with(found: recipes.Recipe, path: Path) -> ResolvedMixture:
    """Chunks of three rows; the reward goes along as a feature."""
    dataset = {"name": found.name, "path": str(path), **found.dataset}
    dataset["features"] = {"reward": "reward"}
    cameras = {camera: {"size": [8, 8]} for camera in dataset["images"]}
    raw = {"datasets": [dataset], "cameras": cameras, "sample": {"action_horizon": HORIZON}}
    return resolve(PipelineSpec.from_mapping(raw))


def chunk(one: Wanted, style: str, t: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows [3, A] from t on, the last one again behind the end; which lie inside)."""
    last = len(one.action) - 1
    rows = np.stack([one.action[min(t + h, last)] for h in range(HORIZON)])
    if style == "openpi":  # joints relative to the joints at t, the gripper absolute
        rows[:, :7] -= one.state[t, :7]
    return rows, np.asarray([t + h <= last for h in range(HORIZON)])


def held(name: str, style: str, files: Files, read: Any) -> int:
    """Hold all samples of a pass against the reference; how many there were."""
    found = recipes.recipe(name, style)
    mixture = mixture_with(found, files.path)
    expected = {}
    made = [wanted(name, style, one) for one in files.episodes]
    for record, one in enumerate(made):
        if one is not None:
            expected |= {(record, t): one for t in np.flatnonzero(one.valid).tolist()}
    pictures = {leaf.path: leaf for leaf in leaves_of(TREES[name]) if leaf.kind in ("j", "p")}
    came = []
    for (pass_, _, record, t), block, k in read(mixture):
        if pass_:
            continue
        came.append((record, t))
        one = expected[record, t]
        where = f"{name}, {style}, record {record}, t {t}"
        rows, inside = chunk(one, style, t)
        action, action_mask = block.columns["action"][k], block.columns["action_mask"][k]
        np.testing.assert_allclose(action, rows, atol=1e-6, err_msg=where)
        np.testing.assert_array_equal(action_mask, np.repeat(inside[:, None], rows.shape[1], 1))
        reward = files.episodes[record]["reward"][one.steps[t]]
        assert block.columns["features/reward"][k].tolist() == reward.tolist(), where
        if one.state is None:
            assert block.columns["state"].shape[-1] == 0
        else:
            state, mask = block.columns["state"][k], block.columns["state_mask"][k]
            np.testing.assert_allclose(state[0], one.state[t], atol=1e-6, err_msg=where)
            assert mask.all()
        assert block.texts[k].decode() == one.language[t], where
        for camera, choice in found.dataset["images"].items():
            named = choice if isinstance(choice, dict) else {"path": choice}
            paths = named.get("any_of") or [named["path"]]
            frame = block.frames[camera][block.frame_row[k, 0]]
            leaves = [pictures[path] for path in paths]
            step = int(one.steps[t])
            assert frame in [picture(leaf.kind, *leaf.shape, step) for leaf in leaves], where
    assert sorted(came) == sorted(expected), f"{name}, {style}"
    return len(came)


@pytest.mark.parametrize("style", STYLES)
def test_every_recipe_gives_what_its_project_trains_on(style: str, files: dict[str, Files]):
    counts = {
        name: held(name, style, files[name], read_from_index)
        for name in recipes.names(style)
        if name in files
    }
    assert all(counts.values()), counts


@pytest.mark.parametrize(
    ("name", "style"),
    [("bridge_dataset", "openvla"), ("kuka", "octo"), ("droid", "openvla"), ("droid", "openpi"),
     ("language_table", "octo"), ("berkeley_rpt_converted_externally_to_rlds", "octo")],
)  # fmt: skip
def test_the_stream_reader_gives_the_same(name: str, style: str, files: dict[str, Files]):
    assert held(name, style, files[name], read_from_stream)
