"""What ``autoloader plan`` says of decode reuse: who chains, what is decoded, at what cost.

From the lengths of the episodes, some of them estimated where no loader has counted them yet.

Not here: the arithmetic (``index.reuse``), the rest of the document (``cli.plan_report``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autoloader.catalog import episode_lengths
from autoloader.index.chains import why_unchained
from autoloader.index.reuse import Reuse, foretell_reuse
from autoloader.index.table import DatasetTable
from autoloader.planning import LoaderPlan
from autoloader.sampling.keep import valid_t
from autoloader.sampling.order import mixture_order
from autoloader.sampling.resolve import ResolvedDataset


def reuse_of(plan: LoaderPlan) -> Reuse | None:
    """What the plan will decode; ``None`` with the stream reader, which has no plan."""
    if plan.knobs.reader != "indexed":
        return None
    tables = [_table(dataset) for dataset in plan.mixture.datasets]
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


def _table(dataset: ResolvedDataset) -> DatasetTable:
    keep = dataset.keep if dataset.transform is None else None  # else it asks the index
    found = episode_lengths(dataset.slices, dataset.directory.features, probe_only=keep is None)
    slices = [np.full(len(part), number) for number, part in enumerate(found.lengths)]
    records = [np.arange(len(part)) for part in found.lengths]
    steps = np.concatenate(found.lengths)
    known = steps >= 0
    kept = None
    if keep is not None:
        strided = -(-steps[known].astype(np.int64) // dataset.stride)
        rows = np.flatnonzero(known)
        kept, _ = valid_t(keep, dataset.sample, dataset.stride, rows, strided)
    return DatasetTable(
        key=dataset.key,
        sample=dataset.sample,
        stride=dataset.stride,
        steps=steps[known],
        slice_of=np.concatenate(slices)[known].astype(np.int32),
        record_of=np.concatenate(records)[known].astype(np.int64),
        kept=kept,
    )
