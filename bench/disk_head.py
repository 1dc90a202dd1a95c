"""A file system that reads like one disk head: a seek where a read does not go on from the last.

    python -m bench.disk_head SOURCE MOUNT [--seek-ms 8] [--mb-per-s 200]

It shows the files of a folder, read-only, through FUSE. Whatever is asked for waits for one head:
a read that begins where the last one ended takes its bytes' time, any other a seek more. Reads go
past the page cache (``direct_io``), so that every one counts. The file ``.head`` in the mount says
what was read so far: ``{"reads", "seeks", "bytes"}``.

Needs /dev/fuse, libfuse and the package mfusepy (extra ``dev``); ``why_not`` says what is missing.
Ends when it is unmounted.

Not here: what is measured with it (``bench.locality``).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes.util
import errno
import importlib.util
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEEK_S = 8e-3
BYTES_PER_S = 200e6
COUNTS = ".head"
_START_S = 20.0


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
def mounted(
    source: Path, mount: Path, *, seek_s: float = SEEK_S, bytes_per_s: float = BYTES_PER_S
) -> Iterator[Path]:
    """The folder ``source`` behind a head of its own, at ``mount``; in a process of its own.

    Raises:
        RuntimeError: it cannot be mounted; says why.
    """
    mount.mkdir(exist_ok=True)
    speed = [f"--seek-ms={seek_s * 1e3}", f"--mb-per-s={bytes_per_s / 1e6}"]
    command = [sys.executable, "-m", "bench.disk_head", str(source), str(mount), *speed]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, cwd=Path(__file__).parents[1], text=True
    ) as server:
        deadline = time.monotonic() + _START_S
        while not (mount / COUNTS).exists():
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                said = server.stderr.read() if server.stderr else ""
                raise RuntimeError(f"no disk head at {mount}: {said[-500:]}")
            time.sleep(0.02)
        try:
            yield mount
        finally:
            subprocess.run(["umount", "-l", str(mount)], check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(5)
            server.kill()


def counts(mount: Path) -> dict[str, int]:
    """Reads, seeks and bytes so far."""
    found: dict[str, int] = json.loads((mount / COUNTS).read_text())
    return found


class Head:
    """One disk head; for one thread.

    Attributes:
        reads, seeks, bytes: so far.
    """

    def __init__(self, seek_s: float, bytes_per_s: float) -> None:
        self._seek_s, self._bytes_per_s = seek_s, bytes_per_s
        self._at: tuple[str, int] = "", 0
        self._free_s = 0.0
        self.reads = self.seeks = self.bytes = 0

    def read(self, path: str, offset: int, size: int) -> None:
        """Wait until so many bytes have passed under it."""
        apart = self._at != (path, offset)
        self._at = path, offset + size
        self.reads, self.seeks, self.bytes = self.reads + 1, self.seeks + apart, self.bytes + size
        now = time.monotonic()
        self._free_s = max(self._free_s, now) + apart * self._seek_s + size / self._bytes_per_s
        if self._free_s - now > 1e-3:  # shorter sleeps take longer than they say
            time.sleep(self._free_s - now)


def _serve(source: Path, mount: Path, head: Head) -> None:
    import mfusepy

    class Files(mfusepy.Operations):  # type: ignore[misc]
        """The files of a folder; all that is read of them waits for the head."""

        use_ns = True

        def _counts(self) -> bytes:
            told = {"reads": head.reads, "seeks": head.seeks, "bytes": head.bytes}
            return json.dumps(told).encode().ljust(128)

        def _of(self, path: str) -> Path:
            return source / path.lstrip("/")

        def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
            del fh
            if path == f"/{COUNTS}":
                return {"st_mode": stat.S_IFREG | 0o444, "st_size": 128, "st_nlink": 1}
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
            fi.fh = 0 if path == f"/{COUNTS}" else os.open(self._of(path), os.O_RDONLY)
            return 0

        def read(self, path: str, size: int, offset: int, fi: Any) -> bytes:
            if path == f"/{COUNTS}":
                return self._counts()[offset : offset + size]
            data = os.pread(fi.fh, size, offset)
            head.read(path, offset, len(data))
            return data

        def release(self, path: str, fi: Any) -> int:
            if path != f"/{COUNTS}":
                os.close(fi.fh)
            return 0

    mfusepy.FUSE(
        Files(),
        str(mount),
        raw_fi=True,
        foreground=True,
        nothreads=True,  # one head
        ro=True,
        fsname="disk_head",
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.disk_head", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("source", type=Path)
    parser.add_argument("mount", type=Path)
    parser.add_argument("--seek-ms", type=float, default=SEEK_S * 1e3)
    parser.add_argument("--mb-per-s", type=float, default=BYTES_PER_S / 1e6)
    chosen = parser.parse_args()
    if (why := why_not()) is not None:
        print(why, file=sys.stderr)
        return 1
    _serve(chosen.source, chosen.mount, Head(chosen.seek_ms / 1e3, chosen.mb_per_s * 1e6))
    return 0


if __name__ == "__main__":
    sys.exit(main())
