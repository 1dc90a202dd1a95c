"""The wheel in an empty environment: what comes along, how large it is, and that it works.

It asks the package index, so that it is skipped where there is none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from installation import ROOT, check, lerobot_data, local_data, names_in, project, ran

pytestmark = [pytest.mark.network, pytest.mark.slow]

MOST_BYTES = 280e6
"""Of all that is installed, without bytecode: OpenCV has 160 MB, NumPy 57 MB of them."""


def pip(*words: str, python: Path | str = sys.executable) -> subprocess.CompletedProcess[str]:
    """``pip`` for an interpreter, which need not have it; what it prints is kept."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheel and what it requires, nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    asked = ("--retries", "0", "--timeout", "10")
    reached = pip("download", "--quiet", "--no-deps", "-d", str(folder), *asked, "hatchling")
    if reached.returncode:
        last = reached.stderr.strip().splitlines()[-1:]
        pytest.skip(f"no package index can be reached from here: {last}")
    built = pip("wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT))
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("autoloader_rlds-*.whl")
    python = folder / "environment/bin/python"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "environment")], check=True
    )
    limits = ("--quiet", "--no-compile", "--constraint", str(ROOT / "constraints.txt"))
    done = pip("install", *limits, str(wheel), python=python)
    assert done.returncode == 0, done.stderr
    return python


def test_the_core_brings_no_framework_and_stays_small(installed: Path) -> None:
    listed = json.loads(pip("list", "--format", "json", python=installed).stdout)
    names = {one["name"].lower().replace("-", "_") for one in listed}
    assert names_in(project()["dependencies"]) | {"autoloader_rlds"} <= names
    extras = project()["optional-dependencies"]
    for extra in ("torch", "lightning", "stream", "tune", "report"):
        own = {name for name in names_in(extras[extra]) if name != "autoloader_rlds"}
        assert not own & names, extra
    (packages,) = installed.parents[1].glob("lib/*/site-packages")
    size = sum(
        path.stat().st_size
        for path in packages.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    assert size <= MOST_BYTES


def test_the_wheel_alone_reads_local_data_and_names_each_missing_extra(
    installed: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("rlds", "lerobot", "run")]
    for folder in folders:
        folder.mkdir()
    rlds, lerobot, run = folders
    check(ran(installed, local_data(rlds), run, lerobot=lerobot_data(lerobot)))


def test_the_command_is_on_the_path_of_the_environment(installed: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [installed.with_name("autoloader"), "profile", "list"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "local_dev" in done.stdout
