"""Threads of the loader carry their names in the kernel, too."""

from __future__ import annotations

import threading
from pathlib import Path

from autoloader.host.threads import LoaderThread


def kernel_name() -> str:
    task = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    return task.read_text().strip()


def test_the_kernel_knows_a_thread_by_its_name_and_not_by_that_of_who_started_it() -> None:
    found = {}

    def inner() -> None:
        found["inner"] = kernel_name()

    def outer() -> None:
        found["outer"] = kernel_name()
        started = LoaderThread(target=inner, name="autoloader-decode-3")
        started.start()
        started.join()

    thread = LoaderThread(target=outer, name="autoloader-control")
    assert thread.daemon
    thread.start()
    thread.join()
    assert found == {"outer": "loader-control", "inner": "loader-decode-3"}
