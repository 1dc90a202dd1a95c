"""The commands that look at datasets know LeRobot's too."""

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lines import Cli
from lerobot_checks import SIDE, TOP
from lerobot_files import LeRobotFiles
from pyarrow import parquet
from rlds_files import episode, write_dataset
from streams import spec_file

from autoloader.host import extras

pytestmark = pytest.mark.usefixtures("one_child")

FILES = LeRobotFiles(lengths=(6, 5, 7), pictures=[SIDE], gop=20)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec file of one dataset as it lies, and as a function and the spec's words leave it."""
    folder = tmp_path_factory.mktemp("commands")
    path = str(FILES.write(folder / "arm"))
    plain = {
        "name": "arm",
        "path": path,
        "images": {"top": TOP, "side": SIDE},
        "action": "action",
        "state": "observation.state",
        "language": "task",
    }
    made = {
        "name": "turned",
        "path": path,
        "transform": {"call": "lerobot_functions:backwards"},
        "steps": {"drop_last": 1},
        "images": {"top": "cameras/front", "side": "cameras/wrist"},
        "action": [{"path": "joints[:1]", "ops": ["relabel"]}, "moves[1:]"],
        "state": "joints",
        "language": "words",
    }
    sizes = {"top": {"size": [64, 96]}, "side": {"size": [64, 96]}}
    document = {
        "datasets": [plain, made],
        "cameras": sizes,
        "sample": {"delta_timestamps": {"frames": [-0.1, 0]}},
    }
    return spec_file(folder, document)


def test_verify_compares_with_what_pyarrow_and_pyav_read(spec: Path, cli: Cli):
    words = ["verify", "--spec", str(spec), "-n", "24", "--ram-floor", "64MiB", "--json"]
    told = json.loads(cli(*words).out)
    assert told["differences"] == []
    assert told["samples"] == {"arm": 12, "turned": 12}
    assert told["frames"] == 24 * 2 * 2
    assert told["largest_frame_difference"] == 0


def test_verify_holds_numbers_that_are_none_equal(tmp_path: Path, cli: Cli):
    root = LeRobotFiles(lengths=(6,), cameras={}, pictures=[TOP]).write(tmp_path / "arm")
    (rows,) = (root / "data").rglob("*.parquet")
    table = parquet.read_table(rows)
    action = [[math.nan, 2.0, math.inf]] * table.num_rows
    parquet.write_table(
        table.set_column(table.column_names.index("action"), "action", [action]), rows
    )
    own = {"name": "arm", "path": str(root), "action": "action", "images": {"top": TOP},
           "features": {"again": "action"}}  # fmt: skip
    document = {"datasets": [own], "cameras": {"top": {"size": [64, 96]}}}
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(document))
    words = ["verify", str(tmp_path / "mix.yaml"), "-n", "6", "--ram-floor", "64MiB", "--json"]
    assert json.loads(cli(*words).out)["differences"] == []


def test_verify_without_tensorflow_compares_lerobots_frames_and_says_what_it_left_out(
    spec: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        extras, "find_spec", lambda name: None if name.startswith("tensorflow") else found(name)
    )
    document = yaml.safe_load(spec.read_text())
    rlds = write_dataset(tmp_path, [[episode(0, 6)]], name="rlds")
    plain = {"name": "rlds", "path": str(rlds.path), "images": {"top": "observation/image"}}
    mixed, alone = tmp_path / "mixed.yaml", tmp_path / "alone.yaml"
    document["datasets"] = [document["datasets"][0], plain | {"fps": 10}]
    mixed.write_text(yaml.safe_dump(document))
    words = ["-n", "16", "--ram-floor", "64MiB", "--json"]
    told = cli("verify", mixed, *words, code=2)
    answer = json.loads(told.out)
    assert (answer["samples"], answer["not_compared"]) == ({"arm": 8}, ["rlds"])
    assert (answer["frames"], answer["differences"]) == (8 * 2 * 2, [])
    assert answer["numbers"] > 0
    assert "rlds: not compared: run `pip install 'autoloader-rlds[stream]'`" in told.err
    for resize in ("bilinear", "area", "lanczos3", "pillow_bilinear"):
        ways = [
            f"cameras.{name}={{size: [40, 48], resize: {resize}}}" for name in document["cameras"]
        ]
        answer = json.loads(cli("verify", spec, *words, "--set", *ways).out)
        assert (answer["frames"], answer["differences"]) == (16 * 2 * 2, [])
    ways = [f"cameras.{name}.resize=tf_bilinear" for name in document["cameras"]]
    told = cli("verify", spec, *words, "--set", *ways, code=2)
    assert json.loads(told.out)["frames"] == 0
    frames = ", ".join(f"frames of {name}" for name in document["cameras"])
    assert told.err.count("autoloader-rlds[stream]") == 1
    assert f"{frames}: not compared: run" in told.err
    document["datasets"], document["cameras"] = [plain | {"fps": 10}], {"top": {"size": [64, 96]}}
    alone.write_text(yaml.safe_dump(document))
    assert "autoloader-rlds[stream]" in cli("verify", alone, *words, code=2).err


def test_inspect_tells_of_videos_that_are_missing(tmp_path: Path, cli: Cli):
    files = LeRobotFiles(version="v2.1")
    root = files.write(tmp_path / "arm")
    assert "missing" not in cli("inspect", root).out
    files.video(root, TOP, 2).unlink()
    (line,) = [one for one in cli("inspect", root).out.splitlines() if "missing videos" in one]
    assert "1 of 4 videos that the metadata names are not there" in line
    assert line.endswith("1 of 4 episodes cannot be read")


@pytest.mark.parametrize(
    ("names", "shown", "flagged"),
    [
        (None, "action[:] 0", "action 6: action[2:3] 0"),
        ([["x", "y", "thumb"]], "x", ""),
        ({"motors": ["x", "y", "jaw_gripper"]}, "x", "action 2: jaw_gripper"),
        ({"x": 0, "y": 1, "thumb": 2}, "x", ""),
        (["x", "y"], "action[:] 0", "action 6: action[2:3] 0"),
    ],
)
def test_peek_calls_columns_by_their_names_and_finds_the_gripper_by_them(
    names: Any, shown: str, flagged: str, tmp_path: Path, cli: Cli
):
    root = LeRobotFiles().write(tmp_path / "arm")
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["action"]["names"] = names
    (root / "meta/info.json").write_text(json.dumps(info))
    dataset = {
        "name": "arm", "path": str(root), "images": {"primary": "observation.images.top"},
        "action": ["action[:]", "action[:]", "action[2:3]"],
    }  # fmt: skip
    spec = {"datasets": [dataset], "cameras": {"primary": {"size": [8, 8]}}}
    (tmp_path / "mix.json").write_text(json.dumps(spec))
    words = ["peek", str(tmp_path / "mix.json"), "-o", str(tmp_path / "sheet.html"), "--json"]
    told = json.loads(cli(*words, "--samples", "8", "--ram-floor", "64MiB").out)
    assert told["datasets"]["arm"]["fields"]["action"][0]["name"] == f"0: {shown}"
    if flagged:
        assert f"arm: {flagged}: gripper " in told["odd"][0]
        assert "to have it open or closed, " in told["odd"][0]
    else:
        assert told["odd"] == []


@pytest.mark.parametrize(
    ("codec", "gop", "sample", "told"),
    [
        ("libsvtav1", 20, {"frame_offsets": [0]}, "av1, a keyframe every 20 frames: 10.5 decodes"),
        ("libsvtav1", 2, {"frame_offsets": [0]}, "av1, a keyframe every 2 frames: 1.5 decodes"),
        ("libx264", 20, {"frame_offsets": [0, 4]}, "reencode_videos"),
    ],
)
def test_plan_tells_how_many_decodes_a_frame_of_a_video_takes(
    tmp_path: Path, cli: Cli, codec: str, gop: int, sample: dict[str, Any], told: str
):
    root = LeRobotFiles(lengths=(40,), codec=codec, gop=gop).write(tmp_path / "arm")
    dataset = {"name": "arm", "path": str(root), "images": {"top": TOP}, "action": "action"}
    document = {"datasets": [dataset], "cameras": {"top": {"size": [64, 96]}}, "sample": sample}
    spec = spec_file(tmp_path, document)
    words = ["plan", "--spec", str(spec), "--ram-floor", "64MiB"]
    assert told in cli(*words).out
    assert cli.json(*words)["datasets"]["arm"]["video"]["keyframe_frames"] == gop


@pytest.mark.parametrize(("gop", "where"), [(2, "facts"), (40, "findings")])
def test_doctor_tells_how_far_apart_the_keyframes_lie(
    tmp_path: Path, cli: Cli, gop: int, where: str
):
    root = LeRobotFiles(lengths=(40,), codec="libsvtav1", gop=gop).write(tmp_path / "arm")
    dataset = {"name": "arm", "path": str(root), "images": {"top": TOP}, "action": "action"}
    document = {"datasets": [dataset], "cameras": {"top": {"size": [64, 96]}}}
    spec = spec_file(tmp_path, document)
    found = cli.json("doctor", spec, code=None)[where]
    (told,) = (one for one in found if one["check"] == "video")
    assert f"a keyframe every {gop} frames" in (told.get("text") or told["evidence"])
