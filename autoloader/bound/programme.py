"""How fast a loader can be at most, from the cost of a sample and the resources of the host.

Minimised are the seconds that pass for a sample, u. No resource may give more in that time than it
has:

    cores      cpus × u         ≥ processor seconds a sample, less those that held frames save
    disk       bytes/s × u      ≥ bytes a sample
    one thread u                ≥ seconds a sample of the busiest thread that there is one of
    trainer    u                ≥ a step's seconds for each of its samples
    memory     Σ bytes held     ≤ bytes that the RAM floor leaves for frames

Each further byte of held frames saves less, so the savings come as steps from best to worst.
Filling the steps in this order solves the linear programme exactly. Resource-accounted rates as in
Plumber (Kuchnik et al., MLSys 2022), with the cache inside.

Not here: where costs come from (``bound.trace``, ``bound.model``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Resource = Literal["cores", "disk", "one thread", "trainer"]


@dataclass(frozen=True, slots=True)
class CacheStep:
    """A part of the memory for decoded frames.

    Attributes:
        room_bytes: how large it is.
        saved_s: processor seconds that it saves for each sample when it is full.
    """

    room_bytes: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What a sample costs.

    Attributes:
        cpu_s: processor seconds, with no frame held.
        one_thread_s: seconds of the busiest thread that no knob gives a second of.
        disk_bytes: that come from a disk.
        cache: what holding frames saves; each step saves less for a byte than the one before.
    """

    cpu_s: float
    one_thread_s: float = 0.0
    disk_bytes: float = 0.0
    cache: tuple[CacheStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Supplies:
    """What there is.

    Attributes:
        cpus: processors.
        disk_bytes_per_s: of the disk; ``None``: not known, so no limit.
        cache_bytes: for decoded frames.
        trainer_s: the trainer's seconds for a sample; ``None``: it takes all it can get.
    """

    cpus: float
    disk_bytes_per_s: float | None = None
    cache_bytes: float = 0.0
    trainer_s: float | None = None


@dataclass(frozen=True, slots=True)
class Solution:
    """The best there can be.

    Attributes:
        samples_per_s: the bound; infinite where nothing costs anything.
        cache_bytes: of decoded frames held for it.
        used: share of each resource that is used then, 0 to 1.
    """

    samples_per_s: float
    cache_bytes: float
    used: dict[Resource, float]

    @property
    def limited_by(self) -> Resource | None:
        """The resource that is used up; ``None`` where nothing costs anything."""
        if not self.used or not math.isfinite(self.samples_per_s):
            return None
        return max(self.used, key=lambda name: round(self.used[name], 6))  # the first of equals


def solve(costs: Costs, supplies: Supplies) -> Solution:
    """Fill the steps of the cache in order while the cores limit the rate."""
    least_s: dict[Resource, float] = {"one thread": costs.one_thread_s}
    if supplies.disk_bytes_per_s:
        least_s["disk"] = costs.disk_bytes / supplies.disk_bytes_per_s
    if supplies.trainer_s is not None:
        least_s["trainer"] = supplies.trainer_s
    enough_s = max(least_s.values()) * supplies.cpus
    cpu_s, held_bytes = costs.cpu_s, 0.0
    for step in costs.cache:
        if step.room_bytes <= 0 or step.saved_s <= 0:
            continue
        room = min(1.0, (supplies.cache_bytes - held_bytes) / step.room_bytes)
        part = min(room, (cpu_s - enough_s) / step.saved_s)
        if part <= 0:
            break
        cpu_s -= part * step.saved_s
        held_bytes += part * step.room_bytes
    least_s = {"cores": cpu_s / supplies.cpus, **least_s}
    found_s = max(least_s.values())
    if found_s <= 0:
        return Solution(math.inf, 0.0, {})
    return Solution(
        samples_per_s=1.0 / found_s,
        cache_bytes=held_bytes,
        used={name: seconds / found_s for name, seconds in least_s.items()},
    )
