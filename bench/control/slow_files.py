"""A file system that shows a folder as it is, and answers reads as slowly as it is told.

``slow_files`` mounts it from a process of its own and unmounts it; ``python -m
bench.control.slow_files SOURCE TARGET`` is that process, told on stdin, one JSON line each:
``{"storage_ms": M}`` (every read request takes at least so long) and ``{"stalls": true}`` (the
first dataset's files do not answer until it says false). Requests are served by threads, each
waiting out its own delay.

Not here: the file system (``bench.shown_files``).
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path

from bench import shown_files
from bench.child import Player


def slow_files(source: Path, target: Path) -> contextlib.AbstractContextManager[Player]:
    """Shows ``source`` at ``target`` in a ``with`` block; its process is told how slowly.

    Raises:
        PermissionError: on entering, where nothing may be mounted.
    """
    return shown_files.mounted("bench.control.slow_files", source, target)


class _Slowness:
    """How long reads wait, as it is told.

    Args:
        source: what is shown; its first folder's files may stall.
    """

    def __init__(self, source: Path) -> None:
        folders = sorted(one.name for one in source.iterdir() if one.is_dir())
        self._stalled_folder = f"/{folders[0]}/" if folders else ""
        self._flowing = threading.Event()
        self._flowing.set()
        self._delay_s = 0.0

    def listen(self) -> None:
        """Take commands until stdin ends."""
        for line in sys.stdin:
            told = json.loads(line)
            self._delay_s = told.get("storage_ms", self._delay_s * 1e3) / 1e3
            if told.get("stalls", False):
                self._flowing.clear()
            elif "stalls" in told:
                self._flowing.set()
        self._flowing.set()

    def wait(self, path: str, offset: int, size: int) -> None:
        """A read, on the thread that answers it."""
        del offset, size
        due = time.monotonic() + self._delay_s
        if self._stalled_folder and path.startswith(self._stalled_folder):
            self._flowing.wait()
        time.sleep(max(0.0, due - time.monotonic()))


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    slowness = _Slowness(source)
    threading.Thread(target=slowness.listen, daemon=True).start()
    shown_files.serve(source, target, slowness.wait)


if __name__ == "__main__":
    main()
