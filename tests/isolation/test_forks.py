"""A loader belongs to the process that made it, and its stream is the same whatever a fork does.

Every row is held against plain TFDS by its provenance. ``AUTOLOADER_TEST_RUNS`` says how many runs
each case does (default 2).
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from rlds_files import episode, png, write_dataset
from streams import spec_of
from witness import write_table

from autoloader import errors

RUNS = int(os.environ.get("AUTOLOADER_TEST_RUNS", "2"))
SHARDS = [[30, 25, 11], [44, 12], [26, 9]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A spec over two small datasets, and what plain TFDS reads of them."""
    folder = tmp_path_factory.mktemp("forks")
    written = []
    for name, first in (("a", 0), ("b", 15)):
        number = iter(range(first, first + 15))
        shards = [[episode(next(number), s, encode=png) for s in part] for part in SHARDS]
        written.append(write_dataset(folder, shards, name=name))
    spec = folder / "spec.json"
    declared = spec_of(*written, batch={"size": 8})
    spec.write_text(json.dumps(declared.model_dump(mode="json", by_alias=True)))
    return spec, write_table(folder, {one.name: one.path for one in written})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "isolation", "reader"),
    [
        ("forks", "process", "indexed"),
        ("forks", "process", "stream"),
        ("forks", "thread", "indexed"),
        ("beside_a_loop", "process", "indexed"),
        ("beside_a_loop", "thread", "indexed"),
        ("kept_batches", "process", "indexed"),
        ("kept_batches", "thread", "indexed"),
        ("data_loader", "process", "indexed"),
        ("data_loader", "thread", "indexed"),
        ("processes", "process", "indexed"),
    ],
)
def test_a_fork_is_refused_and_the_parent_reads_on_as_if_there_were_none(
    scenario: str, isolation: str, reader: str, files: tuple[Path, Path]
) -> None:
    here = Path(__file__).parent
    script = [sys.executable, str(here / "forks_script.py"), *map(str, files)]
    told = subprocess.run(
        [*script, scenario, str(RUNS), isolation, reader],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{here.parent}:{here}"},
    ).stdout
    found = json.loads(told.splitlines()[-1])
    assert found["missed"] == []
    assert found["refused"] == found["tried"]
    assert found["rows"] > RUNS * 2 * sum(map(sum, SHARDS))
    assert (found["wrong"], found["missing"], found["twice"]) == (0, 0, 0)


@pytest.mark.parametrize("kind", [errors.UsageError, errors.SpecError, errors.WorkerError])
def test_an_error_crosses_to_another_process_whole(kind: type[errors.AutoloaderError]) -> None:
    error = kind("what happened", remedy="what to do")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
