"""Indexes and statistics that nodes of a real cluster build: those of this host, byte by byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import RayCluster

from autoloader import PipelineSpec


def ran(words: list[str], cache: Path, cluster: RayCluster | None) -> dict[str, Any]:
    """What a command says, with a cache of its own; ``--ray`` where there is a cluster."""
    if cluster is not None:
        words = [*words, "--ray"]
    environment = {**os.environ, "AUTOLOADER_CACHE_DIR": str(cache)}
    if cluster is not None:
        environment["RAY_ADDRESS"] = cluster.address
    done = subprocess.run(
        [sys.executable, "-m", "autoloader", *words, "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {"document": found, "said": done.stderr}


def contents(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((cache / "index").glob("*.index"))}


@pytest.fixture(scope="module")
def spec_file(spec: PipelineSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mixture") / "mix.json"
    place.write_text(json.dumps(spec.model_dump(mode="json")))
    return place


def test_nodes_index_the_same_bytes_and_go_on_where_a_job_stopped(
    spec_file: Path, cluster: RayCluster, tmp_path: Path
) -> None:
    words = ["index", "--spec", str(spec_file)]
    ran(words, tmp_path / "here", None)
    expected = contents(tmp_path / "here")
    assert len(expected) > 4
    # A job that stopped half way has left every second file.
    kept = list(expected)[::2]
    (tmp_path / "there/index").mkdir(parents=True)
    for name in kept:
        (tmp_path / "there/index" / name).write_bytes(expected[name])
    told = ran(words, tmp_path / "there", cluster)
    assert contents(tmp_path / "there") == expected
    assert told["document"]["built_shards"] == len(expected) - len(kept)
    assert "shard files indexed by" in told["said"]


def test_nodes_compute_the_same_statistics(
    spec_file: Path, cluster: RayCluster, tmp_path: Path
) -> None:
    words = ["stats", "--spec", str(spec_file)]
    there = ran(words, tmp_path / "there", cluster)
    assert "computed by" in there["said"]
    assert there["document"] == ran(words, tmp_path / "here", None)["document"]
