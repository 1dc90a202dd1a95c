"""Errors of remote files, and the limits on what a file may hold and a server may take.

A client's own text may hold a signed address, a token or a header. So an error here says what
happened in words of this module, and names the path that the user wrote.

A server may be broken or hostile: a description without an end would fill the memory, and an answer
that drips would never end. So every answer passes a ``Meter`` on its way from the socket, below the
code that understands it. Local files are held to the same sizes. Each limit has an environment
variable that lifts it, and every refusal names it.

Not here: which exception of which client means what (``storage.clients``), repetitions
(``storage.store``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autoloader.host.clock import Clock
from autoloader.host.units import GIB, MIB, format_bytes, parse_bytes, parse_seconds

_FRAMING_BYTES = 64 * 1024
"""Headers of an answer, which count beside its content."""


VARIABLES: Mapping[str, str] = {
    "document_bytes": "AUTOLOADER_LIMIT_DOCUMENT",
    "list_bytes": "AUTOLOADER_LIMIT_LIST",
    "names": "AUTOLOADER_LIMIT_NAMES",
    "bytes_per_s": "AUTOLOADER_LIMIT_RATE",
    "deadline_s": "AUTOLOADER_LIMIT_TIME",
}
"""Field of ``Limits`` → the environment variable that lifts it."""


class UnreachableError(OSError):
    """A remote file system does not answer now, after repetitions."""


class NoFileSystemError(OSError):
    """Nothing that is installed opens a path's scheme."""


class ChangedError(OSError):
    """An object is another one than it was when this run began."""


class LimitError(OSError):
    """A file, or the server that gives it, goes beyond a limit.

    Args:
        why: reason of the error, for people.
        path: address of the file, as the user wrote it.
        variable: environment variable that lifts the limit.
    """

    def __init__(self, why: str, path: str, variable: str) -> None:
        super().__init__(errno.EFBIG, f"{why} (the limit {variable})", path)
        self.variable = variable


Passing = Literal["", "busy", "lost", "wrong"]


class PassingError(OSError):
    """A request failed, and may succeed in a moment.

    Args:
        why: reason of the error, for people.
        path: address of the file, as the user wrote it.
        kind: "busy": the server asks for fewer requests. "lost": there was no connection; all that
            wait ask again when one is there. "wrong": the server answered otherwise than it should;
            it is asked few times more.
        after_s: seconds of the pause that the server asks for; ``None``: it does not say.
    """

    def __init__(
        self, why: str, path: str, kind: Passing = "", *, after_s: float | None = None
    ) -> None:
        super().__init__(errno.EAGAIN, why, path)
        self.kind, self.after_s = kind, after_s


def missing(path: str) -> FileNotFoundError:
    """An error: there is no such object."""
    return FileNotFoundError(errno.ENOENT, "there is no such file or directory", path)


def refused(path: str, status: int | None = None) -> PermissionError:
    """An error: the store does not let this user read the object."""
    told = "" if status is None else f" ({status})"
    return PermissionError(errno.EACCES, f"access is refused{told}", path)


def changed(path: str) -> ChangedError:
    """An error: the object was replaced or deleted while it was in use."""
    return ChangedError(errno.ESTALE, "it was changed or deleted since this run began", path)


def cut_off(path: str) -> PassingError:
    """An error: fewer bytes came than were announced."""
    return PassingError("the answer was cut off", path, "wrong")


def nonsense(error: Exception, path: str) -> OSError:
    """An error: the answer cannot be understood; its text is not kept."""
    return OSError(errno.EIO, f"the server's answer makes no sense ({type(error).__name__})", path)


def of_status(status: int, path: str, after: str | None = None) -> OSError:
    """The error that an HTTP status means.

    Args:
        status: HTTP status, 400 or more.
        path: address of the file, as the user wrote it.
        after: value of the header ``Retry-After``; ``None``: there is none.
    """
    if status in (404, 410):
        return missing(path)
    if status in (401, 403, 407):
        return refused(path, status)
    if status == 412:
        return changed(path)
    if status in (408, 425, 429) or status >= 500:
        kind: Passing = "busy" if status in (429, 503) else ""
        return PassingError(f"the server answers {status}", path, kind, after_s=_seconds(after))
    return OSError(errno.EIO, f"the server answers {status}", path)


def _seconds(after: str | None) -> float | None:
    """``Retry-After`` in seconds; a date is rare, and ignored."""
    try:
        return None if after is None else max(0.0, float(after))
    except ValueError:
        return None


@dataclass(frozen=True)
class Limits:
    """Limits of files and servers.

    Attributes:
        document_bytes: bytes of a description: dataset_info.json, features.json, info.json.
        list_bytes: bytes of a list that grows with the dataset: episodes, tasks, an index.
        names: number of names in one directory.
        bytes_per_s: least rate of a server, over all that it is asked for at a time.
        rate_over_s: seconds over which ``bytes_per_s`` is measured.
        deadline_s: seconds for one file, repetitions included.
    """

    document_bytes: int = 16 * MIB
    list_bytes: int = GIB
    names: int = 10**6
    bytes_per_s: int = 10_000
    rate_over_s: float = 30.0
    deadline_s: float = 1800.0

    @classmethod
    def of_environment(cls) -> Limits:
        """The limits, with those that ``AUTOLOADER_LIMIT_…`` lifts.

        Raises:
            UsageError: a variable is no size, no number or no duration.
        """
        found: dict[str, Any] = {}
        for name, variable in VARIABLES.items():
            if text := os.environ.get(variable, ""):
                parse = parse_seconds if name == "deadline_s" else parse_bytes
                found[name] = parse(text, name=variable)
        return cls(**found)


def check_bytes(path: str, count: int, name: str, limits: Limits) -> None:
    """Refuse a file that holds more bytes than it may.

    Args:
        path: path or address of the file.
        count: bytes of the file, or those that have come so far.
        name: field of ``Limits``: "document_bytes" or "list_bytes".
        limits: limits that are in force.

    Raises:
        LimitError: the file holds more bytes.
    """
    most = int(getattr(limits, name))
    if count > most:
        raise LimitError(f"it holds more than {format_bytes(most)}", path, VARIABLES[name])


def check_names(path: str, count: int, limits: Limits) -> None:
    """Refuse a directory that holds more names than it may. Raises LimitError."""
    if count > limits.names:
        raise LimitError(f"it holds more than {limits.names:,} names", path, VARIABLES["names"])


@dataclass(slots=True)
class Traffic:
    """Bytes that have come from one server, over all requests."""

    total_bytes: int = 0


@dataclass
class Meter:
    """Counts the bytes of one file, over any number of answers; one thread.

    Attributes:
        path: address of the file, for errors.
        limits: limits that are in force.
        traffic: bytes that have come from its server.
        most: field of ``Limits`` that bounds its bytes; "": the caller's memory does.
        clock: clock of rate and deadline.
    """

    path: str
    limits: Limits
    traffic: Traffic
    most: str = ""
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self._begun_s = self.clock.now_s()
        self.begin()

    def begin(self) -> None:
        """Note that the file is asked for, or asked for again."""
        self._bytes = self._names = 0
        self._window()

    def _window(self) -> None:
        self._window_s, self._window_bytes = self.clock.now_s(), self.traffic.total_bytes

    def promised(self, count: int) -> None:
        """Check a number of bytes that is announced. Raises LimitError."""
        if self.most:
            check_bytes(self.path, count, self.most, self.limits)

    def named(self, count: int) -> None:
        """Check the number of names of a directory after a page of them. Raises LimitError."""
        self._names = max(self._names + 1, count)
        check_names(self.path, self._names, self.limits)
        self._bytes = 0

    def came(self, count: int) -> None:
        """Count a piece that has come, headers included.

        Raises:
            LimitError: the file may not hold so many bytes, or takes too long.
            PassingError: the server is too slow.
        """
        self._bytes += count
        self.traffic.total_bytes += count
        limits, now_s = self.limits, self.clock.now_s()
        self.promised(self._bytes - _FRAMING_BYTES)
        if now_s - self._begun_s > limits.deadline_s:
            words = f"it was not fetched within {limits.deadline_s:.0f} s"
            raise LimitError(words, self.path, VARIABLES["deadline_s"])
        passed_s = now_s - self._window_s
        if passed_s < limits.rate_over_s:
            return
        rate = (self.traffic.total_bytes - self._window_bytes) / passed_s
        if rate < limits.bytes_per_s:
            words = (
                f"the server gave {rate:.0f} bytes/s over {passed_s:.0f} s; the least is "
                f"{limits.bytes_per_s}"
            )
            if self.most:
                raise LimitError(words, self.path, VARIABLES["bytes_per_s"])
            raise PassingError(f"{words} ({VARIABLES['bytes_per_s']})", self.path)
        self._window()
