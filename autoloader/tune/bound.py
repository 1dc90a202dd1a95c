"""Highest rate of a loader on a machine, the resource that limits the rate, and what lifts it.

The costs of a sample are those of the cheapest measurement. A rate is at most the number of
processors over the processor seconds of a sample. There are two bounds. One has an empty frame
cache, as in a short measurement. The other has a frame cache of all the memory that the RAM floor
leaves, as in a long run.

Two lifts are estimates: decoding a smaller frame costs as its pixels do, and chained samples cost
as their decodes do.

The model minimises the seconds that pass for a sample, u. No resource gives more in that time than
it has:

    cores      cpus × u         ≥ processor seconds a sample, less what the frame cache saves
    disk       bytes/s × u      ≥ bytes a sample
    one thread u                ≥ seconds a sample of the busiest thread that is always alone
    memory     Σ cached bytes   ≤ bytes that the RAM floor leaves for frames

Each further cached byte saves less, so the savings come as steps from best to worst. Filling the
steps in this order solves the linear programme exactly. Resource-accounted rates as in Plumber
(Kuchnik et al., MLSys 2022), with the cache inside.

Not here: where costs come from (``tune.measurement``), what a cache hits (``cache.forecast``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from autoloader.cache.forecast import HELD_SAMPLE_S, FrameSet, forecast, frame_sets
from autoloader.decode.probe import DecodeCost, probe_copy, probe_decode
from autoloader.host.clock import Clock
from autoloader.host.units import format_bytes
from autoloader.index.counting import quick_tables
from autoloader.process.planning import LoaderPlan
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.mixture import mixture_order
from autoloader.sampling.plan import Reuse, foretell_reuse
from autoloader.tune.measurement import StageCost, Trace

NOISE_RATIO = 0.05
"""Relative difference of two measurements of one knob set; nearer to the bound nothing shows."""

NO_BOUND: dict[str, Any] = {
    "limited_by": None,
    "lifts": [],
    "cached_samples_per_s": None,
    "cache_bytes": 0,
    "trace": None,
}
"""``Bound.as_dict`` where nothing is known."""

_MORE_CPUS = 2
"""Processors more, in the lift that asks for cores."""

_WAITS_RATIO = 0.5
"""Share of the time that files are waited for, from which a disk may be the limit."""

_DISK_RATIO = 0.05
"""Share of the time that a disk is waited for, below which its rate is not known."""

_DEAREST = 3
"""Number of datasets that the line about costs names."""

_WORTH_RATIO = 0.01
"""A smaller lift is left out."""

_SIZES = (0.125, 0.25, 0.5, 1.0, 2.0)
"""Cache sizes of the forecast, as shares of the memory that the floor leaves."""

Resource = Literal["cores", "disk", "one thread"]


@dataclass(frozen=True, slots=True)
class CacheStep:
    """A part of the frame cache.

    Attributes:
        room_bytes: size of the part.
        saved_s: processor seconds that the part saves for each sample when it is full.
    """

    room_bytes: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a sample, by resource.

    Attributes:
        cpu_s: processor seconds, with an empty frame cache.
        one_thread_s: seconds of the busiest of the threads of which there is always one.
        disk_bytes: bytes that come from a disk.
        cache: steps of the frame cache; each saves less for a byte than the one before.
    """

    cpu_s: float
    one_thread_s: float = 0.0
    disk_bytes: float = 0.0
    cache: tuple[CacheStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Supplies:
    """Supply of each resource.

    Attributes:
        cpus: number of processors that may be used.
        disk_bytes_per_s: rate of the disk; ``None``: not known, so no limit.
        cache_bytes: bytes for decoded frames.
    """

    cpus: float
    disk_bytes_per_s: float | None = None
    cache_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Solution:
    """Solution of the linear programme.

    Attributes:
        samples_per_s: the bound; infinite where nothing costs anything.
        cache_bytes: bytes of the frame cache that the bound needs.
        limited_by: the resource that is used up; ``None`` where nothing costs anything.
    """

    samples_per_s: float
    cache_bytes: float
    limited_by: Resource | None


def solve(costs: Costs, supplies: Supplies) -> Solution:
    """Fill the steps of the cache in order while the cores limit the rate."""
    least_s: dict[Resource, float] = {"one thread": costs.one_thread_s}
    if supplies.disk_bytes_per_s:
        least_s["disk"] = costs.disk_bytes / supplies.disk_bytes_per_s
    enough_s = max(least_s.values()) * supplies.cpus
    cpu_s, cached_bytes = costs.cpu_s, 0.0
    for step in costs.cache:
        if step.room_bytes <= 0 or step.saved_s <= 0:
            continue
        room = min(1.0, (supplies.cache_bytes - cached_bytes) / step.room_bytes)
        part = min(room, (cpu_s - enough_s) / step.saved_s)
        if part <= 0:
            break
        cpu_s -= part * step.saved_s
        cached_bytes += part * step.room_bytes
    least_s = {"cores": cpu_s / supplies.cpus, **least_s}
    found_s = max(least_s.values())
    if found_s <= 0:
        return Solution(math.inf, 0.0, None)
    limit = max(least_s, key=lambda name: round(least_s[name] / found_s, 6))  # the first of equals
    return Solution(1.0 / found_s, cached_bytes, limit)


@dataclass(frozen=True, slots=True)
class Lift:
    """One thing that would raise the bound.

    Attributes:
        change: description of the change, for people.
        samples_per_s: the bound with the change.
    """

    change: str
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class Bound:
    """Highest rate that a loader could have, with an empty and with a full frame cache.

    Attributes:
        samples_per_s: the bound with an empty frame cache.
        limited_by: the resource that this bound uses up; ``None``: nothing costs anything.
        cached_samples_per_s: the bound with a full frame cache; ``None`` where there can be none.
        cache_bytes: size of that frame cache.
        lifts: changes that would raise the bound, most first.
        trace: the measurement in which a sample costs least.
    """

    samples_per_s: float
    limited_by: Resource | None
    cached_samples_per_s: float | None
    cache_bytes: int
    lifts: tuple[Lift, ...]
    trace: Trace

    def as_dict(self) -> dict[str, Any]:
        """Fields of ``tune --json`` beside the bound itself."""
        return {
            "limited_by": self.limited_by,
            "lifts": [asdict(lift) for lift in self.lifts],
            "cached_samples_per_s": self.cached_samples_per_s,
            "cache_bytes": self.cache_bytes,
            "trace": self.trace.as_dict(),
        }

    def describe_costs(self) -> str:
        """One line for people: processor milliseconds of a sample, by stage, and of datasets.

        It names the ``_DEAREST`` datasets that are most expensive to decode.
        """
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


CacheModel = Callable[[float], Sequence[CacheStep]]
"""Steps of a frame cache that saves at most so many processor seconds of a sample."""


@dataclass(slots=True)
class Analyst:
    """Collects the traces of a study and computes the bound from them.

    Attributes:
        supplies: supply of each resource for the loader.
        cache: model of the frame cache.
        most_io_threads: highest legal ``io_threads``. A disk gives more when more reads wait, so
            its rate is taken from measurements with this many threads only.
        chain_saves: share of decodes that chained samples would save, 0 to 1.
    """

    supplies: Supplies
    cache: CacheModel = lambda _: ()
    most_io_threads: int = 1
    chain_saves: float = 0.0
    _traces: list[Trace] = field(default_factory=list)
    _disk_rates: list[float] = field(default_factory=list)

    def learn(self, measurement: Mapping[str, Any] | None) -> None:
        """Take over a measurement (``measure --json``); one without a trace changes nothing."""
        if measurement is None or not measurement.get("trace"):
            return
        trace, knobs = Trace.from_plain(measurement["trace"]), measurement.get("knobs") or {}
        if not trace.samples or trace.cpu_s <= 0:
            return
        self._traces.append(trace)
        asks = knobs.get("reader") == "indexed" and knobs["io_threads"] >= self.most_io_threads
        if asks and trace.disk_busy_ratio >= _DISK_RATIO and trace.disk_bytes_per_s:
            self._disk_rates.append(trace.disk_bytes_per_s)

    @property
    def trace(self) -> Trace | None:
        """The cheapest measurement so far."""
        return min(self._traces, key=lambda trace: trace.cpu_s, default=None)

    def near(self, samples_per_s: float | None) -> bool:
        """True if a rate is so close to the bound that no measured difference would mean much."""
        bound = self.bound()
        if bound is None or samples_per_s is None:
            return False
        return samples_per_s >= (1 - NOISE_RATIO) * bound.samples_per_s

    def bound(self, *, held_by: int = 0) -> Bound | None:
        """Highest rate of the loader, by the measurements so far; ``None`` without any.

        Args:
            held_by: decode processes that would use a frame cache; 0: no cache.
        """
        cheapest = self.trace
        if cheapest is None:
            return None
        supplies = replace(self.supplies, disk_bytes_per_s=max(self._disk_rates, default=None))
        steps: Sequence[CacheStep] = ()
        if held_by and cheapest.cpu_s > HELD_SAMPLE_S:  # which no cached frame saves
            steps = self.cache(cheapest.cpu_s - HELD_SAMPLE_S)
        costs = Costs(
            cpu_s=cheapest.cpu_s,
            one_thread_s=min(trace.one_thread_s for trace in self._traces),
            disk_bytes=min(trace.waited_bytes for trace in self._traces),
            cache=tuple(steps),
        )
        # A sample whose frames are cached still needs an interpreter for so long.
        held_s = HELD_SAMPLE_S / max(1, held_by)
        cached = replace(costs, one_thread_s=max(costs.one_thread_s, held_s))
        alone = solve(costs, replace(supplies, cache_bytes=0.0))
        full = solve(cached, supplies) if steps else alone
        gains = full.samples_per_s > alone.samples_per_s * (1 + _WORTH_RATIO)
        return Bound(
            samples_per_s=alone.samples_per_s,
            limited_by=alone.limited_by,
            cached_samples_per_s=full.samples_per_s if gains else None,
            cache_bytes=round(full.cache_bytes) if gains else 0,
            lifts=self._lifts(costs, cached, supplies, alone, cheapest.stages.get("decode")),
            trace=cheapest,
        )

    def _lifts(
        self,
        costs: Costs,
        cached: Costs,
        supplies: Supplies,
        alone: Solution,
        decode: StageCost | None,
    ) -> tuple[Lift, ...]:
        bare = replace(supplies, cache_bytes=0.0)
        twice = replace(supplies, cache_bytes=2 * supplies.cache_bytes)
        more = replace(bare, cpus=supplies.cpus + _MORE_CPUS)
        asked = [
            (f"{_MORE_CPUS} more cores", costs, more),
            (f"{_size(supplies.cache_bytes)} of decoded frames held", cached, supplies),
            (f"twice the memory for them, {_size(twice.cache_bytes)}", cached, twice),
        ]
        if decode is not None:
            smaller = replace(costs, cpu_s=costs.cpu_s - 0.75 * decode.cpu_s)
            asked.append(("frames stored at half the width and height", smaller, bare))
            chained = replace(costs, cpu_s=costs.cpu_s - self.chain_saves * decode.cpu_s)
            asked.append(("samples that share frames (mixing.chain)", chained, bare))
        if supplies.disk_bytes_per_s:
            faster = replace(bare, disk_bytes_per_s=2 * supplies.disk_bytes_per_s)
            asked.append(("a disk twice as fast", costs, faster))
        found = [Lift(change, solve(c, s).samples_per_s) for change, c, s in asked]
        least = alone.samples_per_s * (1 + _WORTH_RATIO)
        worth = [lift for lift in found if lift.samples_per_s > least]
        return tuple(sorted(worth, key=lambda lift: -lift.samples_per_s))


def _size(count: float) -> str:
    return format_bytes(round(count))


def cache_steps(
    sets: Sequence[FrameSet], left_bytes: int, most_s: float, copy_bytes_per_s: float
) -> tuple[CacheStep, ...]:
    """Steps of a frame cache; each saves less for a byte than the one before.

    Args:
        sets: the mixture's frames (``cache.forecast.frame_sets``).
        left_bytes: bytes that the RAM floor leaves; the steps go up to twice as much.
        most_s: processor seconds that a sample saves when all its frames are cached. The forecast
            gives the part of these that a smaller cache saves.
        copy_bytes_per_s: rate of one thread that copies cached frames.
    """
    every_s = sum(one.uses_per_position * one.decode_s for one in sets)
    whole = sum(one.frames_bytes for one in sets)
    if not left_bytes or every_s <= 0:
        return ()
    points = [(0.0, 0.0)]
    for size in sorted({min(ratio * left_bytes, whole) for ratio in _SIZES}):
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


def reuse_of(plan: LoaderPlan, tables: Sequence[DatasetTable]) -> Reuse | None:
    """The decodes of a plan's samples; ``None`` with the stream reader, which has no plan.

    Estimated from the lengths of a few episodes where no index has counted them yet.
    """
    if plan.knobs.reader != "indexed" or not all(table.samples for table in tables):
        return None
    order = plan.order
    if order.pass_samples is not None:
        samples = {n: t.samples for n, t in zip(plan.mixture.names, tables, strict=True)}
        order = mixture_order(plan.mixture, samples)
    return foretell_reuse(order, tables, plan.mixture.spec.batch.size)


def sets_of(
    plan: LoaderPlan,
    tables: Sequence[DatasetTable],
    reuse: Reuse | None,
    costs: Mapping[str, DecodeCost],
    *,
    nodes: int = 1,
) -> tuple[FrameSet, ...]:
    """The frames of a plan's mixture as its cache sees them; empty where none can be held.

    Args:
        plan: plan of the loader.
        tables: episodes of its datasets.
        reuse: decoding work, from ``reuse_of``.
        costs: costs of decoding, by dataset.
        nodes: number of nodes that share the samples evenly; the frames are one node's.
    """
    if reuse is None:
        return ()
    frame_s = {name: cost.frame_s for name, cost in costs.items() if cost.frame_s > 0}
    return frame_sets(plan.mixture, plan.order, tables, reuse, frame_s, nodes=nodes)


def cache_model(plan: LoaderPlan, clock: Clock) -> CacheModel:
    """A model of the frame cache of a plan; the stream reader and data far away hold none.

    Reads a few episodes, and decodes for a second.

    Args:
        plan: plan of the loader.
        clock: times a second of decoding.

    Returns:
        Steps, for so many processor seconds that held frames save of a sample at most.
    """
    tables = quick_tables(plan.mixture.datasets)
    reuse = reuse_of(plan, tables)
    if reuse is None:
        return lambda _: ()
    sets = sets_of(plan, tables, reuse, probe_decode(plan.mixture, clock))
    left_bytes, copy_bytes_per_s = plan.limits.cache_bytes or 0, probe_copy()
    return lambda most_s: cache_steps(sets, left_bytes, most_s, copy_bytes_per_s)
