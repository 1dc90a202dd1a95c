"""``autoloader plan --ranks N --nodes M``: what each rank and node gets, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rlds_files import episode, write_dataset
from streams import write_spec

from autoloader import AutoLoader
from autoloader.cli.app import main


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """61 samples of three shards, a pass an epoch, in batches of four."""
    folder = tmp_path_factory.mktemp("data")
    shards = [[episode(3 * shard + n, 6 + n) for n in range(3)] for shard in range(2)]
    shards.append([episode(6, 9), episode(7, 10)])
    written = write_dataset(folder, shards)
    path = write_spec(folder, written)
    assert main(["index", "--spec", str(path), "--json"]) == 0
    return path


def planned(mix: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", "--spec", str(mix), "--ram-floor", "64MiB", "--json", *words]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_rank_gets_what_its_loader_then_has(
    mix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = planned(mix, capsys, "--ranks", "4", "--nodes", "2")
    found = document["ranks"]
    assert (found["world_size"], found["nodes"], found["per_node"]) == (4, 2, 2)
    with AutoLoader(
        mix, rank=3, world_size=4, output="numpy", isolation="thread", ram_floor="64MiB"
    ) as loader:
        assert found["rank"]["batches"] == document["epoch"]["batches"] == len(loader)
        assert found["rank"]["samples"] == sum(len(batch["action"]) for batch in loader)
    assert found["carried_samples"] == document["epoch"]["samples"] - 4 * found["rank"]["samples"]
    assert found["node"]["samples"] == 2 * found["rank"]["samples"]
