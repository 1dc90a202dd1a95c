"""Paths of other file systems, and files that are read of them piece by piece."""

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.formats import files
from autoloader.formats.files import RemoteFile
from autoloader.storage.faults import NoFileSystemError, UnreachableError

DATA = bytes(range(256)) * 40


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...]]]:
    """A file system with one file of ``DATA``; what it was asked."""
    questions: list[tuple[str, tuple[Any, ...]]] = []

    def answer(question: str, arguments: tuple[Any, ...]) -> Any:
        questions.append((question, arguments))
        if arguments[0] != "gs://lab/file":
            return FileNotFoundError(errno.ENOENT, "there is no such file", arguments[0])
        if question == "size":
            return len(DATA)
        _, offset, count = arguments
        return DATA[offset : offset + count if count >= 0 else None]

    monkeypatch.setattr(files, "_here", answer)
    monkeypatch.setattr(files, "_window_bytes", 1000)
    return questions


@given(reads=st.lists(st.tuples(st.integers(0, 11000), st.integers(0, 3000)), max_size=12))
def test_what_is_read_here_and_there_is_what_lies_there(reads: list[tuple[int, int]]):
    def answer(question: str, arguments: tuple[Any, ...]) -> Any:
        if question == "size":
            return len(DATA)
        return DATA[arguments[1] : arguments[1] + arguments[2]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_here", answer)
        patch.setattr(files, "_window_bytes", 700)
        file = RemoteFile("gs://lab/file")
        for position, count in reads:
            assert file.pread(count, position) == DATA[position : position + count]


def test_small_reads_side_by_side_are_one_question(asked: list[Any]):
    file = RemoteFile("gs://lab/file")
    for position in range(0, 900, 12):
        assert len(file.pread(12, position)) == 12
    assert [question for question, _ in asked] == ["size", "read"]


def test_a_file_that_is_not_there_is_told_when_it_is_opened(asked: list[Any]):
    with pytest.raises(FileNotFoundError):
        RemoteFile("gs://lab/other")


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (FileNotFoundError(2, "none"), "check the path in gs://lab"),
        (PermissionError(13, "no"), "gcloud auth application-default login"),
        (PermissionError(13, "no"), "NO_GCE_CHECK=false"),
        (UnreachableError(5, "no"), "https_proxy"),
        (NoFileSystemError(5, "no"), "tensorflow-io"),
        (OSError(5, "odd"), "gives the whole file"),
    ],
)
def test_every_fault_of_a_remote_file_has_a_remedy(error: OSError, remedy: str):
    told = files.unreadable(error, "gs://lab/arm", dataset="arm")
    assert remedy in told.remedy
    assert "gs://lab/arm" in told.what
    assert told.dataset == "arm"
    assert told.exit_code == 4
