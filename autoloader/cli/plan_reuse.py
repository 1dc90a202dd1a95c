"""What ``autoloader plan`` says of decode reuse: who chains, what is decoded, at what cost.

From the lengths of the episodes, which are estimated where no index has counted them yet.

Not here: the arithmetic (``order.reuse``), the rest of the document (``cli.plan_report``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoloader.order.chains import why_unchained
from autoloader.order.episodes import DatasetTable
from autoloader.order.mixture import mixture_order
from autoloader.order.reuse import Reuse, foretell_reuse
from autoloader.planning.start import LoaderPlan
from autoloader.samples.resolve import ResolvedDataset


def reuse_of(plan: LoaderPlan, tables: Sequence[DatasetTable]) -> Reuse | None:
    """What the plan will decode; ``None`` with the stream reader, which has no plan.

    Args:
        plan: what a loader would start with.
        tables: its datasets.
    """
    if plan.knobs.reader != "indexed":
        return None
    if not all(table.samples for table in tables):
        return None
    order = plan.order
    if order.pass_samples is not None:
        samples = {n: t.samples for n, t in zip(plan.mixture.names, tables, strict=True)}
        order = mixture_order(plan.mixture, samples)
    return foretell_reuse(order, tables, plan.mixture.spec.batch.size)


def reuse_document(plan: LoaderPlan, found: Reuse | None) -> dict[str, Any]:
    """What the document says of the mixture; ``None`` for what the reader leaves open."""
    document: dict[str, Any] = {
        "chain": plan.order.chain,
        "decodes_per_sample": None,
        "distinct_episodes_per_batch": None,
    }
    if found is not None:
        document["distinct_episodes_per_batch"] = found.distinct_episodes
        document["decodes_per_sample"] = sum(
            plan.order.shares[d.index] * found.decodes[d.index] * len(d.cameras)
            for d in plan.mixture.datasets
        )
    return document


def dataset_reuse(
    plan: LoaderPlan, dataset: ResolvedDataset, found: Reuse | None
) -> dict[str, Any]:
    """What the document says of one dataset."""
    if found is None:
        return {"chained": False, "unchained_why": None, "decodes_per_sample": None}
    chained = found.chained[dataset.index]
    why = None
    if plan.order.chain and not chained:
        why = why_unchained(dataset.sample, keeps=dataset.keep is not None)
    decodes = found.decodes[dataset.index] * len(dataset.cameras)
    return {"chained": chained, "unchained_why": why, "decodes_per_sample": decodes}
