"""Facts of a machine: processors that this process may really use, main memory, versions.

Theory of operation. The scheduler lets a process run on the processors of its affinity (set by
taskset, SLURM, a cpuset). A CPU quota bounds how much of them its cgroup may use: v1
``cpu.cfs_quota_us`` / ``cpu.cfs_period_us``, v2 ``cpu.max``; the least of the process's own group
and of every ancestor binds. Under a quota of 2, a machine of 64 processors gives two. Further
threads only make each other stand still at the end of each period. A part of a processor counts as
one: 1.5 is two threads, of which one is throttled now and then.

A quota that cannot be read binds nothing: affinity alone counts then. Files are read anew each
time, about 0.1 ms; quotas may change and a process may be moved.

Not here: what is idle of them (``host.probes.pressure``), memory
(``host.probes.headroom``).
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from autoloader.host.cgroups import ROOT, Cgroup, ProcessGroups, number, number_after

VERSIONS = (
    "autoloader-rlds",
    "numpy",
    "opencv-python-headless",
    "simplejpeg",
    "tensorflow",
    "torch",
)
"""Packages whose version may change a rate."""


def memory_bytes() -> int:
    """Main memory, whatever of it this process may use."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpu_model() -> str:
    """The processor as the kernel names it; its architecture where it names none."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return found[1].strip()
    return os.uname().machine


def versions(packages: Iterable[str] = VERSIONS) -> dict[str, str]:
    """Versions of packages, as far as they are installed."""
    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@dataclass(frozen=True, slots=True)
class Processors:
    """One reading.

    Attributes:
        allowed: processors of the affinity.
        quota: processors' worth of time that the tightest quota gives; ``None``: there is none.
        source: cgroup that sets it, such as "cgroup v2 /job_7"; "" without one.
        used_s: CPU seconds that cgroup has used so far; ``None`` without one, or unknown.
    """

    allowed: int
    quota: float | None = None
    source: str = ""
    used_s: float | None = None

    @property
    def there(self) -> int:
        """Processors of the whole machine."""
        return os.cpu_count() or self.allowed

    @property
    def count(self) -> int:
        """Whole processors worth a thread each; at least one."""
        if self.quota is None:
            return max(1, self.allowed)
        return max(1, min(self.allowed, math.ceil(self.quota)))

    def shared_by(self, processes: int) -> int:
        """Processors that one of so many like this one may count on, at least one.

        A launcher may have bound each to its own, so that its affinity is its share already; a
        quota is all of theirs together.
        """
        whole = self.there
        if self.quota is not None:
            whole = min(whole, math.ceil(self.quota))
        return max(1, min(self.allowed, whole // max(1, processes)))


class CgroupProcessors:
    """The real ones, of this process.

    Args:
        proc: folder where procfs is mounted.
        cgroup_root: stands for ``/sys/fs/cgroup`` in what mountinfo says.
    """

    def __init__(self, proc: Path = Path("/proc"), cgroup_root: Path = ROOT) -> None:
        self._groups = ProcessGroups("cpu", proc, cgroup_root)
        self._accounts = ProcessGroups("cpuacct", proc, cgroup_root)

    def read(self) -> Processors:
        allowed = len(os.sched_getaffinity(0))
        least: tuple[float, Cgroup] | None = None
        for group in self._groups.read() or ():
            quota = _quota(group)
            if quota is not None and (least is None or quota < least[0]):
                least = quota, group
        if least is None:
            return Processors(allowed)
        return Processors(allowed, least[0], least[1].label, self._used_s(least[1]))

    def _used_s(self, group: Cgroup) -> float | None:
        if group.version == 2:
            used = number_after(group.read("cpu.stat") or b"", b"usage_usec")
            return None if used is None else used / 1e6
        # v1 counts in a controller of its own, which may be mounted elsewhere.
        for other in self._accounts.read() or ():
            if other.version == 1 and other.below == group.below:
                used = number(other.read("cpuacct.usage"))
                return None if used is None else used / 1e9
        return None


def _quota(group: Cgroup) -> float | None:
    """Processors' worth of time a period; ``None`` where the group sets none."""
    if group.version == 2:
        words = [*(group.read("cpu.max") or b"").split(), b"", b""]
        quota, period = number(words[0]), number(words[1])
    else:
        quota = number(group.read("cpu.cfs_quota_us"))  # -1: none
        period = number(group.read("cpu.cfs_period_us"))
    return quota / period if quota and period else None


def usable_processors() -> int:
    """Processors that this process may use now; at least one."""
    return _of_this_process().read().count


@functools.cache
def _of_this_process() -> CgroupProcessors:
    return CgroupProcessors()
