"""What ``meta`` says of a LeRobot dataset: each fault is told by its file, nothing is lost."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from command_lines import Cli
from lerobot_checks import TOP, check, info_of, samples_of, spec_of
from lerobot_files import LeRobotFiles
from streams import spec_file

from autoloader import AutoLoader
from autoloader.cli.doctor import indexes
from autoloader.errors import SourceError
from autoloader.formats.lerobot import metadata
from autoloader.index import counting
from autoloader.index.opening import find_indexes, open_indexes
from autoloader.samples.resolve import resolve

BOTH = ("v2.1", "v3.0")
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


def listed(root: Path, change: Callable[[list[str]], list[str]], name: str = "episodes") -> None:
    file = root / f"meta/{name}.jsonl"
    file.write_text("\n".join(change(file.read_text().splitlines())) + "\n")


def written(root: Path, version: str) -> Path:
    return LeRobotFiles(lengths=(4, 3, 5), version=version).write(root)


# -- lists of tasks ---------------------------------------------------------------------------


def missing(root: Path) -> str:
    name = "tasks.parquet" if (root / "meta/tasks.parquet").exists() else "tasks.jsonl"
    (root / "meta" / name).unlink()
    return f"has no {name}"


def empty(root: Path) -> str:
    if (file := root / "meta/tasks.parquet").exists():
        pq.write_table(pq.read_table(file).slice(0, 0), file)
    else:
        (file := root / "meta/tasks.jsonl").write_text("\n")
    return f"{file.name} is broken: it lists no task"


def unreadable(root: Path) -> str:
    if (file := root / "meta/tasks.parquet").exists():
        file.write_bytes(file.read_bytes()[:-9])
    else:
        file = root / "meta/tasks.jsonl"
        file.write_text(json.dumps({"task_index": 0, "task": "pick up"}, indent=2))
    return f"{file.name} is broken"


def pointer(root: Path) -> str:
    name = "tasks.parquet" if (root / "meta/tasks.parquet").exists() else "tasks.jsonl"
    (root / "meta" / name).write_bytes(LFS)
    return f"{name} is broken: it is a Git LFS pointer"


def textless(root: Path) -> str:
    if (file := root / "meta/tasks.parquet").exists():
        pq.write_table(pa.table({"task_index": [0, 1], "task": pa.array([None, "a"])}), file)
    else:
        file = root / "meta/tasks.jsonl"
        file.write_text('{"task_index": 0, "task": null}\n')
    return f"{file.name} is broken: task 0 has no text"


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("damage", [missing, empty, unreadable, pointer, textless])
def test_a_list_of_tasks_that_says_nothing_is_refused_by_name_where_its_texts_are_taken(
    tmp_path: Path, damage: Callable[[Path], str], version: str
):
    root = written(tmp_path / "arm", version)
    words = damage(root)
    for more in ({}, {"language": None, "features": {"said": "task"}},
                 {"language": None, "keep": {"match": {"task": "put"}}}):  # fmt: skip
        with pytest.raises(SourceError) as caught:
            resolve(spec_of(root, dataset=more))
        assert words in caught.value.what
        assert caught.value.remedy
    resolve(spec_of(root, dataset={"language": None}))


def test_a_task_of_two_texts_is_refused_and_one_told_twice_is_not(tmp_path: Path):
    root = written(tmp_path / "arm", "v2.1")
    listed(root, lambda lines: [*lines, lines[0]], "tasks")
    resolve(spec_of(root))
    listed(root, lambda lines: [*lines, '{"task_index": 0, "task": "other"}'], "tasks")
    with pytest.raises(SourceError, match="task 0 is listed twice, as 'pick up the cube'"):
        resolve(spec_of(root))


def test_half_of_a_surrogate_pair_in_a_task_is_a_question_mark(tmp_path: Path):
    root = written(tmp_path / "arm", "v2.1")
    tasks = [json.dumps({"task_index": k, "task": "pick \ud83d"}) for k in (0, 1)]
    listed(root, lambda _: tasks, "tasks")
    assert {one["text"] for one in samples_of(spec_of(root)).values()} == {"pick ?"}


@pytest.mark.parametrize("version", BOTH)
def test_init_takes_no_language_where_no_list_says_what_it_is(
    tmp_path: Path, version: str, cli: Cli
):
    words = missing(written(tmp_path / "arm", version))
    told = cli("init", tmp_path)
    (dataset,) = yaml.safe_load(told.out)["datasets"]
    assert "language" not in dataset
    assert f"arm: no language: {tmp_path}/arm/meta {words}" in " ".join(told.err.split())


def test_a_text_that_is_empty_everywhere_is_said(
    tmp_path: Path, cli: Cli, caplog: pytest.LogCaptureFixture
):
    root = written(tmp_path / "arm", "v2.1")
    listed(root, lambda _: [json.dumps({"task_index": k, "task": " "}) for k in (0, 1)], "tasks")
    spec = spec_file(tmp_path, spec_of(root))
    assert {one["text"] for one in samples_of(spec_of(root)).values()} == {" "}
    (record,) = [one for one in caplog.records if "task is empty" in one.message]
    assert (record.levelno, "all 3 episodes" in record.message) == (logging.WARNING, True)
    told = cli("plan", "--spec", spec, "--ram-floor", "64MiB").err
    assert "arm: task is empty in all 3 episodes" in told
    words = ["peek", "--spec", str(spec), "--out", str(tmp_path / "a.html"), "--ram-floor", "64MiB"]
    assert "arm: language is empty in all" in cli(*words).err
    datasets = list(resolve(spec_of(root)).datasets)
    told = [one for one in indexes(datasets, spec) if "task is empty in all 3" in str(one)]
    assert told


# -- lists of episodes ------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_path": None}, "it has no data_path"),
        ({"video_path": None}, "it has no video_path"),
        ({"chunks_size": "many"}, "chunks_size is 'many'"),
        ({"chunks_size": -1}, "chunks_size is -1"),
        ({"fps": "10"}, "fps is '10'"),
        ({"fps": None}, "fps is None"),
    ],
)
def test_a_key_that_is_missing_or_wrong_is_told_with_its_file(
    tmp_path: Path, changes: dict[str, object], words: str, version: str
):
    root = info_of(written(tmp_path / "arm", version), **changes)
    with pytest.raises(SourceError) as caught:
        resolve(spec_of(root))
    assert f"{root}/meta/info.json is broken: {words}" in caught.value.what
    for key in changes:
        info_of(root, **{key: None})
    file = root / "meta/info.json"
    info = {k: v for k, v in json.loads(file.read_text()).items() if k not in changes}
    if "chunks_size" not in changes:
        file.write_text(json.dumps(info))
        with pytest.raises(SourceError, match=r"info.json is broken"):
            resolve(spec_of(root))


def test_paths_with_the_fields_of_another_version_are_told_with_those_that_there_are(
    tmp_path: Path,
):
    old, new = (written(tmp_path / version, version) for version in BOTH)
    info_of(old, data_path="data/chunk-{chunk_index:03d}/episode_{episode_index:06d}.parquet")
    with pytest.raises(SourceError, match=r"has the field \{chunk_index\}; .* \{episode_chunk\}"):
        resolve(spec_of(old))
    info_of(new, video_path="videos/{video_key}/episode_{episode_index:06d}.mp4")
    with pytest.raises(SourceError, match=r"has the field \{episode_index\}; .* \{file_index\}"):
        resolve(spec_of(new))


@pytest.mark.parametrize("version", BOTH)
def test_files_of_one_version_under_the_info_of_another_are_told(tmp_path: Path, version: str):
    root = written(tmp_path / "arm", version)
    other = BOTH[version == BOTH[0]]
    info_of(root, codebase_version=other)
    with pytest.raises(SourceError) as caught:
        resolve(spec_of(root))
    for word in ("info.json is broken", f"codebase_version is {other}", "the list of episodes"):
        assert word in caught.value.what
    assert "convert" in caught.value.remedy


@pytest.mark.parametrize("version", BOTH)
def test_an_episode_that_stands_twice_in_the_list_is_refused_with_its_second_row(
    tmp_path: Path, version: str
):
    root = written(tmp_path / "arm", version)
    place = root / "meta/episodes/chunk-000/file-000.parquet"
    if version == "v2.1":
        listed(root, lambda lines: [lines[1], *lines])
    else:
        table = pq.read_table(place)
        pq.write_table(pa.concat_tables([table.slice(1, 1), table]), place)
    with pytest.raises(SourceError, match="episode 1 is listed twice, the second time in row 2"):
        resolve(spec_of(root))


@pytest.mark.parametrize(
    ("version", "name"),
    [("v2.1", "meta/episodes.jsonl"), ("v2.1", "meta/info.json"),
     ("v3.0", "meta/episodes/chunk-000/file-000.parquet")],
)  # fmt: skip
def test_a_pointer_in_the_place_of_a_file_is_told(tmp_path: Path, version: str, name: str):
    root = written(tmp_path / "arm", version)
    (root / name).write_bytes(LFS)
    with pytest.raises(SourceError, match="Git LFS pointer") as caught:
        resolve(spec_of(root))
    assert name in caught.value.what
    assert "git lfs pull" in caught.value.remedy


# -- splits -----------------------------------------------------------------------------------


def without(root: Path, episode: int) -> Path:
    """An episode is deleted, and the others keep their numbers and their stale split."""
    listed(root, lambda lines: [line for k, line in enumerate(lines) if k != episode])
    (root / f"data/chunk-000/episode_{episode:06d}.parquet").unlink()
    return info_of(root, total_episodes=3, splits={"train": "0:3"})


def test_ranges_count_places_in_the_list_and_what_lies_in_no_split_is_named(
    tmp_path: Path, cli: Cli
):
    files = LeRobotFiles(lengths=(4, 3, 5, 6), version="v2.1")
    root = without(files.write(tmp_path / "arm"), 0)
    info_of(root, splits={"train": "0:1", "val": "1:2"})
    check(files, root, samples_of(spec_of(root)), {"top": TOP}, without={0, 2, 3})
    spec = spec_file(tmp_path, spec_of(root))
    said = "1 of 3 episodes lie in no split of info.json (train 0:1, val 1:2): episode 3"
    for words in (["plan", "--spec", str(spec), "--ram-floor", "64MiB"], ["init", str(tmp_path)]):
        assert said in " ".join(cli(*words).err.split())


def test_episodes_of_files_that_take_turns_come_in_their_order(tmp_path: Path):
    files = LeRobotFiles(lengths=(4, 3, 5, 6), rows_a_file=1)
    root = files.write(tmp_path / "arm")
    data = root / "data/chunk-000"
    tables = [pq.read_table(data / f"file-{k:03d}.parquet") for k in range(4)]
    for number, own in ((0, (0, 2)), (1, (1, 3))):
        pq.write_table(
            pa.concat_tables([tables[k] for k in own]), data / f"file-{number:03d}.parquet"
        )
    place = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(place)
    column = table.column_names.index("data/file_index")
    pq.write_table(table.set_column(column, "data/file_index", pa.array([0, 1, 0, 1])), place)
    info_of(root, splits={"train": "0:3", "val": "3:4"})
    (dataset,) = resolve(spec_of(root)).datasets
    assert [(Path(p.path).name, p.start, p.stop) for p in dataset.slices] == [
        ("file-000.parquet", 0, 1), ("file-001.parquet", 0, 1), ("file-000.parquet", 1, 2),
    ]  # fmt: skip
    check(files, root, samples_of(spec_of(root)), {"top": TOP}, without={3})


# -- what else is read ------------------------------------------------------------------------


@pytest.mark.parametrize("names", [None, ["height", "width", "channel"], ["channel", "h", "w"]])
@pytest.mark.parametrize("version", BOTH)
def test_a_shape_with_its_channels_first_is_a_picture(
    tmp_path: Path, names: list[str] | None, version: str
):
    files = LeRobotFiles(lengths=(4, 3, 5), version=version)
    root = files.write(tmp_path / "arm")
    features = json.loads((root / "meta/info.json").read_text())["features"]
    camera = {"dtype": "video", "shape": [3, 64, 96], "names": names}
    info_of(root, features={**features, TOP: camera})
    check(files, root, samples_of(spec_of(root)), {"top": TOP})


@pytest.mark.parametrize(
    "more",
    [
        {"steps": {"drop_last": 1}},
        {"keep": {"moving": {"path": "action", "above": 0.5}}},
        {"action": [{"path": "action", "ops": ["relabel"]}], "steps": {"drop_last": 1}},
        {"transform": {"call": "lerobot_functions:backwards"}, "images": {"top": "cameras/front"},
         "action": "moves", "state": "joints", "language": "words"},
    ],
)  # fmt: skip
def test_plan_estimates_episodes_that_a_transform_shortens(
    tmp_path: Path, more: dict[str, object], cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(counting, "QUICK_BYTES", 0)  # as of data that plan does not index
    pictures = ["observation.images.side"]
    root = LeRobotFiles(lengths=(4, 3, 5), version="v2.1", pictures=pictures).write(
        tmp_path / "arm"
    )
    document = spec_of(root, dataset=more).model_dump(mode="json", exclude_none=True)
    spec = spec_file(tmp_path, document)
    told = cli.json("plan", "--spec", spec, "--ram-floor", "64MiB")["datasets"]["arm"]
    assert told["estimated"]
    assert 0 < told["samples"] <= 12


def test_rows_that_the_list_looks_for_in_another_file_are_told_with_both(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    files = LeRobotFiles(lengths=(4, 3, 5), rows_a_file=2)
    root = files.write(tmp_path / "arm")
    place = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(place)
    column = table.column_names.index("data/file_index")
    pq.write_table(table.set_column(column, "data/file_index", pa.array([0, 1, 1])), place)
    found = samples_of(spec_of(root, errors={"max_corrupt_ratio": 0.9}))
    check(files, root, found, {"top": TOP}, without={1})
    assert "file-001.parquet has no row of episode 1" in caplog.text
    with AutoLoader(spec_of(root, errors={"max_corrupt_ratio": 0.9}), ram_floor="200MB",
                    isolation="thread", controller=False) as loader:  # fmt: skip
        assert loader.plan.counts["arm"].episodes == 2
    shutil.rmtree(root)


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("suffix", ["parquet", "mp4"])
def test_pointers_in_the_place_of_data_are_refused_where_a_loader_would_read_them(
    tmp_path: Path, version: str, suffix: str, cli: Cli
):
    root = written(tmp_path / "arm", version)
    for file in [*(root / "data").rglob("*"), *(root / "videos").rglob("*")]:
        if file.suffix == f".{suffix}":
            file.write_bytes(LFS)
    with pytest.raises(SourceError, match=rf"\.{suffix} is a Git LFS pointer") as caught:
        resolve(spec_of(root))
    assert "git lfs pull" in caught.value.remedy
    assert (told := cli("init", tmp_path, code=4).err).startswith("error: dataset arm: ")
    assert told.count("→ run git lfs pull") == 1


def test_one_pointer_among_whole_files_costs_its_episodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    files = LeRobotFiles(lengths=(4, 3, 5), version="v2.1")
    root = files.write(tmp_path / "arm")
    files.video(root, TOP, 1).write_bytes(LFS)
    found = samples_of(spec_of(root, errors={"max_corrupt_ratio": 0.9}))
    check(files, root, found, {"top": TOP}, without={1})
    assert "it is a Git LFS pointer, and not the file: run git lfs pull" in caplog.text


@pytest.mark.parametrize("version", BOTH)
def test_an_episode_of_the_list_without_a_number_costs_no_other(tmp_path: Path, version: str):
    files = LeRobotFiles(lengths=(4, 3, 5), version=version)
    root = files.write(tmp_path / "arm")
    if version == "v2.1":
        lines = [json.loads(one) for one in (root / "meta/episodes.jsonl").read_text().splitlines()]
        lines[1]["episode_index"] = None
        listed(root, lambda _: [json.dumps(one) for one in lines])
    else:
        place = root / "meta/episodes/chunk-000/file-000.parquet"
        table = pq.read_table(place)
        numbers = pa.array([0, None, 2], pa.int64())
        at = table.column_names.index("episode_index")
        pq.write_table(table.set_column(at, "episode_index", numbers), place)
    check(files, root, samples_of(spec_of(root)), {"top": TOP}, without=[1])


@pytest.mark.parametrize("version", BOTH)
def test_a_start_makes_no_object_of_each_episode(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
):
    root = LeRobotFiles(lengths=(3,) * 12, version=version, rows_a_file=4).write(tmp_path / "arm")
    open_indexes(resolve(spec_of(root)).datasets)
    made: list[int] = []
    real = metadata.Episode

    def noted(index: int, *rest: Any) -> metadata.Episode:
        made.append(index)
        return real(index, *rest)

    monkeypatch.setattr(metadata, "Episode", noted)
    (index,) = find_indexes(resolve(spec_of(root)).datasets)
    assert index.episodes == 12
    assert set(made) <= {0, 11}, "the first and the last are looked at"
