"""Memory of processes, the one that grew most, and bytes that processes read from storage.

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

Not here: what the machine can still give (``headroom``), how fast storage is (``storage``).
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from autoloader.host.probes.headroom import HeadroomSource, headroom_or_none

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
