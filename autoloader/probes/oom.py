"""Whether the kernel killed for memory: a memory cgroup's counters, and the kernel's own log.

Not here: headroom (``headroom``).
"""

from __future__ import annotations

import os
from pathlib import Path

from autoloader.host.cgroups import ancestry


def named_by_kernel(pid: int, *, log: Path = Path("/dev/kmsg")) -> bool:
    """Whether the kernel's log says that it killed this process for memory.

    False also where the log may not be read. It catches a process that was moved to another cgroup
    and killed there before anybody could look at that cgroup's counter.
    """
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    wanted = f"Killed process {pid} ".encode()
    try:
        while record := os.read(descriptor, 8192):
            if wanted in record:
                return True
    except OSError:
        return False  # EAGAIN is the log's end; EPIPE: it ran over while it was read.
    finally:
        os.close(descriptor)
    return False


def memory_cgroup(pid: int | str = "self", *, proc: Path = Path("/proc")) -> str:
    """Directory of the process's memory cgroup, v1 or v2; "" where there is none to be seen."""
    try:
        membership = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
    groups = ancestry(membership, "memory", mountinfo=proc / "self" / "mountinfo")
    own = (str(group.directory) for group in groups if group.own)
    return next((directory for directory in own if oom_kills(directory) is not None), "")


def oom_kills(directory: str) -> int | None:
    """Kills counted in a memory cgroup so far; ``None`` where it does not count."""
    if not directory:
        return None
    for name in ("memory.events", "memory.oom_control"):
        try:
            text = (Path(directory) / name).read_text()
        except OSError:
            continue
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return None
