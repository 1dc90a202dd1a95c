"""A kernel that refuses files in memory is told in words, wherever they are made."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from ended import python

from autoloader.decode.ring import MAX_SLOTS, RingMemory
from autoloader.errors import PipelineError
from autoloader.host.files import memory_file
from autoloader.host.supervision import Supervisor


def refuse(*_: object) -> int:
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Supervisor("one", "autoloader.process.worker", remedy="none"),
        lambda: memory_file("ring", 8),
    ],
)
def test_where_memfd_create_is_refused_the_error_says_what_to_allow(
    make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(PipelineError, match="Operation not permitted") as caught:
        make()
    assert "seccomp" in caught.value.remedy


def test_where_files_may_have_no_bytes_the_error_names_the_limit():
    script = (
        "import resource, signal\n"
        "from autoloader.errors import PipelineError\n"
        "from autoloader.host.files import memory_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "try:\n    memory_file('ring', 8)\nexcept PipelineError as error:\n    print(error)\n"
    )
    assert "ulimit -f" in python("-c", script).stdout


def test_where_address_space_is_refused_the_error_names_the_limit_and_no_file_stays():
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(PipelineError, match="address space") as caught:
        RingMemory(SimpleNamespace(slot_bytes=2**47 // MAX_SLOTS))  # type: ignore[arg-type]
    assert "ulimit -v" in caught.value.remedy
    assert len(list(Path("/proc/self/fd").iterdir())) == before
