"""The most that a file of a dataset may hold, and the longest that a server may take.

Theory of operation. Whoever serves a dataset, or wrote its files, may be broken or hostile: a
description without an end would fill the memory, and an answer that drips would never end. So every
answer of a server passes a ``Meter`` on its way from the socket, above what speaks the server's
language, and local files are held against the same sizes. Each limit has an environment variable
that lifts it, and every refusal names it.

Not here: what is asked again after a failure (``storage.patience``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoloader.host.clock import Clock, SystemClock
from autoloader.host.units import GIB, MIB, format_bytes, parse_bytes, parse_seconds
from autoloader.storage.faults import LimitError, PassingError

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


@dataclass(frozen=True)
class Limits:
    """Limits of files and servers.

    Attributes:
        document_bytes: of a description: dataset_info.json, features.json, info.json.
        list_bytes: of a list that grows with the dataset: episodes, tasks, an index.
        names: in one directory.
        bytes_per_s: that a server gives at least, of all that it is asked for at a time.
        rate_over_s: seconds over which ``bytes_per_s`` is measured.
        deadline_s: of one file, repetitions included.
    """

    document_bytes: int = 16 * MIB
    list_bytes: int = GIB
    names: int = 10**6
    bytes_per_s: int = 10_000
    rate_over_s: float = 30.0
    deadline_s: float = 1800.0

    @classmethod
    def of_environment(cls) -> Limits:
        """The limits, with what ``AUTOLOADER_LIMIT_…`` says.

        Raises:
            UsageError: a variable says no size, no number or no duration.
        """
        found: dict[str, Any] = {}
        for field, variable in VARIABLES.items():
            if text := os.environ.get(variable, ""):
                parse = parse_seconds if field == "deadline_s" else parse_bytes
                found[field] = parse(text, name=variable)
        return cls(**found)


def check_bytes(path: str, count: int, name: str, limits: Limits) -> None:
    """Refuse a file of so many bytes where it may not hold them.

    Args:
        path: path of the local file.
        count: its bytes, or those that have come so far.
        name: "document_bytes" or "list_bytes".
        limits: in force.

    Raises:
        LimitError: it holds more.
    """
    most = int(getattr(limits, name))
    if count > most:
        raise LimitError(f"it holds more than {format_bytes(most)}", path, VARIABLES[name])


def check_names(path: str, count: int, limits: Limits) -> None:
    """Refuse a directory of so many names.

    Raises:
        LimitError: it holds more than it may.
    """
    if count > limits.names:
        raise LimitError(f"it holds more than {limits.names:,} names", path, VARIABLES["names"])


class Traffic:
    """What has come from one server so far, over all that it is asked at a time."""

    def __init__(self) -> None:
        self.total_bytes = 0


class Meter:
    """Counts what comes of one file, of whatever number of answers; one thread.

    Args:
        path: the file, for errors.
        limits: in force.
        traffic: of its server.
        most: field of ``Limits`` that bounds its bytes; "" where the caller's memory does.
        clock: tells the time.
    """

    def __init__(
        self,
        path: str,
        limits: Limits,
        traffic: Traffic,
        most: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._limits = limits
        self._traffic = traffic
        self._most = most
        self._clock = clock or SystemClock()
        self._begun_s = self._clock.now_s()
        self.begin()

    def begin(self) -> None:
        """The file is asked for, or asked for again."""
        self._bytes = self._names = 0
        self._window()

    def _window(self) -> None:
        self._window_s, self._window_bytes = self._clock.now_s(), self._traffic.total_bytes

    def promised(self, count: int) -> None:
        """So many bytes of content are announced.

        Raises:
            LimitError: the file may not hold them.
        """
        if self._most:
            check_bytes(self._path, count, self._most, self._limits)

    def named(self, count: int) -> None:
        """A page of a directory's names has come; so many are known now.

        Raises:
            LimitError: the directory may not hold them.
        """
        self._names = max(self._names + 1, count)
        check_names(self._path, self._names, self._limits)
        self._bytes = 0

    def came(self, count: int) -> None:
        """So many bytes have come, headers included; to be called for each piece.

        Raises:
            LimitError: the file may not hold them, or takes too long.
            PassingError: the server is too slow.
        """
        self._bytes += count
        self._traffic.total_bytes += count
        limits, now_s = self._limits, self._clock.now_s()
        self.promised(self._bytes - _FRAMING_BYTES)
        if now_s - self._begun_s > limits.deadline_s:
            raise LimitError(
                f"it has not come within {limits.deadline_s:.0f} s",
                self._path,
                VARIABLES["deadline_s"],
            )
        passed_s = now_s - self._window_s
        if passed_s >= limits.rate_over_s:
            rate = (self._traffic.total_bytes - self._window_bytes) / passed_s
            if rate < limits.bytes_per_s:
                words = (
                    f"the server gave {rate:.0f} bytes/s over {passed_s:.0f} s, and "
                    f"{limits.bytes_per_s} are the least"
                )
                if self._most:
                    raise LimitError(words, self._path, VARIABLES["bytes_per_s"])
                raise PassingError(f"{words} ({VARIABLES['bytes_per_s']})", self._path)
            self._window()
