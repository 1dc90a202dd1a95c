"""What a test must not leave behind: threads and children of the loader."""

import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


def no_thread_left_behind() -> Iterator[None]:
    """For a fixture: threads of the loader that were begun meanwhile have ended."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("autoloader-"):
            thread.join(30)
            assert not thread.is_alive(), thread.name


def loader_children() -> list[str]:
    """Process ids of the loader's children of this process."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 every process, each test
        with suppress(OSError):
            _, _, told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            if int(told.split()[1]) == os.getpid() and (
                b"autoloader.process.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ):
                found.append(pid)
    return found


def until_let_go(wire: Any) -> None:
    """Part from the loader's child, and wait for it to do so."""
    wire.shut_down(socket.SHUT_WR)
    with suppress(EOFError):
        while True:
            assert wire.receive(20.0)
    wire.close()


def ends_within(pid: int, seconds: float) -> bool:
    """Whether a process ends in time, a child of ours or not (watched by its pidfd)."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    watch = select.poll()
    watch.register(descriptor, select.POLLIN)
    ended = bool(watch.poll(1000 * seconds))
    os.close(descriptor)
    return ended
