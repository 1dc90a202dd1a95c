"""How fast a loader can be at most: a linear programme over what a sample costs and what there is.

Minimised are the seconds that pass for a sample, u. Nothing may be asked for more than it gives in
that time:

    cores      cpus × u         ≥ processor seconds a sample, less those that held frames save
    disk       bytes/s × u      ≥ bytes a sample, less those of held frames
    one thread u                ≥ seconds a sample of the busiest thread that there is one of
    trainer    u                ≥ a step's seconds for each of its samples
    memory     Σ bytes held     ≤ bytes that the RAM floor leaves for frames

What holding frames saves grows ever more slowly with their bytes, so it is a sum of steps, each of
which saves less for a byte than the one before; the programme takes them in this order by itself.
Resource-accounted rates as in Plumber (Kuchnik et al., MLSys 2022), with the cache inside.

Solved by HiGHS; a solve takes about a millisecond.

Not here: where costs come from (``bound.trace``, ``bound.model``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import highspy

Resource = Literal["cores", "disk", "one thread", "trainer"]

_MS, _GIB = 1e3, 2.0**30
_WASTE = 1e-9
"""Milliseconds that a held GiB must save at least: none is held in vain."""


@dataclass(frozen=True, slots=True)
class CacheStep:
    """A part of the memory for decoded frames.

    Attributes:
        room_bytes: how large it is.
        saved_s: processor seconds that it saves for each sample when it is full.
        saved_disk_bytes: bytes of a disk likewise.
    """

    room_bytes: float
    saved_s: float
    saved_disk_bytes: float = 0.0


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
    """Solve the programme."""
    programme = highspy.Highs()
    programme.silent()
    u = programme.addVariable(lb=0.0)  # milliseconds; bytes are GiB
    steps = [step for step in costs.cache if step.room_bytes > 0]
    parts = [programme.addVariable(lb=0.0, ub=step.room_bytes / _GIB) for step in steps]
    saved, unread = 0.0 * u, 0.0 * u
    for part, step in zip(parts, steps, strict=True):
        saved += step.saved_s * _MS / (step.room_bytes / _GIB) * part
        unread += step.saved_disk_bytes / step.room_bytes * part
    programme.addConstr(supplies.cpus * u + saved >= costs.cpu_s * _MS)
    programme.addConstr(1.0 * u >= costs.one_thread_s * _MS)
    if supplies.trainer_s is not None:
        programme.addConstr(1.0 * u >= supplies.trainer_s * _MS)
    if supplies.disk_bytes_per_s:
        speed = supplies.disk_bytes_per_s / _MS / _GIB
        programme.addConstr(speed * u + unread >= costs.disk_bytes / _GIB)
    if parts:
        programme.addConstr(sum(parts[1:], 1.0 * parts[0]) <= supplies.cache_bytes / _GIB)
    programme.minimize(sum((_WASTE * part for part in parts), 1.0 * u))
    found_s = programme.val(u) / _MS
    if found_s <= 0:
        return Solution(math.inf, 0.0, {})
    full = [
        programme.val(part) / (step.room_bytes / _GIB)
        for part, step in zip(parts, steps, strict=True)
    ]
    held = list(zip(full, steps, strict=True))
    cpu_s = costs.cpu_s - sum(part * step.saved_s for part, step in held)
    disk = costs.disk_bytes - sum(part * step.saved_disk_bytes for part, step in held)
    used: dict[Resource, float] = {
        "cores": cpu_s / (supplies.cpus * found_s),
        "one thread": costs.one_thread_s / found_s,
    }
    if supplies.disk_bytes_per_s:
        used["disk"] = disk / (supplies.disk_bytes_per_s * found_s)
    if supplies.trainer_s is not None:
        used["trainer"] = supplies.trainer_s / found_s
    return Solution(
        samples_per_s=1.0 / found_s,
        cache_bytes=sum(part * step.room_bytes for part, step in held),
        used=used,
    )
