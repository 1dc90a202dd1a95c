"""What a process may use here: descriptors, threads, address space, processors; its output.

Not here: memory (``memory``).
"""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator

from autoloader.cli.host_checks.findings import Fact, Finding, Machine, Seen
from autoloader.host.processors import CgroupProcessors
from autoloader.host.units import format_bytes

_FEW_DESCRIPTORS = 512
_FULL = 0.8
_FEW_PROCESSORS = 2
_MANY_TIMES = 4


def limits(machine: Machine) -> Iterator[Seen]:
    """Limits of the shell (``ulimit``)."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield Fact("limits", f"{_shown(descriptors)} open files (ulimit -n)")
    if descriptors != resource.RLIM_INFINITY and descriptors < _FEW_DESCRIPTORS:
        yield Finding(
            "limits",
            "warning",
            f"a process may open {descriptors} files (ulimit -n): shard files are opened and "
            "closed again and again",
            "ulimit -n 4096",
        )
    threads, most = _threads(machine), resource.getrlimit(resource.RLIMIT_NPROC)[0]
    yield Fact("limits", f"{_shown(most)} threads of this user (ulimit -u), {threads} in use")
    if most != resource.RLIM_INFINITY and threads > _FULL * most:
        yield Finding(
            "limits",
            "error",
            f"{threads} of the {most} threads that this user may have are in use (ulimit -u)",
            "end processes of this user, or raise ulimit -u",
        )
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        yield Finding(
            "limits",
            "warning",
            f"the address space is limited to {format_bytes(space)} (ulimit -v): maps of files "
            "and rings count in full, though they hold no memory",
            "ulimit -v unlimited; a cgroup or --ram-floor bounds memory itself",
        )
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    shown = "unlimited" if locked == resource.RLIM_INFINITY else format_bytes(locked)
    yield Fact("limits", f"{shown} of locked memory (ulimit -l)")


def _threads(machine: Machine) -> int:
    """Threads of all processes of this user."""
    count = 0
    for entry in machine.processes():
        try:
            if entry.stat().st_uid == os.getuid():
                count += len(list((entry / "task").iterdir()))
        except OSError:
            continue  # it has ended
    return count


def processors(machine: Machine) -> Iterator[Seen]:
    """Affinity and quota against the processors there are."""
    found = CgroupProcessors(machine.proc, machine.cgroup_root).read()
    there = found.there
    quota = "" if found.quota is None else f", a quota of {found.quota:g} ({found.source})"
    yield Fact("processors", f"{found.allowed} of {there} by affinity{quota}")
    if found.count <= _FEW_PROCESSORS and there >= _MANY_TIMES * found.count:
        yield Finding(
            "processors",
            "warning",
            f"this process may use {found.count} of {there} processors "
            f"(affinity {found.allowed}{quota})",
            "ask the scheduler for more (SLURM: --cpus-per-task), or lift the quota",
        )


def output(machine: Machine) -> Iterator[Seen]:
    """Whether Python would hold back what a training prints."""
    if machine.stdout is None:
        return
    mode = os.fstat(machine.stdout).st_mode
    into = "a file" if stat.S_ISREG(mode) else "a pipe" if stat.S_ISFIFO(mode) else ""
    if not into:
        yield Fact("output", "stdout is not buffered by blocks")
    elif machine.environment.get("PYTHONUNBUFFERED"):
        yield Fact("output", f"stdout is {into}, and PYTHONUNBUFFERED is set")
    else:
        yield Finding(
            "output",
            "warning",
            f"stdout is {into}, and Python writes to it 8 KiB at a time: the last lines before a "
            "kill are lost, and a run that waits looks hung",
            "export PYTHONUNBUFFERED=1",
        )


def _shown(limit: int) -> str:
    return "any number of" if limit == resource.RLIM_INFINITY else str(limit)
