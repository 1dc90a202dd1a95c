"""Memory pressure as the kernel sees it (PSI), and idle processors.

``/proc/pressure/memory`` says for what share of the last ten seconds some task stood still for want
of memory. Many kernels and containers have it not: then it is unknown.

Idle processors are those this process may run on (its affinity), less what anybody used since the
last reading; waiting for a disk counts as idle. Under a CPU quota they are at most what its cgroup
has left of that: quota less what the group used (or, where that is not counted, this process).

Not here: headroom (``headroom``), how many there are (``processors``), what is made of it
(``policy``).
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import psutil

from autoloader.cgroups import OpenFile
from autoloader.processors import CgroupProcessors, Processors, ProcessorSource

_SOME_AVG10 = re.compile(rb"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)


class PressureProbe:
    """Reads ``some avg10``, in per cent.

    Args:
        path: the kernel's file.
    """

    def __init__(self, path: Path = Path("/proc/pressure/memory")) -> None:
        self._file = OpenFile(path)

    def read(self) -> float | None:
        """Per cent of the last ten seconds; ``None`` where this kernel does not say."""
        found = _SOME_AVG10.search(self._file.read() or b"")
        return float(found[1]) if found else None


class ProcessorProbe:
    """Counts idle processors since the reading before, or since it was made.

    Args:
        source: says how many may be used.
    """

    def __init__(self, source: ProcessorSource | None = None) -> None:
        self._source = source or CgroupProcessors()
        self._before = self._times()[:2]
        self._used_before = self._used(self._source.read())

    def read(self) -> float | None:
        """Idle processors of those this process may use; ``None`` where no time has passed."""
        idle, whole, count = self._times()
        before, self._before = self._before, (idle, whole)
        processors = self._source.read()
        used = self._used(processors)
        used_before, self._used_before = self._used_before, used
        if whole <= before[1]:
            return None
        ratio = (idle - before[0]) / (whole - before[1])
        free = max(0.0, min(1.0, ratio)) * count
        if processors.quota is None or used[0] != used_before[0]:
            return free
        # All processors' time passes side by side: a count-th of it is the clock's.
        passed_s = (whole - before[1]) / max(1, count)
        taken = max(0.0, used[1] - used_before[1]) / passed_s
        return max(0.0, min(free, processors.quota - taken))

    @staticmethod
    def _used(processors: Processors) -> tuple[str, float]:
        """(who, CPU seconds used): the quota's cgroup, else this process."""
        if processors.used_s is None:
            return "", time.process_time()
        return processors.source, processors.used_s

    @staticmethod
    def _times() -> tuple[float, float, int]:
        """(seconds idle, seconds in all, processors) of those this process may use."""
        allowed = os.sched_getaffinity(0)
        times = psutil.cpu_times(percpu=True)
        mine = [one for number, one in enumerate(times) if number in allowed]
        idle = sum(one.idle + getattr(one, "iowait", 0.0) for one in mine)
        return idle, sum(sum(one[:8]) for one in mine), len(mine)
