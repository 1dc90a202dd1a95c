"""``autoloader index``: one table or one document, progress beside it, damage named."""

from pathlib import Path

import pytest
from command_lines import Cli
from rlds_files import Written, episode, write_dataset
from streams import spec_file, spec_of


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return write_dataset(tmp_path, [[episode(0, 3), episode(1, 4)], [episode(2, 5)]])


@pytest.fixture
def spec(written: Written, tmp_path: Path) -> Path:
    return spec_file(tmp_path, spec_of(written))


def test_the_index_is_built_then_found(spec: Path, cli: Cli, tmp_path: Path):
    _, out, err = cli("index", "--spec", spec, "--beside")
    assert out.splitlines()[0].split() == [
        "dataset",
        "shards",
        "episodes",
        "frames",
        "damaged",
        "index",
    ]
    assert out.splitlines()[1].split()[:4] == ["robot", "2", "3", "12"]
    assert "2 shard files indexed" in out
    assert err == ""  # it took no five seconds
    _, out, err = cli("index", "--spec", spec, "--beside", "--verify")
    assert "nothing was left to index" in out
    assert err == ""


def test_an_index_of_the_cache_is_copied_beside_the_data(spec: Path, written: Written, cli: Cli):
    cli("index", spec)
    near = written.path / ".autoloader-index"
    assert not near.exists()
    for _ in range(2):
        cli("index", spec, "--beside")
        assert len(list(near.glob("*.index"))) == 2


def test_the_document_names_every_damaged_record(spec: Path, written: Written, cli: Cli):
    written.break_payload(0, 1)
    document = cli.json("index", "--spec", spec)
    assert (document["split"], document["built_shards"]) == ("train", 2)
    robot = document["datasets"]["robot"]
    assert (robot["episodes"], robot["frames"]) == (2, 8)
    assert robot["damaged"] == [
        {
            "path": str(written.files[0]),
            "record": 1,
            "reason": "the record is damaged: its checksum is wrong",
        }
    ]


def test_a_data_source_that_fails_ends_with_code_4(spec: Path, written: Written, cli: Cli):
    written.files[0].unlink()
    assert "is missing" in cli("index", "--spec", spec, code=4).err
