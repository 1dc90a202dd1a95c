"""Memory of processes, the one that grew most, bytes read from storage, and use of processors.

Theory of operation. RSS counts a shared page in every process that maps it. So the bytes of a tree
are each process's private bytes, as the kernel counts them. Shared memory and files are added once,
those of the first process, since its descendants map the same ones. The counters cost microseconds
however much is mapped (PSS, which divides a shared page, costs about 10 ms for each GB held).

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
descendants' (a loader's child, decode processes), nor time that a hypervisor took. Under a quota
nobody can say what others use, for the quota is what ends first.

Not here: what the machine can still give (``headroom``), how fast storage is (``storage``).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path

import psutil

from autoloader.host.frozen import frozen
from autoloader.host.machine import CgroupProcessors, KernelFile, Processors

_RSS_LINE = re.compile(rb"^(RssAnon|RssFile|RssShmem):\s+(\d+) kB", re.MULTILINE)


def tree_own_bytes(pid: int, *, shared_memory: bool = False) -> int:
    """Bytes of a process and its descendants; 0 when it is gone.

    Where the kernel has no counters, it is the RSS of each.

    Args:
        pid: id of the process.
        shared_memory: whether shared memory (memfd, /dev/shm) that it maps counts too.
    """
    found = 0
    for member in (pid, *descendants(pid)):
        with contextlib.suppress(OSError, psutil.Error):  # it is gone
            rss = dict(_RSS_LINE.findall(Path(f"/proc/{member}/status").read_bytes()))
            if not rss:
                found += psutil.Process(member).memory_info().rss
            elif member != pid:
                rss = {b"RssAnon": rss[b"RssAnon"]}
            elif not shared_memory:
                rss.pop(b"RssShmem", None)
            found += sum(map(int, rss.values())) * 1024
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
    """Process ids of the children of a process; none where it has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it is gone
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_bytes().split())
    return found


_EVERY_S = 30.0
"""Between two looks while memory is calm; a host of 2,000 processes takes 30 ms."""
_SHORT_EVERY_S = 5.0
"""The same while memory is short."""
_KEPT = 3
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@frozen
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
        self._looks.append(self._held())
        self._next_s = at_s + _EVERY_S

    def most_grown(self, at_s: float) -> Grown | None:
        """Process that grew most since the oldest look; ``None`` if none grew, or without a look.

        Args:
            at_s: seconds of the clock of ``look``.
        """
        if not self._looks:
            return None
        if at_s >= self._latest_until_s:
            self._latest, self._latest_until_s = self._held(), at_s + _SHORT_EVERY_S
        before, now = self._looks[0], self._latest
        grown = {pid: held - before.get(pid, 0) for pid, held in now.items()}
        pid = max(grown, key=lambda one: grown[one], default=0)
        if not pid or grown[pid] <= 0:
            return None
        name = ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            name = (self._proc / str(pid) / "comm").read_text().strip()
        return Grown(pid, name, grown[pid])

    def _held(self) -> dict[int, int]:
        """Process → bytes of its own."""
        found = {}
        for name in os.listdir(self._proc):  # noqa: PTH208  (hot)
            statm = KernelFile(Path(f"{self._proc}/{name}/statm"))
            if name.isdecimal() and name != self._own and (told := statm.read()):
                _, resident, shared, *_ = told.split()
                found[int(name)] = (int(resident) - int(shared)) * _PAGE_BYTES
        return found


_READ = re.compile(rb"^read_bytes: (\d+)$", re.MULTILINE)


class StorageReads:
    """Counts from the first time on that it is asked about a process.

    Args:
        proc: folder where procfs is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._files: dict[int, KernelFile] = {}
        self._last: dict[int, int] = {}
        self._bytes = 0

    def read(self, pids: Iterable[int]) -> int | None:
        """Bytes read by all processes that it was ever asked about; ``None``: not told here."""
        known = False
        for pid in pids:
            if (file := self._files.get(pid)) is None:
                file = self._files[pid] = KernelFile(self._proc / str(pid) / "io")
            if found := _READ.search(file.read() or b""):  # else it has ended, or is another user's
                known, now = True, int(found[1])
                self._bytes += max(0, now - self._last.get(pid, now))
                self._last[pid] = now
        return self._bytes if known else None


@frozen
class ProcessorReading:
    """Recent use of the processors that this process may use.

    Attributes:
        idle: processors' worth of time that nobody used and that this process might have.
        others: processors' worth that other processes used; ``None``: unknown.
    """

    idle: float
    others: float | None = None


@frozen
class _Times:
    """Seconds since the machine began, of the processors that this process may use.

    Attributes:
        idle: spent idle, all processors together.
        whole: passed, all processors together.
        stolen: part of ``whole`` that a hypervisor gave to other machines.
        count: number of these processors.
        own: CPU time of this process, and of each descendant, by process id.
    """

    idle: float = 0.0
    whole: float = 0.0
    stolen: float = 0.0
    count: int = 1
    own: Mapping[int, float] = field(default_factory=dict)


class ProcessorProbe:
    """Counts what was used since the reading before, or since it was made.

    Args:
        source: says how many may be used.
    """

    def __init__(self, source: CgroupProcessors | None = None) -> None:
        self._source = source or CgroupProcessors()
        self._before = self._times()
        self._used_before = self._used(self._source.read())

    def read(self) -> ProcessorReading | None:
        """Use since the reading before; ``None`` if no time has passed."""
        now = self._times()
        before, self._before = self._before, now
        processors = self._source.read()
        used = self._used(processors)
        used_before, self._used_before = self._used_before, used
        # All processors' time passes side by side: a count-th of it is the clock's.
        passed_s = (now.whole - before.whole) / max(1, now.count)
        if passed_s <= 0:
            return None
        free = max(0.0, min(float(now.count), (now.idle - before.idle) / passed_s))
        if processors.quota is None:
            own = (max(0.0, used - before.own.get(pid, 0.0)) for pid, used in now.own.items())
            spoken_for = now.stolen - before.stolen + sum(own)
            return ProcessorReading(free, max(0.0, now.count - free - spoken_for / passed_s))
        if used[0] != used_before[0]:
            return ProcessorReading(free)
        taken = max(0.0, used[1] - used_before[1]) / passed_s
        return ProcessorReading(max(0.0, min(free, processors.quota - taken)))

    @staticmethod
    def _used(processors: Processors) -> tuple[str, float]:
        """(who, CPU seconds used): the quota's cgroup, else this process."""
        if processors.used_s is None:
            return "", time.process_time()
        return processors.source, processors.used_s

    @staticmethod
    def _times() -> _Times:
        allowed = os.sched_getaffinity(0)
        every = _CPU_LINE.findall(Path("/proc/stat").read_bytes())
        mine = [_seconds(times) for number, times in every if int(number) in allowed]
        own = {os.getpid(): time.process_time()}
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):  # the child is gone
                told = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
                own[pid] = sum(_seconds(told)[11:13])
        return _Times(
            idle=sum(one[3] + one[4] for one in mine),  # idle, and waiting for a disk
            whole=sum(sum(one[:8]) for one in mine),
            stolen=sum(one[7] for one in mine),
            count=len(mine),
            own=own,
        )


_CPU_LINE = re.compile(rb"^cpu(\d+) (.+)$", re.MULTILINE)


def _seconds(counters: bytes) -> list[float]:
    """Counters of the kernel in clock ticks, as seconds; a word that is no number is 0."""
    return [int(word) / _TICKS if word.isdigit() else 0.0 for word in counters.split()]
