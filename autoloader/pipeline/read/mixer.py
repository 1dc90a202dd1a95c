"""Who is next: follows the schedule, and keeps the debts of datasets that were not ready.

Theory of operation. Block after block the schedule names a dataset. If it is ready, it is next.
Otherwise the mixture waits for it (``wait``), or owes it the block and the schedule continues
(``owe``). Debts reach at most ``MAX_DEBT`` blocks a dataset and ``MAX_DEBTS`` in all; then the
mixture waits. Debts are repaid first, as soon as their dataset is ready, the oldest first. So
shares are off by the debts and no more, and exact again once these are repaid. Where an epoch is
one pass of every dataset, all debts are repaid before the next epoch begins.

Pure: no thread, no clock, no queue; the caller says what is ready.

Invariants:
    1. Taken blocks + debts = scheduled blocks, for every dataset not dropped.
    2. No debt exceeds ``MAX_DEBT``; all together never exceed ``MAX_DEBTS``, so that over any 2,000
       blocks no share is off by more than (16 + share × 32) / 2,000, below one percentage point
       for shares up to 1/8.
    3. ``snapshot`` and ``restore`` are inverse; both are a few numbers.

Not here: the schedule (``sampling.schedule``), queues of samples (``pipeline.read.streams``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autoloader.sampling.mixture import BlockSequence, MixtureOrder

MAX_DEBT = 16
MAX_DEBTS = 32


class Mixer:
    """Walks a mixture's order; used by one thread.

    Args:
        order: shares, phases, block length, epoch.
        names: names of the datasets, by which a snapshot knows them: their numbers may change.
        owe: whether a dataset that is not ready is owed its block (else waited for).
        streams: mixers side by side that share the order's positions (ranks).
    """

    def __init__(
        self, order: MixtureOrder, names: Sequence[str], *, owe: bool, streams: int = 1
    ) -> None:
        self._names = names
        self._sequence = BlockSequence(order, streams)
        self._owe = owe
        self._next = 0
        self._debts: list[tuple[int, int]] = []
        self._dropped: set[int] = set()
        self._left: tuple[int, int] | None = None
        self.waiting_for: int | None = None

    def next(self, ready: Callable[[int, int], bool]) -> int | None:
        """Dataset of the next sample, or ``None`` where the mixture has to wait.

        Args:
            ready: ``ready(dataset, samples)``: whether it has that many samples now.
        """
        if self._left is not None and self._left[0] in self._dropped:
            self._left = None
        if self._left is None:
            self._left = self._next_block(ready)
        if self._left is None:
            return None
        dataset, left = self._left
        if not ready(dataset, 1):
            self.waiting_for = dataset
            return None
        self.waiting_for = None
        self._left = (dataset, left - 1) if left > 1 else None
        return dataset

    def _next_block(self, ready: Callable[[int, int], bool]) -> tuple[int, int] | None:
        if self._dropped:
            self._debts = [owed for owed in self._debts if owed[0] not in self._dropped]
        for at, (dataset, size) in enumerate(self._debts):
            if ready(dataset, size):
                del self._debts[at]
                return dataset, size
        for _ in range(1_000_000):
            if self._debts and self._ends_pass():
                self.waiting_for = self._debts[0][0]
                return None
            dataset, size = self._sequence.block(self._next)
            if dataset in self._dropped:
                self._next += 1
            elif ready(dataset, size):
                self._next += 1
                return dataset, size
            elif self._may_owe(dataset):
                self._debts.append((dataset, size))
                self._next += 1
            else:
                self.waiting_for = dataset
                return None
        raise AssertionError("a schedule without a live dataset")

    def _ends_pass(self) -> bool:
        """True if the next block is an epoch's first, and an epoch is a pass of every dataset."""
        per_epoch = self._sequence.blocks_per_epoch
        return per_epoch is not None and self._next % per_epoch == 0

    def _may_owe(self, dataset: int) -> bool:
        return self._owe and len(self._debts) < MAX_DEBTS and self.debt(dataset) < MAX_DEBT

    def debt(self, dataset: int) -> int:
        """Blocks owed to a dataset."""
        return sum(1 for owed, _ in self._debts if owed == dataset)

    def drop(self, dataset: int) -> None:
        """Go on without a dataset: nothing is owed to it and its blocks are passed over.

        May be called from any thread; heeded from the next ``next`` on.
        """
        self._dropped.add(dataset)

    def snapshot(self) -> dict[str, Any]:
        """The mixer's place, as plain values."""
        owed = [one for one in self._debts if one[0] not in self._dropped]
        return {
            "next": self._next,
            "debts": [[self._names[dataset], size] for dataset, size in owed],
            "left": [self._names[self._left[0]], self._left[1]] if self._left else None,
            "dropped": [self._names[dataset] for dataset in sorted(self._dropped)],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        number, left = self._names.index, state["left"]
        self._next = int(state["next"])
        self._debts = [(number(name), int(size)) for name, size in state["debts"]]
        self._left = (number(left[0]), int(left[1])) if left else None
        self._dropped = {number(name) for name in state["dropped"]}
