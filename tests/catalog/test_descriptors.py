"""The budget of open files: what is kept, what gives way, and what a shortage is called."""

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoloader.formats.files import Descriptors, no_descriptor_left, unreadable


def open_now() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for k in range(40):
        (tmp_path / f"{k}").write_bytes(bytes([k]))
    return [str(tmp_path / f"{k}") for k in range(40)]


@pytest.fixture
def low_limit() -> Iterator[int]:
    """A soft limit 24 above what is open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = open_now() + 24
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    yield low
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Map:
    """Holds a map, as far as the budget knows."""

    def __init__(self, path: str) -> None:
        self.file = Path(path).open("rb")  # noqa: SIM115

    def unmap(self) -> None:
        self.file.close()


def test_a_file_that_gives_way_stays_open_for_its_borrower(files: list[str]):
    budget = Descriptors(most=1)
    before = open_now()
    budget.enter()
    first, second = budget.borrowed(files[3]), budget.borrowed(files[4])
    assert os.pread(first.descriptor, 1, 0) == b"\3"
    assert os.pread(second.descriptor, 1, 0) == b"\4"
    budget.leave()
    assert open_now() == before + 2
    del first, second
    assert open_now() == before


def test_files_and_maps_leave_room_below_the_limit(files: list[str], low_limit: int):
    budget = Descriptors()
    budget.enter()
    maps = []
    for path in files:
        budget.borrowed(path)
        maps.append(Map(path))
        budget.note_map(maps[-1].unmap)
    assert open_now() < low_limit
    assert any(not one.file.closed for one in maps)
    for one in maps:
        one.unmap()
    budget.leave()


def test_an_open_for_which_there_is_no_descriptor_takes_one_from_what_is_kept(
    files: list[str], low_limit: int
):
    budget = Descriptors()
    budget.enter()
    budget.borrowed(files[0])
    taken: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(0))
    try:
        found = budget.open(files[2])
        with pytest.raises(OSError, match="Too many open files"):
            budget.open(files[3])
        os.close(found)
    finally:
        for one in taken:
            os.close(one)
        budget.leave()


def test_threads_that_borrow_the_same_files_read_what_is_in_them(files: list[str]):
    budget, wrong = Descriptors(most=3), []
    budget.enter()

    def read(turn: int) -> None:
        for k in range(400):
            number = (k * (turn + 1)) % len(files)
            file = budget.borrowed(files[number])
            if os.pread(file.descriptor, 1, 0) != bytes([number]):
                wrong.append(number)

    before = open_now()
    threads = [threading.Thread(target=read, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    budget.leave()
    assert not wrong
    assert open_now() == before


def test_a_shortage_is_told_with_the_limit_and_the_remedy():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    told = unreadable(OSError(errno.EMFILE, "Too many open files"), "/d/x", dataset="bridge")
    assert told.what.startswith("dataset bridge: /d/x cannot be opened")
    assert f"all the {limit} files" in told.what
    assert "ulimit -n" in told.remedy
    assert "cycle_length" in told.remedy
    machine = no_descriptor_left(OSError(errno.ENFILE, "file table overflow"), "/d/x", dataset="")
    assert "this machine" in machine.what
    assert "file-max" in machine.remedy
