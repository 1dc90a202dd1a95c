"""A file system that shows a folder as it is, read-only, and has every read wait.

``serve`` is the file system, ``mounted`` runs a module that calls it in a process of its own. Reads
go past the page cache (``direct_io``), so that every one of a loader's reads is a request, in the
second pass as in the first.

Needs /dev/fuse, libfuse and the package mfusepy (extra ``dev``); ``why_not`` says what is missing.

Not here: how long a read waits (``bench.control.slow_files``).
"""

from __future__ import annotations

import contextlib
import ctypes.util
import errno
import importlib.util
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.child import Player, last_words

_START_S = 20.0


class NotMountedError(PermissionError):
    """Nothing can be mounted here; says why."""


def why_not() -> str | None:
    """What is missing on this machine; ``None`` where it can be mounted."""
    if importlib.util.find_spec("mfusepy") is None:
        return "the package mfusepy is not installed"
    if not ctypes.util.find_library("fuse3") and not ctypes.util.find_library("fuse"):
        return "libfuse is not installed (apt-get install fuse3)"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened here"
    return None


@contextlib.contextmanager
def mounted(module: str, source: Path, target: Path, *words: str) -> Iterator[Player]:
    """``target`` shows ``source`` while this lasts; gives the process.

    Args:
        module: what the process runs, with both folders and ``words`` as its arguments.
        source: shown.
        target: where; made.
        words: its other arguments.

    Raises:
        NotMountedError: it cannot be mounted.
    """
    if (why := why_not()) is not None:
        raise NotMountedError(why)
    target.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    places = (str(source.resolve()), str(target))
    with (
        tempfile.TemporaryFile("w+") as log,
        Player(module, *places, *words, env=env, log=log) as server,
    ):
        deadline = time.monotonic() + _START_S
        while not target.is_mount():
            if server.process.poll() is not None or time.monotonic() > deadline:
                raise NotMountedError(f"nothing is mounted at {target}: {last_words(log, 8)}")
            time.sleep(0.02)
        try:
            yield server
        finally:
            subprocess.run(["umount", "-l", str(target)], check=False)
            server.process.kill()  # what still waits for an answer gets an error


def serve(
    source: Path,
    target: Path,
    wait: Callable[[str, int, int], None],
    *,
    told: Mapping[str, Callable[[], bytes]] | None = None,
    one_at_a_time: bool = False,
) -> None:
    """Show ``source`` at ``target`` until that is unmounted.

    Args:
        source: shown.
        target: where.
        wait: (path below the source, offset, bytes) of a read; it is answered when this returns.
        told: further files of the root, by name: what they hold, read anew each time.
        one_at_a_time: whether a read waits for those before it.
    """
    import mfusepy

    more = {f"/{name}": read for name, read in (told or {}).items()}

    class Files(mfusepy.Operations):  # type: ignore[misc]
        """The files of the folder."""

        use_ns = True

        def _of(self, path: str) -> Path:
            return source / path.lstrip("/")

        def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
            del fh
            if path in more:
                size = len(more[path]())
                return {"st_mode": stat.S_IFREG | 0o444, "st_size": size, "st_nlink": 1}
            try:
                found = self._of(path).lstat()
            except OSError as error:
                raise mfusepy.FuseOSError(error.errno or errno.EIO) from error
            times = {f"st_{kind}time": getattr(found, f"st_{kind}time_ns") for kind in "amc"}
            names = ("st_mode", "st_size", "st_nlink", "st_uid", "st_gid", "st_ino")
            return times | {name: getattr(found, name) for name in names}

        def readdir(self, path: str, fh: Any) -> list[str]:
            del fh
            return [".", "..", *os.listdir(self._of(path))]  # noqa: PTH208

        def readlink(self, path: str) -> str:
            return str(self._of(path).readlink())

        def open(self, path: str, fi: Any) -> int:
            fi.direct_io = 1
            fi.fh = 0 if path in more else os.open(self._of(path), os.O_RDONLY)
            return 0

        def read(self, path: str, size: int, offset: int, fi: Any) -> bytes:
            if path in more:
                return more[path]()[offset : offset + size]
            data = os.pread(fi.fh, size, offset)
            wait(path, offset, len(data))
            return data

        def release(self, path: str, fi: Any) -> int:
            if path not in more:
                os.close(fi.fh)
            return 0

    mfusepy.FUSE(
        Files(),
        str(target),
        raw_fi=True,
        foreground=True,
        nothreads=one_at_a_time,
        ro=True,
        fsname="shown_files",
    )
