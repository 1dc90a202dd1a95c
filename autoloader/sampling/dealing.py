"""Deals an epoch's positions to steps, and a step's positions to ranks.

    positions   │← base                                               epoch's end →│
    steps       │  0: W·B      │  1: W·B      │ …             │ last: what is left  │
    ranks       │ B │ B │ … │ B │                             │ evenly, none empty  │

Step s of rank r takes positions [(sW + r)B, (sW + r + 1)B), counted from the base: the position
that all ranks of the former world size had reached together. The number of positions of a step
depends only on the number that the epoch still has (``Steps.samples``). So a resume may change
W and B anywhere.

With ``drop_last`` every step takes W·B positions, and what is left of an epoch is carried into the
next one. Without it the last step's positions are dealt evenly. Where they are fewer than ranks,
the step before leaves one for each; where there is no such step, they are carried.

Invariants:
    1. The steps of an epoch are its positions, each once and in order; the ranks' parts of a step
       are the step's positions.
    2. Every rank makes the same number of steps, and no step of a rank is empty.
    3. What is carried is less than W·B with ``drop_last``, less than W without.

The part of each dataset that a rank streams: records, dealt so that no two ranks read one.

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
from dataclasses import dataclass, replace

import numpy as np

from autoloader.errors import SpecError
from autoloader.samples.draws import Bools, Ints
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec import BatchSpec


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which of how many trainers.

    Attributes:
        rank: this one, from 0.
        world_size: number of ranks that share the sequence.
    """

    rank: int = 0
    world_size: int = 1


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that an epoch is dealt in, over all ranks.

    Attributes:
        batch: rows of a full batch.
        world_size: number of ranks that share the sequence.
        drop_last: whether all batches are full.
    """

    batch: int
    world_size: int
    drop_last: bool

    @classmethod
    def of(cls, batch: BatchSpec, world_size: int) -> Steps:
        """The steps of so many ranks."""
        return cls(batch.size, world_size, batch.drop_last)

    @property
    def full(self) -> int:
        """Positions of a full step."""
        return self.batch * self.world_size

    def samples(self, due: int) -> int:
        """Positions of the next step, of an epoch that still has ``due``; 0 where it is over."""
        if due >= 2 * self.full:
            return self.full
        if self.drop_last or self.batch == 1:
            return self.full if due >= self.full else 0
        if due <= self.full:
            return due if due >= self.world_size else 0
        return min(self.full, due - self.world_size)

    def left(self, due: int) -> int:
        """Steps that an epoch of ``due`` positions still has, for every rank."""
        if self.drop_last or self.batch == 1 or due < self.world_size:
            return max(0, due) // self.full
        return -(-due // self.full)


@dataclass(frozen=True, slots=True)
class Deal:
    """The steps of one rank from a base on, in constant time and memory.

    Attributes:
        ranks: rank of this trainer, and the world size.
        batch: rows of a full batch.
        drop_last: whether all batches are full.
        epoch_samples: positions of an epoch; ``None`` is endless.
        base: the position that the first step begins at.
        in_epoch: positions of the epoch that lie behind the base; negative where some were
            carried into it.
        first_number: number of the first step.
    """

    ranks: Ranks
    batch: int
    drop_last: bool
    epoch_samples: int | None
    base: int = 0
    in_epoch: int = 0
    first_number: int = 0

    @classmethod
    def of(cls, order: MixtureOrder, batch: BatchSpec, ranks: Ranks, **at: int) -> Deal:
        """The deal of a mixture's order; ``at``: ``base``, ``in_epoch`` and ``first_number``."""
        return cls(ranks, batch.size, batch.drop_last, order.epoch_samples, **at)

    def step(self, number: int) -> tuple[int, int]:
        """The positions [start, stop) of step ``number``, over all ranks."""
        k = number - self.first_number
        steps = Steps(self.batch, self.ranks.world_size, self.drop_last)
        if self.drop_last or self.batch == 1 or self.epoch_samples is None:
            return self.base + k * steps.full, self.base + (k + 1) * steps.full
        start, due = self.base, self.epoch_samples - self.in_epoch
        if due < steps.world_size:
            due += self.epoch_samples
        if k >= steps.left(due):
            start, due, k = start + due, self.epoch_samples, k - steps.left(due)
            epochs, k = divmod(k, steps.left(due))
            start += epochs * due
        before = min(k * steps.full, due - steps.world_size)
        return start + before, start + before + steps.samples(due - before)

    def positions(self, number: int) -> tuple[int, int]:
        """This rank's positions [start, stop) of step ``number``."""
        start, stop = self.step(number)
        rank, world_size = self.ranks.rank, self.ranks.world_size
        whole = stop - start
        return start + whole * rank // world_size, start + whole * (rank + 1) // world_size

    def rows(self, number: int) -> int:
        """Rows of this rank's batch in step ``number``."""
        start, stop = self.positions(number)
        return stop - start


@dataclass(frozen=True, slots=True)
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
                f"dataset {dataset.name!r} has {own} samples in {records} episodes: too few to be "
                f"streamed by {ranks.world_size} ranks",
                remedy="set reader: indexed, which divides samples among ranks; or use fewer "
                "ranks, or "
                "leave the dataset out",
                path=f"datasets[{dataset.name}]",
            )
