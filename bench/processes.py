"""What a process and its children hold, use and ask of the kernel, from /proc.

Proportional set size (PSS) counts a page shared by n processes as 1/n in each, so that the sum over
a tree counts it once. Reading it walks page tables (10 ms a GB), hence the slow pace.

Not here: what is run (``bench.runner``).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
EVERY_S = 1.0


def tree(pid: int) -> list[int]:
    """``pid`` and all its descendants that live."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def rollup(pid: int) -> dict[str, int]:
    """What the kernel says that a process holds, in bytes, by kind; empty once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    found = (line.partition(":") for line in lines)
    return {kind: 1024 * int(held.split()[0]) for kind, _, held in found}


def tree_pss_bytes(pid: int, *, shared_memory: bool = True) -> int:
    """Proportional memory of the tree, with or without what is shared by descriptor (the ring)."""
    held = [rollup(one) for one in tree(pid)]
    without = 0 if shared_memory else sum(one.get("Pss_Shmem", 0) for one in held)
    return sum(one.get("Pss", 0) for one in held) - without


def tree_cpu_s(pid: int) -> float:
    """Processor seconds of the tree's living processes so far."""
    total = 0
    for one in tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICK


@dataclass(frozen=True, slots=True)
class Reads:
    """Bytes read from files, and the calls it took."""

    size: int
    calls: int


def reads_by_thread(pid: int, leave_out: Collection[str] = ()) -> dict[int, Reads]:
    """What each living thread of a process has read so far, sockets aside.

    Args:
        pid: of the process.
        leave_out: names of threads.
    """
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            if (task / "comm").read_text().strip() in leave_out:
                continue
            lines = dict(line.split(": ") for line in (task / "io").read_text().splitlines())
        except OSError:
            continue
        found[int(task.name)] = Reads(int(lines["rchar"]), int(lines["syscr"]))
    return found


def page_faults(pid: int) -> int:
    """Pages that the kernel has given a process so far, without reading them from a disk."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[7])


def forget_touched(pid: int) -> None:
    """Begin ``touched_bytes`` anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("1\n")


def touched_bytes(pid: int) -> int:
    """Own memory of a process that it has touched since ``forget_touched``: no files, no memfd."""
    total, own = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            own = len(rest) < 5 or rest[4].startswith("[")
        elif own and first == "Referenced:":
            total += 1024 * int(rest[0])
    return total


def thread_count(pid: int) -> int:
    """Threads that a process has now."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def wants_processor(pid: int) -> bool:
    """Whether a thread of a process, other than the one that asks, runs, is to run, or reads."""
    me = threading.get_native_id()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state in "RD" and int(task.name) != me:
                return True
    return False


def own_bytes(pid: int) -> int:
    """Memory that is a process's own: neither files nor memory shared by descriptor."""
    return rollup(pid)["Pss_Anon"]


def resident_bytes(pid: int) -> int:
    """Resident memory of one process without what is shared by descriptor."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kinds = ("RssAnon:", "RssFile:")
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(kinds))


def in_memfd(address: int) -> bool:
    """Whether an address of this process lies in memory of a memfd."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, last = line.partition(" ")[0].partition("-")
        if int(first, 16) <= address < int(last, 16):
            return "/memfd:" in line
    return False


class MemoryOverTime:
    """Samples a tree's memory from a thread of its own; in a ``with`` block.

    Attributes:
        samples: seconds since the beginning, bytes.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self.samples: list[tuple[float, int]] = []

    def __call__(self, pid: int) -> MemoryOverTime:
        """Of which process."""
        self._thread = threading.Thread(target=self._run, args=(pid,), daemon=True)
        return self

    def __enter__(self) -> MemoryOverTime:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self, pid: int) -> None:
        began_s = time.monotonic()
        while not self._stop.wait(EVERY_S):
            held = tree_pss_bytes(pid)
            if held:  # nothing is: it has ended
                self.samples.append((round(time.monotonic() - began_s, 2), held))

    @property
    def peak_bytes(self) -> int:
        """The most of all samples."""
        return max((held for _, held in self.samples), default=0)
