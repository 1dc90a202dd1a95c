"""What holding decoded frames would save in one mixture: read, timed and forecast.

Not here: the forecast (``cache.forecast``), what is made of it (``bound.model``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autoloader.bound.model import cache_steps
from autoloader.bound.programme import CacheStep
from autoloader.cache.forecast import FrameSet, frame_sets
from autoloader.clock import Clock
from autoloader.decode.probe import DecodeCost, probe_copy, probe_decode
from autoloader.index.counting import quick_tables
from autoloader.order.episodes import DatasetTable
from autoloader.order.mixture import mixture_order
from autoloader.order.reuse import Reuse, foretell_reuse
from autoloader.planning.start import LoaderPlan


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
        reuse: of ``reuse_of``.
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
