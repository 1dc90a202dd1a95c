"""The wheel: what it holds, what comes along, how large that is, and that the quickstart works.

It asks the package index, so that it is skipped where there is none.
"""

import os
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import psutil
import pytest
from ended import python
from installation import ROOT, project
from package_folders import environment_with
from views import closure, installed
from written_pages import Follower, settled, steps

pytestmark = pytest.mark.network

MOST_BYTES = 280e6
"""Of all that is installed, without bytecode: OpenCV has 160 MB, NumPy 57 MB of them."""


def pip(*words: str, python: Path | str = sys.executable) -> subprocess.CompletedProcess[str]:
    """``pip`` for an interpreter, which need not have it; what it prints is kept."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    tools = environment_with(("hatchling", "pathspec", "trove-classifiers"), pytestconfig)
    words = ("-m", "hatchling", "build", "--target", "wheel", "-d", folder)
    python(*words, cwd=ROOT, env=tools)
    (wheel,) = folder.glob("autoloader_rlds-*.whl")
    return wheel


def environment(folder: Path) -> Path:
    """The interpreter of a new, empty environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin/python"


def test_the_wheel_holds_every_file_of_the_package_and_asks_for_the_core(wheel: Path):
    """What the package does with the core alone, ``test_extras`` shows."""
    wanted = {
        f"autoloader{inside}/{path.relative_to(ROOT / folder)}"
        for folder, inside in (("autoloader", ""), ("profiles", "/_profiles"))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    with zipfile.ZipFile(wheel) as file:
        found = set(file.namelist())
        (metadata,) = (name for name in found if name.endswith(".dist-info/METADATA"))
        asked = message_from_bytes(file.read(metadata)).get_all("Requires-Dist", [])
    assert wanted == {name for name in found if ".dist-info/" not in name}
    always = {one for one in asked if "extra ==" not in one}
    assert always == {one.replace("ruamel.", "ruamel-") for one in project()["dependencies"]}


def test_what_the_core_brings_is_small():
    files = [Path(str(file.locate())) for name in closure() for file in installed()[name].files]
    held = [file.stat().st_size for file in files if file.suffix != ".pyc" and file.exists()]
    assert sum(held) <= MOST_BYTES


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
def test_the_quickstart_prints_what_it_shows(quickstart: Follower, number: int):
    printed = quickstart.printed(number).replace(str(quickstart.place), ON_THE_PAGE)
    shown = STEPS[number].shown
    if shown is not None:
        of_the_host = ("Speed", "Limit", "Rate")
        if "measure" in STEPS[number].commands:
            of_the_host += ("Next",)
        assert settled(printed, of_the_host=of_the_host) == settled(shown, of_the_host=of_the_host)


def test_the_quickstart_ran_the_wheel_and_left_nothing_running(quickstart: Follower):
    quickstart.printed(len(STEPS) - 1)
    python = quickstart.place.parent / "environment/bin/python"
    asked = [python, "-c", "import autoloader; print(autoloader.__file__)"]
    found = subprocess.run(asked, cwd="/", capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(quickstart.place.parent / "environment/lib"))
    for process in psutil.process_iter(["cmdline"]):
        assert str(python) not in (process.info["cmdline"] or [])
