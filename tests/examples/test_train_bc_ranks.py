"""``examples/train_bc.py`` by torchrun: stopped and gone on with, it gets the same batches."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import recorded
import torch
from rlds_files import episode, write_dataset
from streams import dataset_of

from autoloader import AutoLoader

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "examples/train_bc.py"
CUT = 5
BATCH = 4


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 samples to train on: with two ranks four steps an epoch, and four samples are carried."""
    folder = tmp_path_factory.mktemp("data")
    shards = [[episode(3 * s + n, 6) for n in range(3)] for s in range(3)]
    written = write_dataset(folder, shards[:2], splits={"held": shards[2:]})
    dataset = dataset_of(written, split={"train": "train", "val": "held"})
    path = folder / "mix.yaml"
    path.write_text(
        f"datasets: [{dataset}]\n"
        "sample: {action_horizon: 3}\n"
        "normalize: {action: {method: q01_q99}, state: {method: mean_std}}\n"
        "cameras: {primary: {size: [32, 32]}}\n"
        f"batch: {{size: {BATCH}}}\n"
        "validation: {samples: 4}\n"
    )
    return path


@dataclass
class Run:
    """A run of the example: what each rank was given, and what was saved."""

    ranks: list[list[list[str]]]
    saved: dict[str, Any]

    @property
    def rows(self) -> list[str]:
        """Of all ranks, in the order of the sequence."""
        return [row for steps in zip(*self.ranks, strict=True) for one in steps for row in one]


def run(spec: Path, folder: Path, checkpoint: Path, *, ranks: int, steps: int, stop: int) -> Run:
    """One rank runs in this process, several by torchrun."""
    folder.mkdir()
    words = [str(folder), str(stop), str(SCRIPT), str(spec)]
    words += ["--steps", str(steps), "--checkpoint", str(checkpoint)]
    if ranks == 1:
        recorded.main(*words)
    else:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run(
            [sys.executable, *torchrun, str(HERE / "recorded.py"), *words],
            capture_output=True, text=True, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    given = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    return Run(given, torch.load(checkpoint, weights_only=True))


@pytest.fixture(scope="module")
def undisturbed(spec: Path) -> list[str]:
    """The rows of the sequence, as a loader gives them that nobody stops."""

    def rows() -> Iterator[str]:
        with AutoLoader(spec, isolation="thread", ram_floor="64MiB") as loader:
            for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
                yield from recorded.digests(batch)

    return list(itertools.islice(rows(), 2 * 12 * BATCH))


@pytest.fixture(scope="module")
def stopped(spec: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """Two ranks, of which one is told to stop, and their checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")
    checkpoint = folder / "policy.pt"
    return run(spec, folder / "run", checkpoint, ranks=2, steps=100, stop=CUT), checkpoint


def copied(checkpoint: Path, folder: Path) -> Path:
    copy = folder / "policy.pt"
    copy.write_bytes(checkpoint.read_bytes())
    return copy


def test_where_one_rank_is_told_to_stop_all_do_and_one_saves(
    stopped: tuple[Run, Path], undisturbed: list[str]
) -> None:
    found, _ = stopped
    assert found.saved["loader"]["batches"] == CUT
    assert found.rows == undisturbed[: 2 * CUT * BATCH]


def test_two_ranks_go_on_with_the_batches_of_the_undisturbed_run(
    stopped: tuple[Run, Path], spec: Path, tmp_path: Path, undisturbed: list[str]
) -> None:
    again = copied(stopped[1], tmp_path)
    found = run(spec, tmp_path / "run", again, ranks=2, steps=12, stop=0)
    assert found.saved["loader"]["batches"] == 12
    assert found.rows == undisturbed[2 * CUT * BATCH :]


def test_one_rank_goes_on_with_what_two_have_left(
    stopped: tuple[Run, Path], spec: Path, tmp_path: Path, undisturbed: list[str]
) -> None:
    again = copied(stopped[1], tmp_path)
    found = run(spec, tmp_path / "run", again, ranks=1, steps=CUT + 6, stop=0)
    assert found.rows == undisturbed[2 * CUT * BATCH :][: 6 * BATCH]
