"""Which other process took memory: the one that grew most since a while ago.

Theory of operation. ``/proc/PID/statm`` tells in some microseconds what a process holds; what it
shares (files, shared memory) is left out, for that is counted at each who maps it. While memory is
calm all processes are looked at now and then; when it has got short, a further look is compared
with the oldest of these, and serves for a while. Processes of other containers are not seen, and
what a tmpfs holds belongs to none.

Not here: what is told of it (``process.control.moments``).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

_EVERY_S = 20.0
_KEPT = 4
_COST_RATIO = 0.0005
"""Share of a processor that looking may cost; the pauses follow from it."""
_SHORT_COST_RATIO = 0.001
"""The same while memory is short."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FLAGS = 6
"""Where a process's flags are in ``/proc/PID/stat``, behind its name (``man 5 proc``)."""
_PF_KTHREAD = 0x00200000


@dataclass(frozen=True, slots=True)
class Grown:
    """A process that holds more than a while ago."""

    pid: int
    name: str
    grown_bytes: int


class OtherProcesses:
    """Looks at all processes that can be seen but this one; one thread at a time.

    Args:
        proc: where the kernel tells of them.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._own = str(os.getpid())
        self._looks: deque[dict[int, int]] = deque(maxlen=_KEPT)
        self._next_s = float("-inf")
        self._latest: dict[int, int] = {}
        self._latest_until_s = float("-inf")
        self._kernels: set[str] = set()

    def look(self, at_s: float) -> None:
        """Memory is calm: see who holds what, where the last look was long enough ago.

        Args:
            at_s: of a monotonic clock.
        """
        if at_s < self._next_s:
            return
        held, cost_s = self._held()
        self._looks.append(held)
        self._next_s = at_s + max(_EVERY_S, cost_s / _COST_RATIO)

    def most_grown(self, at_s: float) -> Grown | None:
        """Who grew most since the oldest look; ``None`` where nobody did, or nobody looked.

        Args:
            at_s: of the clock of ``look``.
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
        names = os.listdir(self._proc)  # noqa: PTH208  (hot)
        self._kernels.intersection_update(names)
        for name in names:
            if name.isdecimal() and name not in self._kernels and name != self._own:
                with contextlib.suppress(OSError, ValueError):
                    size, resident, shared, *_ = _content(f"{self._proc}/{name}/statm").split()
                    if size == b"0" and self._is_kernel_thread(name):
                        self._kernels.add(name)
                    found[int(name)] = (int(resident) - int(shared)) * _PAGE_BYTES
        return found, time.thread_time() - began

    def _is_kernel_thread(self, name: str) -> bool:
        """Whether it never holds any memory; a process that has ended holds none either."""
        flags = _content(f"{self._proc}/{name}/stat").rpartition(b")")[2].split()[_FLAGS]
        return bool(int(flags) & _PF_KTHREAD)


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 256)
    finally:
        os.close(descriptor)
