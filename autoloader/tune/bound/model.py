"""The highest rate of a loader on a machine, the resource that limits it, and what lifts it.

The costs of a sample are those of the cheapest trace: no measured rate can pass the processors
over them. Two bounds are told: with no frame held in memory, which is what a short measurement can
reach; and with all the memory that the RAM floor leaves, which a run reaches once frames are shown
again.

What a smaller frame would give is an estimate: decoding costs as its pixels do. So is what chained
samples would give: decoding costs as its decodes do.

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

Not here: where costs come from (``tune.bound.trace``), what a cache hits (``cache.forecast``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from autoloader.tune.bound.trace import Trace

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
        change: description of the change, for people.
        samples_per_s: the bound with the change.
    """

    change: str
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class Bound:
    """Highest rate of the loader.

    Attributes:
        samples_per_s: with no frame held in memory.
        limited_by: the resource that is used up then; ``None``: nothing costs anything.
        cached_samples_per_s: with the memory that the RAM floor leaves full of frames; ``None``
            where none can be held.
        cache_bytes: of frames held for that.
        lifts: what would raise it, most first.
        costs: costs of one sample.
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
        """Fields of ``tune --json`` beside the bound itself."""
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
        supplies: supply of each resource.
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
    """Savings by keeping decoded frames, as steps of which each saves less for a byte.

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
    """Costs of a sample, by resource.

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
    """Supply of each resource.

    Attributes:
        cpus: number of processors that may be used.
        disk_bytes_per_s: of the disk; ``None``: not known, so no limit.
        cache_bytes: bytes for decoded frames.
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


NOISE_RATIO = 0.05
"""Two measurements of one set differ by about this much; nearer the bound nothing can be told."""

CacheModel = Callable[[float], Sequence[CacheStep]]
"""What holding frames saves, where it saves so many processor seconds of a sample at most."""


@dataclass(slots=True)
class Analyst:
    """Keeps the traces of a study.

    Attributes:
        supplies: what there is for the loader.
        cache: what holding frames saves.
        most_io_threads: that may be set. A disk gives more where more is asked of it at a time, so
            its rate is known of measurements with so many only.
        chain_saves: share of decodes that chained samples would save.
    """

    supplies: Supplies
    cache: CacheModel = lambda _: ()
    most_io_threads: int = 1
    chain_saves: float = 0.0
    _traces: list[Trace] = field(default_factory=list)
    _asking: list[Trace] = field(default_factory=list)

    def learn(self, measurement: Mapping[str, Any] | None) -> None:
        """One measurement (``measure --json``); one without a trace says nothing."""
        if measurement is None or not measurement.get("trace"):
            return
        trace, knobs = Trace.from_plain(measurement["trace"]), measurement.get("knobs") or {}
        self._traces.append(trace)
        if knobs.get("reader") == "indexed" and knobs["io_threads"] >= self.most_io_threads:
            self._asking.append(trace)

    @property
    def trace(self) -> Trace | None:
        """The cheapest so far."""
        return min(self._traces, key=lambda trace: trace.cpu_s, default=None)

    def bound(self, *, held_by: int = 0) -> Bound | None:
        """Highest rate of the loader, by the measurements so far.

        Args:
            held_by: ask too what held frames would give with so many decode processes, which takes
                some seconds; 0: not.
        """
        trace = self.trace
        if trace is None:
            return None
        supplies = replace(self.supplies, disk_bytes_per_s=disk_rate(self._asking))
        steps: Sequence[CacheStep] = ()
        if held_by and trace.cpu_s > HELD_SAMPLE_S:  # which no held frame saves
            steps = self.cache(trace.cpu_s - HELD_SAMPLE_S)
        return bound_of(
            self._traces,
            supplies,
            steps,
            held_sample_s=HELD_SAMPLE_S / max(1, held_by),
            chain_saves=self.chain_saves,
        )

    def near(self, samples_per_s: float | None) -> bool:
        """True if a rate is so close to the bound that no trial can be told to be better."""
        bound = self.bound()
        if bound is None or samples_per_s is None:
            return False
        return samples_per_s >= (1 - NOISE_RATIO) * bound.samples_per_s


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
        plan: what the loader starts with.
        tables: episodes of its datasets.
        reuse: decoding work, from ``reuse_of``.
        costs: costs of decoding, by dataset.
        nodes: number of nodes that share the samples evenly; the frames are one node's.
    """
    if reuse is None:
        return ()
    frame_s = {name: cost.frame_s for name, cost in costs.items() if cost.frame_s > 0}
    return frame_sets(plan.mixture, plan.order, tables, reuse, frame_s, nodes=nodes)


def cache_model(plan: LoaderPlan, clock: Clock) -> Callable[[float], tuple[CacheStep, ...]]:
    """A model of the frame cache of a plan; the stream reader and data far away hold none.

    Args:
        plan: what the loader starts with.
        clock: times a second of decoding.

    Returns:
        Steps, for so many processor seconds that held frames save of a sample at most; called once
        or twice, it reads a few episodes each time.
    """

    def steps(most_s: float) -> tuple[CacheStep, ...]:
        tables = quick_tables(plan.mixture.datasets)
        reuse = reuse_of(plan, tables)
        if reuse is None:
            return ()
        sets = sets_of(plan, tables, reuse, probe_decode(plan.mixture, clock))
        return cache_steps(sets, plan.limits.cache_bytes or 0, most_s, probe_copy())

    return steps
