"""Samples that were handed out: the one source of every restart and resume.

Not here: the cursors themselves (``sampling.cursor``), saving the state (``loader``).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from autoloader.decode.message import BatchMessage, PipelineStart
from autoloader.errors import UsageError
from autoloader.pipeline.read.mixer import MAX_DEBTS
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.cursor import DatasetCursor
from autoloader.sampling.dealing import Ranks, Steps, part_of
from autoloader.sampling.mixture import MixtureOrder, blocks_of_stream

logger = logging.getLogger(__name__)


_MOST_AHEAD = 2 * MAX_DEBTS
"""Batches behind a change of weights after which every rank's mixer has passed it."""


class EvenEpoch(NamedTuple):
    """An epoch of a trainer that counts steps once, and so has as many in each.

    With ``drop_last`` an epoch has a step more where enough was carried into it. Of this trainer's
    all have as many as the first, and each goes on where the last one ended.

    Attributes:
        length: steps of every epoch.
        left: steps left of the current one.
    """

    length: int
    left: int


class DeliveryProgress:
    """Adds up all batches handed out.

    Args:
        mixture: the resolved mixture that is read, over all ranks.
        order: the order of the mixture's samples.
        ranks: rank of the batches, and number of ranks. Places and epochs are those of all ranks
            together: each rank's step stands for the step of all.
        planned: whether the order is planned (indexed reader). Then a position says all, the
            cursors stay at the beginning, and any rank's state is the state of all. Else the
            cursors are of the rank's part, and ``join_states`` joins the states of all ranks.

    Attributes:
        taken: [D] number of samples of each dataset that were handed out.
        non_finite: [D] number of these samples that hold a value that is not finite.
        batches: number of batches handed out since the run began.
        position: number of samples handed out, over all ranks.
        in_epoch: number of these samples that belong to the current epoch.
        epoch_steps: number of steps of the current epoch, so far.
        repeats: batches that were handed out again.
    """

    def __init__(
        self, mixture: ResolvedMixture, order: MixtureOrder, ranks: Ranks, *, planned: bool
    ) -> None:
        self._mixture = mixture
        self._order = order
        self._ranks = ranks
        self._planned = planned
        self._cursors = self._cursors_of(ranks)
        self._mixer: dict[str, Any] | None = None
        self.taken = [0] * len(mixture.datasets)
        self.non_finite = [0] * len(mixture.datasets)
        self.batches = 0
        self.position = 0
        self.in_epoch = 0
        self.epoch_steps = 0
        self.repeats = 0
        self._repeated_from: dict[str, Any] | None = None
        batch = mixture.spec.batch
        self._steps = Steps(batch.size, ranks.world_size, batch.drop_last)

    def _cursors_of(self, ranks: Ranks) -> list[DatasetCursor]:
        """At the beginning of what one of so many ranks reads."""
        own = Ranks() if self._planned else ranks
        return [DatasetCursor.of(part_of(one, own)) for one in self._mixture.datasets]

    @property
    def steps_left(self) -> int | None:
        """Steps that the epoch still has; ``None`` where it is endless."""
        due = self._due
        return None if due is None else self._steps.left(due)

    @property
    def even(self) -> EvenEpoch | None:
        """The epoch of a trainer that counts steps once; ``None``: epochs are endless."""
        samples, due = self._order.epoch_samples, self._due
        if samples is None or due is None:
            return None
        length = max(1, self._steps.left(samples))
        if self._steps.drop_last:
            whole = length * self._steps.full
            due = whole - self.position % whole
        return EvenEpoch(length, self._steps.left(due) or length)

    def next_epoch(self) -> None:
        """The epoch is over; what it could not deal is carried into the next one."""
        self.in_epoch = -(self._due or 0)
        self.epoch_steps = 0

    def deliver(self, filled: BatchMessage, ledger: Sequence[list[int]]) -> None:
        """A batch is handed out; ``ledger`` says row by row which samples it stands for."""
        for place in filled.empties:
            self._cursors[place.dataset].close(place)
        for dataset, pass_, shard, record, _, total in ledger:
            if not self._planned:
                self._cursors[dataset].take(pass_, shard, record, total)
            self.taken[dataset] += 1
        for row in filled.non_finite:
            self._note_non_finite(*ledger[row])
        self.batches = filled.number + 1
        self.position += self._step()
        self._mixer = {"position": self.position} if self._planned else filled.mixer

    def repeat(self) -> None:
        """A batch is handed out again: the epoch goes on, and a state says where it was before."""
        if self._repeated_from is None:
            self._repeated_from = self.state()
        self.repeats += 1
        self._step()

    def _step(self) -> int:
        """Count one more step of the epoch; the number of its samples, over all ranks."""
        due = self._due
        step = self._steps.full if due is None else self._steps.samples(due)
        self.in_epoch += step
        self.epoch_steps += 1
        return step

    def _note_non_finite(
        self, dataset: int, pass_: int, shard: int, record: int, t: int, total: int
    ) -> None:
        self.non_finite[dataset] += 1
        if self.non_finite[dataset] == 1:
            how = self._mixture.spec.errors.non_finite
            logger.warning(
                "dataset %s: the sample at t = %d of record %d of %s holds NaN or an infinite "
                "value in its action or state; each such sample is %s (errors.non_finite: %s) and "
                "counted by statistics()",
                self._mixture.names[dataset],
                t,
                record,
                self._mixture.datasets[dataset].slices[shard].path,
                "handed out as it is" if how == "keep" else "replaced by a repeat of another one",
                how,
            )

    def copy(self) -> DeliveryProgress:
        """A copy that counts on independently."""
        other = copy.copy(self)
        vars(other).update(
            _cursors=[cursor.copy() for cursor in self._cursors],
            taken=list(self.taken),
            non_finite=list(self.non_finite),
        )
        return other

    def share(self, dataset: int) -> float | None:
        """A dataset's share of what was handed out."""
        every = sum(self.taken)
        return self.taken[dataset] / every if every else None

    def start(self) -> PipelineStart:
        """Where a pipeline must begin to go on from here."""
        return PipelineStart(
            tuple(cursor.copy() for cursor in self._cursors),
            self._mixer,
            self.batches,
            self.position,
            self.in_epoch,
        )

    def state(self) -> dict[str, Any]:
        """Plain values."""
        if self._repeated_from is not None:
            return self._repeated_from
        part = {} if self._planned else {"part": [self._ranks.rank, self._ranks.world_size]}
        return {
            **part,
            "position": self.position,
            "in_epoch": self.in_epoch,
            "epoch_steps": self.epoch_steps,
            "batches": self.batches,
            "taken": dict(zip(self._mixture.names, self.taken, strict=True)),
            "mixer": self._mixer,
            "cursors": {
                name: cursor.state()
                for name, cursor in zip(self._mixture.names, self._cursors, strict=True)
            },
        }

    def restore(self, state: Mapping[str, Any], rebased: bool = False) -> None:
        """Go to a saved place; where it is refused, stay.

        Args:
            state: a state, as ``checkpoint.read_state`` returns it.
            rebased: whether the state has other weights or fewer datasets: then the schedule
                begins anew.

        Raises:
            UsageError: the state is of other files, or of a part that is not this rank's.
        """
        if rebased:  # debts may be of datasets that are gone
            parts = {rank: {**part, "mixer": None} for rank, part in _parts_of(state).items()}
            state = {**state, "parts": parts}
        if self._planned:
            self._cursors, self._mixer = self._own(state, self._ranks), state["mixer"]
        else:
            self._cursors, self._mixer = self._of_part(state)
        self._repeated_from = None
        for index, name in enumerate(self._mixture.names):
            self.taken[index] = int(state["taken"].get(name, 0))
        self.batches = int(state["batches"])
        self.position = int(state["position"])
        epoch = self._order.epoch_samples
        # Where epochs have become shorter, this one is over.
        self.in_epoch = min(state["in_epoch"], state["in_epoch"] if epoch is None else epoch)
        self.epoch_steps = int(state["epoch_steps"])

    def _own(self, saved: Mapping[str, Any], ranks: Ranks) -> list[DatasetCursor]:
        """The cursors of one of so many ranks, where they were saved."""
        cursors = self._cursors_of(ranks)
        for name, cursor in zip(self._mixture.names, cursors, strict=True):
            if name in saved["cursors"]:
                try:
                    cursor.restore(saved["cursors"][name])
                except UsageError as error:
                    raise UsageError(f"cursors.{name}: {error.what}", remedy=error.remedy) from None
        return cursors

    def _of_part(
        self, state: Mapping[str, Any]
    ) -> tuple[list[DatasetCursor], dict[str, Any] | None]:
        rank, world_size = state["part"]
        parts = _parts_of(state)
        own = parts.get(str(self._ranks.rank))
        if world_size == self._ranks.world_size and own is not None:
            return self._own(own, self._ranks), own["mixer"]
        if len(parts) < world_size:
            raise UsageError(
                f"this state was saved by rank {rank} of {world_size}, and this is rank "
                f"{self._ranks.rank} of {self._ranks.world_size}: with reader: stream, a rank can "
                "load its own state only",
                remedy="load it on that rank; to load one state on other ranks, save "
                "autoloader.join_states of all ranks' states, or train with reader: indexed",
            )
        others = [
            self._own(parts[str(number)], Ranks(number, world_size)) for number in range(world_size)
        ]
        mine = self._cursors_of(self._ranks)
        most = max(world_size, self._ranks.world_size)
        for index, dataset in enumerate(self._mixture.datasets):
            theirs = [cursors[index] for cursors in others]
            if dataset.records >= most:
                mine[index].take_over(theirs)
            else:  # dealt by samples, then or now: its pass begins again
                mine[index].pass_ = min(cursor.pass_ for cursor in theirs)
        return mine, None

    def as_saved(self, order: MixtureOrder) -> MixtureOrder:
        """An order as a state tells it: from the last change of weights that was reached.

        Streams tell theirs as the mixer that runs was begun with it.
        """
        return order.begun_at(self.position) if self._planned else order

    def told_from_last_change(self, order: MixtureOrder) -> MixtureOrder:
        """An order from the last change of weights on that was reached, wherever debts allow it.

        A stream's mixer counts its blocks from there then: a pipeline must begin anew.
        """
        if self._planned:
            return order.begun_at(self.position)
        reached = [
            one.position
            for one in order.changes
            if one.position + _MOST_AHEAD * self._steps.full * order.block_length <= self.position
        ]
        if not reached:
            return order
        if self._mixer is not None:
            before = blocks_of_stream(order, reached[-1], self._ranks.world_size)
            if self._mixer["next"] < before:
                return order
            self._mixer = {**self._mixer, "next": self._mixer["next"] - before}
        return order.begun_at(reached[-1])

    @property
    def _due(self) -> int | None:
        samples = self._order.epoch_samples
        return None if samples is None else samples - self.in_epoch


def _parts_of(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Parts of a streams' state, one for each rank that it speaks of."""
    rank = (state.get("part") or (0, 1))[0]
    return state.get("parts") or {str(rank): state}
