"""Small inputs that people really have: each is read right or refused by name, by every command."""

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lines import Cli
from streams import opened, spec_file

from autoloader import PipelineSpec
from autoloader.errors import AutoloaderError

pytestmark = pytest.mark.usefixtures("one_child")

RLDS = (
    "droid_inner_name",
    "gzip_shards",
    "init_without_camera_env14",
    "language_episode_sequence",
    "language_string_tensor_openfly39",
    "no_features_json_armory1738",
    "ragged_sequence",
)


def dataset_of(name: str, root: Path, **more: Any) -> dict[str, Any]:
    """A dataset of a case as a person would write it."""
    if name not in RLDS:
        fields = {"images": {"primary": "observation.images.top"}, "action": "action",
                  "state": "observation.state", "language": "task"}  # fmt: skip
        return {"name": "x", "path": str(root), **fields, **more}
    path = next(one.parent for one in root.rglob("dataset_info.json"))
    fields = {"images": {"primary": "observation/image"}, "action": "action",
              "state": "observation/state", "language": "language_instruction"}  # fmt: skip
    return {"name": "x", "path": str(path), **fields, **more}


def spec_of(*datasets: dict[str, Any]) -> dict[str, Any]:
    every = [{"split": {"train": "train"}, **one} for one in datasets]
    return {"datasets": every, "cameras": {"primary": {"size": [16, 16]}},
            "batch": {"size": 4, "drop_last": False}, "mixing": {"epoch": "pass"}}  # fmt: skip


def epoch_of(spec: dict[str, Any]) -> tuple[Counter[int], Counter[str]]:
    """(samples of each episode, samples of each text) of one epoch."""
    episodes: Counter[int] = Counter()
    texts: Counter[str] = Counter()
    with opened(PipelineSpec.from_mapping(spec), controller=False) as loader:
        for batch in loader:
            action = batch["action"]
            episodes.update(action.reshape(len(action), -1)[:, 0].round().astype(int).tolist())
            texts.update(batch["language"])
    return episodes, texts


def answers(
    spec: Path, folder: Path, cli: Cli, *, examined: bool = True
) -> dict[str, tuple[int, str]]:
    """(exit code, what stderr says) of every command that looks at a spec's data, and a loader."""
    common = ["--spec", str(spec)]
    commands = {
        "plan": ["plan", *common, "--ram-floor", "200MB"],
        "index": ["index", *common],
        "peek": ["peek", *common, "--out", str(folder / "sheet.html"), "--ram-floor", "200MB"],
        "verify": ["verify", *common, "-n", "45", "--ram-floor", "200MB"],
    }
    found = {}
    for name, words in commands.items():
        said = cli(*words, code=None)
        found[name] = said.code, said.err
    if examined:
        findings = cli.json("doctor", *common, code=None)["findings"]
        errors = [one["evidence"] for one in findings
                  if (one["check"], one["severity"]) == ("data", "error")]  # fmt: skip
        found["doctor"] = 4 * bool(errors), "".join(f"error: {one}" for one in errors)
    try:
        epoch_of(yaml.safe_load(spec.read_text()))
    except AutoloaderError as error:
        found["loader"] = error.exit_code, f"error: {error}"
    else:
        found["loader"] = 0, ""
    return found


READ = {
    "channel_first_any4lerobot35": {},
    "deleted_episode_lr831": {},
    "droid_inner_name": {"images": {"primary": "observation/exterior_image_1_left"},
                         "state": "observation/joint_position"},
    "language_episode_sequence": {
        "language": {"path": "episode_metadata/instructions", "several": "draw"}},
    "language_string_tensor_openfly39": {
        "language": {"path": "language_instruction", "several": "first"}},
    "plan_transform_lerobot": {"steps": {"drop_last": 1}},
    "ragged_sequence": {"language": {"path": "observation/words", "several": "draw"}},
    "tasks_not_converted_lr2467": {"language": None},
    "tasks_unreadable_gr00t288": {"language": None},
}  # fmt: skip


def test_every_command_reads_what_a_loader_reads(cases: Any, tmp_path: Path, cli: Cli):
    """All in one mixture, as written by hand; ``verify`` too as ``init`` writes each."""
    roots = {name: cases(name) for name in READ}
    spec = spec_of(*(dataset_of(n, roots[n], **READ[n]) | {"name": n} for n in READ))
    spec |= {"batch": {"size": 4}, "mixing": {"epoch": "pass"}}
    told = answers(spec_file(tmp_path, spec), tmp_path, cli)
    assert {command: code for command, (code, _) in told.items()} == dict.fromkeys(told, 0), told
    for number, (name, root) in enumerate(roots.items()):
        plain = yaml.safe_load(cli("init", root).out)
        spec["datasets"][number] = plain["datasets"][0] | {"name": name}
        spec["cameras"] |= {camera: {"size": [16, 16]} for camera in plain["cameras"]}
    cli("verify", "--spec", spec_file(tmp_path, spec), "-n", "45", "--ram-floor", "200MB")


REFUSED = {
    "gzip_shards": ({}, "gz-train.tfrecord-00000 is gzip-compressed"),
    "init_without_camera_env14": ({}, "several pictures in every step"),
    "no_data_path": ({}, "info.json is broken: it has no data_path"),
    "no_features_json_armory1738": ({}, "has no features.json"),
    "tasks_not_converted_lr2467": ({}, "meta has no tasks.parquet"),
    "tasks_unreadable_gr00t288": ({}, "tasks.jsonl is broken: line 1 is not JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_command_refuses_what_a_loader_refuses_in_the_same_words(
    name: str, cases: Any, tmp_path: Path, cli: Cli
):
    root = cases(name)
    more, words = REFUSED[name]
    code = 0 if name.startswith("tasks_") else 4  # init writes a spec without the language
    assert words in cli("init", root, code=code).err
    spec = spec_file(tmp_path, spec_of(dataset_of(name, root, **more)))
    told = answers(spec, tmp_path, cli)
    assert all(code for code, _ in told.values()), told
    plain = [
        re.sub(r"error: \S+mix.yaml, line \d+: ", "error: ", said) for _, said in told.values()
    ]
    first = {said[said.index("error: ") :].partition("\n")[0] for said in plain}
    assert len(first) == 1, told
    assert words in first.pop()


def test_a_deleted_episode_takes_no_other_with_it(cases: Any):
    episodes, _ = epoch_of(spec_of(dataset_of("deleted", cases("deleted_episode_lr831"))))
    assert episodes == dict.fromkeys([0, 1, 2, 4, 5, 6, 7, 8, 9], 6)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("r2d2_faceblur", "droid", "1.0.0"),
        ("r2d2_faceblur", "droid_100", "1.0.0"),
        ("droid_101", "my_copy", "1.0.1"),
    ],
)
@pytest.mark.parametrize("style", ["plain", "openvla", "openpi"])
def test_droid_is_known_under_the_names_of_its_files(
    words: tuple[str, ...], style: str, cases: Any, cli: Cli
):
    root = cases("droid_inner_name", *words)
    told = cli("init", root, "--style", style)
    assert "guessed" not in told.err
    (dataset,) = yaml.safe_load(told.out)["datasets"]
    assert dataset["action"] != "action"
    if style == "openpi":
        assert dataset["keep"]["match"] == {"episode_metadata/file_path": "success"}
    assert "1 of the 27 datasets" in cli("init", root, "--mix", "openvla").err


def test_inspect_tells_lists_of_any_length(cases: Any, cli: Cli):
    read = yaml.safe_load(cli("inspect", cases("ragged_sequence"), "--json").out)["read"]
    assert read["first"]["observation/points"] == []
    (points,) = read["ranges"]["observation/points"]
    assert (points["low"], points["high"]) == (0.0, 1.0)


def test_init_proposes_one_of_several_texts(cases: Any, cli: Cli):
    for name, path in (
        ("language_episode_sequence", "episode_metadata/instructions"),
        ("language_string_tensor_openfly39", "language_instruction"),
    ):
        told = cli("init", cases(name))
        (dataset,) = yaml.safe_load(told.out)["datasets"]
        assert dataset["language"] == {"path": path, "several": "draw"}
        assert "no language" not in told.err


def test_a_transform_is_given_lists_of_any_length(cases: Any, tmp_path: Path):
    (tmp_path / "padded.py").write_text(
        "import numpy as np\n"
        "def padded(episode):\n"
        "    points, words = (episode['observation'][k] for k in ('points', 'words'))\n"
        "    assert [len(p) for p in points] == [k % 3 for k in range(6)]\n"
        "    assert all(p.dtype == np.float32 for p in points)\n"
        "    wide = np.stack([np.pad(p, (0, 2 - len(p)), constant_values=-1) for p in points])\n"
        "    said = np.array([b' '.join(w) for w in words], object)\n"
        "    return {**episode, 'points': wide, 'said': said}\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        more = {"transform": {"call": "padded:padded"}, "state": "points", "language": "said"}
        spec = spec_of(dataset_of("ragged_sequence", cases("ragged_sequence"), **more))
        with opened(PipelineSpec.from_mapping(spec), controller=False) as loader:
            rows = {(*batch["state"][k, 0].tolist(), batch["language"][k])
                    for batch in loader for k in range(len(batch["language"]))}  # fmt: skip
        assert rows == {(-1.0, -1.0, ""), (0.0, -1.0, "w"), (0.0, 1.0, "w w")}
        spec["datasets"][0] |= {"language": {"path": "observation/words", "several": "first"}}
        _, texts = epoch_of(spec)
        assert texts == {"": 8, "w": 16}
    finally:
        sys.path.remove(str(tmp_path))


def test_a_function_of_tensorflow_is_given_them_as_ragged_tensors(
    cases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "ragged_tf.py").write_text(
        "import tensorflow as tf\n"
        "def padded(traj):\n"
        "    of = traj['observation']\n"
        "    wide = of['points'].to_tensor(default_value=-1.0, shape=[None, 2])\n"
        "    said = tf.strings.reduce_join(of['words'].to_tensor(''), axis=1)\n"
        "    return {**traj, 'points': wide, 'said': said}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    call = {"call": "ragged_tf:padded", "framework": "tensorflow"}
    more = {"transform": call, "state": "points", "language": "said"}
    spec = spec_of(dataset_of("ragged_sequence", cases("ragged_sequence"), **more))
    _, texts = epoch_of(spec)
    assert texts == {"": 8, "w": 8, "ww": 8}
    spec["datasets"][0]["language"] = {"path": "observation/words", "several": "first"}
    _, texts = epoch_of(spec)
    assert texts == {"": 8, "w": 16}
