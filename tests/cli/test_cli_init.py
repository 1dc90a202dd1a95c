"""``autoloader init``: a spec from what lies on disk, which runs as it is."""

import gzip
import json
import os
import re
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lines import Cli
from hdf5_files import write_robomimic
from lerobot_files import LeRobotFiles
from rlds_files import PLAIN, TEXT, Declared, image, jpeg, numbers, write_dataset
from streams import opened, spec_file

from autoloader import AutoLoader
from autoloader.errors import SourceError, SpecError
from autoloader.formats.registry import known_dataset, known_mixes, pair_offset
from autoloader.recipes import recipe
from autoloader.samples.resolve import resolve
from autoloader.spec import PipelineSpec, parse_expression

pytestmark = pytest.mark.usefixtures("one_child")

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
    "observation/agentview_rgb": image(), "observation/eye_in_hand_rgb": image(),
    "observation/joint_states": numbers(7), "observation/gripper_states": numbers(1),
    "action/world_vector": numbers(3), "action/rotation_delta": numbers(3),
    "action/gripper_closedness_action": numbers(),
    "observation/natural_language_instruction": TEXT,
}  # fmt: skip
TABLE = {
    "observation/rgb": image(), "observation/effector_translation": numbers(2),
    "action": numbers(2), "observation/instruction": numbers(8, dtype="int32"),
}  # fmt: skip
UNKNOWN = {
    "observation/depth": image(dtype="uint16", channels=1),
    "observation/image_wrist": image(), "observation/cam_scene": image(),
    "observation/natural_language_embedding": numbers(512),
    "observation/joint_position": numbers(7), "observation/gripper": numbers(),
    "action/left": numbers(3), "action/right": numbers(3),
    "action/terminate_episode": numbers(3, dtype="int32"), "task": TEXT,
}  # fmt: skip


def spec_of_init(arguments: list[str], cli: Cli) -> tuple[dict[str, Any], str]:
    told = cli("init", *arguments)
    return yaml.safe_load(told.out), told.err


def test_what_is_known_comes_from_the_registry_and_the_rest_is_proposed_and_marked(
    tmp_path: Path, cli: Cli
):
    viola = write(tmp_path / "oxe", "viola", VIOLA)
    table = write(tmp_path, "language_table", TABLE, episodes=60)
    tea = write(tmp_path / "own" / "lab", "pour_tea", UNKNOWN)
    shutil.copytree(viola, viola.parent / "0.9.0")
    (tmp_path / "broken" / "1.0.0").mkdir(parents=True)
    (tmp_path / "broken" / "1.0.0" / "dataset_info.json").write_text("{")
    (tmp_path / "broken" / "1.0.0" / "features.json").write_text("{}")
    plain, notes = spec_of_init([str(tmp_path)], cli)
    assert plain["sample"] == {"frame_offsets": [0], "action_horizon": 1}
    assert plain["weights"] == "natural"
    last = {"train": "train[:-1]", "val": "train[-1:]"}
    assert {one.pop("name"): one for one in map(dict, plain["datasets"])} == {
        "viola": {
            "path": str(viola), "split": last,
            "images": {"primary": "observation/agentview_rgb",
                       "wrist": "observation/eye_in_hand_rgb"},
            "action": [f"action/{one}" for one in ("world_vector", "rotation_delta",
                                                   "gripper_closedness_action")],
            "state": ["observation/joint_states", "observation/gripper_states"],
            "language": "observation/natural_language_instruction",
        },
        "language_table": {
            "path": str(table), "split": {"train": "train[:95%]", "val": "train[95%:]"},
            "images": {"primary": "observation/rgb"}, "action": "action",
            "state": "observation/effector_translation", "language": "observation/instruction",
        },
        "pour_tea": {
            "path": str(tea), "split": last, "language": "task",
            "images": {"primary": "observation/cam_scene", "wrist": "observation/image_wrist"},
            "action": ["action/left", "action/right"],
            "state": ["observation/joint_position", "observation/gripper"],
        },
    }  # fmt: skip
    assert "broken" in notes
    assert "pour_tea: not a known dataset: images, action, state, language were" in notes
    assert "check them with autoloader peek" in notes
    assert "viola" not in notes
    for split in ("train", "val"):
        assert len(resolve(PipelineSpec.from_mapping(plain), split).datasets) == 3


def test_every_feature_that_is_not_used_stands_in_the_file_as_a_comment(tmp_path: Path, cli: Cli):
    for name, features in (("viola", VIOLA), ("pour_tea", UNKNOWN)):
        packed = {"more/depth_map": numbers(4, encoding="zlib"), "more/reward": numbers()}
        write(tmp_path, name, {**features, **packed})
    for style in ("plain", "stage2"):
        text = cli("init", tmp_path, "--style", style).out
        blocks = {block.split("\n")[0]: block for block in text.split("  - name: ")[1:]}
        for name, features in (("viola", VIOLA), ("pour_tea", UNKNOWN)):
            used, *left = blocks[name].split("# not used, ")
            assert left
            for path in (*features, "more/depth_map", "more/reward"):
                assert (path in used) != any(path in line for line in left), (style, path)
        assert "more/depth_map (4, zlib)" in text
        assert "observation/depth (12×16×1, uint16)" in text


def test_a_registry_entry_that_does_not_fit_the_files_is_replaced_and_said(
    tmp_path: Path, cli: Cli
):
    write(tmp_path, "viola", {**PLAIN})
    plain, notes = spec_of_init([str(tmp_path)], cli)
    (one,) = plain["datasets"]
    names = (one["images"], one["action"], one["language"])
    assert names == ({"primary": "observation/image"}, "action", "language_instruction")
    assert "the known recipe does not fit these files" in notes


def test_a_mix_weighs_its_datasets_and_leaves_out_the_others(tmp_path: Path, cli: Cli):
    for name, features in (("viola", VIOLA), ("language_table", TABLE), ("pour_tea", UNKNOWN)):
        write(tmp_path, name, features)
    assert "    # the instruction is" in cli("init", tmp_path).out
    octo, notes = spec_of_init([str(tmp_path), "--mix", "octo"], cli)
    assert {one["name"]: one["weight"] for one in octo["datasets"]} == {
        "viola": 2.0, "language_table": 0.1,
    }  # fmt: skip
    assert octo["weights"] == "natural_scaled"
    assert "pour_tea: not part of octo" in notes
    assert "2 of the 25 datasets of octo" in notes
    assert "these are not in" in notes
    told = cli.json("init", tmp_path, "--mix", "octo")
    assert told["style"] == "plain"
    assert (told["mix"]["datasets"], len(told["mix"]["absent"])) == (25, 23)
    assert sorted(told["mix"]["present"]) == ["language_table", "viola"]
    assert "# 2 of its 25 datasets; not here: fractal20220817_data," in told["spec"]
    pairs, _ = spec_of_init([str(tmp_path), "--mix", "stage2-29"], cli)
    assert pairs["sample"]["action_reduce"] == "sum"
    assert pairs["datasets"][0]["sample"] == {"frame_offsets": [0, 10], "action_horizon": 10}
    resolve(PipelineSpec.from_mapping(pairs))


def test_what_init_writes_of_29_datasets_is_measured_unedited(tmp_path: Path, cli: Cli):
    kinds = [("viola", VIOLA), ("language_table", TABLE), ("pour_tea", UNKNOWN)]
    kinds += [(f"lab_{number}", dict(PLAIN)) for number in range(26)]
    for name, features in kinds:
        write(tmp_path / "data", name, features)
    (tmp_path / "mix.yaml").write_text(cli("init", tmp_path / "data").out)
    words = ["measure", "--spec", str(tmp_path / "mix.yaml"), "--ram-floor", "64MiB", "--json"]
    answer = json.loads(cli(*words, "--warmup", "1", "--batches", "4").out)
    assert (answer["datasets"], answer["samples"]) == (29, 4 * 48)


def test_the_registry_is_whole():
    text = resources.files("autoloader.formats").joinpath("open_x.yaml").read_text("utf-8")
    known_names = set(yaml.safe_load(text)["datasets"])
    assert len(known_names) >= 50
    for name in known_names:
        own, known = known_dataset(name) or ("", None)
        assert own == name
        assert known.images
        for terms in (known.action, known.state):
            assert terms is None or parse_expression(list(terms)).terms
        assert pair_offset(known.hz) in (3, 5, 10)
    sizes = {name: len(mix.weights) for name, mix in known_mixes().items()}
    assert sizes == {"octo": 25, "openvla": 27, "stage2-29": 29}
    for mix in known_mixes().values():
        assert set(mix.weights) <= known_names


BRIDGE = {
    "observation/image_0": image(), "observation/image_1": image(),
    "observation/state": numbers(7), "action": numbers(7), "language_instruction": TEXT,
}  # fmt: skip
DROID = {
    "observation/exterior_image_1_left": image(), "observation/exterior_image_2_left": image(),
    "observation/wrist_image_left": image(), "episode_metadata/file_path": TEXT,
    "observation/joint_position": numbers(7), "observation/gripper_position": numbers(1),
    "action": numbers(7), "action_dict/joint_position": numbers(7),
    "action_dict/gripper_position": numbers(1), "language_instruction": TEXT,
    "language_instruction_2": TEXT, "language_instruction_3": TEXT,
}  # fmt: skip


def project_folder(folder: Path) -> Path:
    for name, features in (("viola", VIOLA), ("bridge_dataset", BRIDGE), ("pour_tea", UNKNOWN)):
        write(folder, name, features)
    return folder


def test_octos_style_has_its_recipes_window_chunk_cameras_and_weights(tmp_path: Path, cli: Cli):
    words = [str(project_folder(tmp_path)), "--style", "octo"]
    told = cli("init", *words, "--mix", "oxe_magic_soup")
    plain = yaml.safe_load(told.out)
    assert {one["name"]: one["weight"] for one in plain["datasets"]} == {
        "viola": 2.0, "bridge_dataset": 1.0,
    }  # fmt: skip
    assert "2 of its 25 datasets; not here: fractal20220817_data," in told.out
    assert "2 of the 25 datasets of oxe_magic_soup" in told.err
    found = {one["name"]: one for one in plain["datasets"]}
    for name, one in found.items():
        theirs = recipe(name, "octo").dataset
        assert one["action"] == theirs["action"]
        assert one.get("steps") == theirs.get("steps")
        assert "state" not in one
        assert set(one["images"]) <= {"primary", "wrist"}
    assert "language" not in found["viola"]  # octo blanks it
    assert "# state: observation/state   # octo does not read it" in told.out
    assert "# image_1 is a second view; there is no wrist camera." in told.out
    assert plain.items() >= {
        "weights": "natural_scaled",
        "sample": {"frame_offsets": [-1, 0], "state_offsets": [-1, 0], "action_horizon": 4,
                   "action_per": "step", "goal": "uniform", "per_episode": 100},
        "cameras": {"primary": {"size": [256, 256], "resize": "tf_lanczos3"},
                    "wrist": {"size": [128, 128], "resize": "tf_lanczos3"}},
        "normalize": {"action": {"method": "mean_std", "dims": "[:-1]", "arithmetic": "octo"},
                      "statistics_of": "recorded"},
    }.items()  # fmt: skip
    assert set(plain["augment"]) == {"primary", "wrist"}
    assert "random_resized_crop" not in plain["augment"]["wrist"]


def test_openvlas_style_has_its_recipes_quantiles_and_one_camera(tmp_path: Path, cli: Cli):
    words = [str(project_folder(tmp_path)), "--style", "openvla"]
    plain, notes = spec_of_init(words, cli)
    found = {one["name"]: one for one in plain["datasets"]}
    assert set(found) == {"viola", "bridge_dataset", "pour_tea"}
    assert found["bridge_dataset"]["steps"] == {"drop_first": 1, "drop_last": 1}
    assert found["bridge_dataset"]["images"] == {"primary": "observation/image_0"}
    assert found["viola"]["keep"] == {"language": "anywhere"}
    assert "pour_tea: openvla has no recipe for it: images, action, state, language were" in notes
    assert plain["cameras"] == {"primary": {"size": [224, 224], "resize": "tf_lanczos3"}}
    assert plain["normalize"]["action"] == {
        "method": "q01_q99", "dims": "[:-1]", "clip": True, "arithmetic": "openvla",
    }  # fmt: skip
    mixed, _ = spec_of_init([*words, "--mix", "bridge_rt_1"], cli)
    assert [one["name"] for one in mixed["datasets"]] == ["bridge_dataset"]


def test_a_camera_that_a_style_always_has_comes_black_and_masked_where_no_dataset_fills_it(
    tmp_path: Path, cli: Cli
):
    door = "nyu_door_opening_surprising_effectiveness"
    fields = {key: VIOLA[key] for key in VIOLA if "observation" not in key}
    wrist = {"observation/image": image(), "observation/natural_language_instruction": TEXT}
    write(tmp_path, door, {**fields, "action/gripper_closedness_action": numbers(1), **wrist})
    for style, filled in (("octo", {"wrist"}), ("openvla", set())):
        plain, _ = spec_of_init([str(tmp_path), "--style", style], cli)
        (one,) = plain["datasets"]
        assert set(one.get("images", {})) == filled
        cameras = plain["cameras"]
        assert cameras["primary"]["placeholder"] is True
        assert {name for name, how in cameras.items() if "placeholder" not in how} == filled
        assert set(plain.get("augment", {})) == filled  # black stays black
        with opened(plain) as loader:
            batch = next(iter(loader))
        for name, frames in batch["images"].items():
            assert batch["frame_mask"][name].any() == frames.any() == (name in filled)
    del plain["cameras"]["primary"]["placeholder"]
    with pytest.raises(SpecError, match=r"cameras\.primary: no dataset has images") as caught:
        PipelineSpec.from_mapping(plain)
    assert "placeholder: true" in caught.value.remedy


@pytest.mark.parametrize(
    ("style", "episodes", "splits"),
    [
        ("plain", 8, {"train": "train[:-1]", "val": "train[-1:]"}),
        ("octo", 8, {"train": "train", "val": None}),  # 5 % of 8 rounds to none, as in TFDS
        ("openvla", 12, {"train": "train[:95%]", "val": "train[95%:]"}),
        ("openpi", 60, {"train": "train", "val": None}),
    ],
)
def test_a_style_trains_on_the_episodes_that_its_project_trains_on(
    style: str, episodes: int, splits: dict[str, str | None], tmp_path: Path, cli: Cli
):
    write(tmp_path, "viola", VIOLA, episodes=episodes)
    plain, _ = spec_of_init([str(tmp_path), "--style", style], cli)
    assert plain["datasets"][0]["split"] == splits


def test_openpis_style_is_that_of_droid(tmp_path: Path, cli: Cli):
    write(tmp_path, "droid", DROID)
    plain, _ = spec_of_init([str(tmp_path), "--style", "openpi", "--mix", "droid"], cli)
    (one,) = plain["datasets"]
    assert one["action"] == ["action_dict/joint_position", "action_dict/gripper_position"]
    assert one["sample"] == {"action_relative_to_state": [0, 1, 2, 3, 4, 5, 6]}
    assert one["keep"] == {"match": {"episode_metadata/file_path": "success"}}
    assert (plain["weights"], plain["sample"]["action_horizon"]) == ("explicit", 16)
    assert plain["pad_to"] == {"action": 32, "state": 32}
    assert plain["normalize"]["statistics_of"] == "samples"
    wrist = {"size": [224, 224], "resize": "pillow_bilinear", "fit": "pad"}
    assert plain["cameras"]["wrist"] == wrist


def test_a_recipe_that_does_not_fit_the_files_is_replaced_and_says_why(tmp_path: Path, cli: Cli):
    write(tmp_path, "bridge_dataset", {**BRIDGE, "observation/state": numbers(3)})
    told = cli("init", tmp_path, "--style", "octo", "--mix", "bridge")
    (one,) = yaml.safe_load(told.out)["datasets"]
    assert one["action"] == "action"
    assert "the recipe of octo does not fit these files" in told.err
    assert "goes beyond 'observation/state'" in told.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--mix rtx", "add --style octo or --style openvla"),
        ("--mix oxe_magic_soup --style plain", "choose one of: octo, openvla, stage2-29"),
        ("--mix oxe_magic --style octo", "did you mean 'oxe_magic_soup'?"),
        ("--style octopus", "octo"),
    ],
)
def test_a_mixture_is_a_styles(words: str, told: str, tmp_path: Path, cli: Cli):
    assert told in cli("init", tmp_path, *words.split(), code=2).err


@pytest.mark.parametrize(
    ("folder", "own", "known"),
    [
        ("droid", "droid_101", "droid"),
        ("droid", "r2d2_faceblur", "droid"),
        ("droid_100", "r2d2_faceblur", "droid"),
        ("mine", "droid_101", "droid"),
        ("bridge_orig", "bridge_dataset", "bridge_dataset"),
        ("bridge_dataset", "made_by_us", "bridge_dataset"),
        ("bridge", "bridge_dataset", "bridge_dataset"),
    ],
)
def test_a_dataset_is_known_by_its_folder_by_its_files_and_by_its_other_names(
    tmp_path: Path, folder: str, own: str, known: str, cli: Cli
):
    features = DROID if known == "droid" else BRIDGE
    features = {**features, "observation/cartesian_position": numbers(6),
                "action_dict/cartesian_velocity": numbers(6)}  # fmt: skip
    version = write(tmp_path / "data", own, features)
    version.parent.rename(tmp_path / "data" / folder)
    style = "openpi" if known == "droid" else "octo"
    for words in ([], ["--style", style]):
        plain, notes = spec_of_init([str(tmp_path / "data"), *words], cli)
        assert "guessed" not in notes
        (dataset,) = plain["datasets"]
        assert Path(dataset["path"]).parent.name == folder
    if known == "droid":
        assert dataset["keep"] == {"match": {"episode_metadata/file_path": "success"}}
    mix = "openvla" if known == "droid" else "octo"
    plain, notes = spec_of_init([str(tmp_path / "data"), "--mix", mix], cli)
    assert f"1 of the {len(known_mixes()[mix].weights)} datasets" in notes


def hub(folder: Path, repository: str, refs: dict[str, str], *commits: str) -> Path:
    """A cache of the Hub: each commit's snapshot of links to files in ``blobs``."""
    home = folder / f"datasets--lab--{repository}"
    for ref, commit in refs.items():
        (home / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (home / "refs" / ref).write_text(commit)
    for number, commit in enumerate(commits):
        files = LeRobotFiles(lengths=(4, 3 + number), version="v2.1")
        for file in files.write(home / "made" / commit).rglob("*"):
            if file.is_file():
                link = home / "snapshots" / commit / file.relative_to(home / "made" / commit)
                blob = home / "blobs" / f"{commit}-{file.name}-{len(str(file))}-{number}"
                link.parent.mkdir(parents=True, exist_ok=True)
                blob.parent.mkdir(exist_ok=True)
                blob = blob.with_name(f"{len(list(blob.parent.iterdir()))}")
                shutil.copy(file, blob)
                link.symlink_to(os.path.relpath(blob, link.parent))
        shutil.rmtree(home / "made")
    return home


@pytest.mark.parametrize(
    ("refs", "taken"),
    [
        ({"main": "b" * 40, "v2.1": "a" * 40}, "b" * 40),
        ({"main": "c" * 40, "v2.1": "a" * 40}, "a" * 40),
        ({"pr/1": "a" * 40}, "a" * 40),
    ],
)
def test_of_a_cache_of_the_hub_one_revision_is_taken_by_its_refs_and_named_by_its_repository(
    tmp_path: Path, refs: dict[str, str], taken: str, cli: Cli
):
    home = hub(tmp_path / "hub", "stack-cups", refs, "a" * 40, "b" * 40)
    for place in (tmp_path, home, home / "snapshots"):
        plain, notes = spec_of_init([str(place)], cli)
        (dataset,) = plain["datasets"]
        assert dataset["name"] == "stack_cups"
        assert dataset["path"] == str(home / "snapshots" / taken)
        assert f"stack-cups: takes revision {taken}" in notes
    assert cli("inspect", home).out.split()[:4] == ["name", "stack-cups", "version", "v2.1"]
    plain, _ = spec_of_init([str(home / "snapshots" / ("a" * 40))], cli)
    assert [one["name"] for one in plain["datasets"]] == ["stack_cups"]


def test_links_and_copies_of_a_dataset_count_once(tmp_path: Path, cli: Cli):
    version = write(tmp_path / "data", "pour_tea", UNKNOWN)
    (version.parent / "latest").symlink_to("1.0.0")
    (version.parent / "2.0.0").symlink_to(version)
    (tmp_path / "data" / "again").symlink_to(version.parent)
    shutil.copytree(version, tmp_path / "data" / "spare" / "1.0.0")
    LeRobotFiles(lengths=(4, 3)).write(tmp_path / "data" / "arm")
    shutil.copytree(tmp_path / "data" / "arm", tmp_path / "data" / "arm_copy")
    LeRobotFiles(lengths=(4, 3), version="v2.1").write(tmp_path / "data" / "other")
    plain, notes = spec_of_init([str(tmp_path / "data")], cli)
    assert [one["name"] for one in plain["datasets"]] == ["arm", "other", "pour_tea"]
    assert plain["datasets"][2]["path"] == str(version)
    assert notes.count(f"left out: a link to {version}") == 5
    assert notes.count("left out: it holds the same data as") == 2


@pytest.mark.parametrize("copied", [False, True])
def test_a_dataset_that_is_partly_there_counts_once(tmp_path: Path, cli: Cli, copied: bool):
    records = [[{"observation/rgb": [jpeg(0, 0)], "action": [0.0, 0.0]}]]
    features = {"observation/rgb": image(), "action": numbers(2)}
    data = tmp_path / "data"
    version = write_dataset(data, records * 3, name="bridge", features=features).path
    sorted(version.glob("*tfrecord*"))[-1].unlink()
    places = [data, data, data / "bridge"]
    if copied:
        places = [data, shutil.copytree(version, tmp_path / "spare" / "1.0.0")]
    else:
        (tmp_path / "link").symlink_to(data)
        places.append(tmp_path / "link")
    plain, notes = spec_of_init([*map(str, places)], cli)
    assert [one["path"] for one in plain["datasets"]] == [str(version)]
    assert notes.count(f"left out: it holds the same data as {version}") == 1


def test_plan_says_where_two_entries_read_the_same_files(tmp_path: Path, cli: Cli):
    version = write(tmp_path, "pour_tea", UNKNOWN)
    copy = shutil.copytree(version, tmp_path / "copy" / "1.0.0")
    home = hub(tmp_path / "hub", "cups", {"main": "a" * 40}, "a" * 40, "b" * 40)
    revisions = [str(home / "snapshots" / (letter * 40)) for letter in "ab"]
    common = {"images": {"top": "observation/cam_scene"}, "split": {"train": "train"}}
    datasets = [{"name": name, "path": str(path), **common}
                for name, path in (("a", version), ("b", copy), ("c", version))]  # fmt: skip
    top = {"images": {"top": "observation.images.top"}, "split": {"train": "train"}}
    datasets += [{"name": f"r{k}", "path": path, **top} for k, path in enumerate(revisions)]
    spec = spec_file(tmp_path, {"datasets": datasets, "cameras": {"top": {"size": [16, 16]}}})
    notes = cli("plan", "--spec", spec, "--ram-floor", "64MiB").err
    for first, other in (("a", "b"), ("a", "c"), ("r0", "r1")):
        assert f"{other}: reads the same data as {first}" in notes


def test_where_the_newest_version_cannot_be_read_an_older_one_is_taken_and_both_are_named(
    tmp_path: Path, cli: Cli
):
    version = write(tmp_path, "pour_tea", UNKNOWN)
    newest = shutil.copytree(version, version.parent / "1.1.0")
    info = json.loads((newest / "dataset_info.json").read_text())
    other = json.dumps({**info, "version": "1.1.0", "fileFormat": "array_record"})
    (newest / "dataset_info.json").write_text(other)
    plain, notes = spec_of_init([str(tmp_path)], cli)
    assert [one["path"] for one in plain["datasets"]] == [str(version)]
    assert f"{newest}: left out: " in notes
    assert "array_record, not tfrecord" in notes
    tfds = {"name": "a", "tfds": "pour_tea", "data_dir": str(tmp_path), "action": "action/left"}
    spec = {"datasets": [tfds], "cameras": {"top": {"size": [8, 8]}}}
    spec["datasets"][0]["images"] = {"top": "observation/cam_scene"}
    with pytest.raises(SourceError, match="array_record") as caught:
        resolve(PipelineSpec.from_mapping(spec))
    assert "or name another version of the dataset" in caught.value.remedy


def test_what_is_left_out_is_told_with_its_remedy(tmp_path: Path, cli: Cli):
    write(tmp_path, "pour_tea", UNKNOWN)
    (write(tmp_path, "old", UNKNOWN) / "features.json").unlink()
    for shard in write(tmp_path, "packed", UNKNOWN).glob("*.tfrecord*"):
        shard.write_bytes(gzip.compress(shard.read_bytes()))
    for shard in write(tmp_path, "half", UNKNOWN).glob("*.tfrecord*"):
        shard.unlink()
    arm = LeRobotFiles(lengths=(4, 3)).write(tmp_path / "arm")
    (arm / "meta/info.json").write_text("{")
    plain, notes = spec_of_init([str(tmp_path)], cli)
    assert [one["name"] for one in plain["datasets"]] == ["pour_tea"]
    for words in (
        "dataset old: .*old/1.0.0 has no features.json → copy the file there, or write",
        "dataset packed: .*-of-00001 is gzip-compressed → unpack it",
        "dataset half: shard file .* is missing → finish the copy",
        "dataset arm: .*info.json is broken: .* → download or copy the file",
    ):
        assert re.search(words, notes)
    words = str(tmp_path / "packed")
    for command in (["init", words], ["inspect", words]):
        assert "is gzip-compressed" in cli(*command, code=4).err


def test_init_says_why_it_took_no_camera_and_no_language(tmp_path: Path, cli: Cli):
    features = {"observation/state": numbers(3), "action": numbers(2)}
    write(tmp_path, "blind", features)
    told = cli("init", tmp_path, code=4).err
    assert "blind: no camera: no feature is a picture of the steps" in told
    assert "blind: no language: no feature holds texts" in told
    assert "init found no images that it can use as a camera" in told
    write(tmp_path, "seeing", {**features, "observation/image": image()})
    plain, _ = spec_of_init([str(tmp_path)], cli)
    assert ["images" in one for one in plain["datasets"]] == [False, True]


def test_episodes_without_videos_are_left_out_by_number(tmp_path: Path, cli: Cli):
    files = LeRobotFiles(lengths=(4, 3, 4, 3, 4, 3), version="v2.1")
    arm = files.write(tmp_path / "arm")
    for number in (0, 3):
        files.video(arm, "observation.images.top", number).unlink()
    said = cli("init", arm)
    (entry,) = yaml.safe_load(said.out)["datasets"]
    assert entry["episodes"] == [1, 2, 4, 5]
    assert entry["split"] == {"train": "train[:-1]", "val": "train[-1:]"}
    for text in (said.err, " ".join(said.out.replace("#", "").split())):
        assert "episodes 0, 3 of 6 have no video" in text
        assert "no such file" in text
    with AutoLoader(arm, ram_floor="64MiB", isolation="thread", controller=False) as loader:
        assert loader.plan.counts["arm"].episodes == 3
    for number in (1, 2, 4, 5):
        files.video(arm, "observation.images.top", number).unlink()
    assert "left out" not in cli("init", arm, code=4).err


def test_a_mixture_of_fewer_datasets_is_said_last_and_no_loader_takes_it(tmp_path: Path, cli: Cli):
    write(tmp_path, "pour_tea", UNKNOWN)
    (write(tmp_path, "old", UNKNOWN) / "features.json").unlink()
    said = cli("init", tmp_path)
    words = "1 of 2 datasets written; left out: old"
    assert said.err.splitlines()[-1] == words
    assert said.err.count("has no features.json") == 1
    assert words in " ".join(said.out.replace("#", "").split())
    words = "1 of 2 datasets cannot be used: dataset old: .* has no features.json"
    with pytest.raises(SourceError, match=words) as caught:
        AutoLoader(tmp_path)
    assert "autoloader init" in caught.value.remedy


def test_data_that_is_named_as_held_out_and_trained_on_is_told(tmp_path: Path, cli: Cli):
    for name in ("can/train", "can/valid.2"):
        write_robomimic(tmp_path / f"{name}.hdf5", {"demo_0": 3})
    for name in ("train", "pick-val", "a_test_train", "evals"):
        LeRobotFiles(lengths=(3, len(name))).write(tmp_path / name)
    told = [one for one in cli("init", tmp_path).err.splitlines() if "to validate on" in one]
    assert [one.partition(" is named")[0] for one in told] == [
        "can: valid.2.hdf5",
        "pick_val: pick-val",
    ]


@pytest.mark.parametrize(
    ("inside", "kind"),
    [("features.json", "tfds"), ("meta", "lerobot"), ("meta/info.json", "lerobot"),
     ("data/chunk-000", "lerobot")],
)  # fmt: skip
def test_a_place_inside_a_dataset_is_answered_with_the_datasets_folder(
    tmp_path: Path, cli: Cli, inside: str, kind: str
):
    root = write(tmp_path, "arm", TABLE)
    if kind == "lerobot":
        root = LeRobotFiles().write(tmp_path / "g1")
    for command in ("init", "inspect"):
        assert cli(command, root / inside, code=4).err.rstrip().endswith(str(root)), command


def test_a_path_with_two_dots_is_written_without_them_unless_they_follow_a_link(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "data", "arm", TABLE)
    (tmp_path / "work").mkdir()
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "work/link").symlink_to(tmp_path / "deep/er")
    (tmp_path / "deep/data").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path / "work")
    for given, path in (("../data", tmp_path / "data"), ("link/../data", "link/../data")):
        (entry,) = yaml.safe_load(cli("init", given).out)["datasets"]
        assert entry["path"] == str(tmp_path / "work" / path / "arm/1.0.0")
