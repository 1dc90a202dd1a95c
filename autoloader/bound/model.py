"""What limits a loader, how fast it can be at most, and what would lift that.

The costs of a sample are those of the cheapest trace: no measured rate can pass the processors
over them. Two bounds are told: with no frame held in memory, which is what a short measurement can
reach; and with all the memory that the RAM floor leaves, which a run reaches once frames are shown
again.

What a smaller frame would give is an estimate: decoding costs as its pixels do. So is what chained
samples would give: decoding costs as its decodes do.

Not here: the programme (``bound.programme``), what a cache hits (``cache.forecast``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from autoloader.bound.programme import CacheStep, Costs, Resource, Solution, Supplies, solve
from autoloader.bound.trace import Trace
from autoloader.cache.forecast import FrameSet, forecast
from autoloader.units import format_bytes

MORE_CPUS = 2
"""So many more processors are asked about."""

_WAITS_RATIO = 0.5
"""A disk that is waited for so much may be the limit, as far as one measurement can tell."""

_DEAREST = 3
"""Datasets that are told of."""

_WORTH_RATIO = 0.01
"""A lift below this is not told."""

_SIZES = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)
"""Of the memory that the floor leaves: where the forecast of the cache is taken."""

_DISK_RATIO = 0.05
"""A disk that is waited for more rarely says nothing of how fast it is."""


NO_BOUND: dict[str, Any] = {
    "limited_by": None,
    "lifts": [],
    "cached_samples_per_s": None,
    "cache_bytes": 0,
    "trace": None,
}
"""``Bound.as_dict`` where nothing is known."""


@dataclass(frozen=True, slots=True)
class Lift:
    """One thing that would raise the bound.

    Attributes:
        change: what, for people.
        samples_per_s: the bound then.
    """

    change: str
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class Bound:
    """How fast the loader can be at most.

    Attributes:
        samples_per_s: with no frame held in memory.
        limited_by: the resource that is used up then; ``None``: nothing costs anything.
        cached_samples_per_s: with the memory that the RAM floor leaves full of frames; ``None``
            where none can be held.
        cache_bytes: of frames held for that.
        lifts: what would raise it, most first.
        costs: of a sample.
        supplies: that it was solved for.
        trace: the measurement that samples cost least in.
    """

    samples_per_s: float
    limited_by: Resource | None
    cached_samples_per_s: float | None
    cache_bytes: int
    lifts: tuple[Lift, ...]
    costs: Costs
    supplies: Supplies
    trace: Trace

    def as_dict(self) -> dict[str, Any]:
        """What ``tune --json`` says of it beside the bound itself."""
        return {
            "limited_by": self.limited_by,
            "lifts": [
                {"change": one.change, "samples_per_s": one.samples_per_s} for one in self.lifts
            ],
            "cached_samples_per_s": self.cached_samples_per_s,
            "cache_bytes": self.cache_bytes,
            "trace": self.trace.as_dict(),
        }

    def describe_costs(self) -> str:
        """One line for people: where the time of a sample goes, and the dearest datasets."""
        trace = self.trace
        stages = sorted(trace.stages.items(), key=lambda item: -item[1].cpu_s)
        told = ", ".join(f"{name} {stage.cpu_s * 1e3:.2f}" for name, stage in stages)
        line = f"a sample takes {trace.cpu_s * 1e3:.2f} ms of a processor: {told}"
        if trace.read_bytes:
            line += f"; {format_bytes(trace.read_bytes)} of files"
        if len(trace.datasets) > 1:
            dearest = sorted(trace.datasets.items(), key=lambda item: -item[1])[:_DEAREST]
            line += "; dearest to decode: " + ", ".join(
                f"{name} {cost_s * 1e3:.2f} ms" for name, cost_s in dearest
            )
        return line

    def describe(self, samples_per_s: float | None) -> str:
        """One line for people: how near a rate comes, what limits, and what would lift it."""
        near = "" if samples_per_s is None else f"{samples_per_s / self.samples_per_s:.0%} of "
        lifts = "; ".join(
            f"{one.change}: +{one.samples_per_s - self.samples_per_s:.0f}" for one in self.lifts
        )
        waits = ""
        if self.limited_by != "disk" and self.trace.disk_busy_ratio >= _WAITS_RATIO:
            waits = (
                f"; files were waited for {self.trace.disk_busy_ratio:.0%} of the time, which more "
                "io_threads may make less"
            )
        return (
            f"{near}the bound of {self.samples_per_s:.0f} samples/s, limited by {self.limited_by}"
            + (f"; what would lift it: {lifts}" if lifts else "")
            + waits
        )


def bound_of(
    traces: Sequence[Trace],
    supplies: Supplies,
    cache: Sequence[CacheStep] = (),
    *,
    held_sample_s: float = 0.0,
    chain_saves: float = 0.0,
) -> Bound | None:
    """The bound that these measurements give; ``None`` without any that cost something.

    Args:
        traces: of measurements of one mixture on one machine, whatever their knobs.
        supplies: what there is.
        cache: what holding frames saves; see ``cache_steps``.
        held_sample_s: that the interpreters have for a sample whose frames are held, side by side.
        chain_saves: share of decodes that chained samples would save, 0 to 1.
    """
    known = [trace for trace in traces if trace.samples and trace.cpu_s > 0]
    if not known:
        return None
    cheapest = min(known, key=lambda trace: trace.cpu_s)
    costs = Costs(
        cpu_s=cheapest.cpu_s,
        one_thread_s=min(trace.one_thread_s for trace in known),
        disk_bytes=min(trace.stored_bytes for trace in known),
        cache=tuple(cache),
    )
    alone = solve(costs, replace(supplies, cache_bytes=0.0))
    of_held = replace(costs, one_thread_s=max(costs.one_thread_s, held_sample_s))
    held = solve(of_held, supplies) if cache else None
    gains = held is not None and held.samples_per_s > alone.samples_per_s * (1 + _WORTH_RATIO)
    return Bound(
        samples_per_s=alone.samples_per_s,
        limited_by=alone.limited_by,
        cached_samples_per_s=held.samples_per_s if held and gains else None,
        cache_bytes=round(held.cache_bytes) if held and gains else 0,
        lifts=_lifts(costs, of_held, supplies, cheapest, alone, chain_saves),
        costs=costs,
        supplies=supplies,
        trace=cheapest,
    )


def disk_rate(traces: Iterable[Trace]) -> float | None:
    """Bytes a second of the disk, from the traces that asked it most; ``None``: none waited."""
    told = [
        rate
        for trace in traces
        if trace.disk_busy_ratio >= _DISK_RATIO and (rate := trace.disk_bytes_per_s)
    ]
    return max(told, default=None)


def cache_steps(
    sets: Sequence[FrameSet], left_bytes: int, most_s: float, copy_bytes_per_s: float
) -> tuple[CacheStep, ...]:
    """What holding decoded frames saves, as steps of which each saves less for a byte.

    Args:
        sets: the mixture's frames (``cache.forecast.frame_sets``).
        left_bytes: what the RAM floor leaves; steps go up to twice that.
        most_s: processor seconds of a sample that are saved where all its frames are held. The
            forecast gives the part of it that is saved.
        copy_bytes_per_s: at which a held frame is copied, by one thread.
    """
    every_s = sum(one.uses_per_position * one.decode_s for one in sets)
    whole = sum(one.frames_bytes for one in sets)
    if not left_bytes or every_s <= 0:
        return ()
    points = [(0.0, 0.0)]
    for size in sorted({min(ratio * left_bytes, whole) for ratio in _SIZES if ratio}):
        told = forecast(sets, size)
        saved_s = most_s * told.saved_s / every_s - told.hit_bytes / copy_bytes_per_s
        points.append((size, max(points[-1][1], saved_s)))
    return _concave(points)


def _concave(points: list[tuple[float, float]]) -> tuple[CacheStep, ...]:
    """Steps over the upper hull of (bytes, seconds saved)."""
    hull: list[tuple[float, float]] = []
    for point in points:
        while len(hull) >= 2 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return tuple(CacheStep(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(hull))


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / max(b[0] - a[0], 1.0)


def _lifts(
    costs: Costs,
    of_held: Costs,
    supplies: Supplies,
    trace: Trace,
    alone: Solution,
    chain_saves: float,
) -> tuple[Lift, ...]:
    bare = replace(supplies, cache_bytes=0.0)
    decode = trace.stages.get("decode")
    asked = [
        (
            f"{MORE_CPUS} more cores",
            costs,
            replace(bare, cpus=supplies.cpus + MORE_CPUS),
        ),
        (
            f"{format_bytes(round(supplies.cache_bytes))} of decoded frames held",
            of_held,
            supplies,
        ),
        (
            f"twice the memory for them, {format_bytes(round(2 * supplies.cache_bytes))}",
            of_held,
            replace(supplies, cache_bytes=2 * supplies.cache_bytes),
        ),
    ]
    if decode is not None:
        smaller = replace(costs, cpu_s=costs.cpu_s - 0.75 * decode.cpu_s)
        asked.append(("frames stored at half the width and height", smaller, bare))
        shared = replace(costs, cpu_s=costs.cpu_s - chain_saves * decode.cpu_s)
        asked.append(("samples that share frames (mixing.chain)", shared, bare))
    if supplies.disk_bytes_per_s:
        faster = replace(bare, disk_bytes_per_s=2 * supplies.disk_bytes_per_s)
        asked.append(("a disk twice as fast", costs, faster))
    found = [Lift(what, solve(c, s).samples_per_s) for what, c, s in asked]
    worth = [one for one in found if one.samples_per_s > alone.samples_per_s * (1 + _WORTH_RATIO)]
    return tuple(sorted(worth, key=lambda one: -one.samples_per_s))
