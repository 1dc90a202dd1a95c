"""The wheel in an empty environment: what comes along, how large it is, and that it works.

It asks the package index, so that it is skipped where there is none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from installation import ROOT, check, lerobot_data, local_data, names_in, project, ran
from written_pages import Follower, settled, steps

pytestmark = [pytest.mark.network, pytest.mark.slow]

MOST_BYTES = 280e6
"""Of all that is installed, without bytecode: OpenCV has 160 MB, NumPy 57 MB of them."""


def pip(*words: str, python: Path | str = sys.executable) -> subprocess.CompletedProcess[str]:
    """``pip`` for an interpreter, which need not have it; what it prints is kept."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    asked = ("--retries", "0", "--timeout", "10")
    reached = pip("download", "--quiet", "--no-deps", "-d", str(folder), *asked, "hatchling")
    if reached.returncode:
        last = reached.stderr.strip().splitlines()[-1:]
        pytest.skip(f"no package index can be reached from here: {last}")
    built = pip("wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT))
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("autoloader_rlds-*.whl")
    return wheel


def environment(folder: Path) -> Path:
    """The interpreter of a new, empty environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The interpreter of an environment that holds the wheel and what it requires, nothing else."""
    python = environment(wheel.parent / "environment")
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


QUICKSTART = ROOT / "docs/quickstart.md"
STEPS = list(steps(QUICKSTART))
ON_THE_PAGE = "/home/you/first"


@pytest.fixture(scope="module")
def quickstart(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Follower:
    """The page, in an empty folder; the extras are those of this interpreter's installation."""
    folder = tmp_path_factory.mktemp("quickstart")
    python = environment(folder / "environment")
    done = pip("install", "--quiet", "--no-deps", "--no-index", str(wheel), python=python)
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("environment/lib/*/site-packages")
    having = [place for place in sys.path if place.endswith("site-packages")]
    (packages / "extras.pth").write_text("\n".join(having))
    # A page shows what a pipe gets; the width of some terminal is not the reader's.
    left_out = ("PYTHONPATH", "COLUMNS", "LINES")
    kept = {key: value for key, value in os.environ.items() if key not in left_out}
    kept |= {"PATH": os.pathsep.join([str(python.parent), kept["PATH"]])}
    kept |= {key: str(folder / key) for key in ("AUTOLOADER_CACHE_DIR", "AUTOLOADER_CONFIG_DIR")}
    (folder / "first").mkdir()
    return Follower(STEPS, folder / "first", kept)


@pytest.mark.parametrize("number", range(len(STEPS)), ids=map(str, STEPS))
def test_the_quickstart_prints_what_it_shows(quickstart: Follower, number: int) -> None:
    printed = quickstart.printed(number).replace(str(quickstart.place), ON_THE_PAGE)
    shown = STEPS[number].shown
    if shown is not None:
        of_the_host = ("Speed", "Limit")
        assert settled(printed, of_the_host=of_the_host) == settled(shown, of_the_host=of_the_host)


def test_the_quickstart_ran_the_wheel_and_left_nothing_running(quickstart: Follower) -> None:
    quickstart.printed(len(STEPS) - 1)
    python = quickstart.place.parent / "environment/bin/python"
    asked = [python, "-c", "import autoloader; print(autoloader.__file__)"]
    found = subprocess.run(asked, cwd="/", capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(quickstart.place.parent / "environment/lib"))
    for process in psutil.process_iter(["cmdline"]):
        assert str(python) not in (process.info["cmdline"] or [])
