"""Files that change between two loads: the second load shows their new content, and nothing else.

Each mutation is loaded with the caches of the load before it, and again with empty ones. Both must
give the same rows, or the same refusal. Statistics of action and state are among what is compared.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from command_lines import Cli
from lerobot_checks import SIDE, TOP, spec_of
from lerobot_files import LeRobotFiles, picture, write_video
from rlds_files import PLAIN, Written, episode, numbers, write_dataset, write_records
from rlds_files import example as rlds_example
from streams import opened, spec_file
from streams import spec_of as rlds_spec_of

from autoloader import PipelineSpec
from autoloader.errors import AutoloaderError

CAMERAS = {TOP: 2, SIDE: 2}
FILES = {
    version: LeRobotFiles(version=version, cameras=CAMERAS, lengths=(12, 7, 7, 9), rows_a_file=2)
    for version in ("v2.1", "v3.0")
}
NORMALIZE = {"action": {"method": "mean_std"}, "state": {"method": "min_max"}}
Rows = list[tuple[Any, ...]] | str


def rows_of(spec: PipelineSpec, reader: str = "indexed") -> Rows:
    """Every sample of a pass, sorted, as plain values; or why there are none."""
    found = []
    plain = {**spec.model_dump(mode="json"), "reader": reader}
    try:
        with opened(PipelineSpec.model_validate(plain), controller=False) as loader:
            for batch in loader:
                for k, place in enumerate(batch["provenance"]):
                    parts = (*batch["images"].values(), *batch["frame_mask"].values())
                    arrays = [batch["action"][k], batch["state"][k], *(one[k] for one in parts)]
                    texts = batch["language"][k]
                    found.append((place.tolist(), texts, *(one.tobytes() for one in arrays)))
    except AutoloaderError as error:
        return error.what
    return sorted(found)


def fresh_rows(spec: PipelineSpec, empty: Path, patch: pytest.MonkeyPatch, reader: str) -> Rows:
    """The same with caches that hold nothing."""
    with patch.context() as there:
        there.setenv("AUTOLOADER_CACHE_DIR", str(empty))
        return rows_of(spec, reader)


def edit_json(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def edit_lines(file: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    change(rows)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def edit_table(file: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    table = pq.read_table(file)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)


def set_each(rows: list[dict[str, Any]], key: str, values: Sequence[Any]) -> None:
    for row, value in zip(rows, values, strict=True):
        row[key] = value


def edit_episodes(root: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    old = root / "meta/episodes.jsonl"
    if old.exists():
        edit_lines(old, change)
    else:
        edit_table(root / "meta/episodes/chunk-000/file-000.parquet", change)


def edit_tasks(root: Path, texts: list[str]) -> None:
    if (root / "meta/tasks.jsonl").exists():
        edit_lines(root / "meta/tasks.jsonl", lambda rows: set_each(rows, "task", texts))
        return
    tasks = {"task_index": [0, 1], "__index_level_0__": texts}
    pq.write_table(pa.table(tasks), root / "meta/tasks.parquet")


def data_files(root: Path) -> list[Path]:
    return sorted((root / "data").rglob("*.parquet"))


def videos(root: Path, camera: str = TOP) -> list[Path]:
    return sorted(one for one in (root / "videos").rglob("*.mp4") if camera in str(one))


def swap(one: Path, other: Path) -> None:
    """Two files change places; each keeps its size and its time."""
    aside = one.with_suffix(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def with_same_size(file: Path, change: Callable[[bytes], bytes]) -> None:
    data = file.read_bytes()
    new = change(data)
    assert len(new) == len(data)
    file.write_bytes(new)


def actions(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def mutate(root: Path) -> None:
        def rows(each: list[dict[str, Any]]) -> None:
            for row in each:
                row["action"] = change(np.asarray(row["action"], np.float32)).tolist()

        for file in data_files(root):
            edit_table(file, rows)

    return mutate


def set_info(**values: Any) -> Callable[[Path], None]:
    return lambda root: edit_json(root / "meta/info.json", lambda info: info.update(values))


def swap_features(root: Path) -> None:
    def change(info: dict[str, Any]) -> None:
        text = info["video_path"].replace("{video_key}", "swapped-{video_key}")
        info["video_path"] = text

    edit_json(root / "meta/info.json", change)
    for camera, other in ((TOP, SIDE), (SIDE, TOP)):
        for file in videos(root, camera):
            place = Path(str(file).replace(camera, f"swapped-{other}"))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place)


def shift_starts(frames: int, of: Callable[[int], bool]) -> Callable[[Path], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if of(row["episode_index"]):
                row[f"videos/{TOP}/from_timestamp"] += frames / 10

    return lambda root: edit_episodes(root, change)


def change_places(root: Path) -> None:
    """The two episodes of equal length in each other's video."""

    def change(rows: list[dict[str, Any]]) -> None:
        keys = [key for key in rows[1] if key.startswith(f"videos/{TOP}/")]
        for key in keys:
            rows[1][key], rows[2][key] = rows[2][key], rows[1][key]

    edit_episodes(root, change)


def set_length(root: Path) -> None:
    edit_episodes(root, lambda rows: rows[1].update(length=6))


def drop_episode(root: Path) -> None:
    edit_episodes(root, lambda rows: rows.pop(1))


def renumber_tasks(root: Path) -> None:
    for file in data_files(root):
        edit_table(
            file, lambda rows: set_each(rows, "task_index", [1 - row["task_index"] for row in rows])
        )


def shift_times(root: Path) -> None:
    edit_table(
        data_files(root)[0],
        lambda rows: set_each(rows, "timestamp", [9.0 + k for k in range(len(rows))]),
    )


def another_video(root: Path) -> None:
    file = videos(root)[0]
    count = 12 + 7 if "file-" in file.name else 12
    write_video(file, [picture(3, 9, k) for k in range(count)], "libx264", 2)


def scribble(root: Path) -> None:
    """Other bytes in the middle of a video, in its place and of its size."""
    file = videos(root)[-1]
    half = file.stat().st_size // 2
    behind = half + 300
    with_same_size(file, lambda data: data[:half] + data[half:behind][::-1] + data[behind:])


def lose(which: Callable[[Path], Path]) -> Callable[[Path], None]:
    return lambda root: which(root).unlink()


def copy_over(root: Path) -> None:
    """The video of the last file in the place of the first one's, with its time."""
    shutil.copy2(videos(root)[-1], videos(root)[0])


EVERYWHERE: Mapping[str, Callable[[Path], None]] = {
    "texts of the tasks": lambda root: edit_tasks(root, ["open the drawer", "close it"]),
    "tasks that change numbers": lambda root: edit_tasks(root, ["put it down", "pick up the cube"]),
    "tasks of the rows": renumber_tasks,
    "the frame rate": set_info(fps=20),
    "the splits": set_info(splits={"train": "0:2", "val": "2:4"}),
    "cameras that change names": swap_features,
    "a length": set_length,
    "an episode that is no longer listed": drop_episode,
    "other actions": actions(lambda row: row + 1),
    "actions in another scale": actions(lambda row: row * 100),
    "times of the rows": shift_times,
    "two Parquet files that change places": lambda root: swap(*data_files(root)[:2]),
    "two videos that change places": lambda root: swap(*videos(root)[:2]),
    "two videos of cameras that change places": lambda root: swap(
        videos(root)[0], videos(root, SIDE)[0]
    ),
    "another video": another_video,
    "bytes within a video": scribble,
    "a video that is gone": lose(lambda root: videos(root)[1]),
    "a video copied over another": copy_over,
}
ONLY_V30: Mapping[str, Callable[[Path], None]] = {
    "starts that move together": shift_starts(1, lambda episode: episode < 2),
    "one start": shift_starts(2, lambda episode: episode == 1),
    "episodes that change videos": change_places,
}


@pytest.mark.parametrize(
    ("version", "name"),
    [(version, name) for version in FILES for name in EVERYWHERE]
    + [("v3.0", name) for name in ONLY_V30],
)
def test_a_changed_lerobot_dataset_gives_its_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, name: str
):
    root = FILES[version].write(tmp_path / "arm")
    both = {"top": {"size": [64, 96]}, "side": {"size": [64, 96]}}
    spec = spec_of(
        root,
        dataset={"images": {"top": TOP, "side": SIDE}},
        cameras=both,
        normalize=NORMALIZE,
        errors={"max_corrupt_ratio": 0.9},
    )
    before = rows_of(spec)
    assert isinstance(before, list)
    assert len(before) == 35
    (EVERYWHERE | ONLY_V30)[name](root)
    after = rows_of(spec)
    assert after == fresh_rows(spec, tmp_path / "empty", monkeypatch, "indexed")
    # Where the lengths give all frames of a video, they place its episodes whatever starts say.
    assert (after == before) == (name in ("starts that move together", "one start"))


def rlds(folder: Path, **other: Any) -> Written:
    shards = [[episode(0, 5), episode(1, 6)], [episode(2, 5), episode(3, 6)]]
    return write_dataset(folder, shards, **other)


def replace_shard(written: Written) -> None:
    """Other episodes of the same size."""
    write_records(
        written.files[0], [rlds_example(episode(n, steps), PLAIN) for n, steps in ((8, 5), (9, 6))]
    )


def narrow(written: Written) -> None:
    """The state is one of three numbers a step, and not three: another number of steps."""
    text = (written.path / "features.json").read_text()
    old, new = (json.dumps(numbers(width).document()) for width in (3, 1))
    (written.path / "features.json").write_text(text.replace(old, new))


def other_type(written: Written) -> None:
    text = (written.path / "features.json").read_text()
    old, new = (json.dumps(numbers(2, dtype=one).document()) for one in ("float32", "int64"))
    (written.path / "features.json").write_text(text.replace(old, new))


def fewer_records(written: Written) -> None:
    edit_json(
        written.path / "dataset_info.json",
        lambda info: info["splits"][0].update(shardLengths=["2", "1"]),
    )


def break_record(written: Written) -> None:
    written.break_payload(1, 0)


RLDS: Mapping[str, Callable[[Written], None]] = {
    "a shard of the same size": replace_shard,
    "two shards that change places": lambda written: swap(*written.files),
    "a number of records": fewer_records,
    "a width in features.json": narrow,
    "a type in features.json": other_type,
    "a damaged record": break_record,
}


@pytest.mark.parametrize("reader", ["indexed", "stream"])
@pytest.mark.parametrize("name", list(RLDS))
def test_a_changed_rlds_dataset_gives_its_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reader: str
):
    written = rlds(tmp_path)
    spec = rlds_spec_of(
        written,
        normalize=NORMALIZE,
        mixing={"epoch": "pass"},
        batch={"size": 4, "drop_last": False},
        errors={"max_corrupt_ratio": 0.9},
    )
    before = rows_of(spec, reader)
    assert isinstance(before, list)
    assert len(before) == 22
    RLDS[name](written)
    after = rows_of(spec, reader)
    assert after == fresh_rows(spec, tmp_path / "empty", monkeypatch, reader)
    assert after != before


def test_types_that_a_transform_is_given_are_part_of_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written = rlds(tmp_path)
    spec = rlds_spec_of(
        {**_transformed(written)}, mixing={"epoch": "pass"}, batch={"size": 4, "drop_last": False}
    )
    before = rows_of(spec)
    assert isinstance(before, list)
    text = (written.path / "features.json").read_text()
    old, new = (json.dumps(numbers(2, dtype=one).document()) for one in ("float32", "float64"))
    (written.path / "features.json").write_text(text.replace(old, new))
    after = rows_of(spec)
    assert after == fresh_rows(spec, tmp_path / "empty", monkeypatch, "indexed")
    assert after != before


def _transformed(written: Written) -> dict[str, Any]:
    return {
        "name": "robot",
        "path": str(written.path),
        "transform": {"call": "lerobot_functions:bytes_a_number"},
        "images": {"primary": "image"},
        "action": "action",
    }


def test_an_index_beside_data_that_was_moved_is_used(tmp_path: Path, cli: Cli):
    root = FILES["v3.0"].write(tmp_path / "arm")
    spec = spec_file(tmp_path, spec_of(root))
    cli("index", "--spec", spec, "--beside", "--json")
    moved = tmp_path / "elsewhere" / "arm"
    shutil.copytree(root, moved)  # with the files' times
    spec.write_text(yaml.safe_dump(spec_of(moved).model_dump(mode="json")))
    assert cli.json("index", "--spec", spec, "--beside")["built_shards"] == 0


def test_index_verify_derives_the_index_again_and_replaces_what_differs(tmp_path: Path, cli: Cli):
    written = rlds(tmp_path)
    spec = spec_file(tmp_path, rlds_spec_of(written))
    words = ["index", "--spec", str(spec), "--verify", "--json"]
    assert json.loads(cli(*words).out)["differing"] == []
    kept = written.files[0].stat()
    replace_shard(written)
    os.utime(written.files[0], ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert written.files[0].stat().st_size == kept.st_size
    for differing in ([str(written.files[0])], []):
        assert json.loads(cli(*words).out)["differing"] == differing
