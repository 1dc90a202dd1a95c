"""Files in memory that processes share, and files on disks: read and written whole, and by whom.

Not here: what lies in them; files that no other user can hold or put in the way
(``host.private``); index files, which several builders publish at a time (``index.shard``).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import grp
import os
import pwd
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from autoloader.errors import PipelineError

READ_OWN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags of ``os.open`` for a file whose owner is checked then."""


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


def written_by_others(path: Path, found: os.stat_result, data: os.stat_result | None = None) -> str:
    """Why what lies in a file or folder may be another user's work; "" where it cannot be.

    Args:
        path: of the file or folder.
        found: what is known of it.
        data: of data that is trusted: whoever may write there may write here.
    """
    trusted = {os.geteuid(), 0} if data is None else {os.geteuid(), 0, data.st_uid}
    if found.st_uid not in trusted:
        return f"it belongs to user {found.st_uid}"
    writers = found.st_mode & other_writers(found)
    if data is not None and found.st_gid == data.st_gid:
        writers &= ~data.st_mode
    return f"others may write to it: chmod go-w {path}" if writers else ""


def other_writers(found: os.stat_result) -> int:
    """The mode bits that let other users write to a file or folder.

    The group's bit is not one of them where the group is this user's own: many systems make such a
    group for each user, with a umask of 002.
    """
    return 0o002 if _is_own_group(found.st_gid) else 0o022


@functools.cache
def _is_own_group(gid: int) -> bool:
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:  # a number without a name, as in many containers
        return False
    own = gid == user.pw_gid and group.gr_name == user.pw_name
    return own and set(group.gr_mem) <= {user.pw_name}


def check_file(descriptor: int, path: Path, data: os.stat_result | None = None) -> None:
    """See that an open file, and the folder that it lies in, are no other user's work.

    Args:
        descriptor: of the file.
        path: of the file.
        data: see ``written_by_others``.

    Raises:
        OSError: they may be.
    """
    found = os.fstat(descriptor)
    why = "" if stat.S_ISREG(found.st_mode) else "it is no regular file"
    why = why or written_by_others(path, found, data)
    why = why or written_by_others(path.parent, path.parent.stat(), data)
    if why:
        raise PermissionError(errno.EPERM, why, str(path))


def read_own(path: Path, most_bytes: int) -> bytes:
    """What a file holds that no other user can have written.

    Args:
        path: of the file; a symbolic link there is refused.
        most_bytes: of it.

    Raises:
        OSError: it cannot be read, is larger, or another user may have written it.
    """
    with os.fdopen(os.open(path, READ_OWN), "rb") as file:
        check_file(file.fileno(), path)
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise OSError(errno.EFBIG, f"it holds more than {most_bytes} bytes", str(path))
    return found
