"""What holding decoded frames would save in one mixture: read, timed and foretold.

Not here: the forecast (``cache.forecast``), what is made of it (``bound.model``).
"""

from __future__ import annotations

from collections.abc import Callable

from autoloader.bound.model import cache_steps
from autoloader.bound.programme import CacheStep
from autoloader.clock import Clock
from autoloader.decode.probe import probe_copy, probe_decode
from autoloader.index.counting import quick_tables
from autoloader.planning.frame_sets import frame_sets, reuse_of
from autoloader.planning.start import LoaderPlan


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
        costs = probe_decode(plan.mixture, clock)
        sets = frame_sets(plan.mixture, plan.order, tables, reuse, costs)
        return cache_steps(sets, plan.limits.cache_bytes or 0, most_s, probe_copy())

    return steps
