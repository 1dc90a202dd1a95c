"""Slow mounts (NFS, Lustre, GPFS) as a client: ``file:///mnt/…`` is read through the cache.

The operating system reads, retries and checks permissions. A stale handle, or an answer that does
not come, is a failure that may pass.

Not here: local files that need no cache (``formats.files``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from autoloader.host.files import write_whole
from autoloader.storage import faults
from autoloader.storage.clients.client import Client, RemoteIdentity
from autoloader.storage.faults import Meter

_PASSING = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EAGAIN, errno.EINTR)


class MountClient(Client):
    """A slow mount; see ``storage.clients.client.Client``."""

    lists = True

    def listing(self, directory: str, meter: Meter) -> dict[str, RemoteIdentity | None]:
        """See ``Client.listing``."""
        found: dict[str, RemoteIdentity | None] = {}
        place = _local(directory)
        with _translated(directory):
            for entry in place.iterdir() if place.is_dir() else ():
                meter.named(len(found))
                one = entry.stat()
                found[entry.name] = None if stat.S_ISDIR(one.st_mode) else _identity(one)
        return found

    def identity(self, path: str, meter: Meter) -> RemoteIdentity:
        """See ``Client.identity``."""
        with _translated(path):
            return _identity(_local(path).stat())

    def read_into(
        self, path: str, start: int, view: memoryview, of: RemoteIdentity, meter: Meter
    ) -> None:
        """See ``Client.read_into``."""
        with _translated(path):
            file = os.open(_local(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                done = 0
                while done < len(view) and (more := os.preadv(file, [view[done:]], start + done)):
                    done += more
                    meter.came(more)
                if _identity(os.fstat(file)) != of or done != len(view):
                    raise faults.changed(path)
            finally:
                os.close(file)

    def write(self, path: str, content: bytes, meter: Meter) -> None:
        """See ``Client.write``."""
        place = _local(path)
        with _translated(path):
            write_whole(place, content)


def _local(path: str) -> Path:
    return Path("/" + unquote(path.partition("://")[2]).lstrip("/"))


def _identity(found: os.stat_result) -> RemoteIdentity:
    """The version of a mounted file, by its ``stat``."""
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EISDIR, "it is no regular file")
    return RemoteIdentity(found.st_size, found.st_mtime_ns, str(found.st_mtime_ns))


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Errors of the system in the words of ``storage.faults``."""
    try:
        yield
    except faults.ChangedError:
        raise
    except FileNotFoundError as error:
        raise faults.missing(path) from error
    except PermissionError as error:
        raise faults.refused(path) from error
    except OSError as error:
        if error.errno in _PASSING:
            raise faults.PassingError(error.strerror or "it failed", path) from error
        raise OSError(error.errno, error.strerror or "it failed", path) from error
