"""Open files are a budget: whatever the limit, loaders share it, and a real shortage is named."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ended import python
from rlds_files import Written, episode, png, write_dataset, written_steps

TESTS = Path(__file__).parents[1]


def under_limit(limit: int, *datasets: Written, **asked: Any) -> dict[str, Any]:
    """What ``few_descriptors`` says."""
    plain = {
        "limit": limit,
        "datasets": [str(one.path) for one in datasets],
        "loaders": 1,
        "reader": "indexed",
        "isolation": "process",
        "knobs": {},
        "batches": 60,
        **asked,
    }
    script, path = Path(__file__).with_name("few_descriptors.py"), {"PYTHONPATH": str(TESTS)}
    done = python(script, json.dumps(plain), env={**os.environ, **path}, timeout=230)
    return dict(json.loads(done.stdout.splitlines()[-1]))


# 400 shards of an episode each.
sharded = written_steps([[3]] * 400, encode=png)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    """29 datasets of three shards."""
    folder = tmp_path_factory.mktemp("many")
    shards = [[episode(k, 3, encode=png)] for k in range(3)]
    return [write_dataset(folder, shards, name=f"robot{k}") for k in range(29)]


def test_four_loaders_of_400_shards_share_1024_descriptors(sharded: Written):
    said = under_limit(1024, sharded, loaders=4, batches=30)
    assert said["rows"] == 4 * 30 * 16, said
    assert said["descriptors"] <= 768


def test_29_datasets_are_read_by_index_with_64_descriptors(many: list[Written]):
    said = under_limit(64, *many, knobs={"decode_processes": 2})
    assert said["rows"] == 60 * 16, said
    assert said["descriptors"] < 64


def test_streams_that_have_no_descriptor_left_name_the_limit_and_what_to_do(many: list[Written]):
    said = under_limit(40, *many, reader="stream", batches=200)
    assert said["error"] == "SourceError"
    assert "dataset robot" in said["told"]
    assert "all the 40 files and sockets" in said["told"]
    assert "ulimit -n" in said["told"].split("→")[1]
    assert "put the file back" not in said["told"]
