"""The part of each dataset that a rank streams: records, dealt so that no two ranks read one.

A stream's order hangs on timing, so no rank could know what another one took; each has records of
its own instead. A dataset's records, in the order of its shards, are cut into W pieces of equal
length: mostly whole shards, so that a rank opens, and a node reads, its own files and those at the
two cuts. Where a dataset has fewer records than ranks, every rank reads all of them and takes every
W-th sample of each (``turn``).

Numbers of shards and records stay those of the whole dataset, and so do all keyed draws.

Invariants:
    1. The parts of W ranks are disjoint, and together the whole.
    2. With one rank the part is the whole.

Not here: positions (``dealing``), which the indexed reader deals instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoloader.errors import SpecError
from autoloader.order.dealing import Ranks
from autoloader.order.mixture import MixtureOrder
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture


def part_of(dataset: ResolvedDataset, ranks: Ranks) -> ResolvedDataset:
    """What one rank streams of a dataset."""
    rank, world_size = ranks.rank, ranks.world_size
    if world_size == 1:
        return dataset
    records = dataset.records
    if records < world_size:
        return replace(dataset, turn=(rank, world_size))
    first, stop = records * rank // world_size, records * (rank + 1) // world_size
    slices, before = [], 0
    for piece in dataset.slices:
        length = piece.stop - piece.start
        begin = piece.start + min(max(first - before, 0), length)
        end = piece.start + min(max(stop - before, 0), length)
        slices.append(replace(piece, start=begin, stop=end))
        before += length
    return replace(dataset, slices=tuple(slices))


def mixture_part(mixture: ResolvedMixture, ranks: Ranks) -> ResolvedMixture:
    """What one rank streams of a mixture."""
    if ranks.world_size == 1:
        return mixture
    return replace(mixture, datasets=tuple(part_of(one, ranks) for one in mixture.datasets))


def order_of_part(order: MixtureOrder, ranks: Ranks) -> MixtureOrder:
    """The order that a rank mixes its part by: the same shares, without end.

    The parts of a pass differ in length, and all ranks make the same number of steps. So a rank
    that is through its part goes on with its next pass.
    """
    return order if ranks.world_size == 1 else replace(order, pass_samples=None)


def check_parts(mixture: ResolvedMixture, samples: Mapping[str, int], ranks: Ranks) -> None:
    """Refuse a dataset that has nothing for some rank.

    Args:
        mixture: the whole.
        samples: of a pass of each dataset.
        ranks: who shares it.

    Raises:
        SpecError: names the dataset and what it has.
    """
    for dataset in mixture.datasets:
        records, own = dataset.records, samples[dataset.name]
        if records < ranks.world_size and own <= records * (ranks.world_size - 1):
            raise SpecError(
                f"dataset {dataset.name!r} has {own} samples in {records} episodes: too few to be "
                f"streamed by {ranks.world_size} ranks",
                remedy="reader: indexed, which deals samples; or fewer ranks, or leave it out",
                path=f"datasets[{dataset.name}]",
            )
