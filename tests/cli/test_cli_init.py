"""``autoloader init``: a spec from what lies on disk, which runs as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from rlds_files import PLAIN, TEXT, Declared, image, jpeg, numbers, write_dataset

from autoloader.catalog import open_version
from autoloader.catalog.registry import known_dataset, known_mixes, known_names, pair_offset
from autoloader.cli.app import main
from autoloader.cli.dataset_entries import as_they_lie
from autoloader.samples.resolve import resolve
from autoloader.spec import PipelineSpec, parse_expression

STEPS = 12


def write(folder: Path, name: str, features: dict[str, Declared], *, episodes: int = 3) -> Path:
    """A dataset of these features, all numbers zero."""
    values: dict[str, Any] = {}
    for path, declared in features.items():
        if declared.kind == "image":
            values[path] = [jpeg(0, step) for step in range(STEPS)]
        elif declared.kind == "text":
            values[path] = [b"do it"] * STEPS
        else:
            count = STEPS
            for size in declared.shape:
                count *= size or 1
            values[path] = [0.0 if "float" in declared.dtype else 0] * count
    return write_dataset(folder, [[values] * episodes], name=name, features=features).path


VIOLA = {
    "observation/agentview_rgb": image(),
    "observation/eye_in_hand_rgb": image(),
    "observation/joint_states": numbers(7),
    "observation/gripper_states": numbers(1),
    "action/world_vector": numbers(3),
    "action/rotation_delta": numbers(3),
    "action/gripper_closedness_action": numbers(),
    "observation/natural_language_instruction": TEXT,
}
TABLE = {
    "observation/rgb": image(),
    "observation/effector_translation": numbers(2),
    "action": numbers(2),
    "observation/instruction": numbers(8, dtype="int32"),
}
UNKNOWN = {
    "observation/depth": image(dtype="uint16", channels=1),
    "observation/image_wrist": image(),
    "observation/cam_scene": image(),
    "observation/natural_language_embedding": numbers(512),
    "observation/joint_position": numbers(7),
    "observation/gripper": numbers(),
    "action/left": numbers(3),
    "action/right": numbers(3),
    "action/terminate_episode": numbers(3, dtype="int32"),
    "task": TEXT,
}


def spec_of_init(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], str]:
    assert main(["init", *arguments]) == 0
    told = capsys.readouterr()
    return yaml.safe_load(told.out), told.err


def test_what_is_known_comes_from_the_registry_and_the_rest_is_proposed_and_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    viola = write(tmp_path / "oxe", "viola", VIOLA)
    write(tmp_path, "language_table", TABLE, episodes=60)
    write(tmp_path / "own" / "lab", "pour_tea", UNKNOWN)
    shutil.copytree(viola, viola.parent / "0.9.0")
    (tmp_path / "broken" / "1.0.0").mkdir(parents=True)
    (tmp_path / "broken" / "1.0.0" / "dataset_info.json").write_text("{")
    (tmp_path / "broken" / "1.0.0" / "features.json").write_text("{}")
    plain, notes = spec_of_init([str(tmp_path)], capsys)
    found = {one["name"]: one for one in plain["datasets"]}
    assert set(found) == {"viola", "language_table", "pour_tea"}
    assert found["viola"]["path"] == str(viola)
    assert found["viola"]["images"] == {
        "primary": "observation/agentview_rgb", "wrist": "observation/eye_in_hand_rgb",
    }  # fmt: skip
    assert found["viola"]["action"] == [
        "action/world_vector", "action/rotation_delta", "action/gripper_closedness_action",
    ]  # fmt: skip
    assert "sample" not in found["viola"]
    assert plain["sample"] == {"frame_offsets": [0], "action_horizon": 1}
    assert plain["weights"] == "natural"
    assert found["viola"]["split"] == {"train": "train[:-1]", "val": "train[-1:]"}
    assert found["language_table"]["language"] == "observation/instruction"
    assert found["language_table"]["split"] == {"train": "train[:95%]", "val": "train[95%:]"}
    assert found["pour_tea"]["images"] == {
        "primary": "observation/cam_scene", "wrist": "observation/image_wrist",
    }  # fmt: skip
    assert found["pour_tea"]["action"] == ["action/left", "action/right"]
    assert found["pour_tea"]["state"] == ["observation/joint_position", "observation/gripper"]
    assert found["pour_tea"]["language"] == "task"
    assert "broken" in notes
    assert "pour_tea: look at images, action, state, language" in notes
    assert "viola" not in notes
    for split in ("train", "val"):
        assert len(resolve(PipelineSpec.from_mapping(plain), split).datasets) == 3


def test_pairs_of_frames_are_stage_2s_affair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "viola", VIOLA)
    write(tmp_path, "pour_tea", UNKNOWN)
    plain, _ = spec_of_init([str(tmp_path), "--style", "stage2"], capsys)
    found = {one["name"]: one for one in plain["datasets"]}
    assert found["viola"]["sample"] == {"frame_offsets": [0, 10], "action_horizon": 10}
    assert found["viola"]["action"][-1]["ops"] == [{"clip": [0, 1]}, "invert"]
    assert found["pour_tea"]["sample"] == {"frame_offsets": [0, 5], "action_horizon": 5}
    assert plain["sample"]["action_reduce"] == "sum"
    resolve(PipelineSpec.from_mapping(plain))


def test_every_feature_that_is_not_used_stands_in_the_file_as_a_comment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, features in (("viola", VIOLA), ("pour_tea", UNKNOWN)):
        packed = {"more/depth_map": numbers(4, encoding="zlib"), "more/reward": numbers()}
        write(tmp_path, name, {**features, **packed})
    for style in ("plain", "stage2"):
        assert main(["init", str(tmp_path), "--style", style]) == 0
        text = capsys.readouterr().out
        blocks = {block.split("\n")[0]: block for block in text.split("  - name: ")[1:]}
        for name, features in (("viola", VIOLA), ("pour_tea", UNKNOWN)):
            used, *left = blocks[name].split("# not used, ")
            assert left
            for path in (*features, "more/depth_map", "more/reward"):
                assert (path in used) != any(path in line for line in left), (style, path)
        assert "more/depth_map (4, zlib)" in text
        assert "observation/depth (12×16×1, uint16)" in text


@pytest.mark.parametrize(
    ("terms", "wanted"),
    [
        (["action[:1]", {"path": "action[-1:]", "ops": ["invert"]}], ["action"]),
        (["action[:1]", {"zeros": 3}], ["action[:1]"]),
        (["action[1:]", "action[:1]"], ["action[1:]", "action[:1]"]),
        ([{"path": "action[:1]", "ops": ["invert"]}, "observation/state"],
         ["action[:1]", "observation/state"]),
    ],
)  # fmt: skip
def test_terms_as_they_lie_have_neither_operations_nor_zeros(
    terms: list[Any], wanted: list[Any], tmp_path: Path
) -> None:
    features = open_version(write(tmp_path, "arm", dict(PLAIN)), dataset="arm").features
    assert as_they_lie(terms, features) == wanted


def test_a_registry_entry_that_does_not_fit_the_files_is_replaced_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "viola", {**PLAIN})
    plain, notes = spec_of_init([str(tmp_path)], capsys)
    (one,) = plain["datasets"]
    assert one["images"] == {"primary": "observation/image"}
    assert one["action"] == "action"
    assert one["language"] == "language_instruction"
    assert "the registry's does not fit these files" in notes


def test_a_mix_weighs_its_datasets_and_leaves_out_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, features in (("viola", VIOLA), ("language_table", TABLE), ("pour_tea", UNKNOWN)):
        write(tmp_path, name, features)
    assert main(["init", str(tmp_path)]) == 0
    assert "    # the instruction is" in capsys.readouterr().out
    octo, notes = spec_of_init([str(tmp_path), "--mix", "octo"], capsys)
    assert {one["name"]: one["weight"] for one in octo["datasets"]} == {
        "viola": 2.0, "language_table": 0.1,
    }  # fmt: skip
    assert octo["weights"] == "natural_scaled"
    assert "pour_tea: not part of octo" in notes
    assert "2 of the 25 datasets of octo" in notes
    assert "these are not in" in notes
    assert main(["init", str(tmp_path), "--mix", "octo", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["style"] == "plain"
    assert (told["mix"]["datasets"], len(told["mix"]["absent"])) == (25, 23)
    assert sorted(told["mix"]["present"]) == ["language_table", "viola"]
    assert "# 2 of its 25 datasets; not here: fractal20220817_data," in told["spec"]
    pairs, _ = spec_of_init([str(tmp_path), "--mix", "stage2-29"], capsys)
    assert pairs["sample"]["action_reduce"] == "sum"
    assert pairs["datasets"][0]["sample"] == {"frame_offsets": [0, 10], "action_horizon": 10}
    resolve(PipelineSpec.from_mapping(pairs))


def test_wrong_arguments_are_answered_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path)]) == 4
    assert "holds no TFDS dataset" in capsys.readouterr().err
    assert main(["init", str(tmp_path / "nowhere")]) == 4
    assert main(["init", str(tmp_path), "--mix", "octa"]) == 2
    assert "did you mean 'octo'?" in capsys.readouterr().err


def test_what_init_writes_of_29_datasets_is_measured_unedited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = [("viola", VIOLA), ("language_table", TABLE), ("pour_tea", UNKNOWN)]
    kinds += [(f"lab_{number}", dict(PLAIN)) for number in range(26)]
    for name, features in kinds:
        write(tmp_path / "data", name, features)
    assert main(["init", str(tmp_path / "data")]) == 0
    (tmp_path / "mix.yaml").write_text(capsys.readouterr().out)
    words = ["measure", "--spec", str(tmp_path / "mix.yaml"), "--ram-floor", "1MB", "--json"]
    assert main([*words, "--warmup", "1", "--batches", "4"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["datasets"], answer["samples"]) == (29, 4 * 48)


def test_the_registry_is_whole() -> None:
    assert len(known_names()) >= 50
    for name in known_names():
        own, known = known_dataset(name) or ("", None)
        assert own == name
        assert known is not None
        assert known.images
        for terms in (known.action, known.state):
            assert terms is None or parse_expression(list(terms)).terms
        assert pair_offset(known.hz) in (3, 5, 10)
    sizes = {name: len(mix.weights) for name, mix in known_mixes().items()}
    assert sizes == {"octo": 25, "openvla": 27, "stage2-29": 29}
    for mix in known_mixes().values():
        assert set(mix.weights) <= set(known_names())


def test_names_that_other_copies_have_lead_to_the_same_entry() -> None:
    assert known_dataset("bridge_orig") == known_dataset("bridge_dataset")
    assert known_dataset("no_such_dataset") is None
