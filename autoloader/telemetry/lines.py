"""Logs of a run as JSON lines: paths, writing and reading whole lines.

Several processes may append to one file, and a writer may be killed in the middle of a line: the
next writer begins on a line of its own.

Not here: the logs (``controller.decisions``, ``telemetry.run_record``).
"""

from __future__ import annotations

import errno
import functools
import json
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autoloader.errors import UsageError


@functools.lru_cache(maxsize=1)
def _run_of(pid: int) -> str:
    host = socket.gethostname().partition(".")[0] or "host"
    return f"{host}-{pid}-{time.strftime('%Y%m%dT%H%M%S')}"


def run_name() -> str:
    """This process in logs: host, process id, and when it was first asked for."""
    return _run_of(os.getpid())


def script_name() -> str:
    """Name for people of this process's work: its batch job, if it has one, and its script."""
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("TORCHELASTIC_RUN_ID") or ""
    path = Path((sys.argv and sys.argv[0]) or "python")
    script = (path.parent.name if path.name == "__main__.py" else path.name) or "python"
    return f"{job}:{script}" if job else script


def log_path(wanted: str, name: str) -> str:
    """Absolute path of a file of this run; "" where none is wanted.

    Args:
        wanted: path of the file; or of a directory, which is there or ends in "/".
        name: name of the file in such a directory.
    """
    if wanted.endswith("/") or os.path.isdir(wanted):
        wanted = f"{wanted}/{name}"
    return str(Path(wanted).absolute()) if wanted else ""


class LineLog:
    """Appends to one log; any thread, beside any other process. A full disk ends it, not the run.

    Args:
        path: the file; appended to, made with its directory where it is missing.
        whose: fields that every line begins with.

    Raises:
        OSError: the log cannot be written.
    """

    def __init__(self, path: Path, whose: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(path, flags, 0o644)
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            os.close(self._descriptor)
            raise PermissionError(errno.EPERM, "it is no file of this user's", str(path))
        size = found.st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # a writer before was killed in the middle of a line
        self._whose = dict(whose)
        self._lock = threading.Lock()
        self.failed: str | None = None

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line; after the first that could not be written, none."""
        self.write_text(json.dumps({**self._whose, **line}, allow_nan=False))

    def write_text(self, text: str) -> None:
        """Append a line that is JSON already and says whose it is; see ``write``."""
        data = (text + "\n").encode()
        with self._lock:
            if self._descriptor < 0 or self.failed is not None:
                return
            try:
                if os.write(self._descriptor, data) < len(data):
                    self.failed = "no room for a whole line"
            except OSError as error:
                self.failed = str(error)

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


def read_lines(
    lines: Iterable[str], origin: str, *, version: int, remedy: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and content of each line; broken ones that begin with "{" are left out.

    A writer that was killed could not end them.

    Args:
        lines: lines of a log.
        origin: names the log in errors.
        version: schema version that its ``start`` lines have.
        remedy: what to do with a file of another kind.

    Raises:
        UsageError: the file is of another kind or version: which line, and why.
    """
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
        except ValueError:
            if not line.strip() or line.startswith("{"):
                continue
            found = None
        if not isinstance(found, dict):
            raise UsageError(f"line {number} of {origin} is not a JSON object", remedy=remedy)
        if found.get("kind") == "start" and found.get("schema_version") != version:
            raise UsageError(
                f"{origin}, line {number}: schema version {found.get('schema_version')}, and this "
                f"autoloader reads {version}: another release of autoloader wrote it",
                remedy="read it with the release that the environment of that run has",
            )
        yield number, found
