"""Reads how much memory this machine can still give to this process.

Theory of operation. Headroom is the least of

- the host's ``MemAvailable``, and
- for the process's cgroup and every ancestor of it, v1 and v2:
  ``limit - (usage - inactive file - active file - reclaimable slab)``.

File pages are taken off usage although re-read ones are *active*: the kernel reclaims them before
it kills, and a second epoch over cached shards would otherwise look like an emergency. v1 reports
no reclaimable slab, so none is taken off there. Shared memory sits on the anonymous lists and is
never taken off.

What a container cannot see is bounded where possible: v1 reports the least limit of all ancestors,
visible or not (``hierarchical_memory_limit``), v2 ancestors outside the namespace stay unknown.

A source whose files are missing is unknown: it is left out, and logged once. When no source at all
can be read there is no number to give, and ``read`` raises, because unknown is not free.

Cost: a few ``pread`` of open descriptors, about 0.05 ms, more where other threads want the
interpreter after each. Limits may shrink and a process may be moved to another cgroup: both are
looked at anew each time, or every ``limits_for_s``. Any thread may call ``read``.

Not here: which cgroups bind (``cgroups``), what processes hold (``process_memory``), what to do
about it (policy and admission).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from autoloader.errors import PipelineError
from autoloader.host.cgroups import ROOT, Cgroup, KernelFile, ancestry, number, number_after

_LOG = logging.getLogger(__name__)

_V1_NO_LIMIT_BYTES = 2**60


@dataclass(frozen=True, slots=True)
class Headroom:
    """One reading.

    Attributes:
        headroom_bytes: memory that can still be taken before something must give; never negative.
        source: which limit binds: "host", or the cgroup, such as "cgroup v2 /job_7".
    """

    headroom_bytes: int
    source: str


class HeadroomSource(Protocol):
    """What admission, reflex and study ask about the machine's memory."""

    def read(self) -> Headroom:
        """A fresh reading.

        Raises:
            PipelineError: nothing can be read.
        """
        ...

    def total_bytes(self) -> int:
        """Memory this process may ever use: the least of main memory and cgroup limits."""
        ...


def headroom_or_none(source: HeadroomSource) -> int | None:
    """A fresh reading's bytes; ``None`` where nothing can be read."""
    try:
        return source.read().headroom_bytes
    except PipelineError:
        return None


class HeadroomProbe:
    """The real thing, from ``/proc`` and the cgroup file systems.

    Args:
        proc: where procfs is mounted.
        cgroup_root: stands for ``/sys/fs/cgroup`` in what mountinfo says.
        pid: whose cgroup counts; "self" for this process.
        limits_for_s: so long limits are believed that were read; usage never is.
        now_s: of a monotonic clock.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroup_root: Path = ROOT,
        pid: int | str = "self",
        *,
        limits_for_s: float = 0.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = proc
        self._root = cgroup_root
        self._meminfo = KernelFile(proc / "meminfo")
        self._membership = KernelFile(proc / str(pid) / "cgroup")
        self._lock = threading.Lock()
        self._levels: list[_Level] = []
        self._levels_for: bytes | None = None
        self._limits: list[tuple[_Level, int]] = []
        self._limits_for_s = limits_for_s
        self._limits_until_s = float("-inf")
        self._now_s = now_s
        self._told: set[str] = set()

    def read(self) -> Headroom:
        with self._lock:
            best, source = self._host_bytes(b"MemAvailable"), "host"
            for level, limit in self._current_limits():
                room = self._room(level, limit, best)
                if room is not None and (best is None or room < best):
                    best, source = room, level.label
        if best is None:
            raise PipelineError(
                f"free memory cannot be read: neither {self._proc}/meminfo nor a cgroup answers",
                remedy="mount /proc, or run on Linux",
                stage="headroom",
            )
        return Headroom(max(0, best), source)

    def limits(self) -> list[tuple[str, int]]:
        """Label and bytes of each cgroup's limit, the process's own group first."""
        with self._lock:
            return [(level.label, limit) for level, limit in self._current_limits()]

    def cgroup_limit_bytes(self) -> int | None:
        """The least limit of the process's cgroup and its ancestors; ``None``: there is none."""
        with self._lock:
            return min((limit for _, limit in self._current_limits()), default=None)

    def total_bytes(self) -> int:
        known = (self.cgroup_limit_bytes(), self._host_bytes(b"MemTotal"))
        limits = [limit for limit in known if limit is not None]
        if not limits:
            raise PipelineError(
                f"main memory cannot be read from {self._proc}/meminfo",
                remedy="mount /proc, or run on Linux",
                stage="headroom",
            )
        return min(limits)

    def _host_bytes(self, key: bytes) -> int | None:
        content = self._meminfo.read()
        kib = number_after(content, key + b":") if content is not None else None
        if kib is not None:
            return kib * 1024
        self._tell(f"{self._proc}/meminfo has no {key.decode()}")
        if self._proc != Path("/proc"):
            return None
        try:
            memory = psutil.virtual_memory()
        except (OSError, KeyError):  # it reads the same file
            return None
        return int(memory.available if key == b"MemAvailable" else memory.total)

    def _current_limits(self) -> list[tuple[_Level, int]]:
        """The levels that bind, with their limits."""
        now = self._now_s()
        if now >= self._limits_until_s or self._levels_for is None:
            known = [(level, self._limit(level)) for level in self._current_levels()]
            self._limits = [(level, limit) for level, limit in known if limit is not None]
            self._limits_until_s = now + self._limits_for_s
        return self._limits

    def _limit(self, level: _Level) -> int | None:
        """The cgroup's own limit, or ``None`` when it sets none (or is gone)."""
        content = level.limit.read()
        if content is None:
            self._tell(f"{level.label}: its limit cannot be read any more")
            self._levels_for = None
            return None
        own = _limit_of(content)
        if level.has_unseen_ancestors:
            stat = level.stat.read()
            inherited = number_after(stat or b"", b"hierarchical_memory_limit")
            if inherited is not None and inherited < _V1_NO_LIMIT_BYTES:
                own = inherited if own is None else min(own, inherited)
        return own

    def _room(self, level: _Level, limit: int, best: int | None) -> int | None:
        """What is left of a limit; ``None`` where that is not known, or not less than ``best``."""
        usage = number(level.usage.read())
        if usage is None:
            self._tell(f"{level.label}: its usage cannot be read")
            return None
        if best is not None and limit - usage >= best:
            return None  # whatever of it can be reclaimed: the kernel adds that up for long
        stat = level.stat.read()
        if stat is None:
            self._tell(f"{level.label}: no memory.stat, so its page cache counts as taken")
            stat = b""
        reclaimable = sum(number_after(stat, key) or 0 for key in level.reclaimable)
        return limit - max(0, usage - reclaimable)

    def _current_levels(self) -> list[_Level]:
        membership = self._membership.read()
        if membership is None:
            self._tell(f"{self._membership.path} cannot be read: cgroup limits are unknown")
            return []
        if membership != self._levels_for:
            groups = ancestry(
                membership.decode(errors="replace"),
                "memory",
                mountinfo=self._proc / "self" / "mountinfo",
                root=self._root,
            )
            levels = (_level(group) for group in groups)
            self._levels = [level for level in levels if level is not None]
            if groups and not self._levels:
                _LOG.info("headroom: no memory controller files for %s", groups[0].label)
            self._levels_for = membership
        return self._levels

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _LOG.warning("headroom: %s", what)


@dataclass(frozen=True, slots=True)
class _Level:
    """One cgroup on the way from the process's own up to the mount point."""

    label: str
    limit: KernelFile
    usage: KernelFile
    stat: KernelFile
    reclaimable: tuple[bytes, ...]
    has_unseen_ancestors: bool


def _level(group: Cgroup) -> _Level | None:
    """Where a group's memory is read; ``None`` where it does not bind."""
    directory = group.directory
    if group.version == 2:
        level = _Level(
            group.label,
            limit=KernelFile(directory / "memory.max"),
            usage=KernelFile(directory / "memory.current"),
            stat=KernelFile(directory / "memory.stat"),
            reclaimable=(b"inactive_file", b"active_file", b"slab_reclaimable"),
            has_unseen_ancestors=False,
        )
    else:
        if not group.own and number(KernelFile(directory / "memory.use_hierarchy").read()) == 0:
            return None  # an old kernel's cgroup that does not count its children
        level = _Level(
            group.label,
            limit=KernelFile(directory / "memory.limit_in_bytes"),
            usage=KernelFile(directory / "memory.usage_in_bytes"),
            stat=KernelFile(directory / "memory.stat"),
            reclaimable=(b"total_inactive_file", b"total_active_file"),
            has_unseen_ancestors=group.at_mount_point,
        )
    # No such file: the controller is off at this level.
    return level if level.limit.read() is not None else None


def _limit_of(content: bytes) -> int | None:
    """A limit file's number; ``None`` for "max" and v1's huge number."""
    limit = number(content)
    return None if limit is None or limit >= _V1_NO_LIMIT_BYTES else limit
