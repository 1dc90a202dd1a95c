"""Memory pressure as the kernel sees it (PSI), and idle processors.

``/proc/pressure/memory`` says for what share of the last ten seconds some task stood still for want
of memory. Many kernels and containers have it not: then it is unknown.

Idle processors are those this process may run on (its affinity), less what anybody used since the
last reading; waiting for a disk counts as idle. A cgroup's CPU quota is not seen here: threads that
only get throttled do not pay, and verification takes them back.

Not here: headroom (``headroom``), what is made of it (``policy``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil

_SOME_AVG10 = re.compile(rb"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)


class PressureProbe:
    """Reads ``some avg10``, in per cent.

    Args:
        path: the kernel's file.
    """

    def __init__(self, path: Path = Path("/proc/pressure/memory")) -> None:
        self._path = path

    def read(self) -> float | None:
        """Per cent of the last ten seconds; ``None`` where this kernel does not say."""
        try:
            found = _SOME_AVG10.search(self._path.read_bytes())
        except OSError:
            return None
        return float(found[1]) if found else None


class ProcessorProbe:
    """Counts idle processors since the reading before, or since it was made."""

    def __init__(self) -> None:
        self._before = self._times()[:2]

    def read(self) -> float | None:
        """Idle processors of those this process may use; ``None`` where no time has passed."""
        idle, whole, count = self._times()
        before, self._before = self._before, (idle, whole)
        if whole <= before[1]:
            return None
        ratio = (idle - before[0]) / (whole - before[1])
        return max(0.0, min(1.0, ratio)) * count

    @staticmethod
    def _times() -> tuple[float, float, int]:
        """(seconds idle, seconds in all, processors) of those this process may use."""
        allowed = os.sched_getaffinity(0)
        times = psutil.cpu_times(percpu=True)
        mine = [one for number, one in enumerate(times) if number in allowed]
        idle = sum(one.idle + getattr(one, "iowait", 0.0) for one in mine)
        return idle, sum(sum(one[:8]) for one in mine), len(mine)
