"""Reads a local file whole; anything that is no regular file is refused, and never waited for.

Not here: what the file means (``documents``, ``autoloader.formats``).
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


class DocumentError(Exception):
    """A file that cannot be read. Internal: whoever reads it names the user's error.

    Args:
        what: what is wrong with it, without its name.
        remedy: what the user can do.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


def read_regular(path: str | Path, *, max_bytes: int | None = None) -> bytes:
    """Read a local file whole; anything but a file is refused, and never waited for.

    Args:
        path: path of the local file.
        max_bytes: the most that it may hold; default any number.

    Raises:
        DocumentError: it is no file, or larger.
        OSError: it cannot be read.
    """
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        content = file.read(-1 if max_bytes is None else max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise DocumentError(
            f"it holds {max(found.st_size, len(content))} bytes, and may hold {max_bytes}",
            "shorten it; what all datasets share stands once in defaults",
        )
    return content


def open_regular(path: str | Path, *, links: bool = True) -> int:
    """A read-only descriptor of a local file; anything but a file is refused, and not waited for.

    Args:
        path: path of the local file.
        links: whether a symbolic link there is followed.

    Raises:
        DocumentError: it is no file.
        OSError: it cannot be opened.
    """
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags if links else flags | os.O_NOFOLLOW)
    except ValueError as error:  # a NUL byte in the path
        raise DocumentError(str(error), "give the path of a readable file") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise DocumentError(
            f"it is a {kind_of(mode)}, and no regular file",
            "give the path of a regular file; write what a pipe holds to one first",
        )
    return descriptor


def kind_of(mode: int) -> str:
    """Kind of a path with this ``st_mode``, in a word: "directory", "named pipe"."""
    return next((word for is_it, word in _KINDS if is_it(mode)), "regular file")
