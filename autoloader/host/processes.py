"""Memory of processes, the one that grew most, bytes read from storage, and use of processors.

Theory of operation. RSS is one read of ``/proc/PID/statm`` (microseconds) but counts a shared page
in every process that maps it. PSS divides a shared page among those who map it, so it adds up over
a tree; ``smaps_rollup`` costs about 10 ms for each GB held. So this process's own memory is sampled
by RSS, and that of its descendants by PSS without shared memory: both sides map the batch ring, and
the trainer's RSS already has it. ``PeakSampler`` spaces its readings such that they cost at most 5
% of one processor. A controller, which reads for as long as a run lasts, asks the kernel's counters
instead (``tree_own_bytes``).

``OtherProcesses`` looks at every process by ``/proc/PID/statm``, without the memory that it shares:
every process that maps shared memory counts it. While memory is calm it looks now and then. When
memory is short, it compares a further look with the oldest one. It does not see processes of other
containers, and what a tmpfs holds belongs to no process.

``StorageReads`` adds up what the kernel counts for each process (``/proc/PID/io``, ``read_bytes``):
reads that reached a block device or an NFS server. Reads from FUSE file systems are not counted.

``ProcessorProbe`` counts idle processors: those this process may run on (its affinity), less what
anybody used since the last reading; waiting for a disk counts as idle. Under a CPU quota they are
at most what its cgroup has left of that: quota less what the group used (or, where that is not
counted, this process). What others use is the rest: neither idle, nor this process's or its
children's, nor time that a hypervisor took. Descendants (a loader's child, decode processes) are
asked only if the rest is worth a look. So their use is known from the second such reading on. Under
a quota nobody can say what others use, for the quota is what ends first.

Not here: what the machine can still give (``headroom``), how fast storage is (``storage``).
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from autoloader.host.headroom import HeadroomSource, headroom_or_none
from autoloader.host.machine import CgroupProcessors, Processors

_KIB_LINE = re.compile(rb"^(Pss|Pss_Shmem):\s+(\d+) kB", re.MULTILINE)
_RSS_LINE = re.compile(rb"^(RssAnon|RssFile):\s+(\d+) kB", re.MULTILINE)
_SAMPLER_COST_RATIO = 0.05


def rss_bytes(pid: int | None = None) -> int:
    """Resident bytes of one process (default: this one); 0 when it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def pss_bytes(pid: int, *, shared_memory: bool = True) -> int:
    """Proportional bytes of one process; its RSS where the kernel gives no PSS; 0 when gone.

    Args:
        pid: id of the process.
        shared_memory: count its part of shared memory (memfd, /dev/shm) too.
    """
    try:
        found = dict(_KIB_LINE.findall(Path(f"/proc/{pid}/smaps_rollup").read_bytes()))
    except OSError:
        found = {}
    if b"Pss" not in found:
        return rss_bytes(pid)
    shared = 0 if shared_memory else int(found.get(b"Pss_Shmem", 0))
    return (int(found[b"Pss"]) - shared) * 1024


def tree_pss_bytes(pid: int, *, shared_memory: bool = True) -> int:
    """PSS of a process and all its descendants; see ``pss_bytes``."""
    members = [pid, *descendants(pid)]
    return sum(pss_bytes(member, shared_memory=shared_memory) for member in members)


def tree_own_bytes(pid: int) -> int:
    """Bytes of a process and its descendants beside shared memory (memfd, /dev/shm).

    From the kernel's counters, in microseconds however much is mapped. Files that they map (the
    libraries' code) count in the first process, since its descendants map the same ones. Where the
    kernel has no such counters it is PSS.
    """
    found = 0
    for member in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            rss = dict(_RSS_LINE.findall(Path(f"/proc/{member}/status").read_bytes()))
            if b"RssAnon" not in rss:
                found += pss_bytes(member, shared_memory=False)
                continue
            kinds = (b"RssAnon", b"RssFile") if member == pid else (b"RssAnon",)
            found += sum(int(rss[kind]) for kind in kinds) * 1024
    return found


def descendants(pid: int) -> list[int]:
    """Ids of all children of ``pid``, and theirs; empty when it is gone.

    The kernel lists them by thread. Where it does not, every process of the host is looked at.
    """
    if pid == os.getpid() and not _has_children():
        return []
    if not _lists_children():
        try:
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        except psutil.Error:
            return []
    found: list[int] = []
    parents = [pid]
    while parents:
        children = _children(parents.pop())
        found += children
        parents += children
    return found


def _has_children() -> bool:
    """True if this process has any: one call, where a look at each thread is three."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _lists_children() -> bool:
    pid = os.getpid()
    return os.access(f"/proc/{pid}/task/{pid}/children", os.R_OK)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it is gone
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_bytes().split())
    return found


def loader_bytes() -> int:
    """Bytes of this process and its descendants, as ``PeakSampler`` counts them."""
    children = (pss_bytes(pid, shared_memory=False) for pid in descendants(os.getpid()))
    return rss_bytes() + sum(children)


class PeakSampler:
    """A ``with`` block that samples memory from a thread of its own.

    Args:
        headroom: source of ``min_headroom_bytes``; ``None`` leaves it out.
        period_s: time between two samples of headroom, and the least between two of memory.
        reading: bytes held now; by default ``loader_bytes``.

    Attributes:
        min_headroom_bytes: least headroom at any sample; ``None``: not measured.

    Both figures include a sample at the start and one at the end of the block, so they exist
    however short it is. Memory that comes and goes between two samples is not seen.
    """

    def __init__(
        self,
        headroom: HeadroomSource | None = None,
        *,
        period_s: float = 0.1,
        reading: Callable[[], int] = loader_bytes,
    ) -> None:
        self._headroom = headroom
        self._period_s = period_s
        self._reading = reading
        self._baseline_bytes = self._peak_bytes = 0
        self.min_headroom_bytes: int | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak-sampler", daemon=True)

    @property
    def peak_rss_bytes(self) -> int:
        """Most bytes held at any sample, less what was held at the start; never negative."""
        return max(0, self._peak_bytes - self._baseline_bytes)

    def sample(self) -> None:
        """Take one sample of both now, from any thread."""
        held = self._reading()
        with self._lock:
            self._peak_bytes = max(self._peak_bytes, held)
        self._sample_headroom()

    def __enter__(self) -> PeakSampler:
        self._baseline_bytes = self._peak_bytes = self._reading()
        self._sample_headroom()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.sample()

    def _run(self) -> None:
        next_memory_s = 0.0
        while not self._done.wait(self._period_s):
            began_s = time.monotonic()
            if began_s < next_memory_s:
                self._sample_headroom()
            else:
                self.sample()
                ended_s = time.monotonic()
                next_memory_s = ended_s + (ended_s - began_s) / _SAMPLER_COST_RATIO

    def _sample_headroom(self) -> None:
        free = None if self._headroom is None else headroom_or_none(self._headroom)
        with self._lock:
            known = [one for one in (self.min_headroom_bytes, free) if one is not None]
            self.min_headroom_bytes = min(known, default=None)


_EVERY_S = 20.0
_KEPT = 4
_CALM_COST_RATIO = 0.0005
"""Share of a processor that looking may cost; the pauses follow from it."""
_SHORT_COST_RATIO = 0.001
"""The same while memory is short."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Grown:
    """A process that holds more than a while ago."""

    pid: int
    name: str
    grown_bytes: int


class OtherProcesses:
    """Looks at all processes that can be seen but this one; one thread at a time.

    Args:
        proc: folder where procfs is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._own = str(os.getpid())
        self._looks: deque[dict[int, int]] = deque(maxlen=_KEPT)
        self._next_s = float("-inf")
        self._latest: dict[int, int] = {}
        self._latest_until_s = float("-inf")

    def look(self, at_s: float) -> None:
        """Memory is calm: see who holds what, where the last look was long enough ago.

        Args:
            at_s: seconds of a monotonic clock.
        """
        if at_s < self._next_s:
            return
        held, cost_s = self._held()
        self._looks.append(held)
        self._next_s = at_s + max(_EVERY_S, cost_s / _CALM_COST_RATIO)

    def most_grown(self, at_s: float) -> Grown | None:
        """Process that grew most since the oldest look; ``None`` if none grew, or without a look.

        Args:
            at_s: seconds of the clock of ``look``.
        """
        if not self._looks:
            return None
        if at_s >= self._latest_until_s:
            self._latest, cost_s = self._held()
            self._latest_until_s = at_s + cost_s / _SHORT_COST_RATIO
        before, now = self._looks[0], self._latest
        grown = {pid: held - before.get(pid, 0) for pid, held in now.items()}
        pid = max(grown, key=lambda one: grown[one], default=0)
        if not pid or grown[pid] <= 0:
            return None
        name = ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            name = (self._proc / str(pid) / "comm").read_text().strip()
        return Grown(pid, name, grown[pid])

    def _held(self) -> tuple[dict[int, int], float]:
        """Process → bytes of its own; processor seconds that it took to see them."""
        began, found = time.thread_time(), {}
        for name in os.listdir(self._proc):  # noqa: PTH208  (hot)
            if name.isdecimal() and name != self._own:
                with contextlib.suppress(OSError, ValueError):
                    _, resident, shared, *_ = (self._proc / name / "statm").read_bytes().split()
                    found[int(name)] = (int(resident) - int(shared)) * _PAGE_BYTES
        return found, time.thread_time() - began


_READ = re.compile(r"^read_bytes: (\d+)$", re.MULTILINE)


class StorageReads:
    """Counts from the first time on that it is asked about a process.

    Args:
        proc: folder where procfs is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._last: dict[int, int] = {}
        self._bytes = 0

    def read(self, pids: Iterable[int]) -> int | None:
        """Bytes read by all processes that it was ever asked about; ``None``: not told here."""
        known = False
        for pid in pids:
            try:
                found = _READ.search((self._proc / str(pid) / "io").read_text())
            except OSError:  # it has ended, or is another user's
                continue
            if found is not None:
                known, now = True, int(found[1])
                self._bytes += max(0, now - self._last.get(pid, now))
                self._last[pid] = now
        return self._bytes if known else None


_WORTH_A_LOOK = 0.2
"""Processors of others, from which on the children are asked what they had of it."""
_QUOTA_EVERY_S = 5.0
"""Where there is no quota, one is looked for so seldom: it takes six files."""


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
