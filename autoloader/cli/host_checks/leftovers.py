"""What runs that ended have left: their children, rings and cgroups.

A loader's child ends with its trainer. One that is stopped (SIGSTOP, a debugger) cannot, and keeps
its memory.

Not here: ending them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from autoloader.cli.host_checks.findings import Fact, Finding, Machine, Seen
from autoloader.host.cgroups import ancestry
from autoloader.host.units import format_bytes

_CHILD = b"autoloader.process.worker"
_RING = "/memfd:autoloader"
_GROUPS = "autoloader-*"


def leftovers(machine: Machine) -> Iterator[Seen]:
    """Children without a trainer, and cgroups without a process."""
    orphans = 0
    for entry in machine.processes():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if _CHILD not in words or b"--parent" not in words:
                continue
            trainer = int(words[words.index(b"--parent") + 1])
            if int(_status(entry, "PPid")) == trainer:
                continue
            orphans += 1
            yield Finding(
                "leftovers",
                "warning",
                f"pid {entry.name} is the child of a loader whose trainer (pid {trainer}) is gone; "
                f"it is {_status(entry, 'State')} and holds {_held(entry)}",
                f"kill -9 {entry.name}",
            )
    for group in _groups(machine):
        orphans += 1
        yield Finding(
            "leftovers",
            "warning",
            f"the cgroup {group} belongs to a run that is gone, and holds no process",
            f"rmdir {group}",
        )
    if not orphans:
        yield Fact("leftovers", "no child, ring or cgroup of a run that is gone")


def _status(entry: Path, key: str) -> str:
    for line in (entry / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return value.strip()
    raise ValueError(key)


def _held(entry: Path) -> str:
    """Its own memory, and the ring that it keeps."""
    own = int(_status(entry, "RssAnon").split()[0]) * 1024
    rings: dict[int, int] = {}
    with contextlib.suppress(OSError):  # of another user
        for descriptor in (entry / "fd").iterdir():
            if str(descriptor.readlink()).startswith(_RING):
                there = descriptor.stat()
                rings[there.st_ino] = there.st_blocks * 512
    return f"{format_bytes(own)} of its own and {format_bytes(sum(rings.values()))} of rings"


def _groups(machine: Machine) -> list[Path]:
    """Empty cgroups of ours beside this process's own, in any memory hierarchy."""
    try:
        membership = (machine.proc / "self" / "cgroup").read_text()
    except OSError:
        return []
    mountinfo = machine.proc / "self" / "mountinfo"
    groups = ancestry(membership, "memory", mountinfo=mountinfo, root=machine.cgroup_root)
    found = {place for group in groups for place in group.directory.glob(_GROUPS)}
    return sorted(place for place in found if place.is_dir() and not _has_process(place))


def _has_process(group: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(file.read_text().strip() for file in group.rglob("cgroup.procs"))
    return True
