"""Facts of a machine that matter to a loader: its processors, memory, storage and GPUs.

Theory of operation. ``host_facts`` is what a start of a loader asks: what a profile is matched and
clamped by. ``described_host`` adds what a person wants beside a measurement: the processor's model,
the kernel, versions, where the data lies and how fast it is read. ``HostFacts.fingerprint`` is one
word for "rates measured here and there may be compared": equal nodes of a cluster have the same.

Not here: which profile suits a machine (``lookup``), reading memory while a loader runs
(``host.probes.headroom``).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from autoloader.host.clock import Clock, SystemClock
from autoloader.host.machine import (
    CgroupProcessors,
    cpu_model,
    memory_bytes,
    usable_processors,
    versions,
)
from autoloader.host.probes.gpu import gpu_names
from autoloader.host.probes.headroom import HeadroomProbe
from autoloader.host.probes.storage import by_file_system, probe_reads
from autoloader.host.units import GIB, format_bytes, parse_bytes, size_of
from autoloader.spec.block import Block

_MEMORY_TOLERANCE_RATIO = 0.1
"""How far usable memory may differ for a saved profile to count as made for this host."""

Size = Annotated[
    int,
    BeforeValidator(lambda value: size_of(value) if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
    Field(ge=0),
]
"""Bytes, as a number or as "5GB"."""


class HostFacts(Block):
    """Facts of a machine that matter to a loader."""

    cpus: int = Field(ge=1, description="processors a process may use: affinity and CPU quota")
    processors: int | None = Field(None, ge=1, description="processors of the whole machine")
    affinity: int | None = Field(
        None, ge=1, description="processors that the process may run on (taskset, SLURM, cpuset)"
    )
    cpu_quota: float | None = Field(
        None, gt=0, description="processors' worth of time that a cgroup gives; absent: no quota"
    )
    cpu_model: str = Field("unknown", description="the processor, as the kernel names it")
    memory_bytes: Size = Field(description="main memory, such as 62.5GiB")
    cgroup_limit_bytes: Size | None = Field(
        None, description="memory limit of the job or container; absent when there is none"
    )
    gpus: tuple[str, ...] = Field((), description="GPU names as NVML gives them, one per device")
    storage: str = Field("unknown", description="what the data lies on: ext4, nfs4, lustre, gcs …")
    storage_read_bytes_per_s: Size | None = Field(
        None, description="measured: bytes a second of the data read in order, past the page cache"
    )
    storage_random_read_s: float | None = Field(
        None, ge=0, description="measured: seconds of a read of 20 KiB of the data at random"
    )
    scheduler: str = Field("none", description="who starts jobs here: none, slurm …")
    ranks_per_node: int = Field(1, ge=1, description="training processes that share this host")
    kernel: str = Field("unknown", description="release of the kernel")
    versions: Mapping[str, str] = Field(
        default_factory=dict, description="versions of the packages that read, decode and deliver"
    )

    @property
    def usable_bytes(self) -> int:
        """Memory a process may ever use here: the smaller of RAM and cgroup limit."""
        limit = self.cgroup_limit_bytes
        return self.memory_bytes if limit is None else min(self.memory_bytes, limit)

    def matches(self, host: HostFacts) -> bool:
        """True if both have the same cpus and GPUs, and usable memory within 10 %."""
        apart = abs(self.usable_bytes - host.usable_bytes)
        return (
            self.cpus == host.cpus
            and sorted(self.gpus) == sorted(host.gpus)
            and apart <= _MEMORY_TOLERANCE_RATIO * host.usable_bytes
        )

    def is_same(self, host: HostFacts) -> bool:
        """True if both are one machine, or equal ones: ``matches``, processor and storage too.

        What one of them does not know is left out of account.
        """
        return self.matches(host) and all(
            "unknown" in (mine, theirs) or mine == theirs
            for mine, theirs in (
                (self.cpu_model, host.cpu_model),
                (self.storage, host.storage),
            )
        )

    @property
    def fingerprint(self) -> str:
        """Eight characters: the same where rates may be compared.

        Of the processor's model, the processors and the memory that may be used (to 5 %), GPUs and
        the kind of storage. Not of names, kernels and versions: equal nodes have the same.
        """
        memory = f"{self.usable_bytes / GIB:.2g}"
        parts = (self.cpu_model, self.cpus, memory, sorted(self.gpus), self.storage)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]

    def describe(self) -> str:
        """One line for people: cpus, usable memory, GPUs."""
        counts = Counter(self.gpus).items()
        gpus = ", ".join(f"{n} × {name}" if n > 1 else name for name, n in counts)
        return f"{self.cpus} cpus, {format_bytes(self.usable_bytes)}, {gpus or 'no GPU'}"


def host_facts() -> HostFacts:
    """The machine this process runs on; memory rounded to 0.01 GiB so that diffs stay quiet."""
    environment = os.environ
    limit = HeadroomProbe().cgroup_limit_bytes()
    ranks = environment.get("SLURM_NTASKS_PER_NODE") or environment.get("LOCAL_WORLD_SIZE") or "1"
    leading = re.match(r"[1-9]\d*", ranks)
    return HostFacts(
        cpus=usable_processors(),
        memory_bytes=_rounded(memory_bytes()),
        cgroup_limit_bytes=None if limit is None else _rounded(limit),
        gpus=gpu_names(),
        scheduler="slurm" if "SLURM_JOB_ID" in environment else "none",
        ranks_per_node=int(leading[0]) if leading else 1,
    )


def described_host(
    *,
    files: Sequence[str] = (),
    clock: Clock | None = None,
    probe_s: float = 0.5,
) -> HostFacts:
    """This machine in full, as it belongs beside a measurement.

    Args:
        files: local files of the data; the file system that holds most of them is named, and read
            for twice ``probe_s``.
        clock: clock of the reads; ``None``: the system's.
        probe_s: seconds of reading at random, and of reading in order; 0 reads nothing.
    """
    seen = CgroupProcessors().read()
    found: dict[str, object] = {
        "processors": seen.there,
        "affinity": seen.allowed,
        "cpu_quota": seen.quota and round(seen.quota, 2),
        "cpu_model": cpu_model(),
        "kernel": os.uname().release,
        "versions": versions(),
    }
    systems = by_file_system(files)
    if systems:
        kind = max(systems, key=lambda kind: len(systems[kind]))
        found["storage"] = kind
        now_s = (clock or SystemClock()).now_s
        rates = None
        if probe_s > 0:
            with suppress(OSError):  # a file that cannot be read is told where it is used
                rates = probe_reads(systems[kind], now_s, each_s=probe_s)
        if rates is not None:
            found["storage_read_bytes_per_s"] = round(rates.in_order / 1e6) * 10**6
            found["storage_random_read_s"] = round(rates.random_s, 6)
    return host_facts().model_copy(update=found)


def _rounded(count: int) -> int:
    return parse_bytes(f"{count / GIB:.2f}GiB")
