"""What a test must not leave behind: threads and children of the loader."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path


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
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if b"autoloader.process.worker" in command and parent == os.getpid():
                found.append(entry.name)
    return found


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
