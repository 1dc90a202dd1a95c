"""Memory pressure as the kernel sees it (PSI), and who uses the processors.

``/proc/pressure/memory`` says for what share of the last ten seconds some task stood still for want
of memory. Many kernels and containers have it not: then it is unknown.

Idle processors are those this process may run on (its affinity), less what anybody used since the
last reading; waiting for a disk counts as idle. Under a CPU quota they are at most what its cgroup
has left of that: quota less what the group used (or, where that is not counted, this process). What
others use is the rest: neither idle, nor this process's or its children's, nor time that a
hypervisor took. Descendants (a loader's child, decode processes) are asked only if the rest is
worth a look. So their use is known from the second such reading on. Under a quota nobody can say
what others use, for the quota is what ends first.

Any probe may have no answer. ``Watched`` keeps its last answer and the age of it, says once that a
probe fails, and asks a failing probe again with growing pauses.

Not here: headroom (``headroom``), how many there are (``processors``), what is made of it
(``policy``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import psutil

from autoloader.errors import AutoloaderError
from autoloader.host.cgroups import KernelFile
from autoloader.host.machine import CgroupProcessors, Processors
from autoloader.host.probes.processes import descendants

_WORTH_A_LOOK = 0.2
"""Processors of others, from which on the children are asked what they had of it."""
_QUOTA_EVERY_S = 5.0
"""Where there is no quota, one is looked for so seldom: it takes six files."""
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


@dataclass(frozen=True, slots=True)
class ProcessorReading:
    """Recent use of the processors that this process may use.

    Attributes:
        idle: processors' worth of time that nobody used and that this process might have.
        others: processors' worth that other processes used; ``None``: unknown.
    """

    idle: float
    others: float | None = None


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds since the machine began, of the processors that this process may use.

    Attributes:
        idle: spent idle, all processors together.
        whole: passed, all processors together.
        stolen: part of ``whole`` that a hypervisor gave to other machines.
        own: CPU time of this process.
        count: number of these processors.
    """

    idle: float = 0.0
    whole: float = 0.0
    stolen: float = 0.0
    own: float = 0.0
    count: int = 1


class ProcessorProbe:
    """Counts what was used since the reading before, or since it was made.

    Args:
        source: says how many may be used.
    """

    def __init__(self, source: CgroupProcessors | None = None) -> None:
        self._source = source or CgroupProcessors()
        self._before = self._times()
        self._children_before: Mapping[int, float] | None = None
        self._processors = self._source.read()
        self._looked_s = time.monotonic()
        self._used_before = self._used(self._processors)

    def read(self) -> ProcessorReading | None:
        """Use since the reading before; ``None`` if no time has passed."""
        now = self._times()
        before, self._before = self._before, now
        processors = self._current()
        used = self._used(processors)
        used_before, self._used_before = self._used_before, used
        # All processors' time passes side by side: a count-th of it is the clock's.
        passed_s = (now.whole - before.whole) / max(1, now.count)
        if passed_s <= 0:
            return None
        free = max(0.0, min(float(now.count), (now.idle - before.idle) / passed_s))
        if processors.quota is None:
            spoken_for = now.stolen - before.stolen + now.own - before.own
            others = max(0.0, now.count - free - spoken_for / passed_s)
            return ProcessorReading(free, self._without_children(others, passed_s))
        if used[0] != used_before[0]:
            return ProcessorReading(free)
        taken = max(0.0, used[1] - used_before[1]) / passed_s
        return ProcessorReading(max(0.0, min(free, processors.quota - taken)))

    def _current(self) -> Processors:
        """Processors that may be used; of a quota, also the seconds used of it by now."""
        at_s = time.monotonic()
        if self._processors.quota is not None or at_s - self._looked_s >= _QUOTA_EVERY_S:
            self._processors, self._looked_s = self._source.read(), at_s
        return self._processors

    def _without_children(self, others: float, passed_s: float) -> float | None:
        before, self._children_before = self._children_before, None
        if others < _WORTH_A_LOOK:
            return others
        self._children_before = now = self._children_s()
        if before is None:
            return None
        used = sum(max(0.0, used_s - before.get(pid, 0.0)) for pid, used_s in now.items())
        return max(0.0, others - used / passed_s)

    @staticmethod
    def _children_s() -> Mapping[int, float]:
        """CPU seconds of each child of this process, and of theirs."""
        found: dict[int, float] = {}
        for pid in descendants(os.getpid()):
            with contextlib.suppress(psutil.Error):  # the child is gone
                times = psutil.Process(pid).cpu_times()
                found[pid] = times.user + times.system
        return found

    @staticmethod
    def _used(processors: Processors) -> tuple[str, float]:
        """(who, CPU seconds used): the quota's cgroup, else this process."""
        if processors.used_s is None:
            return "", time.process_time()
        return processors.source, processors.used_s

    @staticmethod
    def _times() -> _Times:
        allowed = os.sched_getaffinity(0)
        times = psutil.cpu_times(percpu=True)
        mine = [one for number, one in enumerate(times) if number in allowed]
        return _Times(
            idle=sum(one.idle + getattr(one, "iowait", 0.0) for one in mine),
            whole=sum(sum(one[:8]) for one in mine),
            stolen=sum(getattr(one, "steal", 0.0) for one in mine),
            own=time.process_time(),
            count=len(mine),
        )


logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Probe(Protocol[T_co]):
    """A source that may know."""

    def read(self) -> T_co | None:
        """A fresh reading; ``None`` where there is none to be had on this machine, or now."""
        ...


class Watched(Generic[T]):
    """A probe's last answer, its age, and the patience with it.

    Args:
        probe: probe that is asked.
        name: name of the probe in the log.
        now_s: function that gives seconds of a monotonic clock.
        every_s: a younger answer is given again: several may ask in turn.
    """

    def __init__(
        self, probe: Probe[T], name: str, now_s: Callable[[], float], *, every_s: float = 0.0
    ) -> None:
        self._probe = probe
        self._name = name
        self._now_s = now_s
        self._value: T | None = None
        self._at_s = 0.0
        self._every_s = every_s
        self._pause_s = 0.0
        self._next_s = float("-inf")
        self._told = False

    def read(self) -> tuple[T, float] | None:
        """(the last answer, its age in seconds); ``None`` where there has been none."""
        now = self._now_s()
        if now >= self._next_s:
            self._ask(now)
        return None if self._value is None else (self._value, max(0.0, now - self._at_s))

    def _ask(self, now: float) -> None:
        reason = "no reading"
        try:
            value = self._probe.read()
        except (AutoloaderError, OSError, ValueError) as error:
            value, reason = None, str(error)
        if value is not None:
            self._value, self._at_s = value, now
            self._pause_s, self._next_s = 0.0, now + self._every_s
            return
        if not self._told:
            self._told = True
            logger.info("%s is unknown: %s; going on without", self._name, reason)
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        self._next_s = now + self._pause_s
