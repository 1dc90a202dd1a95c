"""The layouts of Octo, OpenVLA and openpi, over batches of a real loader."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rlds_files import Written, written_steps
from streams import dataset_of, spec_of

from autoloader import AutoLoader, layouts
from autoloader.errors import UsageError

STEPS = 10
HORIZON = 4
WIDTH = 2


written = written_steps([[STEPS]], name="arm")
"""One episode of ten steps; its action at t is (t / 100, t), its state (0, t, −t)."""
other = written_steps([[STEPS]], first=1, name="hand")


def batches(
    *datasets: Any, output: str = "numpy", size: int = STEPS, **top: Any
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The first batch of a mixture, as it is, and the names of its datasets."""
    top = {"batch": {"size": size}, "mixing": {"epoch": "pass"}, **top}
    with AutoLoader(
        spec_of(*datasets, **top), ram_floor="64MiB", isolation="thread", output=output
    ) as loader:
        return copy.deepcopy(next(iter(loader))), loader.dataset_names


def at(batch: dict[str, Any], t: int) -> int:
    """The row of the sample that stands at ``t``."""
    return batch["provenance"][:, 4].tolist().index(t)


def kinds(tree: Any) -> Any:
    """Shapes and types of a nested dictionary."""
    if isinstance(tree, dict):
        return {key: kinds(value) for key, value in tree.items()}
    return tuple(tree.shape), str(tree.dtype).removeprefix("torch.")


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_octo_names_shapes_and_types(written: Written, output: str):
    sample = {"action_horizon": HORIZON, "goal": "uniform"}
    batch, names = batches(written, output=output, sample=sample)
    frames, texts = ((STEPS, 1, 12, 16, 3), "uint8"), ((STEPS,), "object")
    row, each = ((STEPS, 1), "bool"), ((STEPS,), "bool")
    chunk = (STEPS, 1, HORIZON, WIDTH)
    assert kinds(layouts.octo(batch, names, goal=True)) == {
        "observation": {
            "image_primary": frames,
            "proprio": ((STEPS, 1, 3), "float32"),
            "timestep": ((STEPS, 1), "int32"),
            "timestep_pad_mask": row,
            "task_completed": ((STEPS, 1, HORIZON), "bool"),
            "pad_mask_dict": {"image_primary": row, "proprio": row, "timestep": row},
        },
        "task": {
            "image_primary": ((STEPS, 12, 16, 3), "uint8"),
            "timestep": ((STEPS,), "int32"),
            "language_instruction": texts,
            "pad_mask_dict": {
                "image_primary": each, "timestep": each, "language_instruction": each,
            },
        },
        "action": (chunk, "float32"),
        "action_pad_mask": (chunk, "bool"),
        "dataset_name": texts,
    }  # fmt: skip


def test_octos_mask_of_actions_ends_two_rows_behind_the_episode(written: Written):
    batch, _ = batches(written, sample={"action_horizon": HORIZON})
    found = layouts.octo(batch)
    for t, rows, masks in ((9, [9, 9, 9, 9], [1, 1, 0, 0]), (8, [8, 9, 9, 9], [1, 1, 1, 0]),
                           (4, [4, 5, 6, 7], [1, 1, 1, 1])):  # fmt: skip
        k = at(batch, t)
        assert found["action"][k, 0, :, 1].tolist() == rows
        for column in range(WIDTH):
            assert found["action_pad_mask"][k, 0, :, column].tolist() == [bool(m) for m in masks]
    assert "dataset_name" not in found


def test_octos_mask_of_actions_ends_two_rows_behind_the_goal(written: Written):
    batch, _ = batches(written, sample={"action_horizon": 6, "goal": "uniform"})
    found = layouts.octo(batch, goal=True)
    for t in range(STEPS):
        k = at(batch, t)
        goal = int(found["task"]["timestep"][k])
        assert t < goal < STEPS or t == goal == STEPS - 1
        assert found["action_pad_mask"][k, 0, :, 0].tolist() == [t + h < goal + 2 for h in range(6)]
        assert (found["task"]["image_primary"][k, 0, 0, 1] - (4 * goal + 2)).item() < 3


def test_a_window_says_which_rows_are_real_and_keeps_the_pictures_own_mask(written: Written):
    window = {"frame_offsets": [-2, -1, 0], "state_offsets": [-2, -1, 0]}
    batch, _ = batches(written, sample=window)
    own = {"action_per": "step", "action_horizon": HORIZON}
    chunks, _ = batches(written, sample={**window, **own})
    found = layouts.octo(chunks)["observation"]
    vla = layouts.openvla(batch)["observation"]
    assert (chunks["provenance"] == batch["provenance"]).all()
    for t, steps, real in ((0, [0, 0, 0], [0, 0, 1]), (1, [0, 0, 1], [0, 1, 1]),
                           (5, [3, 4, 5], [1, 1, 1])):  # fmt: skip
        k = at(batch, t)
        assert found["timestep"][k].tolist() == steps
        assert found["timestep_pad_mask"][k].tolist() == [bool(one) for one in real]
        assert vla["pad_mask"][k].tolist() == [bool(one) for one in real]
        assert found["proprio"][k, :, 1].tolist() == steps
        assert found["pad_mask_dict"]["image_primary"][k].all()
    missing = chunks["frame_mask"] | {"primary": chunks["frame_mask"]["primary"] & False}
    without = layouts.octo({**chunks, "frame_mask": missing})["observation"]
    assert not without["pad_mask_dict"]["image_primary"].any()
    assert without["timestep_pad_mask"].any()


def test_each_step_of_octos_window_has_the_chunk_that_starts_there(written: Written):
    window = {"frame_offsets": [-1, 0], "state_offsets": [-1, 0]}
    own = {"action_per": "step", "action_horizon": HORIZON}
    batch, _ = batches(written, sample={**window, **own})
    found = layouts.octo(batch)
    assert found["action"].shape == found["action_pad_mask"].shape == (STEPS, 2, HORIZON, WIDTH)
    last = STEPS - 1
    for t in range(STEPS):
        k = at(batch, t)
        for w in range(2):
            first = t - 1 + w  # of a row before the episode, too
            rows = [min(max(first, 0) + h, last) for h in range(HORIZON)]
            assert found["action"][k, w, :, 1].tolist() == rows, (t, w)
            kept = [first + h < last + 2 for h in range(HORIZON)]
            assert found["action_pad_mask"][k, w, :, 0].tolist() == kept, (t, w)
            assert found["observation"]["task_completed"][k, w].tolist() == [
                not one for one in kept
            ]


def test_a_narrow_dataset_has_no_mask_beyond_its_columns(written: Written, other: Written):
    narrow = dataset_of(other, action="action[:1]", language=None)
    batch, names = batches(written, narrow, size=2 * STEPS)
    found = layouts.octo(batch, names)
    for k, name in enumerate(found["dataset_name"]):
        assert found["action_pad_mask"][k, 0, 0].tolist() == [True, name == b"arm"]
        told = found["task"]["pad_mask_dict"]["language_instruction"][k]
        assert bool(told) == (name == b"arm") == bool(found["task"]["language_instruction"][k])
    vla = layouts.openvla(batch, names)
    for k, name in enumerate(vla["dataset_name"]):
        assert vla["absolute_action_mask"][k].tolist() == [name != b"arm", name == b"arm"]


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_openvla_names_shapes_and_types(written: Written, output: str):
    batch, names = batches(written, output=output, sample={"goal": "uniform"})
    row, each = ((STEPS, 1), "bool"), ((STEPS,), "bool")
    assert kinds(layouts.openvla(batch, names, goal=True)) == {
        "observation": {
            "image_primary": ((STEPS, 1, 12, 16, 3), "uint8"),
            "proprio": ((STEPS, 1, 3), "float32"),
            "timestep": ((STEPS, 1), "int32"),
            "pad_mask": row,
            "pad_mask_dict": {"image_primary": row, "proprio": row, "timestep": row},
        },
        "task": {
            "image_primary": ((STEPS, 12, 16, 3), "uint8"),
            "timestep": ((STEPS,), "int32"),
            "language_instruction": ((STEPS,), "object"),
            "pad_mask_dict": {
                "image_primary": each, "timestep": each, "language_instruction": each,
            },
        },
        "action": ((STEPS, 1, WIDTH), "float32"),
        "absolute_action_mask": ((STEPS, WIDTH), "bool"),
        "dataset_name": ((STEPS,), "object"),
    }  # fmt: skip


@pytest.mark.parametrize("goal", ["none", "uniform"])
def test_openvlas_rows_behind_the_end_or_the_goal_are_neutral(written: Written, goal: str):
    batch, _ = batches(written, sample={"action_horizon": 5, "goal": goal})
    found = layouts.openvla(batch, goal=goal == "uniform")
    for t in range(STEPS):
        k = at(batch, t)
        last = int(found["task"]["timestep"][k]) if goal == "uniform" else STEPS - 1
        wanted = [[(t + h) / 100 if t + h <= last else 0.0, min(t + h, last)] for h in range(5)]
        assert np.allclose(found["action"][k], wanted, atol=1e-7), t


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize(("goal", "told"), [("none", True), ("none", False), ("uniform", True)])
def test_openvlas_rows_before_the_episode_repeat_its_first_action(
    written: Written, goal: str, told: bool, output: str
):
    offsets = [-2, -1, 0]
    window = {"frame_offsets": offsets, "state_offsets": offsets, "goal": goal}
    batch, _ = batches(
        written, output=output, sample={**window, "action_start": -2, "action_horizon": 7}
    )
    start = {"action_start": -2} if told else {}
    found = layouts.openvla(batch, goal=goal == "uniform", **start)  # type: ignore[arg-type]
    for t in range(STEPS):
        k = at(batch, t)
        last = int(found["task"]["timestep"][k]) if goal == "uniform" else STEPS - 1
        steps = [max(t - 2 + h, 0) for h in range(7)]
        wanted = [[step / 100 if step <= last else 0.0, min(step, last)] for step in steps]
        assert np.allclose(found["action"][k], wanted, atol=1e-7), t


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("model", ["pi0", "pi05", "pi0_fast"])
def test_openpi_names_shapes_and_types(written: Written, model: Any, output: str):
    batch, names = batches(written, output=output, sample={"action_horizon": 16})
    found = layouts.openpi(batch, names, model=model)
    assert found.pop("prompt") == ["episode 0"] * STEPS
    picture, mask = ((STEPS, 12, 16, 3), "uint8"), ((STEPS,), "bool")
    theirs = ["base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"]
    if model == "pi0_fast":
        theirs = ["base_0_rgb", "base_1_rgb", "wrist_0_rgb"]
    narrow = model == "pi0_fast"
    assert kinds(found) == {
        "image": dict.fromkeys(theirs, picture),
        "image_mask": dict.fromkeys(theirs, mask),
        "state": ((STEPS, 3 if narrow else 32), "float32"),
        "actions": ((STEPS, 16, WIDTH if narrow else 32), "float32"),
    }
    assert found["image_mask"]["base_0_rgb"].all()
    assert bool(found["image_mask"][theirs[2]].any()) == narrow
    assert not found["image"][theirs[2]].any()
    k = at(batch, 7)
    assert found["actions"][k, :, 1].tolist() == [7.0, 8.0] + [9.0] * 14
    assert not found["actions"][k, :, WIDTH:].any()
    assert found["state"][k, :3].tolist() == [0.0, 7.0, -7.0]


def leaves(tree: Any) -> list[Any]:
    return (
        [leaf for one in tree.values() for leaf in leaves(one)]
        if isinstance(tree, dict)
        else [tree]
    )


def wrong(call: Any, batch: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call({**batch, **changes})


def without(batch: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in batch.items() if key not in keys}


def test_batches_that_a_layout_cannot_take_are_refused_with_what_to_write(written: Written):
    window = {"frame_offsets": [-1, 0]}
    batch, _ = batches(written, sample=window)
    for call in (layouts.octo, layouts.openvla):
        wrong(call, without(batch, ["provenance"]), {}, "place in its episode")
        wrong(call, batch, {}, "2 frames, but 1 state; the")
        with pytest.raises(
            UsageError, match=r"3 offsets, but a sample has 2 frames \(goal=False\)"
        ):
            call(batch, frame_offsets=[-4, -2, 0])
    with pytest.raises(UsageError, match="1 chunk of actions and 2 frames"):
        layouts.octo({**batch, "state": batch["state"][..., :0]})
    wrong(layouts.openpi, batch, {}, "openpi takes one state and one frame a camera")
    one, _ = batches(written)
    with pytest.raises(UsageError, match="samples have one frame"):
        layouts.octo(one, goal=True)
    for start, words in ((1, r"from t\+1 to t\+1"), (-3, "from t-3 to t-3")):
        with pytest.raises(UsageError, match=words):
            layouts.openvla(one, action_start=start)
    with pytest.raises(UsageError, match="no camera 'scene'"):
        layouts.openpi(one, cameras={"base_0_rgb": "scene"})
    wrong(layouts.openpi, one, {"action": np.zeros((STEPS, 1, 33), np.float32)}, "33 columns")
