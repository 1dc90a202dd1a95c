"""Rebuilt reports from other projects (../shared/cases): the right sample, or a refusal by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_lines import Cli
from real_damage import REAL, Damaged, damages
from streams import opened, spec_file

from autoloader import PipelineSpec
from autoloader.errors import AutoloaderError, SpecError

pytestmark = pytest.mark.usefixtures("one_child")

Samples = dict[tuple[int, int], dict[str, Any]]
TOP, WRIST = "observation.images.top", "observation.images.wrist"


@pytest.fixture
def made(cases: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Copies a case's dataset, which the test may change."""
    return lambda case: Path(shutil.copytree(cases(case), tmp_path / case))


def spec_of(root: Path, **more: Any) -> PipelineSpec:
    dataset = {
        "name": "arm", "path": str(root), "images": {"top": TOP}, "action": "action",
        **more.pop("dataset", {}),
    }  # fmt: skip
    plain = {
        "datasets": [dataset],
        "cameras": {name: {"size": [48, 64]} for name in dataset["images"]},
        "batch": {"size": 4, "drop_last": False},
        "mixing": {"epoch": "pass"},
        "errors": {"max_corrupt_ratio": 0.5},
        **more,
    }
    return PipelineSpec.from_mapping(plain)


def samples_of(spec: PipelineSpec) -> tuple[Samples, list[str]]:
    """((episode, step) → grey level by camera and text, why episodes are quarantined).

    Actions of the cases tell episode and step.
    """
    found = {}
    with opened(spec, controller=False) as loader:
        for batch in loader:
            for k, action in enumerate(batch["action"][:, 0]):
                grey = {name: frames[k, 0].mean() for name, frames in batch["images"].items()}
                found[round(float(action[0])), round(float(action[1]))] = {
                    **grey,
                    "text": batch["language"][k],
                }
        return found, [one.reason for one in loader.quarantined()]


def grey(episode: int, step: int) -> int:
    return (20 * episode + 4 * step + 10) % 250


def check(found: Samples, cameras: tuple[str, ...] = ("top",)) -> None:
    for (episode, step), sample in found.items():
        for camera in cameras:
            assert abs(sample[camera] - grey(episode, step)) < 2, (episode, step, camera)


def test_starts_that_drift_are_placed_by_the_lengths(made: Callable[[str], Path], cli: Cli):
    root = made("lr3177_drift")
    found, lost = samples_of(spec_of(root))
    assert not lost
    assert len(found) == 600
    check(found)

    spec = spec_file(root.parent, spec_of(root))
    (note,) = cli.json("index", "--spec", spec)["datasets"]["arm"]["notes"]
    for word in ("of 150 episodes", "up to 0.7", "600 frames"):
        assert word in note


def test_a_camera_that_was_not_recorded_once_costs_that_episode_where_it_is_used(
    made: Callable[[str], Path],
):
    root = made("null_video_l2d2429")
    found, lost = samples_of(spec_of(root))
    assert {episode for episode, _ in found} == {0, 1, 2, 3}
    assert not lost
    check(found)
    found, (why,) = samples_of(spec_of(root, dataset={"images": {"top": TOP, "wrist": WRIST}}))
    assert {episode for episode, _ in found} == {0, 1, 3}
    check(found, ("top", "wrist"))
    assert WRIST in why
    assert "episode 2" in why


def test_a_robots_clock_is_refused_with_what_to_do_and_ignored_on_request(
    made: Callable[[str], Path],
):
    root = made("hardware_clock_lr3513")
    with pytest.raises(AutoloaderError) as caught:
        samples_of(spec_of(root))
    for word in ("timestamps: ignore", "frame_index / fps"):
        assert word in str(caught.value)
    found, lost = samples_of(spec_of(root, dataset={"timestamps": "ignore"}))
    assert not lost
    assert len(found) == 32
    check(found)


def test_annotations_are_the_texts_of_their_tasks(made: Callable[[str], Path]):
    root = made("gr00t_annotation")
    language = "annotation.human.action.task_description"
    found, lost = samples_of(spec_of(root, dataset={"language": language}))
    assert not lost
    assert {sample["text"] for sample in found.values()} == {"pick up the cup"}


def rewrite(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(file)), file)


def test_rows_without_frame_index_whose_times_begin_at_one_frame_count_by_their_order(
    made: Callable[[str], Path], cli: Cli
):

    root = made("gr00t_annotation")
    info = json.loads((root / "meta/info.json").read_text())
    del info["features"]["frame_index"]
    info["features"]["observation.images.egoview"] = info["features"][TOP]
    (root / "meta/info.json").write_text(json.dumps(info))

    def as_gr00t_writes(table: pa.Table) -> pa.Table:
        times = (np.arange(1, len(table) + 1) / 10).astype(np.float32)
        number = table.column_names.index("timestamp")
        return table.set_column(number, "timestamp", pa.array(times)).drop_columns("frame_index")

    for file in sorted((root / "data").rglob("*.parquet")):
        rewrite(file, as_gr00t_writes)
    found, lost = samples_of(spec_of(root))
    assert not lost
    assert len(found) == 32
    check(found)
    spec = spec_file(root.parent, spec_of(root))
    (note,) = cli.json("index", "--spec", spec)["datasets"]["arm"]["notes"]
    assert "begin at 0.100 s" in note


def test_timestamps_are_of_lerobot_data_alone(tmp_path: Path):
    from rlds_files import episode, write_dataset
    from streams import dataset_of
    from streams import spec_of as rlds_spec_of

    written = write_dataset(tmp_path, [[episode(0, 5)]])
    with pytest.raises(SpecError, match="TFDS data, whose rows have no times"):
        samples_of(rlds_spec_of({**dataset_of(written), "timestamps": "ignore"}))


def null_action(root: Path, episode: int) -> None:
    def change(table: pa.Table) -> pa.Table:
        values = table.column("action").to_pylist()
        values[2] = None
        number = table.column_names.index("action")
        column = pa.array(values, table.schema.field("action").type)
        return table.set_column(number, "action", column)

    rewrite(root / f"data/chunk-000/episode_{episode:06d}.parquet", change)


@pytest.mark.parametrize("way", ["keep.ranges", "split", "episodes"])
def test_episodes_that_are_left_out_are_not_held_against_the_dataset(
    made: Callable[[str], Path], tmp_path: Path, way: str
):
    root = made("deleted_episode_lr831")
    null_action(root, 6)
    (root / "data/chunk-000/episode_000007.parquet").unlink()
    (root / f"videos/chunk-000/{TOP}/episode_000008.mp4").unlink()
    strict = {"errors": {"max_corrupt_ratio": 0.0}}
    with pytest.raises(AutoloaderError, match="3 of the 9 episodes in this split are bad") as it:
        samples_of(spec_of(root, **strict))
    whole = [0, 1, 2, 4, 5, 9]
    assert "(6, 7, 8)" in it.value.what
    assert f".episodes: {whole}, the good ones" in it.value.remedy
    ranges = tmp_path / "ranges.json"
    ranges.write_text(json.dumps({str(one): [[0, 6]] for one in whole}))
    key = "{episode_metadata/episode_index}"
    ways: dict[str, Any] = {
        "keep.ranges": {"keep": {"ranges": {"file": str(ranges), "key": key}}},
        "split": {"split": {"train": "train[:5]+train[8:]"}},
        "episodes": {"episodes": whole},
    }
    found, lost = samples_of(spec_of(root, dataset=ways[way], **strict))
    assert {episode for episode, _ in found} == set(whole)
    assert not lost
    check(found)


def test_episodes_are_numbers_of_the_list_of_a_lerobot_dataset(
    made: Callable[[str], Path], tmp_path: Path
):
    from rlds_files import episode, write_dataset
    from streams import dataset_of
    from streams import spec_of as rlds_spec_of

    root = made("deleted_episode_lr831")
    with pytest.raises(SpecError, match=r"there is no episode 3.* 0 to 9 with gaps"):
        samples_of(spec_of(root, dataset={"episodes": [1, 3]}))
    written = write_dataset(tmp_path, [[episode(0, 5)]])
    with pytest.raises(SpecError, match="TFDS data, whose episodes have no numbers"):
        samples_of(rlds_spec_of({**dataset_of(written), "episodes": [0]}))


def first_line(error: str) -> str:
    return next(line for line in error.splitlines() if line.startswith("error: "))


@pytest.mark.parametrize("fault", ["hardware_clock_lr3513", "two of nine"])
def test_commands_fail_where_a_loader_does_with_the_same_first_line(
    made: Callable[[str], Path], cli: Cli, fault: str
):
    root = made("deleted_episode_lr831" if fault == "two of nine" else fault)
    if fault == "two of nine":
        null_action(root, 6)
        null_action(root, 0)
    spec = spec_of(root, dataset={"name": root.name}, errors={})
    with pytest.raises(AutoloaderError) as caught:
        samples_of(spec)
    file = spec_file(root.parent, spec)
    floor = ["--ram-floor", "64MiB"]
    for words in (["plan", "--spec", str(file), *floor], ["index", "--spec", str(file)],
                  ["peek", "--spec", str(file), "--out", str(root.parent / "a.html"), *floor],
                  ["verify", "--spec", str(file), *floor]):  # fmt: skip
        said = cli(*words, code=4)
        assert first_line(said.err) == f"error: {caught.value.what}", words
    told = cli("doctor", "--spec", file, code=1)
    assert caught.value.what in " ".join((told.out + told.err).split())
    said = first_line(cli("init", root, code=4).err)
    assert said.startswith(f"error: dataset '{root.name}': ")
    assert "no episode can be read" in said or "of the 8 episodes in this split are bad" in said


def test_init_leaves_a_camera_without_files_out_with_a_word_and_takes_the_annotation(
    made: Callable[[str], Path], cli: Cli
):

    root = made("gr00t_annotation")
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["observation.images.ego"] = info["features"][TOP]
    (root / "meta/info.json").write_text(json.dumps(info))
    told = cli("init", root, "--json")
    assert "no observation.images.ego: info.json lists it" in told.err
    written = json.loads(told.out)["spec"]
    assert "images: {primary: observation.images.top}" in written
    assert "language: annotation.human.action.task_description" in written


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    if not REAL.is_dir():
        pytest.skip(f"there is no {REAL}")
    return Damaged(tmp_path_factory.mktemp("real"))


@pytest.mark.parametrize(("version", "damage", "seed"), list(damages(15)))
def test_damage_to_real_episodes_shows_no_other_picture(
    damaged: Damaged, version: str, damage: Any, seed: int
):
    done, _, _, wrong = damaged.attempt(version, damage, seed)
    assert not wrong, done
