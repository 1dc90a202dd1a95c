"""What has been handed out, to the sample: the one source of every restart and resume.

Not here: the cursors themselves (``sampling.cursor``), saving the state (``loader``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoloader.runtime.filled import FilledBatch, PipelineStart
from autoloader.sampling.cursor import DatasetCursor
from autoloader.sampling.resolve import ResolvedMixture


class Progress:
    """The fold of all batches handed out.

    Args:
        mixture: what is read.
        planned: whether the order is planned (indexed reader): then a position says all, and the
            cursors stay at the beginning.
    """

    def __init__(self, mixture: ResolvedMixture, *, planned: bool) -> None:
        self._mixture = mixture
        self._planned = planned
        self._cursors = [DatasetCursor.of(dataset) for dataset in mixture.datasets]
        self._mixer: dict[str, Any] | None = None
        self._taken = [0] * len(mixture.datasets)
        self._batches = 0
        self.position = 0
        self.in_epoch = 0

    def deliver(self, filled: FilledBatch, ledger: Any) -> None:
        """A batch is handed out; ``ledger`` [B, 6] says which samples it stands for."""
        for place in filled.empties:
            self._cursors[place.dataset].close(place)
        for dataset, pass_, shard, record, _, total in ledger[: filled.rows].tolist():
            if not self._planned:
                self._cursors[dataset].take(pass_, shard, record, total)
            self._taken[dataset] += 1
        self._mixer = filled.mixer
        self._batches = filled.number + 1
        self.position += filled.rows
        self.in_epoch += filled.rows

    def share(self, dataset: int) -> float | None:
        """A dataset's share of what was handed out."""
        return self._taken[dataset] / self.position if self.position else None

    def start(self) -> PipelineStart:
        """Where a pipeline must begin to go on from here."""
        return PipelineStart(
            tuple(cursor.copy() for cursor in self._cursors), self._mixer, self._batches
        )

    def state(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "position": self.position,
            "in_epoch": self.in_epoch,
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
