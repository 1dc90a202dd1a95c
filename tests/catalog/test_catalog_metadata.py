"""Version directories: what is read from them, how they are found, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from autoloader.errors import SourceError, SpecError
from autoloader.formats import open_source
from autoloader.formats.tfds import locate_version


def tree(**features: Any) -> dict[str, Any]:
    return {"pythonClassName": "FeaturesDict", "featuresDict": {"features": features}}


REWARD = {"pythonClassName": "Scalar", "tensor": {"shape": {}, "dtype": "float32"}}
STEPS = {"feature": tree(reward=REWARD), "length": "-1"}
FEATURES = tree(steps={"pythonClassName": "Dataset", "sequence": STEPS})


def split(name: str, *lengths: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "shardLengths": [str(length) for length in lengths], **more}


def write(directory: Path, *splits: dict[str, Any], **info: Any) -> Path:
    """A version directory whose shard files are empty."""
    directory.mkdir(parents=True)
    info = {"name": "kitchen", "version": directory.name, "splits": list(splits), **info}
    (directory / "dataset_info.json").write_text(json.dumps(info))
    (directory / "features.json").write_text(json.dumps(FEATURES))
    for entry in splits:
        count = len(entry["shardLengths"])
        for index in range(count):
            name = f"kitchen-{entry['name']}.tfrecord-{index:05d}-of-{count:05d}"
            (directory / name).touch()
    return directory


def test_the_parent_of_several_versions_lists_them(tmp_path: Path):
    write(tmp_path / "kitchen/1.0.0", split("train", 1))
    write(tmp_path / "kitchen/1.10.0", split("train", 1))
    with pytest.raises(SourceError) as caught:
        open_source(tmp_path / "kitchen", dataset="mine")
    assert "1.0.0" in caught.value.remedy
    assert "1.10.0" in caught.value.remedy


@pytest.mark.parametrize("file_format", ["array_record", "riegeli", "parquet"])
def test_other_record_formats_are_refused_by_name(tmp_path: Path, file_format: str):
    path = write(tmp_path / "kitchen/1.0.0", split("train", 1), fileFormat=file_format)
    with pytest.raises(SourceError, match=f"are {file_format}, not tfrecord"):
        open_source(path, dataset="mine")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("dataset_info.json", "{"),
        ("dataset_info.json", "[]"),
        ("dataset_info.json", '{"name": "kitchen"}'),
        ("dataset_info.json", '{"splits": [3]}'),
        ("dataset_info.json", '{"splits": [{"name": "train", "shardLengths": ["x"]}]}'),
        ("dataset_info.json", '{"splits": [{"name": "train", "shardLengths": [-1]}]}'),
        ("features.json", "not json"),
        ("features.json", "{}"),
        ("features.json", None),
    ],
)
def test_broken_metadata_is_a_source_error_naming_the_file(
    tmp_path: Path, file: str, text: str | None
):
    path = write(tmp_path / "kitchen/1.0.0", split("train", 1))
    if text is None:
        (path / file).unlink()
    else:
        (path / file).write_text(text)
    with pytest.raises(SourceError, match="mine") as caught:
        open_source(path, dataset="mine")
    assert file in str(caught.value)


# -- finding by name ----------------------------------------------------------------------------


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    for place in ("kitchen/1.9.0", "kitchen/1.10.0", "kitchen/0.1.0", "door/big/2.0.0"):
        write(tmp_path / place, split("train", 1))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("kitchen", "kitchen/1.10.0"),
        ("kitchen:1.9.0", "kitchen/1.9.0"),
        ("kitchen:0.*.*", "kitchen/0.1.0"),
        ("kitchen:1.*.*", "kitchen/1.10.0"),
        ("door/big", "door/big/2.0.0"),
        ("door/big:2.0.0", "door/big/2.0.0"),
    ],
)
def test_names_find_the_newest_version_that_fits(data_dir: Path, name: str, place: str):
    assert locate_version(name, data_dir, dataset="mine") == str(data_dir / place)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kitchn", "did you mean 'kitchen'"),
        ("kitchen:3.0.0", "0.1.0, 1.9.0, 1.10.0"),
        ("door", "door/big/2.0.0"),
        ("door/bog", "did you mean 'big'"),
    ],
)
def test_names_that_lead_nowhere_say_what_is_there(data_dir: Path, name: str, said: str):
    with pytest.raises(SourceError, match="mine") as caught:
        locate_version(name, data_dir, dataset="mine")
    assert said in caught.value.remedy


@pytest.mark.parametrize("name", ["", "../kitchen", "kitchen/../door", "kitchen:", "a b", "/x"])
def test_what_is_no_tfds_name_is_a_spec_error(data_dir: Path, name: str):
    with pytest.raises(SpecError, match=r"datasets\[mine\]\.tfds"):
        locate_version(name, data_dir, dataset="mine")


def test_a_data_dir_that_does_not_exist_is_a_source_error(tmp_path: Path):
    with pytest.raises(SourceError, match="nowhere does not exist"):
        locate_version("kitchen", tmp_path / "nowhere", dataset="mine")


def test_file_names_are_those_of_tfds():
    naming = pytest.importorskip("tensorflow_datasets.core.naming", reason="needs tfds")
    from autoloader.formats.tfds import _DEFAULT_TEMPLATE, _shard_file

    for template in (_DEFAULT_TEMPLATE, "{SPLIT}/{DATASET}-{SHARD_INDEX}.{FILEFORMAT}"):
        for count in (1, 7, 99_999, 100_000):
            theirs = naming.ShardedFileTemplate(
                data_dir="/d",
                template=template,
                dataset_name="kitchen",
                split="train",
                filetype_suffix="tfrecord",
            ).relative_filepath(shard_index=count - 1, num_shards=count)
            assert _shard_file(template, "kitchen", "train", count - 1, count) == theirs
