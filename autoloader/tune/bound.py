"""The analytical bound: what this host could give if no thread ever waited.

A stage that costs c seconds of processor per sample passes at most cpus / c samples/s, and so does
their sum (resource-accounted rates, as in Plumber, MLSys 2022). The sum is read from the trials
themselves, as processor seconds of the measuring process over its samples; the cheapest trial
gives the bound, since no rate measured beside it can exceed cpus / c.

Not here: the measurement of processor seconds (``measurement``).
"""

from __future__ import annotations

from collections.abc import Iterable


def bound_samples_per_s(cpus: int, costs_cpu_s: Iterable[float | None]) -> float | None:
    """Samples/s that ``cpus`` could give at the lowest cost seen.

    Args:
        cpus: processors the loader may use.
        costs_cpu_s: processor seconds per sample, one per measurement; ``None`` is not measured.

    Returns:
        The bound, or ``None`` when no cost was measured.
    """
    known = [cost for cost in costs_cpu_s if cost is not None and cost > 0]
    return cpus / min(known) if known else None
