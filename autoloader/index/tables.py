"""The plan over what indexes hold: their episodes as the plan wants to know them.

Not here: the plan (``order.plan``), the indexes (``index.dataset``).
"""

from __future__ import annotations

from collections.abc import Sequence

from autoloader.errors import SourceError
from autoloader.index.dataset import DatasetIndex
from autoloader.order.mixture import MixtureOrder
from autoloader.order.plan import SamplePlan
from autoloader.order.table import DatasetTable
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture


def table_of(dataset: ResolvedDataset, index: DatasetIndex) -> DatasetTable:
    """What the plan needs to know of a dataset."""
    return DatasetTable(
        key=dataset.key,
        sample=dataset.sample,
        stride=dataset.stride,
        steps=index.steps,
        slice_of=index.slice_of,
        record_of=index.record_of,
        kept=index.kept(),
    )


def plan_of(
    mixture: ResolvedMixture, order: MixtureOrder, indexes: Sequence[DatasetIndex]
) -> SamplePlan:
    """The plan over what the indexes hold.

    Raises:
        SourceError: they are not of the files that ``order`` was made of.
    """
    tables = [table_of(d, index) for d, index in zip(mixture.datasets, indexes, strict=True)]
    if order.pass_samples is not None:
        for dataset, table, counted in zip(
            mixture.datasets, tables, order.pass_samples, strict=True
        ):
            check_count(dataset, table.samples, counted)
    return SamplePlan(order, tables, chain=order.chain)


def check_count(dataset: ResolvedDataset, samples: int, counted: int) -> None:
    """Refuse to go on with a pass of another length than the run was begun with.

    Args:
        dataset: whose pass.
        samples: that its files give now.
        counted: that they gave when the run was planned.

    Raises:
        SourceError: the files were changed in between.
    """
    if samples != counted:
        raise SourceError(
            f"dataset {dataset.name!r}: its files give {samples} samples and gave {counted} when "
            "this run was planned: they were changed, and an epoch is one pass of them",
            remedy="put the files back as they were, or start the run anew",
            dataset=dataset.name,
        )
