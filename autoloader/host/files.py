"""Files in memory that processes share, and files on disks that are read and written whole.

Not here: what lies in them; index files, which several builders publish at a time
(``index.index_paths``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from autoloader.errors import PipelineError


def memory_file(name: str, size: int = 0, flags: int = 0) -> int:
    """The descriptor of a new file in memory.

    Args:
        name: shown in ``/proc/PID/fd``.
        size: bytes; pages come only where it is written.
        flags: of ``os.memfd_create``, beside ``MFD_CLOEXEC``.

    Raises:
        PipelineError: the kernel refuses it.
    """
    descriptor = -1
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | flags)
        os.ftruncate(descriptor, size)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise PipelineError(
            f"the kernel refuses a file in memory of {size} bytes: {error.strerror}",
            remedy="allow memfd_create (a container's seccomp profile may forbid it), and files of "
            "that size (ulimit -f)",
        ) from error
    return descriptor


def is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file still has this name."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    return False


def read_whole(descriptor: int, into: memoryview, at: int) -> None:
    """Fill memory with what lies in a file from a byte on.

    Raises:
        OSError: it cannot be read, or ends before.
    """
    filled = 0
    while filled < len(into):
        more = os.preadv(descriptor, [into[filled:]], at + filled)
        if not more:
            raise OSError(errno.EIO, f"it ends before byte {at + len(into)}")
        filled += more


def write_whole(
    path: Path,
    content: str | bytes,
    *,
    mode: int = 0o666,
    durable: bool = False,
    before: Callable[[], object] = lambda: None,
) -> None:
    """Write a file, with the folders above it, and put it in the place of the one there.

    Who reads it meanwhile finds what stood there before, or all that is new.

    Args:
        path: of the file.
        content: all of it; texts are UTF-8.
        mode: of a new file, less what the user's umask forbids.
        durable: whether it is on the disk when this returns.
        before: called when all is written and the old file is still in its place.

    Raises:
        OSError: it cannot be written; what stood there before is untouched.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        before()
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
