"""What a machine is, as far as a loader cares: its processors, memory and GPUs.

Not here: which profile suits a machine (``lookup``), reading memory while a loader runs
(``probes.headroom``).
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from typing import Annotated

import psutil
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from autoloader.host.processors import usable_processors
from autoloader.units import GIB, format_bytes, parse_bytes, size_of

logger = logging.getLogger(__name__)

_MEMORY_TOLERANCE_RATIO = 0.1
"""How far usable memory may differ for a saved profile to count as made for this host."""

Size = Annotated[
    int,
    BeforeValidator(lambda value: size_of(value) if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
    Field(ge=0),
]
"""Bytes, as a number or as "5GB"."""


class ProfilePart(BaseModel):
    """A section of a profile: immutable, and strict about its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class HostFacts(ProfilePart):
    """What a machine is, as far as a loader cares."""

    cpus: int = Field(ge=1, description="processors a process may use: affinity and CPU quota")
    memory_bytes: Size = Field(description="main memory, such as 62.5GiB")
    cgroup_limit_bytes: Size | None = Field(
        None, description="memory limit of the job or container; absent when there is none"
    )
    gpus: tuple[str, ...] = Field((), description="GPU names as NVML gives them, one per device")
    storage: str = Field("unknown", description="what the data lies on: nvme, nfs, lustre, gcs …")
    scheduler: str = Field("none", description="who starts jobs here: none, slurm …")
    ranks_per_node: int = Field(1, ge=1, description="training processes that share this host")

    @property
    def usable_bytes(self) -> int:
        """Memory a process may ever use here: the smaller of RAM and cgroup limit."""
        limit = self.cgroup_limit_bytes
        return self.memory_bytes if limit is None else min(self.memory_bytes, limit)

    def matches(self, host: HostFacts) -> bool:
        """Whether both have the same cpus and GPUs, and usable memory within 10 %."""
        apart = abs(self.usable_bytes - host.usable_bytes)
        return (
            self.cpus == host.cpus
            and sorted(self.gpus) == sorted(host.gpus)
            and apart <= _MEMORY_TOLERANCE_RATIO * host.usable_bytes
        )

    def describe(self) -> str:
        """One line for people: cpus, usable memory, GPUs."""
        counts = Counter(self.gpus).items()
        gpus = ", ".join(f"{n} × {name}" if n > 1 else name for name, n in counts)
        return f"{self.cpus} cpus, {format_bytes(self.usable_bytes)}, {gpus or 'no GPU'}"


def host_facts(cgroup_limit_bytes: int | None = None) -> HostFacts:
    """The machine this process runs on; memory rounded to 0.01 GiB so that diffs stay quiet.

    Args:
        cgroup_limit_bytes: memory limit of the job, as ``probes.headroom`` reads it;
            ``None`` when there is none.
    """
    environment = os.environ
    ranks = environment.get("SLURM_NTASKS_PER_NODE") or environment.get("LOCAL_WORLD_SIZE") or "1"
    leading = re.match(r"[1-9]\d*", ranks)
    return HostFacts(
        cpus=usable_processors(),
        memory_bytes=_rounded(psutil.virtual_memory().total),
        cgroup_limit_bytes=None if cgroup_limit_bytes is None else _rounded(cgroup_limit_bytes),
        gpus=_gpu_names(),
        scheduler="slurm" if "SLURM_JOB_ID" in environment else "none",
        ranks_per_node=int(leading[0]) if leading else 1,
    )


def _gpu_names() -> tuple[str, ...]:
    """GPU names by NVML; none where it does not load or fails, for that must never stop a run."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001  (drivers fail in many ways, and none matters here)
        logger.info("NVML does not answer, going on without GPU names: %s", error)
        return ()
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _rounded(count: int) -> int:
    return parse_bytes(f"{count / GIB:.2f}GiB")
