"""A loader belongs to the process that made it, and its stream is the same whatever a fork does.

Every row is held against plain TFDS by its provenance. ``AUTOLOADER_TEST_RUNS`` says how many runs
each case does (default 1).
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rlds_files import png, write_steps
from streams import spec_of
from witness import write_table

from autoloader import errors

RUNS = int(os.environ.get("AUTOLOADER_TEST_RUNS", "1"))
SHARDS = [[30, 25, 11], [44, 12], [26, 9]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A spec over two small datasets, and what plain TFDS reads of them."""
    folder = tmp_path_factory.mktemp("forks")
    written = [
        write_steps(folder, SHARDS, first=first, encode=png, name=name)
        for name, first in (("a", 0), ("b", 15))
    ]
    spec = folder / "spec.json"
    declared = spec_of(*written, batch={"size": 8})
    spec.write_text(json.dumps(declared.model_dump(mode="json", by_alias=True)))
    return spec, write_table(folder, {one.name: one.path for one in written})


SCENARIOS = {
    ("process", "indexed"): ("forks", "beside_a_loop", "processes"),
    ("thread", "indexed"): ("forks",),
}
"""Isolation and reader: what is tried with them, one after the other in one process."""


@pytest.fixture(scope="module")
def found(files: tuple[Path, Path]) -> Callable[[str, str], dict[str, Any]]:
    """What came of each scenario, by isolation and reader."""

    @functools.cache
    def run(isolation: str, reader: str) -> dict[str, Any]:
        here = Path(__file__).parent
        script = [sys.executable, str(here / "forks_script.py"), *map(str, files), str(RUNS)]
        told = subprocess.run(
            [*script, isolation, reader, *SCENARIOS[isolation, reader]],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{here.parent}:{here}"},
        ).stdout
        every = map(json.loads, told.splitlines())
        return {one["scenario"]: one for one in every}

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isolation", "reader", "scenario"),
    [(*sides, scenario) for sides, every in SCENARIOS.items() for scenario in every],
)
def test_a_fork_is_refused_and_the_parent_reads_on_as_if_there_were_none(
    isolation: str, reader: str, scenario: str, found: Callable[[str, str], dict[str, Any]]
) -> None:
    one = found(isolation, reader)[scenario]
    assert one["missed"] == []
    assert one["refused"] == one["tried"]
    assert one["rows"] > RUNS * 2 * sum(map(sum, SHARDS))
    assert (one["wrong"], one["missing"], one["twice"]) == (0, 0, 0)


@pytest.mark.parametrize("kind", [errors.UsageError, errors.SpecError, errors.WorkerError])
def test_an_error_crosses_to_another_process_whole(kind: type[errors.AutoloaderError]) -> None:
    error = kind("what happened", remedy="what to do")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
