"""``examples/train_bc.py`` trains, is stopped by Ctrl-C, and goes on as if it had not been."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rlds_files import episode, write_dataset
from streams import dataset_of

SCRIPT = Path(__file__).parents[2] / "examples/train_bc.py"


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """The script takes over signals, and seeds torch; sums depend on the number of threads."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Two shards to train on, one to validate on; normalised chunks of three actions."""
    shards = [[episode(4 * s + n, 12) for n in range(4)] for s in range(3)]
    written = write_dataset(tmp_path, shards[:2], splits={"held": shards[2:]})
    dataset = dataset_of(written, split={"train": "train", "val": "held"})
    path = tmp_path / "mix.yaml"
    path.write_text(
        f"datasets: [{dataset}]\n"
        "sample: {action_horizon: 3}\n"
        "normalize: {action: {method: q01_q99}, state: {method: mean_std}}\n"
        "cameras: {primary: {size: [32, 32]}}\n"
        "batch: {size: 8}\n"
    )
    return path


def trained(spec: Path, checkpoint: Path, steps: int) -> dict[str, Any]:
    """What the script saves after so many steps in all, run in this process."""
    words = [str(SCRIPT), str(spec), "--steps", str(steps), "--checkpoint", str(checkpoint)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        patch.syspath_prepend(SCRIPT.parent)
        runpy.run_path(str(SCRIPT), run_name="__main__")
    saved: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    return saved


def test_what_ctrl_c_has_stopped_goes_on_to_the_same_weights(spec: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pt"
    command = [sys.executable, str(SCRIPT), str(spec), "--steps", "1000000", "--every", "5"]
    running = subprocess.Popen(
        [*command, "--checkpoint", str(cut)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert running.stdout is not None
    line = running.stdout.readline()
    running.send_signal(signal.SIGINT)
    _, told = running.communicate()
    assert (running.returncode, line[:7]) == (0, "step 5:"), told
    stopped_at = torch.load(cut, weights_only=True)["loader"]["batches"]
    assert stopped_at >= 5
    # Past the end of the epoch of 12 batches, from wherever it was stopped.
    resumed = trained(spec, cut, stopped_at + 15)
    whole = trained(spec, tmp_path / "whole.pt", stopped_at + 15)
    assert resumed["loader"] == whole["loader"]
    assert resumed["normalization"] == whole["normalization"]
    for name, weights in whole["policy"].items():
        assert torch.equal(resumed["policy"][name], weights), name


@pytest.mark.parametrize("script", sorted(SCRIPT.parent.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_enough_to_read(script: Path) -> None:
    assert len(script.read_text().splitlines()) <= 60
