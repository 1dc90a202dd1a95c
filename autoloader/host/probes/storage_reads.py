"""How much processes have read from storage: what they asked for, less what the page cache had.

The kernel counts it for each process (``/proc/PID/io``, ``read_bytes``): reads that reached a block
device or an NFS server. FUSE file systems are not counted there.

Not here: how fast storage is (``host.probes.storage``), what follows
(``process.control.observer``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_READ = re.compile(r"^read_bytes: (\d+)$", re.MULTILINE)


class StorageReads:
    """Counts from the first time on that it is asked about a process.

    Args:
        proc: where the kernel tells it.
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
