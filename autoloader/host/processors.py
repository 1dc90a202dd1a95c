"""How many processors this process may really use: its affinity, and the CPU quota of its cgroups.

Theory of operation. The scheduler lets a process run on the processors of its affinity (set by
taskset, SLURM, a cpuset). A CPU quota bounds how much of them its cgroup may use: v1
``cpu.cfs_quota_us`` / ``cpu.cfs_period_us``, v2 ``cpu.max``; the least of the process's own group
and of every ancestor binds. Under a quota of 2 a machine of 64 processors gives two, and threads
beyond that only make each other stand still at the end of each period. A part of a processor
counts as one: 1.5 is two threads, of which one is throttled now and then.

A quota that cannot be read binds nothing: affinity alone counts then. Files are read anew each
time, about 0.1 ms; quotas may change and a process may be moved.

Not here: what is idle of them (``host.probes.pressure``), memory
(``host.probes.headroom``).
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from pathlib import Path

from autoloader.host.cgroups import ROOT, Cgroup, KernelFile, ancestry, number, number_after

_USED_V1 = "cpuacct"


@dataclass(frozen=True, slots=True)
class Processors:
    """One reading.

    Attributes:
        allowed: processors of the affinity.
        quota: processors' worth of time that the tightest quota gives; ``None``: there is none.
        source: which cgroup sets it, such as "cgroup v2 /job_7"; "" without one.
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
        proc: where procfs is mounted.
        cgroup_root: stands for ``/sys/fs/cgroup`` in what mountinfo says.
    """

    def __init__(self, proc: Path = Path("/proc"), cgroup_root: Path = ROOT) -> None:
        self._proc = proc
        self._root = cgroup_root
        self._groups: dict[str, tuple[bytes, list[Cgroup]]] = {}
        self._files: dict[Path, KernelFile] = {}

    def read(self) -> Processors:
        allowed = _allowed()
        least: tuple[float, Cgroup] | None = None
        for group in self._ancestry("cpu"):
            quota = self._quota(group)
            if quota is not None and (least is None or quota < least[0]):
                least = quota, group
        if least is None:
            return Processors(allowed)
        return Processors(allowed, least[0], least[1].label, self._used_s(least[1]))

    def _used_s(self, group: Cgroup) -> float | None:
        if group.version == 2:
            used = number_after(self._content(group.directory / "cpu.stat"), b"usage_usec")
            return None if used is None else used / 1e6
        # v1 counts in a controller of its own, which may be mounted elsewhere.
        for other in self._ancestry(_USED_V1):
            if other.version == 1 and other.below == group.below:
                used = number(self._content(other.directory / "cpuacct.usage"))
                return None if used is None else used / 1e9
        return None

    def _ancestry(self, controller: str) -> list[Cgroup]:
        """The groups by a v1 controller; looked for anew where the process has moved."""
        membership = self._content(self._proc / "self" / "cgroup")
        known = self._groups.get(controller)
        if known is None or known[0] != membership:
            mountinfo = self._proc / "self" / "mountinfo"
            text = membership.decode(errors="replace")
            known = membership, ancestry(text, controller, mountinfo=mountinfo, root=self._root)
            self._groups[controller] = known
            self._files.clear()  # of groups it has left
        return known[1]

    def _quota(self, group: Cgroup) -> float | None:
        """Processors' worth of time a period; ``None`` where the group sets none."""
        if group.version == 2:
            words = [*self._content(group.directory / "cpu.max").split(), b"", b""]
            quota, period = number(words[0]), number(words[1])
        else:
            quota = number(self._content(group.directory / "cpu.cfs_quota_us"))  # -1: none
            period = number(self._content(group.directory / "cpu.cfs_period_us"))
        return quota / period if quota and period else None

    def _content(self, path: Path) -> bytes:
        file = self._files.get(path) or self._files.setdefault(path, KernelFile(path))
        return file.read() or b""


def usable_processors() -> int:
    """Processors that this process may use now; at least one."""
    return _of_this_process().read().count


@functools.cache
def _of_this_process() -> CgroupProcessors:
    return CgroupProcessors()


def _allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
