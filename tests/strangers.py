"""A second user of the machine, for tests that run as root: code in a process of that user."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

STRANGER = 65534
needs_second_user = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")

_BECOME = (  # what is imported later may lie where this user may not read
    "import contextlib, fcntl, os, socket, sys, time\n"
    f"os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})\n"
)


@contextlib.contextmanager
def stranger(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run code as another user until the block ends; the code prints a line when it is ready.

    Args:
        code: sees ``sys.argv[1:]``; it ends where its standard input does, or is killed.
        arguments: of it; "@" at the start of one stands for the NUL byte of an abstract socket.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _BECOME + code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
