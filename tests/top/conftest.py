"""A loader that runs in a child while a module's tests look at it from outside."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rlds_files import Written, png, written_steps
from streams import spec_of

from autoloader import AutoLoader
from autoloader.telemetry.run_record import living_runs
from autoloader.telemetry.statistics import Statistics

written = written_steps([[8, 8]], encode=png, name="a")
"""A dataset of sixteen samples."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The runtime directory of a module's loaders."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("runs")
        patch.setenv("AUTOLOADER_RUNTIME_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def running(written: Written, runs: Path) -> Iterator[AutoLoader]:
    """A loader in a child, on a mixture without end."""
    spec = spec_of(written, mixing={"epoch": "forever"}, reader="indexed")
    with AutoLoader(spec, ram_floor="64MiB", output="numpy") as loader:
        yield loader


@pytest.fixture
def look(running: AutoLoader) -> Callable[[Callable[[Statistics], bool]], Statistics]:
    """Takes batches until the run says what is wanted of it; gives that snapshot."""

    def until(wanted: Callable[[Statistics], bool]) -> Statistics:
        stream, deadline = iter(running), time.monotonic() + 100
        while time.monotonic() < deadline:
            next(stream)
            for moment in living_runs():
                if wanted(moment):
                    return moment
            time.sleep(0.02)
        raise AssertionError(f"not seen; last {living_runs()}")

    return until
