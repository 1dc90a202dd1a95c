"""Locks and folders that another user of the machine has made first, or holds."""

import fcntl
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from doubles import ManualClock
from strangers import STRANGER, needs_second_user, stranger

from autoloader.cli.demo import ensure_demo
from autoloader.errors import SourceError, UsageError
from autoloader.host import files
from autoloader.host.files import Waiting, locked, open_own, own_folder, runtime_folder
from autoloader.spec.knobs import Knobs
from autoloader.tune.trial import Outcome, TrialResult, by_turns

HOLDS = """
path = sys.argv[1]
held = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
os.fchmod(held, 0o666)
fcntl.flock(held, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""
MAKES = """
os.mkdir(sys.argv[1], 0o777)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like /tmp, to which every user may write, in the place of /tmp and /dev/shm."""
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.delenv(files.VARIABLE, raising=False)
    monkeypatch.setattr(files, "_SHARED_MEMORY", folder)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return folder


def measure(knobs: Knobs, **_: Any) -> TrialResult:
    return TrialResult(Outcome.COMPLETE, samples_per_s=5.0)


@needs_second_user
def test_a_lock_that_a_stranger_made_first_in_a_shared_folder_holds_no_study(shared: Path):
    foreign = shared / f"autoloader-tune-{os.getuid()}.lock"
    with stranger(HOLDS, str(foreign)):
        turns = by_turns(measure, ManualClock(), 60.0)
        assert turns(Knobs(), timeout_s=1, watch=lambda *_: True).samples_per_s == 5.0


@needs_second_user
def test_a_runtime_folder_that_a_stranger_made_first_is_gone_around(shared: Path):
    assert runtime_folder() == shared / f"autoloader-{os.geteuid()}"
    with stranger(MAKES, str(shared / f"autoloader-{os.geteuid()}")):
        mine = own_folder(runtime_folder())
    assert mine.stat().st_uid == os.geteuid()
    assert mine.stat().st_mode & 0o777 == 0o700
    assert runtime_folder() == mine
    (shared / f"autoloader-{os.geteuid()}").rmdir()
    assert runtime_folder() == mine  # where the others of this user are


@needs_second_user
def test_a_demo_whose_lock_a_stranger_holds_is_refused_at_once(shared: Path):
    with (
        stranger(HOLDS, str(shared / ".demo.lock")),
        pytest.raises(SourceError, match=f"belongs to user {STRANGER}"),
    ):
        ensure_demo(shared / "demo", datasets=1, scale=0.01)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "second name", "writable"])
def test_what_is_no_file_of_this_user_alone_is_not_opened(kind: str, tmp_path: Path):
    path, other = tmp_path / "lock", tmp_path / "precious"
    other.write_text("precious")
    other.chmod(0o600)
    if kind == "link":
        path.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "second name":
        path.hardlink_to(other)
    else:
        path.touch()
        path.chmod(0o622)
    with pytest.raises(OSError):
        open_own(path)
    assert other.read_text() == "precious"


def test_a_wait_for_a_lock_names_its_holder_and_ends(tmp_path: Path):
    path, clock = tmp_path / "lock", ManualClock()
    said: list[str] = []
    wait = Waiting("this test", 60.0, say=said.append, now_s=clock.now_s, sleep=clock.sleep)
    with locked(path, wait):
        assert said == []
        with (
            pytest.raises(UsageError, match=f"60 s for process {os.getpid()} on "),
            locked(path, wait),
        ):
            pytest.fail("both hold it")
    assert len(said) == 1
    assert clock.now_s() == pytest.approx(60.0, abs=0.2)
    with locked(path, wait):
        pass


def test_a_lock_whose_file_was_removed_by_its_holder_is_taken_under_its_name(tmp_path: Path):
    path = tmp_path / "lock"

    def gone(_: str) -> None:
        path.unlink()

    held = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    with locked(path, gone):
        assert path.read_text().startswith(f"process {os.getpid()} on ")
    os.close(held)


def test_a_study_that_waits_for_its_turn_says_for_whom_and_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    lock = tmp_path / "lock"
    with caplog.at_level(logging.WARNING), locked(lock, lambda _: pytest.fail("nobody holds it")):
        waiting = by_turns(measure, ManualClock(), 60.0, lock)
        late = waiting(Knobs(), timeout_s=1, watch=lambda *_: True)
    assert f"process {os.getpid()}" in late.reason
    assert f"waits for process {os.getpid()}" in caplog.text
