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


def test_people_see_ranks_and_nodes_side_by_side(
    mix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "--spec", str(mix), "--ram-floor", "64MiB", "-v", "--ranks", "4"]
    assert main([*words, "--nodes", "2"]) == 0
    said = capsys.readouterr().out
    assert "Ranks  4 on 2 nodes like this one, 2 on each: 3 batches and 12 samples" in said
    assert "the 2 loaders of a node take" in said
    assert "batches an epoch for each of 4 ranks" in said
    assert "\nrank  3        12 " in said
    assert main(words[:-2]) == 0
    assert "rank" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("--ranks", "5", "--nodes", "2"), 2, "nodes would have 2 or 3 ranks"),
        (("--ranks", "1", "--nodes", "2"), 2, "nodes would have 0 or 1 ranks"),
        (("--ranks", "0"), 2, "greater than or equal to 1"),
        (("--ranks", "100"), 2, "samples, and there are 100 ranks"),
        (("--ranks", "60", "--ram-floor", "900TB"), 3, "pipelines of the node's 60 ranks need"),
    ],
)
def test_what_cannot_be_is_refused(
    mix: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, told: str
) -> None:
    assert main(["plan", "--spec", str(mix), "--ram-floor", "64MiB", *words]) == status
    assert told in capsys.readouterr().err
