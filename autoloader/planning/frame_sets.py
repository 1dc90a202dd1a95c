"""The frames of a mixture as a cache sees them: how many, how often shown, how large, how dear.

Not here: what a cache does with them (``cache.forecast``), what decoding costs (``decode.probe``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autoloader.cache.forecast import FrameSet
from autoloader.cache.shown import frames_by_uses, of_blocks
from autoloader.decode.probe import DecodeCost
from autoloader.order.episodes import DatasetTable, valid_counts
from autoloader.order.mixture import MixtureOrder, mixture_order
from autoloader.order.reuse import Reuse, foretell_reuse
from autoloader.planning.start import LoaderPlan
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture


def reuse_of(plan: LoaderPlan, tables: Sequence[DatasetTable]) -> Reuse | None:
    """What the plan will decode; ``None`` with the stream reader, which has no plan.

    Estimated from the lengths of a few episodes where no index has counted them yet.
    """
    if plan.knobs.reader != "indexed" or not all(table.samples for table in tables):
        return None
    order = plan.order
    if order.pass_samples is not None:
        samples = {n: t.samples for n, t in zip(plan.mixture.names, tables, strict=True)}
        order = mixture_order(plan.mixture, samples)
    return foretell_reuse(order, tables, plan.mixture.spec.batch.size)


def frame_sets(
    mixture: ResolvedMixture,
    order: MixtureOrder,
    tables: Sequence[DatasetTable],
    reuse: Reuse,
    costs: Mapping[str, DecodeCost],
    *,
    nodes: int = 1,
) -> tuple[FrameSet, ...]:
    """The frames of every camera of every dataset with a share; of choices each on its own.

    Args:
        mixture: the datasets and cameras.
        order: their shares.
        tables: their episodes.
        reuse: what chained samples decode.
        costs: seconds of a decode, by dataset. One without gets the mean of the others; without
            any there are no sets.
        nodes: that share the samples evenly; the sets are one node's.
    """
    seconds = {
        name: cost.decode_s / cost.frames
        for name, cost in costs.items()
        if cost.frames and cost.decode_s > 0
    }
    if not seconds:
        return ()
    mean_s = sum(seconds.values()) / len(seconds)
    return tuple(
        one
        for dataset, table in zip(mixture.datasets, tables, strict=True)
        if order.shares[dataset.index]
        for one in _of_dataset(
            mixture, dataset, table, order, reuse, seconds.get(dataset.name, mean_s), nodes
        )
    )


def _of_dataset(
    mixture: ResolvedMixture,
    dataset: ResolvedDataset,
    table: DatasetTable,
    order: MixtureOrder,
    reuse: Reuse,
    decode_s: float,
    nodes: int,
) -> Iterator[FrameSet]:
    number, goals = dataset.index, float(table.sample.goal != "none")
    shown = frames_by_uses(table)
    if reuse.chained[number]:
        shown = of_blocks(shown, (reuse.decodes[number] - goals) * table.samples)
    drawn = table.samples / int(valid_counts(table).sum())
    for camera, choices in dataset.cameras.items():
        for _ in choices:
            yield FrameSet(
                dataset=dataset.name,
                camera=camera,
                share=order.shares[number],
                samples=table.samples,
                shown=shown,
                frame_bytes=mixture.layout.frame_bytes[camera],
                decode_s=decode_s,
                chance=drawn / len(choices) / nodes,
                goals=goals / len(choices) / nodes,
            )
