"""``docs/tutorials/slurm.md``: every command is run as it stands, and prints what the page shows.

SLURM is stood in for (``stand_in``), and what the page installs is installed by ``tests/install``.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from written_pages import Follower, settled, steps

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorials/slurm.md"
SCRIPTS = ROOT / "examples/slurm"
OF_THE_HOST = ("cores", "decoded samples/s", "ring", "the loader's child", "autoloader: starting")
"""Lines that begin so hang on the machine, and on what else it does: a start of 5 s is told."""
STEPS = list(steps(PAGE))
TRAINING = next(number for number, step in enumerate(STEPS) if "train" in step.commands)


@pytest.fixture(scope="module")
def place(bridge: Path, tmp_path_factory: pytest.TempPathFactory, warm_python: Path) -> Path:
    """A folder with data, the example's scripts and SLURM's commands."""
    folder = tmp_path_factory.mktemp("slurm")
    shutil.copytree(bridge, folder / "data/bridge_dataset/1.0.0")
    python = [ROOT / "examples" / name for name in ("train_bc.py", "policy.py", "ranks.py")]
    for script in (*SCRIPTS.glob("*.sbatch"), *python):
        shutil.copy(script, folder)
    (folder / "bin").mkdir()
    stand_in = Path(__file__).parent / "stand_in.py"
    for name in ("sbatch", "srun", "scontrol"):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stand_in}" {name} "$@"\n')
        command.chmod(0o755)
    (folder / "bin/python").symlink_to(warm_python)
    return folder


@pytest.fixture(scope="module")
def page(place: Path) -> Follower:
    """The page; the time of a job that asks for a signal is over at step 20, once."""
    path = [str(place / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "STAND_IN_OVER_AT": "step 20:",
    }
    return Follower(STEPS, place, environment)


@pytest.mark.parametrize("number", range(len(STEPS)), ids=map(str, STEPS))
def test_a_command_prints_what_the_page_shows(page: Follower, number: int):
    printed, shown = page.printed(number), STEPS[number].shown
    if shown is not None:
        compared = [settled(text, of_the_host=OF_THE_HOST) for text in (printed, shown)]
        assert compared[0] == compared[1]


def test_the_page_shows_what_is_printed_where_that_is_worth_a_look():
    assert len([step for step in STEPS if step.shown is not None]) == 5


def test_the_job_was_requeued_and_went_on_to_the_end(page: Follower):
    page.printed(TRAINING)
    saved = torch.load(page.place / "policy.pt", weights_only=True)
    assert saved["loader"]["batches"] == 60
    steps = [line.split(":")[0] for line in (page.place / "train-2.out").read_text().splitlines()]
    assert steps.count("step 20") == steps.count("step 60") == 1
    assert saved["loader"]["position"] == 60 * 4 * 8
    assert (page.place / "data/bridge_dataset/1.0.0/.autoloader-index").is_dir()
    assert (page.place / "requeued").read_text() == "2\n"


def test_the_installation_names_extras_that_there_are():
    (asked,) = re.findall(r"autoloader-rlds\[([a-z,]+)\]", PAGE.read_text())
    extras = (ROOT / "pyproject.toml").read_text()
    for name in asked.split(","):
        assert f"\n{name} = [" in extras


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.name)
def test_a_batch_script_is_sound_shell(script: Path):
    subprocess.run(["bash", "-n", str(script)], check=True)
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    told = [line.startswith("#SBATCH") for line in lines]
    first_command = next(k for k, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(told[first_command:])  # SLURM reads no directive behind a command
