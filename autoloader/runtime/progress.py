"""What has been handed out, to the sample: the one source of every restart and resume.

Not here: the cursors themselves (``sampling.cursor``), saving the state (``loader``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from autoloader.runtime.filled import FilledBatch, PipelineStart
from autoloader.sampling.cursor import DatasetCursor
from autoloader.sampling.dealing import Ranks, epoch_steps, step_samples
from autoloader.sampling.order import MixtureOrder
from autoloader.sampling.resolve import ResolvedMixture


class _Dealt(TypedDict):
    batch: int
    world_size: int
    drop_last: bool


class Progress:
    """The fold of all batches handed out.

    Args:
        mixture: what is read.
        order: its order.
        ranks: whose batches they are. Places and epochs are those of all ranks together: each
            rank's step stands for the step of all, and any rank's state is the state of all.
        planned: whether the order is planned (indexed reader): then a position says all, and the
            cursors stay at the beginning.
    """

    def __init__(
        self, mixture: ResolvedMixture, order: MixtureOrder, ranks: Ranks, *, planned: bool
    ) -> None:
        self._mixture = mixture
        self._order = order
        self._ranks = ranks
        self._planned = planned
        self._cursors = [DatasetCursor.of(dataset) for dataset in mixture.datasets]
        self._mixer: dict[str, Any] | None = None
        self._taken = [0] * len(mixture.datasets)
        self._batches = 0
        self.position = 0
        self.in_epoch = 0
        self.epoch_steps = 0

    @property
    def steps_left(self) -> int | None:
        """Steps that the epoch still has; ``None`` where it is endless."""
        due = self._due
        return None if due is None else epoch_steps(due, **self._dealt)

    def next_epoch(self) -> None:
        """The epoch is over; what it could not deal is carried into the next one."""
        self.in_epoch = -(self._due or 0)
        self.epoch_steps = 0

    def deliver(self, filled: FilledBatch, ledger: Any) -> None:
        """A batch is handed out; ``ledger`` [B, 6] says which samples it stands for."""
        for place in filled.empties:
            self._cursors[place.dataset].close(place)
        for dataset, pass_, shard, record, _, total in ledger[: filled.rows].tolist():
            if not self._planned:
                self._cursors[dataset].take(pass_, shard, record, total)
            self._taken[dataset] += 1
        due = self._due
        self._batches = filled.number + 1
        step = self._full if due is None else step_samples(due, **self._dealt)
        self.position += step
        self.in_epoch += step
        self.epoch_steps += 1
        self._mixer = {"position": self.position} if self._planned else filled.mixer

    def share(self, dataset: int) -> float | None:
        """A dataset's share of what was handed out."""
        every = sum(self._taken)
        return self._taken[dataset] / every if every else None

    def start(self) -> PipelineStart:
        """Where a pipeline must begin to go on from here."""
        return PipelineStart(
            tuple(cursor.copy() for cursor in self._cursors),
            self._mixer,
            self._batches,
            self.position,
            self.in_epoch,
        )

    def state(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "position": self.position,
            "in_epoch": self.in_epoch,
            "epoch_steps": self.epoch_steps,
            "batches": self._batches,
            "taken": dict(zip(self._mixture.names, self._taken, strict=True)),
            "mixer": self._mixer,
            "cursors": {
                name: cursor.state()
                for name, cursor in zip(self._mixture.names, self._cursors, strict=True)
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a saved place."""
        for index, name in enumerate(self._mixture.names):
            self._cursors[index].restore(state["cursors"][name])
            self._taken[index] = int(state["taken"][name])
        self._mixer = state["mixer"]
        self._batches = int(state["batches"])
        self.position = int(state["position"])
        self.in_epoch = int(state["in_epoch"])
        self.epoch_steps = int(state["epoch_steps"])

    @property
    def _due(self) -> int | None:
        samples = self._order.epoch_samples
        return None if samples is None else samples - self.in_epoch

    @property
    def _full(self) -> int:
        return self._mixture.spec.batch.size * self._ranks.world_size

    @property
    def _dealt(self) -> _Dealt:
        batch = self._mixture.spec.batch
        return {
            "batch": batch.size,
            "world_size": self._ranks.world_size,
            "drop_last": batch.drop_last,
        }
