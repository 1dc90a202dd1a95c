"""Headroom, the memory that this machine can still give, and memory pressure and OOM kills.

Theory of operation. Headroom is the least of

- the host's ``MemAvailable``, and
- for the process's cgroup and every ancestor of it, v1 and v2:
  ``limit - (usage - inactive file - active file - reclaimable slab)``.

File pages are taken off usage although re-read ones are *active*: the kernel reclaims them before
it kills. Otherwise a second epoch over cached shards would look like an emergency. v1 reports
no reclaimable slab, so none is taken off there. Shared memory sits on the anonymous lists and is
never taken off.

Limits that a container cannot see are bounded where possible. v1 reports the least limit of all
ancestors, visible or not (``hierarchical_memory_limit``). v2 ancestors outside the namespace stay
unknown.

A source whose files are missing is unknown: it is left out, and logged once. When no source at all
can be read there is no number to give, and ``read`` raises, because unknown is not free.

Cost: a few ``pread`` of open descriptors, about 0.05 ms, more where other threads want the
interpreter after each. Limits may shrink and a process may be moved to another cgroup: both are
looked at anew each time, or after ``limits_for_s``. Any thread may call ``read``.

``PressureProbe`` reads ``/proc/pressure/memory`` (PSI): for what share of the last ten seconds some
task stood still for want of memory. Many kernels and containers have it not: then it is unknown.

Not here: which cgroups bind (``machine``), what processes hold (``processes``), what to do
about it (policy and admission).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from autoloader.errors import PipelineError
from autoloader.host.frozen import frozen
from autoloader.host.machine import ROOT, Cgroup, KernelFile, ProcessGroups, number, number_after

_LOG = logging.getLogger(__name__)

_V1_NO_LIMIT_BYTES = 2**60
_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_USAGE = {1: "memory.usage_in_bytes", 2: "memory.current"}
_RECLAIMABLE = {
    1: (b"total_inactive_file", b"total_active_file"),
    2: (b"inactive_file", b"active_file", b"slab_reclaimable"),
}
"""Version of cgroups → names of its files, and of the lines of ``memory.stat``."""


@frozen
class Headroom:
    """One reading.

    Attributes:
        headroom_bytes: memory that can still be taken before something must give; never negative.
        source: limit that binds: "host", or the cgroup, such as "cgroup v2 /job_7".
    """

    headroom_bytes: int
    source: str


class HeadroomProbe:
    """Reads headroom from ``/proc`` and the cgroup file systems; tests have a source of their own.

    Args:
        proc: folder where procfs is mounted.
        cgroup_root: stands for ``/sys/fs/cgroup`` in what mountinfo says.
        limits_for_s: seconds for which ``read`` takes limits as they were; 0 reads them each time.
    """

    def __init__(
        self, proc: Path = Path("/proc"), cgroup_root: Path = ROOT, *, limits_for_s: float = 0.0
    ) -> None:
        self._proc = proc
        self._meminfo = KernelFile(proc / "meminfo")
        self._groups = ProcessGroups("memory", proc, cgroup_root)
        self._seen: tuple[Cgroup, ...] = ()
        self._binding: list[Cgroup] = []
        self._limits_for_s = limits_for_s
        self._limits: list[tuple[Cgroup, int]] = []
        self._limits_until_s = float("-inf")
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def read(self) -> Headroom:
        """A fresh reading: the least of what host and cgroups can still give.

        Raises:
            PipelineError: nothing can be read.
        """
        with self._lock:
            kib, source = number_after(self._meminfo.read() or b"", b"MemAvailable:"), "host"
            if kib is None:
                self._tell(f"{self._proc}/meminfo has no MemAvailable")
            best = None if kib is None else kib * 1024
            now_s = time.monotonic()
            if now_s >= self._limits_until_s:
                self._limits = self._current_limits()
                self._limits_until_s = now_s + self._limits_for_s
            for group, limit in self._limits:
                room = self._room(group, limit, best)
                if room is not None and (best is None or room < best):
                    best, source = room, group.label
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
            return [(group.label, limit) for group, limit in self._current_limits()]

    def cgroup_limit_bytes(self) -> int | None:
        """The least limit of the process's cgroup and its ancestors; ``None``: there is none."""
        with self._lock:
            return min((limit for _, limit in self._current_limits()), default=None)

    def _current_limits(self) -> list[tuple[Cgroup, int]]:
        """The groups that bind, with their limits."""
        known = [(group, self._limit(group)) for group in self._current_groups()]
        return [(group, limit) for group, limit in known if limit is not None]

    def _current_groups(self) -> list[Cgroup]:
        groups = self._groups.read()
        if groups is None:
            self._tell(f"{self._proc} does not tell this process's cgroup: its limits are unknown")
            return []
        if groups is not self._seen:
            self._seen, self._binding = groups, [group for group in groups if _binds(group)]
            if groups and not self._binding:
                _LOG.info("headroom: no memory controller files for %s", groups[0].label)
        return self._binding

    def _limit(self, group: Cgroup) -> int | None:
        """The group's limit; ``None`` when it sets none (or is gone)."""
        content = group.read(_LIMIT[group.version])
        if content is None:
            self._tell(f"{group.label}: its limit cannot be read any more")
            self._groups.forget()
            return None
        limits = [number(content)]
        if group.version == 1 and group.at_mount_point:  # of ancestors that cannot be seen too
            stat = group.read("memory.stat") or b""
            limits.append(number_after(stat, b"hierarchical_memory_limit"))
        set_here = [one for one in limits if one is not None and one < _V1_NO_LIMIT_BYTES]
        return min(set_here, default=None)

    def _room(self, group: Cgroup, limit: int, best: int | None) -> int | None:
        """Bytes left of a limit; ``None`` if not known, or not less than ``best``."""
        usage = number(group.read(_USAGE[group.version]))
        if usage is None:
            self._tell(f"{group.label}: its usage cannot be read")
            return None
        if best is not None and limit - usage >= best:
            return None  # the kernel takes long to add up what can be reclaimed
        stat = group.read("memory.stat")
        if stat is None:
            self._tell(f"{group.label}: no memory.stat, so its page cache counts as taken")
            stat = b""
        reclaimable = sum(number_after(stat, key) or 0 for key in _RECLAIMABLE[group.version])
        return limit - max(0, usage - reclaimable)

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _LOG.warning("headroom: %s", what)


def headroom_or_none(source: HeadroomProbe) -> int | None:
    """A fresh reading's bytes; ``None`` where nothing can be read."""
    try:
        return source.read().headroom_bytes
    except PipelineError:
        return None


def _binds(group: Cgroup) -> bool:
    """True if the memory controller is on there, and counts the children of an ancestor."""
    if group.version == 1 and not group.own and number(group.read("memory.use_hierarchy")) == 0:
        return False  # an old kernel's
    return group.read(_LIMIT[group.version]) is not None


_READ_BYTES = 8192


def named_by_kernel(pid: int, *, log: Path = Path("/dev/kmsg")) -> bool:
    """True if the kernel's log says that it killed this process for memory.

    False also where the log may not be read. The log tells of a process that was moved to another
    cgroup and killed there before that cgroup's counter could be read.
    """
    wanted = f"Killed process {pid} ".encode()
    try:
        return any(wanted in record for record in kernel_records(log))
    except OSError:
        return False


def kernel_records(log: Path = Path("/dev/kmsg")) -> Iterator[bytes]:
    """Records that the kernel's log holds now, from its start.

    ``/dev/kmsg`` gives a record a read and never ends; a copy of it comes in larger pieces.

    Raises:
        OSError: the log may not be read.
    """
    descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            try:
                record = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # records were overwritten meanwhile; the next read goes on
                continue
            if not record:
                return
            yield record
    finally:
        os.close(descriptor)


def memory_cgroup(*, proc: Path = Path("/proc")) -> str:
    """Directory of this process's memory cgroup, v1 or v2; "" where there is none to be seen."""
    groups = ProcessGroups("memory", proc).read() or ()
    own = (str(group.directory) for group in groups if group.own)
    return next((directory for directory in own if oom_kills(directory) is not None), "")


def oom_kills(directory: str) -> int | None:
    """Kills counted in a memory cgroup so far; ``None`` where it does not count."""
    if not directory:
        return None
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            counted = number_after((Path(directory) / name).read_bytes(), b"oom_kill")
            if counted is not None:
                return counted
    return None


_SOME_AVG10 = re.compile(rb"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)


class PressureProbe:
    """Reads ``some avg10``, in per cent.

    Args:
        path: path of the kernel's file.
    """

    def __init__(self, path: Path = Path("/proc/pressure/memory")) -> None:
        self._file = KernelFile(path)

    def read(self) -> float | None:
        """Per cent of the last ten seconds; ``None`` where this kernel does not say."""
        found = _SOME_AVG10.search(self._file.read() or b"")
        return float(found[1]) if found else None
