"""What takes long is told while it goes on, wherever that can be read."""

import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from moments import a_moment
from rlds_files import episode, write_dataset

from autoloader.process.draft import draft
from autoloader.telemetry import progress
from autoloader.telemetry.verdict import wait_words


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Five seconds are none; a logger is left as it was."""
    monkeypatch.setattr(progress, "_SAY_S", 0.001)
    handlers, level = list(progress.logger.handlers), progress.logger.level
    yield
    progress.logger.handlers[:] = handlers
    progress.logger.setLevel(level)


class Ear(io.StringIO):
    """A stream that knows when it was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()

    def write(self, text: str) -> int:
        length = super().write(text)
        self.heard.set()
        return length


@contextmanager
def no_logging_set_up() -> Iterator[Ear]:
    """A plain script or a notebook: no handler anywhere, and a stderr to be read."""
    with pytest.MonkeyPatch.context() as patch:  # pytest has its own handlers while a test runs
        patch.setattr(logging.getLogger(), "handlers", [])
        ear = Ear()
        patch.setattr(sys, "stderr", ear)
        yield ear


def test_a_long_block_says_what_it_does_where_no_logging_is_set_up(soon: None):
    with no_logging_set_up() as ear, progress.told("planning the run"):
        progress.doing("reading the metadata of bridge (3 of 29)")
        ear.heard.clear()
        assert ear.heard.wait(60)
    last = ear.getvalue().splitlines()[-1]
    assert last.startswith("autoloader: planning the run, 1 s so far: reading the metadata of br")
    assert progress.current() == ""


def test_a_block_that_is_soon_over_says_nothing_and_leaves_no_thread():
    before = threading.active_count()
    with no_logging_set_up() as ear, progress.told("planning the run"):
        pass
    assert ear.getvalue() == ""
    assert threading.active_count() == before


def test_a_search_for_datasets_says_where_it_is(soon: None, tmp_path: Path):
    write_dataset(tmp_path / "arm", [[episode(0, 3)]])
    (tmp_path / "link").symlink_to(tmp_path / "arm")
    words = f"looking for datasets, 1 s so far: {tmp_path}/"
    with no_logging_set_up() as ear:

        def linger(_: str):  # it tells of the link in the midst of its work
            while words not in ear.getvalue():
                ear.heard.clear()
                assert ear.heard.wait(60)

        draft(tmp_path, linger)


def test_progress_can_be_silenced(soon: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AUTOLOADER_PROGRESS", "off")
    with no_logging_set_up() as ear:
        progress.say("waiting")
    assert ear.getvalue() == ""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"phase": "opening"}, "opening files and indexes"),
        ({"phase": "opening", "doing": "indexing, 3 of 9 files"}, "indexing, 3 of 9 files"),
        ({"doing": "waiting for bridge"}, "waiting for bridge"),
        ({"doing": ""}, ""),
        (
            {"limited_by": "memory", "headroom_bytes": 0, "floor_bytes": 2**30},
            "memory limits this run: headroom is 1.00 GiB below the floor",
        ),
    ],
)
def test_what_is_waited_for_is_said_as_the_loader_tells_it(changed: dict[str, object], words: str):
    assert wait_words(a_moment(at_s=100.0, **changed), 101.0) == words
    assert wait_words(None, 101.0) == "the loader's process starts"
    silent = wait_words(a_moment(at_s=100.0, worker_pid=7), 104.0)
    assert silent == "its process (pid 7) has said nothing for 4 s"
