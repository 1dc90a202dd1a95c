"""Whole steps of one kind: robots or image–text, in an exact schedule of steps.

    steps        0       1       2       3       4    …     by the kinds' shares
    kind         robots  robots  texts   robots  robots
    positions    └─W·B─┘ └─W·B─┘ └─W·B─┘ …                  within: by the datasets' shares

The steps are those of ``sampling.steps``, of all ranks together: so all ranks have the same kind.
A schedule of steps deals them to kinds. Each kind counts its own positions, which a schedule of its
datasets deals. Both are reached without walking. Where the last steps of an epoch are short, what
they lack is counted epoch by epoch, and kept.

Invariants:
    1. All samples of a step are of datasets of one kind.
    2. At any step every kind is within one step of its share. At any position of a kind every
       dataset is within one sample of its share of the kind.
    3. The first, second and fourth invariants of ``schedule``. ``places`` says where a sample is
       due, as of drawn turns; without short steps it is the inverse of ``numbered``.

Not here: other orders (``mixture``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autoloader.host.frozen import frozen
from autoloader.samples.draws import Ints
from autoloader.sampling.schedule import Schedule
from autoloader.sampling.steps import Deal, Ranks


@frozen
class KindsOfSteps:
    """Kinds of datasets, and the steps that are of one kind.

    Attributes:
        kinds: [D] kind of each dataset, from 0.
        batch, world_size, drop_last: as of ``Steps``.
        epoch_samples: samples of an epoch over all ranks; ``None``: the epoch is endless.
        in_epoch: positions of the epoch that lie before the first step.
    """

    kinds: tuple[int, ...]
    batch: int
    world_size: int
    drop_last: bool
    epoch_samples: int | None
    in_epoch: int = 0

    @property
    def deal(self) -> Deal:
        """The steps, from position 0 on."""
        return Deal(
            Ranks(0, self.world_size), self.batch, self.drop_last, self.epoch_samples,
            in_epoch=self.in_epoch,
        )  # fmt: skip

    def after(self, positions: int) -> KindsOfSteps:
        """The kinds of the steps behind so many positions, at which a step begins."""
        reached = self.in_epoch + positions
        epoch = self.epoch_samples
        return replace(self, in_epoch=reached if epoch is None else reached % epoch)


class KindSchedule(Schedule):
    """Positions dealt to datasets, whole steps to one kind.

    Args:
        shares, phases: as of ``Schedule``.
        steps: the steps, and the kinds of the datasets.
    """

    def __init__(
        self, shares: Sequence[float], phases: Sequence[float], steps: KindsOfSteps
    ) -> None:
        own, self._kinds = np.asarray(shares, np.float64), np.asarray(steps.kinds, np.int64)
        self.deals, self.length = own > 0, None
        self._deal = steps.deal
        self._full = self._deal.steps.full
        masks = [self._kinds == kind for kind in range(int(self._kinds.max()) + 1)]
        totals = [float(own[mask].sum()) for mask in masks]
        firsts = [phases[int(np.flatnonzero(mask)[0])] if mask.any() else 0.0 for mask in masks]
        self._turns = Schedule(totals, firsts)
        self._within = [
            Schedule(np.where(mask, own, 0), phases) if total else None  # type: ignore[arg-type]
            for mask, total in zip(masks, totals, strict=True)
        ]
        self._even, epoch = self._deal.even, steps.epoch_samples or 1
        self._mean = self._full if self._even else epoch / self._deal.steps.left(epoch)
        # (step, kind, positions that it lacks) of short steps, up to step ``_looked``.
        self._short = np.empty((0, 3), np.int64)
        self._looked = 0

    def _step_at(self, position: int) -> int:
        """Number of the step that a position lies in."""
        low = position // self._full
        if self._even:
            return low
        high = int(position / self._mean) + 4
        while low < high:
            middle = (low + high + 1) // 2
            if self._deal.step(middle)[0] <= position:
                low = middle
            else:
                high = middle - 1
        return low

    def _before(self, step: int) -> Ints:
        """[K] positions of each kind before a step."""
        found = self._turns.counts_before(step) * self._full
        if self._even:
            return found
        if step > self._looked:
            self._look(step)
        short = self._short[self._short[:, 0] < step]
        np.subtract.at(found, short[:, 1], short[:, 2])
        return found

    def _look(self, step: int) -> None:
        """Note the short steps up to ``step``: the last two of an epoch may be."""
        rows = [self._short]
        while self._looked < step:
            (start, _), steps = self._deal.step(self._looked), self._deal.steps
            epoch = self._deal.epoch_samples or 1
            due = epoch - (self._deal.in_epoch + start) % epoch
            last = self._looked + steps.left(due if due >= steps.world_size else due + epoch)
            for one in range(max(self._looked, last - 2), last):
                begin, end = self._deal.step(one)
                kind = int(self._turns.blocks(one, one + 1)[0])
                rows.append(np.asarray([[one, kind, self._full - (end - begin)]], np.int64))
            self._looked = last
        self._short = np.concatenate(rows)

    def numbered(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """See ``Schedule.numbered``."""
        found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        if stop > start:
            step = self._step_at(start)
            before = self._before(step)
            kinds = self._turns.blocks(step, self._step_at(stop - 1) + 1).tolist()
            for number, kind in enumerate(kinds, start=step):
                begin, end = self._deal.step(number)
                first, last = max(start, begin) - begin, min(stop, end) - begin
                within = self._within[kind]
                assert within is not None
                at = int(before[kind])
                found.append(within.numbered(at + first, at + last))
                before[kind] += end - begin
        datasets, numbers = zip(*found, strict=True)
        return np.concatenate(datasets), np.concatenate(numbers)

    def counts_before(self, position: int) -> Ints:
        """See ``Schedule.counts_before``."""
        step = self._step_at(max(0, position))
        before = self._before(step)
        before[int(self._turns.blocks(step, step + 1)[0])] += position - self._deal.step(step)[0]
        found = np.zeros(len(self._kinds), np.int64)
        for within, count in zip(self._within, before.tolist(), strict=True):
            if within is not None:
                found += within.counts_before(count)
        return found

    def places(self, dataset: Ints, number: Ints) -> Ints:
        """See ``Schedule.places``."""
        found = np.empty(len(dataset), np.int64)
        for kind, within in enumerate(self._within):
            at = np.flatnonzero(self._kinds[dataset] == kind)
            if within is None or not len(at):
                continue
            place = within.places(dataset[at], number[at])
            nth = (place / self._mean).astype(np.int64) if not self._even else place // self._full
            step = self._turns.places(np.full(len(at), kind, np.int64), nth)
            found[at] = (step * self._mean).astype(np.int64) + place % self._full
        return found
