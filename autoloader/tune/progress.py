"""The line between a measuring child and the study that watches it.

The child writes one JSON object per line; the parent never writes. So a read in the child returns
only when the parent is gone, and that ends the child: no trial outlives its study, whatever killed
it.

Not here: what is measured (``measurement``), what the parent does about it (``trial``).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """How a measurement stands.

    Attributes:
        batches: measured batches so far, warm-up not counted.
        samples_per_s: rate since the warm-up ended.
        cpu_s_per_sample: processor seconds spent per sample since then; ``None`` if not measured.
    """

    batches: int
    samples_per_s: float
    cpu_s_per_sample: float | None = None


def end_own_group() -> None:
    """End this process at once, with its group where it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(70)


class ProgressWriter:
    """The child's end, over an inherited socket.

    Args:
        descriptor: the socket's file descriptor; owned from here on.
        parent_gone: called once, in a thread of its own, when the other end has closed.
    """

    def __init__(self, descriptor: int, parent_gone: Callable[[], None] = end_own_group) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._parent_gone = parent_gone
        self._closed = False
        self._watch = threading.Thread(target=self._wait_for_end, name="parent-watch", daemon=True)
        self._watch.start()

    def send(self, progress: TrialProgress) -> None:
        """Tell the parent; a parent that is gone is the watching thread's business."""
        line = json.dumps(asdict(progress)) + "\n"
        try:
            self._socket.sendall(line.encode())
        except OSError:
            return

    def close(self) -> None:
        """Stop watching and close; the parent may go now."""
        self._closed = True
        with contextlib.suppress(OSError):  # the other end closed first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._watch.join()
        self._socket.close()

    def _wait_for_end(self) -> None:
        try:
            while self._socket.recv(4096):
                pass
        except OSError:
            pass  # a reset is an end too
        if not self._closed:
            self._parent_gone()


class ProgressLines:
    """The parent's end: turns received bytes into ``TrialProgress``; foreign lines are skipped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[TrialProgress]:
        """The messages that ``data`` completes, in order."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            try:
                raw = json.loads(line)
                cost = raw.get("cpu_s_per_sample")
                found.append(
                    TrialProgress(
                        batches=int(raw["batches"]),
                        samples_per_s=float(raw["samples_per_s"]),
                        cpu_s_per_sample=None if cost is None else float(cost),
                    )
                )
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        return found
