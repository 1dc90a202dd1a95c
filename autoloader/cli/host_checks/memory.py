"""Memory: which limit binds, whether the floor is free, and whom the kernel killed for it.

Not here: reading limits (``host.probes.headroom``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from autoloader.cli.host_checks.findings import Fact, Finding, Machine, Seen
from autoloader.errors import PipelineError
from autoloader.host.probes.headroom import HeadroomProbe
from autoloader.host.probes.oom import kernel_records
from autoloader.host.units import format_bytes

_KILLED = re.compile(
    r"(?P<where>Memory cgroup out of memory|Out of memory)[^\n]*?Kill(?:ed)? process (?P<pid>\d+) "
    r"\((?P<name>[^)\n]*)\)(?:[^\n]*?anon-rss:(?P<kib>\d+)kB)?"
)
_MOST_KILLS = 5
_MIB = 2**20


def limits(machine: Machine, floor_bytes: int) -> Iterator[Seen]:
    """The limits of host, cgroups and SLURM, and the headroom against the floor."""
    probe = HeadroomProbe(machine.proc, machine.cgroup_root)
    try:
        room, total = probe.read(), probe.total_bytes()
    except PipelineError as error:
        yield Finding("memory", "error", error.what, error.remedy)
        return
    for label, limit in probe.limits():
        yield Fact("memory", f"{label} is limited to {format_bytes(limit)}")
    yield Fact(
        "memory",
        f"{format_bytes(room.headroom_bytes)} of {format_bytes(total)} can still be taken; "
        f"{room.source} binds",
    )
    if room.headroom_bytes < floor_bytes:
        yield Finding(
            "memory",
            "error",
            f"{format_bytes(room.headroom_bytes)} can still be taken ({room.source} binds), less "
            f"than the floor of {format_bytes(floor_bytes)}: a loader will not start",
            "end what else uses memory, ask for more of it, or lower --ram-floor",
        )
    yield from _slurm(machine, probe.cgroup_limit_bytes())


def _slurm(machine: Machine, cgroup_bytes: int | None) -> Iterator[Seen]:
    """What SLURM gives the job; it may kill by its own accounts, which no cgroup shows."""
    mib = machine.environment.get("SLURM_MEM_PER_NODE", "")
    if not mib.isdigit() or int(mib) == 0:  # 0: all of the node
        return
    given = int(mib) * _MIB
    yield Fact("memory", f"SLURM gives the job {format_bytes(given)} on each node")
    if cgroup_bytes is None or cgroup_bytes > given:
        bound = "none" if cgroup_bytes is None else format_bytes(cgroup_bytes)
        yield Finding(
            "memory",
            "warning",
            f"SLURM gives the job {format_bytes(given)}, and the cgroup's limit is {bound}: SLURM "
            "may kill by its own accounts, which the loader cannot see",
            "raise --ram-floor by what of the node is not the job's, or have the cluster enforce "
            "memory by cgroups (ConstrainRAMSpace=yes)",
        )


def kills(machine: Machine) -> Iterator[Seen]:
    """Processes that the kernel killed for memory, by its log."""
    try:
        log = b"".join(kernel_records(machine.kernel_log)).decode(errors="replace")
    except OSError as error:
        yield Fact("kills", f"{machine.kernel_log} cannot be read ({error.strerror})")
        return
    found = list(_KILLED.finditer(log))
    if not found:
        yield Fact("kills", "the kernel's log names no process that was killed for memory")
        return
    last = [
        f"{kill['name']} (pid {kill['pid']}"
        + (f", {format_bytes(int(kill['kib']) * 1024)}" if kill["kib"] else "")
        + (", in its cgroup)" if kill["where"].startswith("Memory") else ")")
        for kill in found[-_MOST_KILLS:]
    ]
    processes = "1 process" if len(found) == 1 else f"{len(found)} processes"
    yield Finding(
        "kills",
        "warning",
        f"the kernel killed {processes} for memory since the log began; the last: "
        + ", ".join(reversed(last)),
        "give the run a --ram-floor that the others on this machine need, and see what each "
        "process holds",
    )
