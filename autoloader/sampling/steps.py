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

Not here: which sample a position is (``sampling.plan``), who is which rank (``process.ranks``).
"""

from __future__ import annotations

from autoloader.host.frozen import frozen


@frozen
class Ranks:
    """Which of how many trainers.

    Attributes:
        rank: this one, from 0.
        world_size: number of ranks that share the sequence.
    """

    rank: int = 0
    world_size: int = 1


@frozen
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


@frozen
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

    @property
    def steps(self) -> Steps:
        """The steps of all ranks."""
        return Steps(self.batch, self.ranks.world_size, self.drop_last)

    @property
    def even(self) -> bool:
        """True if all steps are full."""
        return self.drop_last or self.batch == 1 or self.epoch_samples is None

    def step(self, number: int) -> tuple[int, int]:
        """The positions [start, stop) of step ``number``, over all ranks."""
        k, steps = number - self.first_number, self.steps
        if self.even or self.epoch_samples is None:
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
