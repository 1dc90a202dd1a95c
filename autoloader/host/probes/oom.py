"""Whether the kernel killed for memory: a memory cgroup's counters, and the kernel's own log.

Not here: headroom (``headroom``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from autoloader.host.cgroups import ProcessGroups

_READ_BYTES = 8192


def named_by_kernel(pid: int, *, log: Path = Path("/dev/kmsg")) -> bool:
    """Whether the kernel's log says that it killed this process for memory.

    False also where the log may not be read. It catches a process that was moved to another cgroup
    and killed there before anybody could look at that cgroup's counter.
    """
    wanted = f"Killed process {pid} ".encode()
    try:
        return any(wanted in record for record in kernel_records(log))
    except OSError:
        return False


def kernel_records(log: Path = Path("/dev/kmsg")) -> Iterator[bytes]:
    """What the kernel's log holds now, from its start.

    ``/dev/kmsg`` gives a record a read and never ends; a copy of it comes in larger pieces.

    Raises:
        OSError: the log may not be read.
    """
    descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            try:
                record = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # records were overwritten meanwhile; the next read goes on
                continue
            if not record:
                return
            yield record
    finally:
        os.close(descriptor)


def memory_cgroup(pid: int | str = "self", *, proc: Path = Path("/proc")) -> str:
    """Directory of the process's memory cgroup, v1 or v2; "" where there is none to be seen."""
    groups = ProcessGroups("memory", proc, pid=pid).read() or ()
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
