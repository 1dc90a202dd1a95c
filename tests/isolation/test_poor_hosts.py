"""Hosts that lack something end a start with an error of the library, or do without."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from ended import ran
from rlds_files import write_steps
from streams import spec_file, spec_of

SCRIPT = """
import itertools, sys
mix, isolation = sys.argv[1:]
sys.argv.clear()
from autoloader import AutoLoader
from autoloader.errors import AutoloaderError
try:
    with AutoLoader(mix, output="numpy", ram_floor="256MiB", isolation=isolation) as loader:
        print("came", len(list(itertools.islice(loader, 5))))
except AutoloaderError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("poor")
    spec = spec_of(write_steps(folder, [[20] * 4]))
    return spec_file(folder, spec)


def said(mix: Path, isolation: str, *before: str, needs: Sequence[str] = ()) -> str:
    if needs and os.getuid():
        pytest.skip("only root may take something away")
    for tool in needs:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    return ran(*before, sys.executable, "-c", SCRIPT, mix, isolation, timeout=230).stdout


def test_a_program_without_arguments_not_even_its_name_is_served(mix: Path):
    assert said(mix, "process") == "came 5\n"


def test_without_proc_a_start_says_what_to_mount(mix: Path):
    without = ("unshare", "-m", "sh", "-c", 'umount -l /proc; exec "$@"', "sh")
    found = said(mix, "process", *without, needs=("unshare", "umount"))
    assert "free memory cannot be read" in found
    assert "mount /proc" in found


@pytest.mark.parametrize(
    ("isolation", "most"), [("process", 6), ("process", 12), ("thread", 8), ("thread", 40)]
)
def test_under_a_limit_of_processes_a_start_works_or_names_the_limit(
    mix: Path, isolation: str, most: int
):
    limited = (
        *("setpriv", "--reuid", str(600_000 + os.getpid()), "--clear-groups"),
        *("--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"),
        *("prlimit", f"--nproc={most}"),
    )
    found = said(mix, isolation, *limited, needs=("setpriv", "prlimit"))
    assert found == "came 5\n" or (most < 40 and "ulimit -u" in found), found
