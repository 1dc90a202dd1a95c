"""Highest rate of a loader on a machine, the resource that limits the rate, and what lifts it.

The costs of a sample are those of the cheapest measurement, with an empty frame cache. No resource
gives more in the time that passes for a sample, u, than it has:

    cores      cpus × u         ≥ processor seconds a sample
    disk       bytes/s × u      ≥ bytes a sample
    one thread u                ≥ seconds a sample of the busiest thread that is always alone

The least such u gives the bound. Resource-accounted rates as in Plumber (Kuchnik et al., MLSys
2022). One lift is an estimate: decoding a smaller frame costs as its pixels do.

Not here: where costs come from (``tune.measurement``), what a frame cache hits (``cli.plan``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autoloader.host.frozen import frozen
from autoloader.host.units import format_bytes
from autoloader.spec.block import adapter
from autoloader.tune.measurement import Trace

NOISE_RATIO = 0.05
"""Relative difference of two measurements of one knob set; nearer to the bound nothing shows."""

_MORE_CPUS = 2
"""Processors more, in the lift that asks for cores."""

_WAITS_RATIO = 0.5
"""Share of the time that files are waited for, from which a disk may be the limit."""

_DISK_RATIO = 0.05
"""Share of the time that a disk is waited for, below which its rate is not known."""

_WORTH_RATIO = 0.01
"""A smaller lift is left out."""

Resource = Literal["cores", "disk", "one thread"]


def solve(seconds: Mapping[Resource, float]) -> tuple[float, Resource | None]:
    """(highest samples a second, resource that is used up then).

    The rate is infinite, and there is no such resource, where nothing costs anything.

    Args:
        seconds: resource → seconds in which all that there is of it does one sample.
    """
    longest_s = max(seconds.values())
    if longest_s <= 0:
        return math.inf, None
    limit = max(seconds, key=lambda name: round(seconds[name] / longest_s, 6))  # first of equals
    return 1.0 / longest_s, limit


@frozen
class Lift:
    """One thing that would raise the bound.

    Attributes:
        change: description of the change, for people.
        samples_per_s: the bound with the change.
    """

    change: str
    samples_per_s: float


@frozen
class Bound:
    """Highest rate that a loader could have, with an empty frame cache.

    Attributes:
        samples_per_s: the bound.
        limited_by: the resource that this bound uses up; ``None``: nothing costs anything.
        lifts: changes that would raise the bound, most first.
        trace: the measurement in which a sample costs least.
    """

    samples_per_s: float
    limited_by: Resource | None
    lifts: tuple[Lift, ...]
    trace: Trace

    def describe_costs(self) -> str:
        """One line for people: processor milliseconds of a sample, by stage."""
        trace = self.trace
        stages = sorted(trace.stages.items(), key=lambda item: -item[1].cpu_s)
        told = ", ".join(f"{name} {stage.cpu_s * 1e3:.2f}" for name, stage in stages)
        line = f"a sample takes {trace.cpu_s * 1e3:.2f} ms of a processor: {told}"
        if trace.read_bytes:
            line += f"; {format_bytes(trace.read_bytes)} of files"
        return line

    def describe(self, samples_per_s: float | None) -> str:
        """One line for people: how near a rate comes, what limits, and what would lift it."""
        lifts = "; ".join(
            f"{one.change}: +{one.samples_per_s - self.samples_per_s:.0f}" for one in self.lifts
        )
        waits = ""
        if self.limited_by != "disk" and self.trace.disk_busy_ratio >= _WAITS_RATIO:
            waits = (
                f"; files were waited for {self.trace.disk_busy_ratio:.0%} of the time, which more "
                "io_threads may make less"
            )
        near = self.near(samples_per_s)
        return f"{near}{f'; what would lift it: {lifts}' if lifts else ''}{waits}"

    def near(self, samples_per_s: float | None) -> str:
        """Words for how near a rate comes."""
        part = "" if samples_per_s is None else f"{samples_per_s / self.samples_per_s:.0%} of "
        return (
            f"{part}the bound of {self.samples_per_s:.0f} samples/s, limited by {self.limited_by}"
        )


@dataclass(slots=True)
class Analyst:
    """Collects the traces of a study and computes the bound from them.

    Attributes:
        cpus: number of processors that the loader may use.
        most_io_threads: highest legal ``io_threads``. A disk gives more when more reads wait, so
            its rate is taken from measurements with this many threads only.
    """

    cpus: float
    most_io_threads: int = 1
    _traces: list[Trace] = field(default_factory=list)
    _disk_rates: list[float] = field(default_factory=list)
    _fastest_per_s: float = 0.0

    def learn(self, measurement: Mapping[str, Any] | None) -> None:
        """Take over a measurement (``measure --json``); one without a trace changes nothing."""
        if measurement is None or not measurement.get("trace"):
            return
        trace, knobs = (
            adapter(Trace).validate_python(measurement["trace"]),
            measurement.get("knobs") or {},
        )
        if not trace.samples or trace.cpu_s <= 0:
            return
        self._traces.append(trace)
        self._fastest_per_s = max(self._fastest_per_s, measurement.get("samples_per_s") or 0.0)
        asks = knobs.get("reader") == "indexed" and knobs["io_threads"] >= self.most_io_threads
        if asks and trace.disk_busy_ratio >= _DISK_RATIO and trace.disk_bytes_per_s:
            self._disk_rates.append(trace.disk_bytes_per_s)

    @property
    def trace(self) -> Trace | None:
        """The cheapest measurement so far."""
        return min(self._traces, key=lambda trace: trace.cpu_s, default=None)

    def near(self, samples_per_s: float | None, within: float = NOISE_RATIO) -> bool:
        """True if a rate is so close to the bound that no measured difference would mean much."""
        bound = self.bound()
        if bound is None or samples_per_s is None:
            return False
        return samples_per_s >= (1 - within) * bound.samples_per_s

    def bound(self) -> Bound | None:
        """Highest rate of the loader, by the measurements so far; ``None`` without any.

        A few batches may come faster than resources allow, since they lay in the ring already.
        """
        cheapest = self.trace
        if cheapest is None:
            return None
        needed: dict[Resource, float] = {"cores": cheapest.cpu_s / self.cpus}
        needed["one thread"] = min(trace.one_thread_s for trace in self._traces)
        lifted: dict[str, dict[Resource, float]] = {
            f"{_MORE_CPUS} more cores": {"cores": cheapest.cpu_s / (self.cpus + _MORE_CPUS)}
        }
        if (pixels := cheapest.stages.get("decode")) is not None and pixels.cpu_s:
            smaller_s = cheapest.cpu_s - 0.75 * pixels.cpu_s
            lifted["frames stored at half the width and height"] = {"cores": smaller_s / self.cpus}
        if self._disk_rates:
            disk_bytes = min(trace.waited_bytes for trace in self._traces)
            needed["disk"] = disk_bytes / max(self._disk_rates)
            lifted["a disk twice as fast"] = {"disk": needed["disk"] / 2}
        rate, limit = solve(needed)
        rate = max(rate, self._fastest_per_s)
        lifts = [Lift(change, solve({**needed, **own})[0]) for change, own in lifted.items()]
        worth = [lift for lift in lifts if lift.samples_per_s > rate * (1 + _WORTH_RATIO)]
        worth.sort(key=lambda lift: -lift.samples_per_s)
        return Bound(rate, limit, tuple(worth), cheapest)
