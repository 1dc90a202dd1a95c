"""The loader in JAX programs on the CPU: ranks, sharded arrays, slots, resume.

JAX is no part of ``.venv`` (TensorFlow's packages import it wherever it is there, and the loader's
child would be the larger for it), so it is installed into a folder of its own, from the package
index.
"""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from package_folders import environment_with
from rlds_files import write_steps
from streams import write_spec
from warm_python import warm_with

pytestmark = pytest.mark.network

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples/train_jax.py"
WANTED = ("jax", "jaxlib", "opt_einsum", "scipy")
"""What JAX needs beside what ``.venv`` has."""


@pytest.fixture(scope="module")
def environment(pytestconfig: pytest.Config) -> dict[str, str]:
    """The environment of a process that can import JAX."""
    return environment_with(WANTED, pytestconfig, JAX_PLATFORMS="cpu")


@pytest.fixture(scope="module")
def python(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An interpreter that has imported JAX."""
    packages = Path(environment["PYTHONPATH"].split(os.pathsep)[0])
    folder = tmp_path_factory.mktemp("warm")
    modules = ("jax.experimental.multihost_utils", "jax.numpy", "jax.sharding")
    with warm_with(modules, packages, folder, environment) as command:
        yield command


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 samples, a pass an epoch, in batches of four."""
    folder = tmp_path_factory.mktemp("data")
    written = write_steps(folder, [[12] * 4])
    return write_spec(folder, written)


def started(
    python: Path, script: str, environment: dict[str, str], *words: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, str(HERE / script), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads(out)


def test_two_processes_share_an_epoch_resume_it_and_have_batches_on_their_devices(
    spec: Path, environment: dict[str, str], python: Path
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [(str(spec), port, str(process)) for process in range(2)]
    running = [started(python, "two_processes_script.py", environment, *one) for one in words]
    first, second = (told(process) for process in running)
    assert [(one["rank"], one["world_size"]) for one in (first, second)] == [(0, 2), (1, 2)]
    assert first["shape"] == second["shape"] == [8, 1, 2]  # the rows of both
    assert first["half"] == second["half"] == 12
    places = {tuple(place) for one in (first, second) for place in one["places"]}
    assert len(first["places"]) == len(second["places"]) == 24
    assert len(places) == 48  # disjoint and complete
    for alone in (first["alone"], second["alone"]):
        assert alone["kinds"]["primary"] == [True, "uint8", [4, 1, 12, 16, 3]]
        assert alone["kinds"]["action"] == [True, "float32", [4, 1, 2]]
        assert alone["kinds"]["dataset_index"] == [True, "int32", [4]]
        assert alone["kinds"]["provenance"] == [False, "int64", [4, 5]]
        assert (alone["texts"], alone["lent"], alone["whole"]) == (True, 0, True)


@pytest.fixture(scope="module")
def episodes(bridge: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec of real Bridge episodes, normalised, in batches of eight."""
    path = tmp_path_factory.mktemp("bridge") / "mix.yaml"
    path.write_text(
        "datasets:\n"
        f"  - {{name: bridge, path: {bridge}, images: {{primary: observation/image_0}},\n"
        "     action: action, state: observation/state,\n"
        '     split: {train: "train[:-1]", val: "train[-1:]"}}\n'
        "sample: {action_horizon: 4}\n"
        "normalize: {action: {method: q01_q99}, state: {method: mean_std}}\n"
        "cameras: {primary: {size: [64, 64]}}\n"
        "batch: {size: 8}\n"
        "validation: {samples: 20}\n"
    )
    return path


def trained(
    python: Path, spec: Path, environment: dict[str, str], checkpoint: Path, steps: int, *words: str
) -> subprocess.Popen[str]:
    """The example, running; it says every second step."""
    given = [str(spec), "--steps", str(steps), "--every", "2", "--checkpoint", str(checkpoint)]
    return started(python, str(EXAMPLE), environment, *given, *words)


LINE = re.compile(r"^step (\d+): training (.+), validation (.+)$", re.MULTILINE)


def said(process: subprocess.Popen[str]) -> dict[int, tuple[float, float]]:
    """Errors by step, of the training and of the validation."""
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return {int(step): (float(one), float(other)) for step, one, other in LINE.findall(out)}


def saved(checkpoint: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The loader's place, and the weights."""
    found = dict(np.load(checkpoint))
    return json.loads(str(found.pop("loader"))), found


def test_the_example_learns_from_real_episodes_and_goes_on_exactly_behind_ctrl_c(
    episodes: Path, environment: dict[str, str], tmp_path: Path, python: Path
):
    undisturbed = said(trained(python, episodes, environment, tmp_path / "whole.npz", 24))
    cut = trained(python, episodes, environment, tmp_path / "cut.npz", 24)
    line = cut.stdout.readline()
    cut.send_signal(signal.SIGINT)
    first = said(cut)
    rest = said(trained(python, episodes, environment, tmp_path / "cut.npz", 24))
    assert line.startswith("step 2: ")
    assert {2: undisturbed[2], **first, **rest} == undisturbed
    held = [validation for _, validation in undisturbed.values()]
    assert held[-1] < held[0]
    (place, weights), (resumed_place, resumed) = map(saved, tmp_path.glob("*.npz"))
    assert place == resumed_place
    for name, numbers in weights.items():
        assert np.array_equal(resumed[name], numbers), name


def test_two_processes_of_the_example_share_the_steps_and_stop_together(
    episodes: Path, environment: dict[str, str], tmp_path: Path, python: Path
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        join = f"127.0.0.1:{free.getsockname()[1]}"
    first, second = (
        trained(
            python, episodes, environment, tmp_path / "both.npz", 1_000_000,
            "--join", join, "--processes", "2", "--process", str(process),
        )
        for process in range(2)
    )  # fmt: skip
    assert first.stdout is not None
    line = next(line for line in first.stdout if not line.startswith("[Gloo]"))
    second.send_signal(signal.SIGTERM)
    assert not said(second)  # process 0 alone prints
    said(first)
    assert line.startswith("step 2: ")
    place, _ = saved(tmp_path / "both.npz")
    assert place["position"] == place["batches"] * 2 * 8
