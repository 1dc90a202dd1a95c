"""Running loaders say where they are; those that are gone are cleaned away by whoever looks."""

import os
import time
from pathlib import Path

import psutil
import pytest
from moments import a_moment

from autoloader.telemetry.run_record import RunFile, is_over, living_runs

HERE = os.getpid()
GONE = 2**22 + 1
"""No process has this id: Linux gives none above 2²²."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    there = tmp_path / "runtime"
    monkeypatch.setenv("AUTOLOADER_RUNTIME_DIR", str(there))
    return there


def test_what_a_run_said_last_is_what_a_reader_finds(folder: Path):
    assert living_runs() == []
    file = RunFile("host-1", 0)
    moments = [a_moment(at_s=time.time(), samples=n, worker_pid=os.getpid()) for n in (1, 2)]
    for moment in moments:
        file.write(moment)
    assert living_runs() == [moments[1]]
    assert folder.stat().st_mode & 0o777 == 0o700
    file.close()
    assert list(folder.iterdir()) == []


def test_a_run_that_was_killed_is_cleaned_away_by_the_next_reader(folder: Path):
    file = RunFile("host-1", 0)
    file.write(a_moment(at_s=time.time() - 7, worker_pid=GONE, trainer_pid=GONE))
    assert living_runs() == []
    assert list(folder.iterdir()) == []


def test_what_a_writer_left_that_was_killed_a_day_ago_is_cleaned_away(folder: Path):
    folder.mkdir(mode=0o700)
    left = folder / ".host-1-0.json.0123456789abcdef.tmp"
    for age_s, stays in ((60, True), (25 * 3600, False)):
        left.write_text("half")
        os.utime(left, (time.time() - age_s,) * 2)
        assert living_runs() == []
        assert left.exists() is stays


def test_what_no_loader_wrote_is_neither_shown_nor_removed(folder: Path):
    folder.mkdir()
    (folder / "notes.json").write_text("mine")
    assert living_runs() == []
    assert (folder / "notes.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("age_s", "worker_there", "trainer_there", "over"),
    [
        (1.0, False, False, False),  # of a process that cannot be seen from here, maybe
        (7.0, False, False, True),
        (7.0, True, False, False),  # silent, and there
        (7.0, False, True, False),  # its child is being started again
        (90.0, False, True, True),
        (90.0, True, False, False),
    ],
)
def test_a_run_is_over_where_its_processes_are_gone(
    age_s: float, worker_there: bool, trainer_there: bool, over: bool
):
    worker, trainer = (HERE if there else GONE for there in (worker_there, trainer_there))
    said_s = psutil.Process().create_time() + 1
    moment = a_moment(at_s=said_s, worker_pid=worker, trainer_pid=trainer)
    assert is_over(moment, said_s + age_s) is over


def test_a_folder_that_others_may_write_to_is_neither_written_to_nor_believed(
    folder: Path, caplog: pytest.LogCaptureFixture
):
    folder.mkdir()
    (folder / "run-0.json").write_text(a_moment(at_s=time.time()).to_json())
    assert len(living_runs()) == 1
    folder.chmod(0o777)
    assert living_runs() == []
    with caplog.at_level("INFO"):
        file = RunFile("host-1", 0)
        file.write(a_moment())
        file.write(a_moment())
    assert [path.name for path in folder.iterdir()] == ["run-0.json"]
    assert caplog.text.count("cannot see this run: [Errno 1] others may write to it") == 1
