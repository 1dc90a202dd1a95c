"""Threads and processes that the kernel, too, knows by their names: ``top -H`` shows what they do.

To the kernel a new thread has the name of the thread that starts it. A thread that took no name of
its own would be shown, with all it costs, as the thread that started it.

Not here: what any thread does, starting processes (``host.supervision.start``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from autoloader.errors import PipelineError

MORE_THREADS = (
    "raise the limit of processes and threads (ulimit -u, pids.max of the control group), or use "
    "fewer: decode_threads, io_threads, decode_processes, num_workers of other loaders"
)
_LONGEST_NAME = 15
_PR_SET_PDEATHSIG = 1


class LoaderThread(threading.Thread):
    """A daemon thread; ``autoloader-decode-0`` is ``loader-decode-0`` to the kernel.

    Args:
        target: what it runs.
        name: in Python; the kernel keeps the first 15 bytes of "loader-…".
        args: of ``target``.
    """

    def __init__(self, target: Callable[..., object], name: str, args: tuple[Any, ...] = ()):
        super().__init__(target=target, name=name, args=args, daemon=True)

    def start(self) -> None:
        """See ``threading.Thread.start``.

        Raises:
            PipelineError: the kernel gives this user or control group no further thread.
        """
        try:
            super().start()
        except RuntimeError as error:
            raise PipelineError(
                f"no thread can be started ({self.name}): {error}",
                remedy=MORE_THREADS,
                stage="threads",
            ) from error

    def run(self) -> None:
        """Take the name, then run the target."""
        name = "loader-" + self.name.removeprefix("autoloader-")
        with contextlib.suppress(OSError):
            task = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
            task.write_bytes(name.encode()[:_LONGEST_NAME])
        super().run()

    def ended(self, timeout_s: float) -> bool:
        """Wait for the thread to end; whether it has, or was never started."""
        if self.ident is not None:
            self.join(timeout_s)
        return not self.is_alive()


def all_ended(threads: Iterable[threading.Thread], within_s: float | None) -> bool:
    """Wait for threads for so long in all (``None``: until they end); whether all have ended."""
    deadline = None if within_s is None else time.monotonic() + within_s
    threads = [one for one in threads if one is not threading.current_thread()]
    for thread in threads:
        if thread.ident is not None:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Args:
        parent: process that started it; where it is gone already, this process ends now.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def become(name: str) -> None:
    """Make this process one of the loader's: named so, deaf to Ctrl-C, with threads that share.

    Args:
        name: shown by ``ps`` and ``top``, 15 bytes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)
    sys.setswitchinterval(0.001)
