"""``autoloader verify``: equal where the loader is right, and exit code 4 where it is not."""

import importlib
import json
import os
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pyarrow as pa
import pytest
from command_lines import Cli
from hdf5_files import write_robomimic
from image_text_files import SIZE, records, write_lines
from lerobot_files import LeRobotFiles
from pyarrow import parquet
from rlds_files import (
    PLAIN,
    TEXT,
    episode,
    example,
    image,
    jpeg,
    numbers,
    png,
    write_dataset,
    write_records,
    write_steps,
)
from streams import opened, spec_file, spec_of

from autoloader.cli.verify import Comparer, evenly, taken
from autoloader.index import open_dataset_index
from autoloader.samples.resolve import resolve
from autoloader.spec import PipelineSpec

pytestmark = pytest.mark.usefixtures("one_child")


def verified(mix: Path, cli: Cli, count: int, code: int = 0) -> Any:
    return cli.json("verify", "--spec", mix, "-n", count, "--ram-floor", "64MiB", code=code)


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_all_that_a_sample_may_hold_is_equal_in_both_readers(reader: str, tmp_path: Path, cli: Cli):
    codes = {"instruction": numbers(8, dtype="int32")}
    codes["is_there"] = numbers(dtype="bool")
    pictures = {**PLAIN, **codes, "note": TEXT, "episode_metadata/success": numbers(dtype="bool")}
    words = [ord(letter) for letter in "go\0\0\0\0\0\0"] * 9
    others: dict[str, Any] = {
        "is_there": [k % 3 > 0 for k in range(9)],
        "note": [b"step %d" % k for k in range(9)],
        "episode_metadata/success": [1],
    }
    first = write_dataset(tmp_path, [[episode(0, 9)], [episode(1, 7)]], name="first")
    second = write_dataset(
        tmp_path, [[episode(2, 9, encode=png, instruction=words, **others)]],
        name="second", features=pictures,
    )  # fmt: skip
    common = {"action": "action", "images": {"primary": "observation/image"}}
    plain = {
        "datasets": [
            {"name": "first", "path": str(first.path), "state": "observation/state",
             "language": "language_instruction", "stride": 2, **common,
             "images": {"primary": "observation/image", "wrist": "observation/image"}},
            {"name": "second", "path": str(second.path), "language": "instruction",
             "state": ["observation/state[:2]", {"zeros": 1}], **common,
             "features": {"note": "note", "success": "episode_metadata/success",
                          "plain": "observation/state"},
             "images": {"primary": "observation/image",
                        "wrist": {"path": "observation/image", "present": "is_there"}}},
        ],
        "cameras": {"primary": {"size": [8, 20], "fit": "pad"}, "wrist": {"size": [12, 16]}},
        "sample": {
            "frame_offsets": [-2, 0, 5], "state_offsets": [-1, 0], "action_start": -1,
            "action_horizon": 3, "edges": {"start": "zero", "end": "repeat"}, "goal": "uniform",
            "action_per": "step" if reader == "stream" else "sample",
        },
        "normalize": {
            "action": {"method": "q01_q99", "dims": "[:-1]", "clip": True},
            "state": {"method": "mean_std"},
        },
        "pad_to": {"action": 4},
        "reader": reader,
    }  # fmt: skip
    mix = spec_file(tmp_path, plain)
    found = verified(mix, cli, 16)
    assert found["differences"] == []
    assert found["samples"] == {"first": 8, "second": 8}
    assert (found["texts"], found["frames"]) == (16, 16 * 2 * 4)
    assert found["largest_frame_difference"] <= 2


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"edges": {"start": "drop"}}, {"sample.edges.start"}),
        ({"per_episode": 2}, {"sample.per_episode"}),
        ({"frame_offsets": [-1]}, {"t"}),
    ],
    ids=["a step at a dropped edge", "a step that is not drawn", "missing steps"],
)
@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_a_sample_that_should_not_be_there_and_one_that_is_missing_are_told(
    reader: str, asked: dict[str, Any], told: set[str], tmp_path: Path
):
    written = write_dataset(tmp_path, [[episode(0, 6), episode(1, 5)]])
    plain: dict[str, Any] = {"frame_offsets": [-1], "edges": {"start": "repeat"}}
    given = {**plain, "per_episode": 2} if told == {"t"} else plain
    specs = [
        evenly(spec_of(written, sample=sample, reader=reader)) for sample in (given, plain | asked)
    ]
    with opened(specs[0]) as loader:
        found = Comparer(specs[1], loader)
        list(found.rows(list(taken(loader, 16))))
    assert {one.split(": ")[1] for one in found.differences} == told


def test_weights_of_samples_are_read_again_from_their_files(tmp_path: Path):
    def dataset(name: str, path: Path, image: str, **weight: Any) -> dict[str, Any]:
        action = "actions[:2]" if name == "demos" else "action[:2]"
        return {"name": name, "path": str(path), "action": action, "images": {"top": image},
                "sample_weight": weight}  # fmt: skip

    def rows(*lengths: int) -> dict[str, Any]:
        episode, step = np.array([(e, t) for e, n in enumerate(lengths) for t in range(n)]).T
        return {"episode": episode, "step": step, "w": episode + step / 8}

    np.savez(tmp_path / "w.npz", **rows(3, 4, 5))
    write_robomimic(tmp_path / "d/a.hdf5", {"demo_0": 3, "demo_1": 4})
    write_robomimic(tmp_path / "d/b.hdf5", {"demo_0": 5})
    progress = np.sin(np.arange(19.0) ** 2).tolist()
    parquet.write_table(
        pa.table({"index": range(19), "progress_dense": [None, *progress[1:]]}),
        tmp_path / "p.parquet",
    )
    np.savez(tmp_path / "kept.npz", episode=[0, 0], step=[0, 2], w=[0.0, 0.0])
    oak = write_steps(tmp_path, [[3, 4], [5]], name="oak").path
    lero = LeRobotFiles(lengths=(12, 7)).write(tmp_path / "lero")
    camera, file = "observation/image", str(tmp_path / "w.npz")
    spec = evenly(spec_of(
        dataset("oak", oak, camera, file=file, key="w"),
        dataset("fir", oak, camera, file=str(tmp_path / "kept.npz"), key="w", use="draw"),
        dataset("demos", tmp_path / "d", "obs/agentview_image", file=file, key="w"),
        dataset("lero", lero, "observation.images.top", file=str(tmp_path / "p.parquet"),
                key="progress_dense"),
        cameras={"top": {"size": [8, 8]}}, sample={"action_horizon": 2},
    ))  # fmt: skip
    with opened(spec) as loader:
        found, taken_ = Comparer(spec, loader), list(taken(loader, 80))
        list(found.rows(taken_))
        assert found.differences == []
        for row in taken_:
            row["sample_weight"] *= 1.01
        list(found.rows(taken_))
    assert {one.split(": ")[1] for one in found.differences} == {"sample_weight"}
    assert {one.split(",")[0] for one in found.differences} == {"oak", "fir", "demos", "lero"}


HOOKS = """
import numpy as np
import tensorflow as tf


def tidied(episode):
    observation = episode["observation"]
    rows = slice(1, None, 2)
    number = int(observation["state"][0, 0])
    if number == 1:
        return None
    steps = range(len(episode["action"][rows]))
    return {
        "observation": {"head": observation["image"][rows], "pose": observation["state"][rows, :2]},
        "action": 2 * episode["action"][rows],
        "task": np.array([f"é {number}" if t % 3 else " " for t in steps]),
        "valid": np.arange(len(steps)) != 2,
        "episode_metadata": {"name": f"/new/{number}".encode(), "number": np.int64(number)},
    }


def standardised(trajectory):
    for key in ("image", "state"):
        trajectory["observation"][key] = trajectory["observation"][key][1:]
    action = trajectory["action"][1:]
    grip = tf.clip_by_value(action[:, -1:], 0, 1)
    trajectory["action"] = tf.concat([action[:, :1], 1 - grip], axis=-1)
    trajectory["language_instruction"] = trajectory["language_instruction"][1:]
    trajectory["traj_metadata"]["episode_metadata"]["file_path"] = tf.strings.upper(
        trajectory["traj_metadata"]["episode_metadata"]["file_path"]
    )
    return trajectory
"""


def test_transforms_are_applied_by_hand_and_rules_are_looked_at(tmp_path: Path, cli: Cli):
    features = {**PLAIN, "episode_metadata/file_path": TEXT}
    episodes = [
        episode(n, 9 + n, **{"episode_metadata/file_path": [b"/lab/%d" % n]}) for n in range(4)
    ]
    written = write_dataset(tmp_path, [episodes[:2], episodes[2:]], features=features)
    module = "hooks_beside_the_spec"
    (tmp_path / f"{module}.py").write_text(HOOKS)
    (tmp_path / "keep.json").write_text(json.dumps({"/new/0|0": [[1, 4]], "/new/3|3": [[0, 9]]}))
    common = {"path": str(written.path), "action": "action"}
    key = "{episode_metadata/name}|{episode_metadata/number}"
    plain = {
        "datasets": [
            {"name": "tidied", "images": {"primary": "observation/head"}, "language": "task",
             "state": "observation/pose", "transform": {"call": f"{module}:tidied"}, **common,
             "keep": {"language": "required", "match": {"task": "é"},
                      "ranges": {"file": "keep.json", "key": key}}},
            {"name": "standardised", "images": {"primary": "observation/image"}, **common,
             "transform": {"call": f"{module}:standardised", "framework": "tensorflow"},
             "keep": {"match": {"episode_metadata/file_path": "^/LAB/[0-2]$"}},
             "language": "language_instruction", "stride": 2},
        ],
        "cameras": {"primary": {"size": [12, 16]}},
        "sample": {"frame_offsets": [0, 1], "action_horizon": 2},
        "normalize": {"action": {"method": "mean_std"}},
    }  # fmt: skip
    mix = spec_file(tmp_path, plain)
    found = verified(mix, cli, 16)
    assert found["differences"] == []
    assert found["samples"] == {"tidied": 8, "standardised": 8}


def test_a_step_that_a_rule_leaves_out_and_a_function_that_changed_are_told(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    written = write_dataset(tmp_path, [[episode(0, 8)]])
    (tmp_path / "changing_hook.py").write_text(
        "def twice(episode):\n    return {**episode, 'action': 2 * episode['action']}\n"
    )
    plain = {
        "datasets": [
            {"name": "robot", "path": str(written.path), "action": "action", "state":
             "observation/state", "language": "language_instruction", "keep": {"match":
             {"language_instruction": "ep"}}, "transform": {"call": "changing_hook:twice"},
             "images": {"primary": "observation/image"}}
        ],
        "cameras": {"primary": {"size": [12, 16]}},
    }  # fmt: skip
    mix = spec_file(tmp_path, plain)
    # The index has what the function was; what is called by hand is another one.
    monkeypatch.syspath_prepend(tmp_path)
    hooks = importlib.import_module("changing_hook")
    open_dataset_index(resolve(PipelineSpec.from_yaml(mix)).datasets[0])
    monkeypatch.setattr(
        hooks, "twice", lambda e: {**e, "language_instruction": np.array(["nothing"] * 8)}
    )
    found = verified(mix, cli, 8, code=4)
    told = {one.split(": ")[1] for one in found["differences"]}
    assert told == {"action", "language", "keep.match.language_instruction"}


def test_values_that_are_not_what_tfds_reads_are_named_and_end_with_4(tmp_path: Path, cli: Cli):
    features = {**PLAIN, "observation/wrist": image(), "observation/pose": numbers(2)}

    def records(shift: float) -> list[bytes]:
        values = [
            {
                **episode(number, 6),
                "observation/wrist": [jpeg(9, step) for step in range(6)],
                "observation/pose": [float(v) + shift for v in range(12)],
            }
            for number in range(3)
        ]
        return [example(one, features) for one in values]

    written = write_dataset(tmp_path, [records(0.0)], features=features)
    plain = {
        "datasets": [
            {
                "name": "robot", "path": str(written.path),
                "images": {"primary": {"any_of": ["observation/image", "observation/wrist"]}},
                "action": ["action", {"path": "observation/pose[:1]", "ops": ["invert"]}],
                "state": "observation/pose", "language": "language_instruction",
                "features": {"pose": "observation/pose"},
            }
        ],
        "sample": {"action_horizon": 2, "action_reduce": "sum",
                   "action_relative_to_state": [0], "edges": {"end": "zero"}},
        "cameras": {"primary": {"size": [12, 16]}},
        "reader": "indexed",
    }  # fmt: skip
    mix = spec_file(tmp_path, plain)
    assert verified(mix, cli, 18)["differences"] == []
    # The same size and time, other values: the index still has the old ones.
    before = written.files[0].stat()
    write_records(written.files[0], records(0.5))
    os.utime(written.files[0], ns=(before.st_atime_ns, before.st_mtime_ns))
    found = verified(mix, cli, 18, code=4)
    assert len(found["differences"]) == 54
    assert "robot, robot-train.tfrecord-00000-of-00001, record 0, t 0: " in found["differences"][0]
    assert {one.split(": ")[1] for one in found["differences"]} == {
        "action", "state", "features.pose"
    }  # fmt: skip


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_steps_and_ops_along_the_episode_are_compared_too(reader: str, tmp_path: Path, cli: Cli):
    features = {**PLAIN, "told": numbers(), "turned": numbers(4), "success": numbers(dtype="bool")}
    records = []
    for number, steps in enumerate((9, 7, 12)):
        told = [[0.0, 1.0, 0.0, -1.0, 0.0, 0.0][(number + t) % 6] for t in range(steps)]
        turned = [v for t in range(steps) for v in (0.1, 0.2 + t / 50, 0.3, 0.9)]
        more = {"told": told, "turned": turned, "success": [int(number != 1)] * steps}
        records.append(episode(number, steps, **more))
    written = write_dataset(tmp_path, [records], features=features)
    plain = {
        "datasets": [{"name": "robot", "path": str(written.path),
                      "images": {"primary": "observation/image"},
                      "action": [{"path": "observation/state[1:]",
                                  "ops": ["relabel", {"scale": 0.5}]},
                                 {"path": "told", "ops": ["rel2abs", "invert"]},
                                 {"path": "told", "ops": [{"clip": [0, 1]}, "binarise"]},
                                 {"ones": 1}],
                      "state": [{"path": "turned", "ops": [{"euler": "wxyz"}]},
                                {"path": "observation/state", "ops": [{"quaternion": "xyzw"}]},
                                {"path": "observation/state", "ops": ["rotation6d"]}],
                      "steps": {"drop_first": 1, "every": 2, "drop_last": 1},
                      "keep": {"flags": ["success"], "moving": {"path": "told", "above": 0.5}},
                      "sample": {"action_relative_to_state": [0, 1]}}],
        "cameras": {"primary": {"size": [12, 16]}}, "reader": reader,
    }  # fmt: skip
    mix = spec_file(tmp_path, plain)
    found = verified(mix, cli, 6)
    assert found["differences"] == []
    assert found["samples"] == {"robot": 6}


def test_wide_numbers_lanes_and_what_is_absent_or_not_finite_are_no_differences(
    tmp_path: Path, cli: Cli
):
    write_robomimic(tmp_path / "demos/a.hdf5", {"demo_0": 7, "demo_1": 3}, words="fold it")
    write_robomimic(tmp_path / "demos/b.hdf5", {"demo_0": 2})  # says nothing
    with h5py.File(tmp_path / "demos/a.hdf5", "r+") as file:
        file["data/demo_0/actions"][2] = np.nan
        near = file["data/demo_1/obs"].pop("robot0_eef_pos")[()]
        file["data/demo_1/obs/robot0_eef_pos"] = near.astype(">f8")
    demos = {"name": "demos", "path": str(tmp_path / "demos"), "action": "actions",
             "images": {"top": "obs/agentview_image"}, "language": "language_instruction",
             "features": {"near": "obs/robot0_eef_pos"}}  # fmt: skip
    mix = {"datasets": [demos], "cameras": {"top": {"size": [24, 32]}},
           "mixing": {"locality": {"block": "64KiB", "lanes": 6}},
           "errors": {"non_finite": "drop"}}  # fmt: skip
    assert verified(spec_file(tmp_path, mix), cli, 48)["differences"] == []


def test_samples_that_stand_in_for_damaged_ones_are_no_differences(tmp_path: Path, cli: Cli):
    path = write_lines(tmp_path / "talk.jsonl", records(tmp_path, [1, 0, 1, 1]))
    grey = np.full(SIZE, 40_000, np.uint16)
    (tmp_path / "p0.png").write_bytes(cv2.imencode(".png", grey)[1].tobytes())
    (tmp_path / "p1.png").write_bytes((tmp_path / "p1.png").read_bytes()[:60])
    talk = {"name": "talk", "path": str(path), "kind": "image_text", "images": {"top": "image_0"}}
    mix = {"datasets": [talk], "cameras": {"top": {"size": list(SIZE)}}}
    assert verified(spec_file(tmp_path, mix), cli, 12)["differences"] == []
