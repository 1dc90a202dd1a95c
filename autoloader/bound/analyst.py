"""Follows a study: what its measurements cost, so whether any trial can still win.

Not here: the bound itself (``bound.model``), the study (``tune.study``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoloader.bound.model import Bound, bound_of, disk_rate
from autoloader.bound.programme import CacheStep, Supplies
from autoloader.bound.trace import Trace
from autoloader.cache.forecast import HELD_SAMPLE_S

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
        """How fast the loader can be at most, by what was measured so far.

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
        """Whether a rate is so close to the bound that no trial can be told to be better."""
        bound = self.bound()
        if bound is None or samples_per_s is None:
            return False
        return samples_per_s >= (1 - NOISE_RATIO) * bound.samples_per_s
