"""HDF5 datasets from a folder to a batch: layouts by name, order, splits, language, commands."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_lines import Cli
from hdf5_files import (
    HEIGHT,
    WIDTH,
    numbers,
    pictures,
    write_aloha,
    write_robomimic,
    write_robotwin,
    write_robotwin_legacy,
)
from streams import opened

from autoloader import AutoLoader, PipelineSpec
from autoloader.cli.inspect import read_facts
from autoloader.errors import SourceError
from autoloader.formats import open_source
from autoloader.formats.episodes import fitting
from autoloader.formats.files import UnreadableError
from autoloader.formats.hdf5.schemas import LANGUAGE
from autoloader.process.draft import draft

DEMOS = {"demo_10": 6, "demo_2": 9, "demo_0": 7}
"""demo → steps, in the order in which they are written."""

Told = Callable[..., Any]


@pytest.fixture
def told(cli: Cli) -> Told:
    """Answer of a command as JSON."""

    def answer(*words: str) -> Any:
        return cli.json(*words)

    return answer


def write_all(folder: Path) -> None:
    """A dataset of each known layout."""
    write_robomimic(folder / "libero/put_it.hdf5", {"demo_0": 9, "demo_1": 6}, words="put it down")
    write_robomimic(folder / "libero/take_it.hdf5", {"demo_0": 5}, words="take it", first=2)
    write_robomimic(folder / "square/image.hdf5", DEMOS, "gzip")
    for episode in range(2):
        cameras = {"cam_high": "jpeg_chunks", "cam_left_wrist": "contiguous"}
        write_aloha(folder / f"aloha/episode_{episode}.hdf5", episode, 8, cameras)
        write_robotwin(folder / f"twin/episode_{episode}.hdf5", episode, 7)
        write_robotwin_legacy(folder / f"old/data/episode_{episode}.hdf5", episode, 7)
        words = folder / f"old/instructions/episode_{episode}.json"
        words.parent.mkdir(exist_ok=True)
        words.write_text(json.dumps({"seen": ["stack them", "pile them"]}))


def test_init_knows_every_layout_and_verify_agrees_with_h5py(
    tmp_path: Path, told: Told, one_child: None
):
    write_all(tmp_path / "data")
    mix = tmp_path / "mix.yaml"
    drafted = told("init", str(tmp_path / "data"))
    mix.write_text(drafted["spec"])
    assert not any(one["proposed"] for one in drafted["datasets"].values())
    spec = PipelineSpec.from_yaml(mix)
    square, aloha, twin = (spec.dataset(name) for name in ("square", "aloha", "twin"))
    assert square.images["primary"].paths == ("obs/agentview_image",)
    assert square.images["wrist"].paths == ("obs/robot0_eye_in_hand_image",)
    assert [one.path for one in square.state.terms] == [
        "obs/robot0_eef_pos", "obs/robot0_eef_quat", "obs/robot0_gripper_qpos"
    ]  # fmt: skip
    assert aloha.images["primary"].paths == ("observations/images/cam_high",)
    assert len(twin.action.terms) == 4
    held = told("verify", "--spec", str(mix), "--ram-floor", "64MiB", "-n", "80")
    assert held["differences"] == []
    assert set(held["samples"]) == {"libero", "square", "aloha", "twin", "data"}
    assert held["frames"] > 80
    assert held["not_compared"] == []
    assert told("plan", "--spec", str(mix), "--ram-floor", "64MiB")["datasets"]["square"][
        "decode_s"
    ]
    read = told("inspect", str(tmp_path / "data/square"))["read"]
    assert read["first"]["obs/agentview_image"]["stored_as"] == "raw"
    read = told("inspect", str(tmp_path / "data/aloha"))["read"]
    assert read["first"]["observations/images/cam_high"]["stored_as"] == "jpeg"


@pytest.mark.parametrize("layouts", [("contiguous", "jpeg_rows"), ("jpeg_rows", "gzip")])
def test_a_folder_may_have_raw_and_encoded_pictures(
    tmp_path: Path, told: Told, layouts: Sequence[str], one_child: None
):
    for episode, layout in enumerate(layouts):
        write_aloha(tmp_path / f"d/episode_{episode}.hdf5", episode, 8, {"top": layout})
    mix = tmp_path / "mix.yaml"
    drafted = told("init", str(tmp_path / "d"))["spec"].replace("train[:-1]", "train")
    mix.write_text(drafted.replace("[256, 256]", "[24, 32]"))
    held = told("verify", "--spec", str(mix), "--ram-floor", "64MiB", "-n", "16")
    assert (held["differences"], held["frames"]) == ([], 16)


def test_numbers_that_the_first_episode_s_type_cannot_hold_cost_the_episode(tmp_path: Path):
    write_robomimic(tmp_path / "d.hdf5", {"demo_0": 5, "demo_1": 6})
    with h5py.File(tmp_path / "d.hdf5", "r+") as file:
        del file["data/demo_0/actions"]
        file["data/demo_0/actions"] = np.ones((5, 7), np.int64)
    directory: Any = open_source(tmp_path, dataset="d")
    stored = directory.stored(str(tmp_path / "d.hdf5"), slice(None), None, {})
    assert next(stored)().steps == 5
    with pytest.raises(UnreadableError, match=r"actions holds .*, and its type, int64, cannot"):
        next(stored)()


@pytest.mark.parametrize("number", [np.inf, np.nan, 1e30, 2.0**63, np.uint64(2**64 - 1)])
def test_numbers_beyond_64_bits_are_refused_where_integers_are_declared(number: Any):
    whole = np.asarray([1, 2**62], type(number))
    assert fitting(whole, np.int64, "action").tolist() == [1, 2**62]
    with pytest.raises(UnreadableError, match="its type, int64, cannot"):
        fitting(np.asarray([1, number], type(number)), np.int64, "action")


@pytest.mark.parametrize("number", [1e39, -1e300])
def test_numbers_beyond_float32_are_refused_and_infinite_ones_kept(number: float):
    assert fitting(np.asarray([-np.inf, 3e38]), np.float32, "action").tolist()[0] == -np.inf
    with pytest.raises(UnreadableError, match="its type, float32, cannot"):
        fitting(np.asarray([1, number]), np.float32, "action")


@pytest.mark.parametrize(
    ("types", "joint"),
    [
        ("f4 f8", "float64"),
        ("i4 i8", "int64"),
        ("i8 f4", "float64"),
        ("f4 i4 f8", "float64"),
        ("i8 u8", "of several types or shapes"),
    ],
)
def test_numbers_of_several_files_have_the_type_that_holds_them(
    tmp_path: Path, types: str, joint: str
):
    for number, dtype in enumerate(types.split()):
        write_robomimic(tmp_path / f"{number}.hdf5", {"demo_0": 5})
        with h5py.File(tmp_path / f"{number}.hdf5", "r+") as file:
            del file["data/demo_0/actions"]
            file["data/demo_0/actions"] = np.full((5, 7), number, dtype)
    features = open_source(tmp_path, dataset="d").features
    assert (features["actions"].dtype, features["actions"].shape) == (joint, (7,))
    assert features["rewards"].dtype == "float64"


def test_demos_come_by_their_numbers_and_splits_by_masks(tmp_path: Path):
    masks = {"train": ["demo_0", "demo_10"], "valid": ["demo_2"]}
    write_robomimic(tmp_path / "d.hdf5", DEMOS, masks=masks)
    directory = open_source(tmp_path, dataset="d")
    assert directory.steps[str(tmp_path / "d.hdf5")] == (7, 9, 6)

    def records(split: str) -> list[int]:
        return [k for one in directory.resolve(split) for k in range(one.start, one.stop)]

    assert records("train") == [0, 2]
    assert records("valid") == [1]
    assert records("all") == [0, 1, 2]
    assert records("train[1:]") == [2]
    assert directory.notes == ()


def test_episodes_that_a_mask_alone_names_are_told(tmp_path: Path):
    write_robomimic(tmp_path / "d.hdf5", DEMOS, masks={"valid": ["demo_2", "demo_7"]})
    directory = open_source(tmp_path, dataset="d")
    assert [one.records for one in directory.resolve("valid")] == [1]
    (note,) = directory.notes
    assert "d.hdf5: mask/valid names episodes that are not there: demo_7" in note


def test_language_is_found_where_the_layout_says(tmp_path: Path):
    write_all(tmp_path)

    def said(folder: str) -> set[str]:
        directory = open_source(tmp_path / folder, dataset="d")
        paths = directory.splits["train"]
        return {directory.language_of(one.path, 0) for one in paths}  # type: ignore[attr-defined]

    assert said("libero") == {"put it down", "take it"}
    assert said("twin") == {"lift it"}
    assert said("old/data") == {"stack them"}
    assert said("square") == {None}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", ["S9", h5py.string_dtype()])
def test_a_text_may_lie_in_an_array_of_one(tmp_path: Path, shape: tuple[int, ...], dtype: Any):
    write_declared(tmp_path)
    declared = DECLARED.replace('"@note"', "said")
    (tmp_path / "schema.hdf5.yaml").write_text(declared)
    with h5py.File(tmp_path / "deep/run.h5", "a") as file:
        for name in ("take_1", "take_2"):
            file[f"takes/{name}"].create_dataset("said", shape, dtype)[...] = b"lift it"
    directory: Any = open_source(tmp_path, dataset="d")
    assert directory.language_of(str(tmp_path / "deep/run.h5"), 1) == "lift it"


def test_an_attribute_that_is_no_utf_8_costs_no_episode(tmp_path: Path):
    write_declared(tmp_path)
    with h5py.File(tmp_path / "deep/run.h5", "a") as file:
        note = {"data": b"caf\xe9", "dtype": h5py.string_dtype()}
        file["takes/take_1"].attrs.create("note", **note)
    directory = open_source(tmp_path, dataset="d")
    found = [record for _, record in directory.records(directory.splits["train"])]
    assert len(found) == 2
    assert b"caf?" in found[0]


DECLARED = """
files: "**/run.h5"
episodes: takes
images: {front: cam/rgb}
action: [ctrl]
state: [pose]
language: ["@note", "file:{stem}.json:words", "name:(.*)"]
channel_order: bgr
rotate: 180
fps: 20
"""


def write_declared(folder: Path) -> None:
    """A layout of nobody else's: episodes below ``takes``, pictures upside down, blue first."""
    (folder / "deep").mkdir(parents=True)
    (folder / "schema.hdf5.yaml").write_text(DECLARED)
    with h5py.File(folder / "deep/run.h5", "w") as file:
        for episode, name in enumerate(("take_1", "take_2")):
            take = file.create_group(f"takes/{name}")
            take.create_dataset("ctrl", data=numbers(episode, 5, 2))
            take.create_dataset("pose", data=numbers(episode, 5, 3))
            take.create_dataset("cam/rgb", data=pictures(0, episode, 5), compression="gzip")
        take.attrs["note"] = "turn it"
    (folder / "deep/run.json").write_text('{"words": "push it"}')


def test_language_may_be_put_beside_files_later(tmp_path: Path):
    write_robotwin_legacy(tmp_path / "data/episode_0.hdf5", 0, 7)
    assert LANGUAGE not in open_source(tmp_path / "data", dataset="d").features
    (tmp_path / "instructions").mkdir()
    (tmp_path / "instructions/episode_0.json").write_text('{"seen": ["stack them"]}')
    assert LANGUAGE in open_source(tmp_path / "data", dataset="d").features


def test_a_folder_declares_a_layout_of_its_own(tmp_path: Path, told: Told, one_child: None):
    write_declared(tmp_path / "own")
    mix = tmp_path / "mix.yaml"
    mix.write_text(told("init", str(tmp_path / "own"))["spec"].replace("[256, 256]", "[24, 32]"))
    held = told("verify", "--spec", str(mix), "--ram-floor", "64MiB", "-n", "10")
    assert (held["differences"], held["largest_frame_difference"]) == ([], 0)
    written = PipelineSpec.from_yaml(mix).model_dump(mode="json")
    small = {"size": 4, "drop_last": False}
    spec = PipelineSpec.from_mapping(written | {"metadata": "full", "batch": small})
    with AutoLoader(spec, output="numpy", ram_floor="64MiB", split="train") as loader:
        batch = next(iter(loader))
    for row, (_, _, _, record, t) in enumerate(batch["provenance"].tolist()):
        turned = pictures(0, record, 5)[t, ::-1, ::-1, ::-1]
        np.testing.assert_array_equal(batch["images"]["front"][row, 0], turned)
        assert batch["language"][row] == ("push it", "turn it")[record]


def test_an_episode_that_a_function_gives_back_has_its_samples(tmp_path: Path, one_child: None):
    write_robomimic(tmp_path / "d/d.hdf5", {"demo_0": 4, "demo_1": 3})
    plain = {"name": "d", "path": str(tmp_path / "d"), "action": "actions",
             "images": {"top": "obs/agentview_image"}}  # fmt: skip
    found = []
    for more in ({}, {"transform": {"call": "copy:copy"}}):
        document = {"datasets": [plain | more], "cameras": {"top": {"size": [HEIGHT, WIDTH]}},
                    "batch": {"size": 7}}  # fmt: skip
        spec = PipelineSpec.from_mapping(document)
        with AutoLoader(spec, output="numpy", ram_floor="64MiB") as loader:
            batch = next(iter(loader))
            found.append([batch["images"]["top"].copy(), batch["action"].copy()])
    for before, after in zip(*found, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "how", [{}, {"chunks": (1, 24, 32)}, {"compression": "gzip", "shuffle": True}], ids=str
)
def test_depth_is_that_of_h5py_to_the_bit(tmp_path: Path, how: dict[str, Any], one_child: None):
    wanted = np.random.default_rng(1).integers(0, 2**16, (9, HEIGHT, WIDTH), np.uint16)
    write_aloha(tmp_path / "d/episode_0.hdf5", 0, 9, {"top": "contiguous"})
    with h5py.File(tmp_path / "d/episode_0.hdf5", "r+") as file:
        file.create_dataset("observations/images_depth/top", data=wanted, **how)
    document = {
        "datasets": [
            {"name": "d", "path": str(tmp_path / "d"), "action": "action",
             "images": {"far": "observations/images_depth/top"}}
        ],
        "cameras": {"far": {"size": [HEIGHT, WIDTH], "depth": "uint16"}},
        "batch": {"size": 4, "drop_last": False},
        "mixing": {"epoch": "pass"},
        "metadata": "full",
    }  # fmt: skip
    with AutoLoader(
        PipelineSpec.from_mapping(document), output="numpy", ram_floor="64MiB"
    ) as loader:
        for batch in loader:
            for row, place in enumerate(batch["provenance"].tolist()):
                np.testing.assert_array_equal(
                    batch["images"]["far"][row, 0, ..., 0], wanted[place[4]]
                )
    read = read_facts(open_source(tmp_path / "d", dataset="d"), "train", 1)
    assert read.absent == []
    assert read.first["observations/images_depth/top"].mode == "uint16"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("rotate: 90", "rotate"),
        ("chanel_order: bgr", "chanel_order"),
        ("like: robomimik", "robomimik"),
        ("files: no/*.h5", "matches 'no/"),
    ],
)
def test_a_wrong_declaration_is_refused_by_its_field(tmp_path: Path, line: str, why: str):
    write_robomimic(tmp_path / "d.hdf5", DEMOS)
    (tmp_path / "schema.hdf5.yaml").write_text(f"episodes: data\n{line}\n")
    with pytest.raises(SourceError, match=why):
        open_source(tmp_path, dataset="d")


def test_a_single_file_is_a_dataset(tmp_path: Path, told: Told):
    write_robomimic(tmp_path / "image.hdf5", DEMOS)
    write_aloha(tmp_path / "episode_0.hdf5", 0, 4, {"top": "contiguous"})
    with pytest.raises(SourceError, match=r"is aloha, and .* is robomimic"):
        open_source(tmp_path, dataset="d")
    directory = open_source(tmp_path / "image.hdf5", dataset="d")
    assert directory.title == "HDF5"
    assert sum(one.records for one in directory.splits["train"]) == 3
    assert directory.features["obs/agentview_image"].shape == (HEIGHT, WIDTH, 3)
    assert list(told("init", str(tmp_path / "image.hdf5"))["datasets"]) == ["image"]
    assert told("inspect", str(tmp_path / "image.hdf5"))["read"]["episodes"] == 3


def test_hdf5_of_other_programs_is_left_out_and_costs_no_dataset(tmp_path: Path):
    write_robomimic(tmp_path / "demos/d.hdf5", DEMOS)
    (tmp_path / "model").mkdir()
    with h5py.File(tmp_path / "model/weights.h5", "w") as file:
        file.create_dataset("layers/dense/kernel", data=np.zeros((4, 4)))
    said: list[str] = []
    assert list(draft(tmp_path, said.append, whole=True)["datasets"]) == ["demos"]
    assert any(
        "weights.h5: it has no known layout: its top level has layers" in one for one in said
    )
    with pytest.raises(SourceError, match=r"no known layout: .* has layers"):
        draft(tmp_path / "model", said.append)


def test_a_second_start_opens_no_hdf5_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_robomimic(tmp_path / "d.hdf5", DEMOS)
    data = {
        "name": "d",
        "path": str(tmp_path),
        "action": "actions",
        "images": {"top": "obs/agentview_image"},
    }
    spec = PipelineSpec.from_mapping(
        {
            "datasets": [data],
            "cameras": {"top": {"size": [HEIGHT, WIDTH]}},
            "batch": {"size": 4},
            "mixing": {"epoch": "forever"},
        }
    )
    shown = []
    for _ in range(2):
        with opened(spec) as loader:
            shown.append(next(iter(loader))["images"]["top"].copy())
        monkeypatch.setattr(h5py, "File", None)
    np.testing.assert_array_equal(*shown)
