"""The part of each dataset that a rank streams, positions of a node, and rounds of batches.

Records are dealt so that no two ranks read one.

A stream's order hangs on timing, so no rank could know what another one took; each has records of
its own instead. A dataset's records, in the order of its shards, are cut into W pieces of equal
length: mostly whole shards, so that a rank opens, and a node reads, its own files and those at the
two cuts. Where a dataset has fewer records than ranks, every rank reads all of them and takes every
W-th sample of each (``turn``).

Numbers of shards and records stay those of the whole dataset, and so do all keyed draws.

Invariants:
    1. The parts of W ranks are disjoint, and together the whole.
    2. With one rank the part is the whole.

Not here: which sample a position is (``sampling.plan``), who is which rank (``process.ranks``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autoloader.errors import SpecError, many
from autoloader.host.frozen import frozen
from autoloader.samples.draws import Bools, Ints
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.mixture import MixtureOrder
from autoloader.sampling.steps import Deal as Deal
from autoloader.sampling.steps import Ranks as Ranks
from autoloader.sampling.steps import Steps as Steps


@frozen
class NodePart:
    """Which positions a node shows, told as if every step were full and ranks numbered by node.

    Attributes:
        base: position at which the deal began.
        batch: rows of a full batch.
        first: rank, the lowest of the node.
        here: ranks of the node.
        world_size: number of ranks that share the sequence.
    """

    base: int
    batch: int
    first: int
    here: int
    world_size: int

    @classmethod
    def of(cls, deal: Deal, here: int) -> NodePart | None:
        """The part of the node of a rank, one of ``here``; ``None`` where there is no other."""
        ranks = deal.ranks
        if ranks.world_size <= here:
            return None
        return cls(deal.base, deal.batch, ranks.rank // here * here, here, ranks.world_size)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return -(-self.world_size // self.here)

    def shows(self, position: Ints) -> Bools:
        """[n] whether the node shows each position."""
        rank = (position - self.base) // self.batch % self.world_size
        return np.asarray((rank >= self.first) & (rank < self.first + self.here))


class Rounds:
    """A rank's batches in rounds, for batch builders side by side; for one thread at a time.

    A round is a run of whole batches for each builder. The round's batches go to the builders in
    turn. So all work on neighbouring batches, a short ring keeps every one of them busy, and each
    reads many samples together. Which builder makes a batch has no influence on what is in it.

    In the first round each builder makes one batch, so that the first batch waits for no other.
    Each further round is as long as all before it, up to what is asked for.

    Args:
        deal: positions that each batch takes.
    """

    def __init__(self, deal: Deal) -> None:
        self._deal = deal
        self._number = deal.first_number
        self._begun = 0

    def next(self, builders: int, samples: int) -> list[list[tuple[int, int]]]:
        """The positions [start, stop) of each builder's batches; batch k is builder k mod n's.

        Args:
            builders: number of batch builders.
            samples: least samples of a builder's run, once begun.
        """
        dealt: list[list[tuple[int, int]]] = [[] for _ in range(builders)]
        dealt_samples, wanted = 0, min(samples * builders, max(1, self._begun))
        while dealt_samples < wanted:
            for own in dealt:
                own.append(self._deal.positions(self._number))
                dealt_samples += own[-1][1] - own[-1][0]
                self._number += 1
        self._begun += dealt_samples
        return dealt


def part_of(dataset: ResolvedDataset, ranks: Ranks) -> ResolvedDataset:
    """Part of a dataset that one rank streams."""
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
    """Part of a mixture that one rank streams."""
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
        mixture: the whole mixture, before it is shared.
        samples: number of samples of a pass of each dataset.
        ranks: rank of this trainer, and the world size.

    Raises:
        SpecError: a dataset has too few episodes; says which one.
    """
    for dataset in mixture.datasets:
        records, own = dataset.records, samples[dataset.name]
        if records < ranks.world_size and own <= records * (ranks.world_size - 1):
            raise SpecError(
                f"dataset {dataset.name!r} has {many(own, 'sample')} in "
                f"{many(records, 'episode')}: too few to be streamed by {ranks.world_size} ranks",
                remedy="set reader: indexed, which divides samples among ranks; or use fewer "
                "ranks, or leave the dataset out",
                path=f"datasets[{dataset.name}]",
            )
