"""Hugging Face's ``Trainer`` and Accelerate on a loader: length, training, exact resume, examples.

Both are no part of ``.venv``: they are installed into a folder of their own, from the package
index.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from package_folders import environment_with
from rlds_files import png, write_steps
from streams import write_spec
from trained_examples import check

pytestmark = [pytest.mark.network, pytest.mark.slow]

HERE = Path(__file__).parent
WANTED = (
    "accelerate", "anyio", "h11", "httpcore2", "httpx2", "huggingface-hub", "regex", "safetensors",
    "tensorboardX", "tokenizers", "transformers", "truststore",
)  # fmt: skip
"""What the two need beside what ``.venv`` has."""
STEPS = 10
"""Of an epoch: 40 samples in batches of four."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that can import both."""
    folder = tmp_path_factory.mktemp("trainers")
    return environment_with(WANTED, folder, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 samples, a pass an epoch."""
    folder = tmp_path_factory.mktemp("data")
    written = write_steps(folder, [[10] * 4], encode=png)
    mean_std = {"method": "mean_std"}
    normalize = {"action": mean_std, "state": mean_std}
    return write_spec(folder, written, "[16, 16]", normalize=normalize)


def told(script: str, environment: dict[str, str], *words: str) -> list[dict[str, Any]]:
    """What each run was given; each is a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *words],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def places(steps: list[Any]) -> list[tuple[int, ...]]:
    return [tuple(row) for step in steps for row in step]


def test_the_trainer_trains_epochs_of_the_right_length_and_resumes_exactly(
    spec: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    runs = (f"{tmp_path}/whole:0", f"{tmp_path}/cut:6", f"{tmp_path}/cut:0")
    whole, first, rest = told("trainer_script.py", environment, str(spec), *runs)
    assert (whole["length"], whole["steps"], whole["epochs"]) == (STEPS, 2 * STEPS, 2)
    assert len(whole["seen"]) == 2 * STEPS
    for epoch in (whole["seen"][:STEPS], whole["seen"][STEPS:]):
        assert len(set(places(epoch))) == 40
    assert sum(whole["losses"][-5:]) < sum(whole["losses"][:5])
    assert (first["steps"], rest["steps"]) == (6, 2 * STEPS)
    assert first["seen"] + rest["seen"] == whole["seen"]
    assert rest["losses"] == whole["losses"]  # those of the first part are in the checkpoint
    assert rest["weights"] == whole["weights"]


def test_accelerate_keeps_the_loaders_place_in_its_state(
    spec: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    runs = (f"{tmp_path}/whole:0", f"{tmp_path}/cut:4", f"{tmp_path}/cut:0")
    whole, first, rest = told("accelerate_script.py", environment, str(spec), *runs)
    assert (whole["length"], len(whole["seen"])) == (STEPS, STEPS)
    assert first["seen"] + rest["seen"] == whole["seen"]
    assert first["losses"] + rest["losses"] == whole["losses"]
    assert sum(whole["losses"][-3:]) < sum(whole["losses"][:3])


def test_the_example_of_the_trainer_goes_on_exactly(
    environment: dict[str, str], tmp_path: Path
) -> None:
    check("train_hf.py", tmp_path, environment=environment)


def test_the_example_of_accelerate_goes_on_exactly_and_logs_the_loaders_metrics(
    environment: dict[str, str], tmp_path: Path
) -> None:
    words = ("--log-with", "tensorboard")
    check("train_accelerate.py", tmp_path, *words, environment=environment)
    (log,) = tmp_path.glob("whole/**/events*")
    assert b"val/error" in log.read_bytes()
    assert b"loader/samples_per_s" in log.read_bytes()
