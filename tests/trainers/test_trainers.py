"""Hugging Face's ``Trainer`` and Accelerate on a loader: length, training, examples.

Both are no part of ``.venv``: they are installed into a folder of their own, once, from the package
index.
"""

from pathlib import Path

import pytest
from package_folders import environment_with
from trained_examples import check

pytestmark = pytest.mark.network

WANTED = (
    "accelerate", "anyio", "h11", "httpcore2", "httpx2", "huggingface-hub", "regex", "safetensors",
    "tensorboardX", "tokenizers", "transformers", "truststore",
)  # fmt: skip
"""What the two need beside what ``.venv`` has."""


@pytest.fixture(scope="module")
def environment(pytestconfig: pytest.Config) -> dict[str, str]:
    """The environment of a process that can import both."""
    return environment_with(WANTED, pytestconfig, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")


def test_the_example_of_the_trainer_goes_on_exactly_and_epochs_are_passes(
    environment: dict[str, str], tmp_path: Path, warm_python: Path
):
    given = {"environment": environment, "python": warm_python}
    (told,) = check("train_hf.py", tmp_path, **given)["epochs"]
    assert (told["length"], told["steps"], told["epochs"]) == (5, 10, 2)
    assert len(told["seen"]) == 10
    for epoch in (told["seen"][:5], told["seen"][5:]):
        assert len({tuple(row) for step in epoch for row in step}) == 20
    assert sum(told["losses"][5:]) < sum(told["losses"][:5])


def test_the_example_of_accelerate_goes_on_exactly_and_logs_the_loaders_metrics(
    environment: dict[str, str], tmp_path: Path, warm_python: Path
):
    words = ("--log-with", "tensorboard")
    check("train_accelerate.py", tmp_path, *words, environment=environment, python=warm_python)
    (log,) = tmp_path.glob("whole/**/events*")
    assert b"val/error" in log.read_bytes()
    assert b"loader/samples_per_s" in log.read_bytes()
