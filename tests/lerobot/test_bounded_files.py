"""Local files of a dataset that are pipes, devices, or larger than anything that they may hold."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_checks import spec_of as lerobot_spec_of
from lerobot_files import LeRobotFiles
from rlds_files import write_steps
from streams import spec_of

from autoloader import PipelineSpec
from autoloader.errors import AutoloaderError
from autoloader.formats import files
from autoloader.process.planning import plan_loader
from autoloader.storage.faults import LimitError

RLDS = ["dataset_info.json", "features.json", "*.tfrecord*"]
OLD = ["meta/info.json", "meta/episodes.jsonl", "meta/tasks.jsonl", "data/*/*.parquet", "**/*.mp4"]
NEW = [
    "meta/info.json", "meta/episodes/*/*.parquet", "meta/tasks.parquet", "data/*/*.parquet",
    "**/*.mp4",
]  # fmt: skip
EVERY = [
    *(("rlds", name) for name in RLDS),
    *(("v2.1", name) for name in OLD),
    *(("v3.0", name) for name in NEW),
]
IMAGES = {"primary": "observation/image"}
LISTS = {"meta/episodes.jsonl", "meta/tasks.jsonl", "meta/episodes/*/*.parquet"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset of each format, by its version."""
    folder = tmp_path_factory.mktemp("sound")
    rlds = write_steps(folder / "rlds", [[4] * 3])
    return {
        "rlds": rlds.path,
        **{one: LeRobotFiles(version=one).write(folder / one) for one in ("v2.1", "v3.0")},
    }


def spec_at(version: str, root: Path) -> PipelineSpec:
    if version == "rlds":
        return spec_of({"name": "robot", "path": str(root), "images": IMAGES})
    return lerobot_spec_of(root)


@pytest.fixture
def copy(sound: dict[str, Path], tmp_path: Path, monkeypatch: Any) -> Callable[[str], Path]:
    """Copies a dataset, which is changed then."""
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "cache"))

    def copied(version: str) -> Path:
        root = tmp_path / sound[version].parent.name / sound[version].name
        shutil.copytree(sound[version], root)
        return root

    return copied


def refusal(version: str, root: Path) -> AutoloaderError:
    with pytest.raises(AutoloaderError) as caught:
        plan_loader(spec_at(version, root), ram_floor="64MiB")
    assert caught.value.exit_code == 4
    return caught.value


@pytest.mark.parametrize(("version", "name"), EVERY)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_by_name_and_not_waited_for(
    version: str, name: str, kind: str, copy: Callable[[str], Path]
):
    root = copy(version)
    file = sorted(root.glob(name))[0]
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    if version == "v2.1" and name.endswith("mp4"):  # of one episode, which is left out
        plan_loader(spec_at(version, root), ram_floor="64MiB")
        return
    assert str(root) in refusal(version, root).what


@pytest.mark.parametrize(("version", "name"), EVERY)
def test_a_description_of_twenty_gibibytes_is_refused_with_the_variable_that_lifts_the_limit(
    version: str, name: str, copy: Callable[[str], Path]
):
    if "tfrecord" in name or "data/" in name or "mp4" in name:
        pytest.skip("data may be as large as it likes")
    root = copy(version)
    file = sorted(root.glob(name))[0]
    os.truncate(file, 20 * 2**30)
    error = refusal(version, root)
    assert str(file) in error.what
    which = "LIST" if name in LISTS or name == "meta/tasks.parquet" else "DOCUMENT"
    assert f"AUTOLOADER_LIMIT_{which}" in error.remedy


def test_a_list_that_is_small_as_a_file_and_huge_in_memory_is_refused(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    root = copy("v3.0")
    file = sorted(root.glob("meta/episodes/*/*.parquet"))[0]
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table.slice(0, 1)] * 100_000).combine_chunks(), file)
    monkeypatch.setenv("AUTOLOADER_LIMIT_LIST", str(file.stat().st_size + 1))
    assert "AUTOLOADER_LIMIT_LIST" in refusal("v3.0", root).remedy


def test_a_folder_of_too_many_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(5):
        (tmp_path / str(number)).touch()
    monkeypatch.setenv("AUTOLOADER_LIMIT_NAMES", "4")
    with pytest.raises(LimitError, match="more than 4 names"):
        files.file_names(str(tmp_path))
    monkeypatch.setenv("AUTOLOADER_LIMIT_NAMES", "5")
    assert len(files.file_names(str(tmp_path))) == 5
