"""Files in memory and on disks: written whole, locked, and safe from other users.

Theory of operation. In a folder that others may write to, such as ``/tmp``, anybody may take a
name. A stranger makes the file first and holds its lock, or puts a link there. So files between
processes of one user lie in a folder of this user alone, its *runtime folder*. Where a stranger has
taken the folder's name, the next place is used; the last one lies below the home directory.

What a user names as a file is opened without waiting, and refused where it is no regular file.

A lock is held on a file there. The kernel drops a lock when its holder ends, however it ends. The
holder writes its process id into the file, so that whoever waits can say for whom.

Not here: what lies in files (``telemetry.run_record``, ``process.discovery``); index files, which
several builders publish at a time (``index.opening``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import mmap
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from autoloader.errors import PipelineError, UsageError

logger = logging.getLogger(__name__)

LEFTOVER_S = 24 * 3600.0
"""Temporary files older than this are of processes that were killed."""

_KINDS = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)

READ_OWN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags of ``os.open`` for a file whose owner is checked then."""


def memory_file(name: str, size: int = 0, *, sealed: bool = False) -> int:
    """The descriptor of a new file in memory.

    Args:
        name: name shown in ``/proc/PID/fd``.
        size: bytes; pages come only where it is written.
        sealed: forbid for good to make it smaller: no access to a mapping of it ever fails.

    Raises:
        PipelineError: the kernel refuses it.
    """
    descriptor = -1
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING * sealed))
        os.ftruncate(descriptor, size)
        if sealed:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise PipelineError(
            f"the kernel refuses an in-memory file of {size} bytes: {error.strerror}",
            remedy="allow memfd_create (a container's seccomp profile may forbid it), and files of "
            "that size (ulimit -f)",
        ) from error
    return descriptor


def mapped(descriptor: int, size: int) -> mmap.mmap:
    """A file in memory, mapped and shared with every process that maps it.

    Raises:
        PipelineError: the kernel refuses it.
    """
    try:
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED)
    except OSError as error:
        raise PipelineError(
            f"the kernel refuses {size} bytes of address space for batches: {error.strerror}",
            remedy="raise this process's limit of address space (ulimit -v), or lower batch.size",
        ) from error


def is_at(path: Path, descriptor: int) -> bool:
    """True if an open file still has this name."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    return False


def read_whole(descriptor: int, into: memoryview, at: int) -> None:
    """Fill memory with what lies in a file from a byte on.

    Raises:
        OSError: the file cannot be read, or ends before.
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

    A process that reads the file meanwhile finds the old content or the new, as a whole.

    Args:
        path: path of the file.
        content: all of it; texts are UTF-8.
        mode: mode of a new file, less the bits that the user's umask forbids.
        durable: whether it is on the disk when this returns.
        before: called when all is written and the old file is still in its place.

    Raises:
        OSError: the file cannot be written; what stood there before is untouched.
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


def remove_leftovers(directory: Path, pattern: str) -> None:
    """Delete files of ``write_whole`` and its like that processes left that were killed long ago.

    Args:
        directory: their folder.
        pattern: of the names of the files in whose place they would have been put.
    """
    before = time.time() - LEFTOVER_S
    with contextlib.suppress(OSError):
        for left in directory.glob(f".{pattern}.*.tmp"):
            if left.stat().st_mtime < before:
                left.unlink(missing_ok=True)
                logger.debug("removed %s, left by a process that was killed", left)


def written_by_others(path: Path, found: os.stat_result, data: os.stat_result | None = None) -> str:
    """Why what lies in a file or folder may be another user's work; "" where it cannot be.

    Args:
        path: path of the file or folder.
        found: status of the file or folder.
        data: status of trusted data: its writers may write here; ``None``: there is none.
    """
    trusted = {os.geteuid(), 0} if data is None else {os.geteuid(), 0, data.st_uid}
    if found.st_uid not in trusted:
        return f"it belongs to user {found.st_uid}"
    # The group may be this user's own: many systems make such a one, with a umask of 002.
    writers = found.st_mode & (0o002 if _is_own_group(found.st_gid) else 0o022)
    if data is not None and found.st_gid == data.st_gid:
        writers &= ~data.st_mode
    return f"others may write to it: chmod go-w {path}" if writers else ""


@functools.cache
def _is_own_group(gid: int) -> bool:
    """True if a group has this user as its only member."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:  # a number without a name, as in many containers
        return False
    own = gid == user.pw_gid and group.gr_name == user.pw_name
    return own and set(group.gr_mem) <= {user.pw_name}


def check_file(descriptor: int, path: Path, data: os.stat_result | None = None) -> None:
    """See that an open file, and the folder that it lies in, are no other user's work.

    Args:
        descriptor: descriptor of the open file.
        path: path of the file.
        data: status of the data, see ``written_by_others``.

    Raises:
        OSError: file and folder may be another user's work.
    """
    _refuse(path, _foreign(path, os.fstat(descriptor), data))
    _refuse(path, written_by_others(path.parent, path.parent.stat(), data))


def _foreign(path: Path, found: os.stat_result, data: os.stat_result | None = None) -> str:
    """Why a file is no regular one, or may be another user's work; "" where it is neither."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    return written_by_others(path, found, data)


def _refuse(path: Path, why: str) -> None:
    if why:
        raise PermissionError(errno.EPERM, why, str(path))


def read_own(path: Path, most_bytes: int) -> bytes:
    """Content of a file that no other user can have written.

    Args:
        path: path of the file; a symbolic link there is refused.
        most_bytes: most bytes that it may hold.

    Raises:
        OSError: the file cannot be read, is larger, or another user may have written it.
    """
    with os.fdopen(os.open(path, READ_OWN), "rb") as file:
        check_file(file.fileno(), path)
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise OSError(errno.EFBIG, f"it holds more than {most_bytes} bytes", str(path))
    return found


class DocumentError(Exception):
    """A file that cannot be read. Internal: whoever reads it names the user's error.

    Args:
        what: fault of the file, without its name.
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
        DocumentError: the path leads to no regular file, or to a larger one.
        OSError: the file cannot be read.
    """
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        content = file.read(-1 if max_bytes is None else max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise DocumentError(
            f"it holds {max(found.st_size, len(content))} bytes; the limit is {max_bytes}",
            "shorten it; write fields that all datasets share once, in defaults",
        )
    return content


def open_regular(path: str | Path, *, links: bool = True) -> int:
    """A read-only descriptor of a local file; anything but a file is refused, and not waited for.

    Args:
        path: path of the local file.
        links: whether a symbolic link there is followed.

    Raises:
        DocumentError: the path leads to no regular file.
        OSError: the file cannot be opened.
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
            f"it is a {kind_of(mode)}, not a regular file",
            "save its content to a regular file, and give the path of that one",
        )
    return descriptor


def kind_of(mode: int) -> str:
    """Kind of a path with this ``st_mode``, in a word: "directory", "named pipe"."""
    return next((word for is_it, word in _KINDS if is_it(mode)), "regular file")


VARIABLE = "AUTOLOADER_RUNTIME_DIR"
"""Environment variable: the runtime folder; unset: in shared memory."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  a folder of our own below it, checked to be ours
_LOOK_S = 0.1
_FOREIGN = (errno.EPERM, errno.EACCES, errno.EISDIR, errno.ENXIO)
"""What opening a file gives that is no regular file of this user's, or may not be read."""


def runtime_folder() -> Path:
    """The runtime folder of this user, in ``/dev/shm``; it may not be there yet.

    ``/dev/shm`` waits for no disk. ``XDG_RUNTIME_DIR`` does not serve: a batch job has none, and
    the folder goes with the user's last login while training continues.
    """
    if wanted := os.environ.get(VARIABLE, ""):
        return Path(wanted).absolute()
    name = f"autoloader-{os.geteuid()}"
    shared = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK)
    places = [_SHARED_MEMORY / name] if shared else []
    places += [Path(tempfile.gettempdir()) / name, platformdirs.user_cache_path("autoloader-run")]
    missing = []
    for place in places:
        try:
            check_own_folder(place)
        except FileNotFoundError:
            missing.append(place)
        except OSError:  # a stranger's
            continue
        else:
            return place
    return missing[0] if missing else places[-1]


def own_folder(folder: Path) -> Path:
    """A folder that only this user may write to, made where it is missing.

    Raises:
        OSError: the folder is another user's, others may write to it, or it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_own_folder(folder)
    return folder


def check_own_folder(folder: Path) -> None:
    """See that nobody else can write to a folder.

    Raises:
        OSError: others can, or it is not there.
    """
    there = folder.lstat()
    own = stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid()
    _refuse(folder, "" if own else f"it is no folder of user {os.geteuid()}")
    _refuse(folder, written_by_others(folder, there))


def open_own(path: Path, flags: int = os.O_RDWR | os.O_CREAT, *, linked: bool = False) -> int:
    """The descriptor of a regular file of this user; made where it is missing, for this user alone.

    Args:
        path: path of the file; a symbolic link there is refused.
        flags: flags of ``os.open``; cutting a file short belongs behind this check.
        linked: whether the file may have a second name.

    Raises:
        OSError: the file cannot be opened, or is no regular file of this user's.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            _refuse(path, "it is a symbolic link")
        raise
    try:
        found = os.fstat(descriptor)
        why = _foreign(path, found)
        if found.st_uid != os.geteuid():  # root's, say
            why = why or f"it belongs to user {found.st_uid}"
        if found.st_nlink > 1 and not linked:
            why = why or "it has a second name elsewhere"
        _refuse(path, why)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_or_begin(path: Path, *, linked: bool = False) -> int:
    """As ``open_own``, for a file that can be made anew: what else has its name is set aside.

    Raises:
        OSError: the file cannot be made.
    """
    while True:
        try:
            return open_own(path, linked=linked)
        except OSError as error:
            if error.errno not in _FOREIGN:
                raise
            set_aside(path, error.strerror or str(error))


def set_aside(path: Path, why: str) -> None:
    """Give what has a file's name another one, as it is, and say so. Raises OSError."""
    aside = path.with_name(f"{path.name}.aside-{secrets.token_hex(4)}")
    path.rename(aside)
    logger.warning("%s is not used: %s; it is %s now", path, why, aside.name)


@contextlib.contextmanager
def locked(path: Path, waits: Callable[[str], object]) -> Iterator[None]:
    """Hold the lock of a file of this user.

    Args:
        path: path of the file; its folder is there.
        waits: called with the holder's name while another process holds the lock; it pauses, and
            raises where nobody should wait longer (``Waiting``).

    Raises:
        OSError: for the reasons of ``open_own``.
    """
    while True:
        descriptor = open_own(path)
        try:
            while not (taken := _taken(descriptor)) and is_at(path, descriptor):
                waits(_holder(descriptor))
            if taken and is_at(path, descriptor):  # else the holder before has removed it
                yield
                return
        finally:
            os.close(descriptor)  # and with it the lock


@dataclass(slots=True)
class Waiting:
    """A wait for a lock that says whom it waits for, and ends.

    Attributes:
        what: waits, as in "a measurement of this host".
        limit_s: the longest wait for one holder.
        say: told once for each holder whom this waits for.
        now_s: seconds on a clock that never goes backwards.
        sleep: function that lets seconds pass.
    """

    what: str
    limit_s: float
    say: Callable[[str], object]
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    _holder: str | None = None
    _since_s: float = 0.0

    def __call__(self, holder: str) -> None:
        """Pause for a moment.

        Raises:
            UsageError: the same holder has had the lock for ``limit_s``.
        """
        now_s = self.now_s()
        if holder != self._holder:
            self._holder, self._since_s = holder, now_s
            self.say(f"{self.what} waits for {holder}")
        if now_s - self._since_s >= self.limit_s:
            raise UsageError(
                f"{self.what} has waited {self.limit_s:.0f} s for {holder}",
                remedy="wait until it ends; if it hangs, end it, and start again",
            )
        self.sleep(_LOOK_S)


def _taken(descriptor: int) -> bool:
    """Take the lock, if it is free; True if it is ours from now on."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on host {socket.gethostname()}".encode(), 0)
    return True


def _holder(descriptor: int) -> str:
    """Name of the lock's holder, as it wrote itself."""
    return os.pread(descriptor, 200, 0).decode("utf-8", "replace") or "another process"
