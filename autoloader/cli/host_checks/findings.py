"""Results of an examination: facts, and findings with their remedies; and the places it looks at.

Not here: the checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from autoloader.host.cgroups import ROOT

KERNEL_LOG = Path("/dev/kmsg")


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that was looked at and hurts no run.

    Attributes:
        text: one sentence of what was seen.
        check: name of the check, such as "memory"; ``examine`` fills it in.
    """

    text: str
    check: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that will hurt a run.

    Attributes:
        evidence: what was seen, with its numbers.
        remedy: one sentence of what to do about it.
        severity: "error" ends a run or makes its data wrong; "warning" makes it slow or fragile.
        check: name of the check; ``examine`` fills it in.
    """

    evidence: str
    remedy: str
    severity: Literal["error", "warning"] = "warning"
    check: str = ""


@dataclass(frozen=True)
class Machine:
    """Places where the checks look.

    Attributes:
        proc: where procfs is mounted.
        cgroup_root: stands for ``/sys/fs/cgroup`` in what mountinfo says.
        kernel_log: the kernel's log, or a copy of it in a file.
        nvml: stands for ``pynvml``; ``None``: the real one.
        stdout: descriptor of the standard output of the examination; ``None``: it is not examined.
        environment: variables of the environment, by name.
    """

    proc: Path = Path("/proc")
    cgroup_root: Path = ROOT
    kernel_log: Path = KERNEL_LOG
    nvml: ModuleType | Any | None = None
    stdout: int | None = 1
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def processes(self) -> list[Path]:
        """Directories of all processes that can be seen."""
        return [entry for entry in self.proc.iterdir() if entry.name.isdigit()]


Seen = Fact | Finding
Check = Callable[[Machine], Iterable[Seen]]
