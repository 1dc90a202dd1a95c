"""``autoloader index``: one table or one document, progress beside it, damage named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rlds_files import Written, episode, write_dataset
from streams import spec_of

from autoloader.cli.app import main


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return write_dataset(tmp_path, [[episode(0, 3), episode(1, 4)], [episode(2, 5)]])


@pytest.fixture
def spec(written: Written, tmp_path: Path) -> Path:
    path = tmp_path / "mix.yaml"
    path.write_text(json.dumps(spec_of(written).model_dump(mode="json", exclude_unset=True)))
    return path


def test_the_index_is_built_then_found(
    spec: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["index", "--spec", str(spec), "--beside"]) == 0
    out, err = capsys.readouterr()
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
    assert main(["index", "--spec", str(spec), "--beside", "--verify"]) == 0
    out, err = capsys.readouterr()
    assert "nothing was left to index" in out
    assert err == ""


def test_an_index_of_the_cache_is_copied_beside_the_data(spec: Path, written: Written) -> None:
    assert main(["index", str(spec)]) == 0
    near = written.path / ".autoloader-index"
    assert not near.exists()
    for _ in range(2):
        assert main(["index", str(spec), "--beside"]) == 0
        assert len(list(near.glob("*.index"))) == 2


def test_the_document_names_every_damaged_record(
    spec: Path, written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    written.break_payload(0, 1)
    assert main(["index", "--spec", str(spec), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
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


def test_a_data_source_that_fails_ends_with_code_4(
    spec: Path, written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    written.files[0].unlink()
    assert main(["index", "--spec", str(spec)]) == 4
    assert "is missing" in capsys.readouterr().err
