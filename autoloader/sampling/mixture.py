"""The order of a mixture: its shares, its epochs, and which dataset gives each block.

Not here: the low-discrepancy schedule itself (``schedule``), shares that change on the way
(``legs``), debts (``pipeline.read.mixer``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SpecError
from autoloader.samples.draws import PURPOSE_CHOICE, PURPOSE_PHASE, dataset_key, fold, unit
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.local import LanedSequence, Locality, locality_of
from autoloader.sampling.schedule import (
    NEVER,
    Change,
    Curriculum,
    DrawnSchedule,
    Leg,
    Schedule,
    block_start,
    legs_of,
    shares_on_the_way,
)
from autoloader.spec import CurriculumSpec

_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class MixtureOrder:
    """Parameters of a mixture's order.

    Attributes:
        shares: [D] share of each dataset, summing to 1.
        phases: [D] in [0, 1).
        block_length: samples in a row from one dataset.
        pass_samples: [D] samples of a pass where an epoch is one pass of every dataset, else
            ``None``.
        epoch_samples: samples of an epoch over all ranks; ``None`` is forever.
        chain: the samples of a block share frames where their offsets allow it.
        base: the position that this order begins at; those before it were of another one.
        given: [D] samples that each dataset had given by then; empty where none.
        draw_key: of the draws where the datasets' turns are drawn (``strategy: sample``).
        curriculum: where the shares move to; ``None``: they do not move.
        changes: shares that were set while running, from their positions on, in order. They end a
            curriculum. None where an epoch is one pass of every dataset.
        locality: how near to each other samples are stored that follow each other; ``None``: any
            sample of a dataset may follow any other.
    """

    shares: tuple[float, ...]
    phases: tuple[float, ...]
    block_length: int
    pass_samples: tuple[int, ...] | None
    epoch_samples: int | None
    chain: bool = False
    base: int = 0
    given: tuple[int, ...] = ()
    draw_key: int | None = None
    curriculum: Curriculum | None = None
    changes: tuple[Change, ...] = ()
    locality: Locality | None = None

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> MixtureOrder:
        """An order from ``dataclasses.asdict`` of one that went through JSON."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in plain.items()
        }
        if (moves := fields.get("curriculum")) is not None:
            fields["curriculum"] = Curriculum(tuple(moves["to"]), moves["over"])
        fields["changes"] = tuple(
            Change(one["position"], tuple(one["shares"])) for one in fields.get("changes", ())
        )
        if (near := fields.get("locality")) is not None:
            fields["locality"] = Locality(**{**near, "blocks": tuple(near["blocks"])})
        return cls(**fields)

    @property
    def lanes(self) -> int:
        """Lanes that batches take turns in; 1 is none."""
        return 1 if self.locality is None else self.locality.lanes

    def laned(self) -> LanedSequence:
        """Its sequence, where there are lanes."""
        assert self.locality is not None
        make = Schedule if self.draw_key is None else partial(DrawnSchedule, key=self.draw_key)
        by_pass = self.pass_samples is not None
        return LanedSequence(
            lanes=self.lanes,
            batch=self.locality.batch,
            block_length=self.block_length,
            legs=() if by_pass else self.legs(),
            pass_samples=self.pass_samples,
            make=lambda counts: make(counts, self.phases, finite=counts),
        )

    def legs(self) -> tuple[Leg, ...]:
        """Its schedules, one behind the other, where epochs are not passes."""
        assert self.pass_samples is None
        return legs_of(
            base=self.base,
            given=self.given,
            shares=self.shares,
            phases=self.phases,
            block_length=self.block_length,
            curriculum=self.curriculum,
            changes=self.changes,
            draw_key=self.draw_key,
        )

    def samples_before(self, position: int) -> tuple[int, ...]:
        """[D] samples of each dataset before ``position``, where epochs are not passes.

        With lanes, of a position at which shares may change (``changed``).
        """
        if self.lanes > 1:
            return self.laned().samples_before(position)
        leg = [leg for leg in self.legs() if leg.start <= position][-1]
        blocks, left = divmod(position - leg.start, self.block_length)
        counts = leg.given + leg.schedule.counts_before(blocks) * self.block_length
        if left:
            counts[leg.schedule.blocks(blocks, blocks + 1)[0]] += left
        return tuple(counts.tolist())

    @property
    def used(self) -> tuple[bool, ...]:
        """[D] whether a dataset gives samples anywhere in it."""
        if self.pass_samples is not None:
            return tuple(samples > 0 for samples in self.pass_samples)
        every = [self.shares, *(one.shares for one in self.changes)]
        if self.curriculum is not None:
            every.append(self.curriculum.to)
        return tuple(any(shares) for shares in zip(*every, strict=True))

    def shares_at(self, position: int) -> tuple[float, ...]:
        """[D] the shares that hold at ``position``."""
        reached = [one.shares for one in self.changes if one.position <= position]
        if self.curriculum is None or reached:
            return reached[-1] if reached else self.shares
        return shares_on_the_way(self.shares, self.curriculum, position)

    def from_position(self, position: int) -> MixtureOrder:
        """The order that begins anew at ``position``, and deals from there what this one would."""
        reached = any(one.position <= position for one in self.changes)
        later = {
            block_start(position, one.position, self.block_length): one.shares
            for one in self.changes
            if one.position > position
        }
        return replace(
            self,
            base=position,
            given=self.samples_before(position),
            shares=self.shares_at(position) if reached else self.shares,
            curriculum=None if reached else self.curriculum,
            changes=tuple(Change(start, shares) for start, shares in later.items()),
        )

    def changed(self, position: int, shares: tuple[float, ...]) -> MixtureOrder:
        """This order with other shares from the first block on that begins at or behind a position.

        With lanes, from the first round of them. What is set for a later position stays.
        """
        start = block_start(self.base, position, self.block_length)
        if self.lanes > 1 and self.locality is not None:
            together = lcm(self.lanes * self.locality.batch, self.block_length)
            start = block_start(0, position, together)
        others = [one for one in self.changes if one.position != start]
        changes = sorted([*others, Change(start, shares)], key=lambda one: one.position)
        return replace(self, changes=tuple(changes))

    def begun_at(self, position: int) -> MixtureOrder:
        """The same order, told from the last change that ``position`` has reached."""
        reached = [one for one in self.changes if one.position <= position]
        if not reached:
            return self
        return replace(
            self,
            base=reached[-1].position,
            given=self.samples_before(reached[-1].position),
            shares=reached[-1].shares,
            curriculum=None,
            changes=self.changes[len(reached) :],
        )


def mixture_order(
    mixture: ResolvedMixture,
    samples: Mapping[str, int],
    sizes: Mapping[str, int] | None = None,
) -> MixtureOrder:
    """Shares and epoch of a mixture (design: "Epochs").

    Args:
        mixture: the mixture.
        samples: samples of a pass, by dataset name.
        sizes: what ``natural_scaled`` multiplies weights by (``DatasetCount.size``), by dataset
            name; default: ``samples``.
    """
    sizes = samples if sizes is None else sizes
    spec = mixture.spec
    moves = spec.weights if isinstance(spec.weights, CurriculumSpec) else None
    shares = shares_of(mixture, samples, sizes, moves.from_ if moves else {})
    last = shares_of(mixture, samples, sizes, moves.to) if moves else shares
    counts = [
        samples[name] if begins or ends else 0
        for name, begins, ends in zip(mixture.names, shares, last, strict=True)
    ]
    epoch = spec.mixing.epoch
    if epoch == "auto":
        epoch = "pass" if spec.weights == "natural" else sum(counts)
    by_pass = epoch == "pass"
    return MixtureOrder(
        shares=shares,
        phases=tuple(phase_of(dataset.key) for dataset in mixture.datasets),
        block_length=spec.mixing.block_length,
        pass_samples=tuple(counts) if by_pass else None,
        epoch_samples=sum(counts) if by_pass else None if epoch == "forever" else int(epoch),
        chain=spec.mixing.chain,
        draw_key=fold(dataset_key(spec.seed, ""), PURPOSE_CHOICE)
        if spec.mixing.strategy == "sample"
        else None,
        curriculum=Curriculum(last, moves.over) if moves else None,
        locality=locality_of(mixture, samples),
    )


def phase_of(key: int) -> float:
    """The phase of the dataset whose draws have this key (``samples.draws.dataset_key``)."""
    return unit(fold(key, PURPOSE_PHASE))


def shares_of(
    mixture: ResolvedMixture,
    samples: Mapping[str, int],
    sizes: Mapping[str, int],
    weights: Mapping[str, float],
) -> tuple[float, ...]:
    """[D] the shares that weights give.

    Args:
        mixture: says by ``weights`` whether they are multiplied by sample counts.
        samples: of a pass, by dataset name: natural shares, so that passes end together.
        sizes: what ``natural_scaled`` multiplies weights by, by dataset name.
        weights: by dataset name; one left out has its own ``weight``.

    Raises:
        SpecError: every dataset has weight 0.
    """
    own = [weights.get(dataset.name, dataset.weight) for dataset in mixture.datasets]
    how = mixture.spec.weights
    kind = how.kind if isinstance(how, CurriculumSpec) else how
    if kind == "natural":
        own = [samples[n] * float(w > 0) for w, n in zip(own, mixture.names, strict=True)]
    elif kind == "natural_scaled":
        own = [w * sizes[name] for w, name in zip(own, mixture.names, strict=True)]
    total = sum(own)
    if not total:
        raise SpecError(
            f"every dataset of split {mixture.split!r} has weight 0: "
            f"{', '.join(mixture.names[:5])}",
            remedy="give one of them a weight above 0",
            path="datasets",
        )
    return tuple(weight / total for weight in own)


def _parts(order: MixtureOrder) -> list[tuple[Schedule, int]]:
    """The schedules of an epoch that is one pass, each with the samples of one of its blocks.

    They are the full blocks of every dataset's pass, then what is left over as single samples.
    """
    make = Schedule if order.draw_key is None else partial(DrawnSchedule, key=order.draw_key)
    assert order.pass_samples is not None
    full = [count // order.block_length for count in order.pass_samples]
    left = [count % order.block_length for count in order.pass_samples]
    return [
        (make(counts, order.phases, finite=counts), size)
        for counts, size in ((full, order.block_length), (left, 1))
        if sum(counts)
    ]


class BlockSequence:
    """Block j of the endless sequence: its dataset and its samples.

    With ``pass_samples`` every epoch deals each dataset's pass exactly: first the full blocks by
    schedule, then what is left over, by a schedule of single samples.

    Args:
        order: whose blocks, counted from its ``base``.
        streams: so many sequences of this order run side by side, and share its positions: where
            the shares change, each has done its part of the blocks before.
    """

    def __init__(self, order: MixtureOrder, streams: int = 1) -> None:
        self._chunk: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._chunk_of = -1, -1
        self.blocks_per_epoch: int | None = None
        if order.pass_samples is not None:
            parts = _parts(order)
            lengths = [schedule.length or 0 for schedule, _ in parts]
            self._starts = [sum(lengths[:k]) for k in range(len(parts))]
            self._parts = parts
            self.blocks_per_epoch = sum(lengths)
        else:
            legs = order.legs()
            self._starts = [blocks_of_stream(order, leg.start, streams) for leg in legs]
            self._parts = [(leg.schedule, order.block_length) for leg in legs]

    def block(self, j: int) -> tuple[int, int]:
        """(dataset, samples) of block ``j``."""
        if self.blocks_per_epoch is not None:
            j %= self.blocks_per_epoch
        part = bisect_right(self._starts, j) - 1
        j -= self._starts[part]
        schedule, size = self._parts[part]
        start = j - j % _CHUNK
        if (start, part) != self._chunk_of:
            self._chunk = schedule.blocks(start, start + _CHUNK)
            self._chunk_of = start, part
        return int(self._chunk[j - start]), size


def blocks_of_stream(order: MixtureOrder, position: int, streams: int) -> int:
    """Blocks that each of ``streams`` sequences of an order has dealt before ``position``."""
    return -(-(position - order.base) // (order.block_length * streams))


class PositionSequence:
    """Position i of the endless sequence: its dataset, and which of that dataset's samples it is.

    The same order as ``BlockSequence``, counted in samples and reached without walking. It is what
    a reader gives that never lets another dataset go first.
    """

    def __init__(self, order: MixtureOrder) -> None:
        self._block_length = order.block_length
        self._pass_samples: NDArray[np.int64] | None = None
        self._full: NDArray[np.int64] = np.zeros(len(order.shares), dtype=np.int64)
        if order.pass_samples is not None:
            self._pass_samples = np.asarray(order.pass_samples, dtype=np.int64)
            self._full = self._pass_samples - self._pass_samples % order.block_length
            self._parts = _parts(order)
            self._sizes = [(schedule.length or 0) * size for schedule, size in self._parts]
            return
        legs = order.legs()
        self._parts = [(leg.schedule, order.block_length) for leg in legs]
        self._starts = [leg.start for leg in legs]
        self._stops = [leg.stop for leg in legs]
        self._given = np.stack([leg.given for leg in legs])

    def ordinals(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Dataset [n] int64 of each position in [start, stop), and its number there [n] int64.

        The n-th sample that a dataset gives, counted from the start of the run over all passes,
        has number n.
        """
        pieces = []
        if self._pass_samples is None:
            while start < stop:
                leg = bisect_right(self._starts, start) - 1
                first, end = self._starts[leg], self._stops[leg]
                until = stop if end is None else min(stop, end)
                dataset, number = self._of_part(leg, start - first, until - first)
                pieces.append((dataset, number + self._given[leg][dataset]))
                start = until
        epoch_samples = 0 if self._pass_samples is None else int(self._pass_samples.sum())
        while start < stop:
            assert self._pass_samples is not None
            epoch, within = divmod(start, epoch_samples)
            part = 0 if within < self._sizes[0] else 1
            within -= sum(self._sizes[:part])
            count = min(stop - start, self._sizes[part] - within)
            dataset, number = self._of_part(part, within, within + count)
            number += epoch * self._pass_samples[dataset]
            if self._parts[part][1] < self._block_length:  # what the full blocks left over
                number += self._full[dataset]
            pieces.append((dataset, number))
            start += count
        if not pieces:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        if len(pieces) == 1:
            return pieces[0]
        datasets, numbers = zip(*pieces, strict=True)
        return np.concatenate(datasets), np.concatenate(numbers)

    def positions(self, dataset: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Position [n] of each dataset's sample ``number`` [n], as of ``ordinals``.

        Where the datasets' turns are drawn it is the position at which the sample is due; where
        the dataset gives no such sample any more it is ``NEVER``.
        """
        if self._pass_samples is None:
            return self._on_legs(dataset, number)
        epoch, within = np.divmod(number, self._pass_samples[dataset])
        position = epoch * int(self._pass_samples.sum())
        left_over = within >= self._full[dataset]
        before = 0
        for part, (_, size) in enumerate(self._parts):
            leaves = size < self._block_length
            at = np.flatnonzero(left_over == leaves)
            own = within[at] - self._full[dataset[at]] if leaves else within[at]
            position[at] += before + self._in_part(part, dataset[at], own)
            before += self._sizes[part]
        return position

    def _on_legs(self, dataset: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(self._parts) == 1:
            own = number - self._given[0][dataset]
            at = np.flatnonzero(self._parts[0][0].deals[dataset])
            if len(at) == len(own):
                return self._starts[0] + self._in_part(0, dataset, own)
        leg_of = (self._given[:, dataset] <= number).sum(axis=0) - 1
        position = np.full(len(number), NEVER, dtype=np.int64)
        for leg in np.unique(leg_of).tolist():
            at = np.flatnonzero((leg_of == leg) & self._parts[leg][0].deals[dataset])
            if not len(at):
                continue
            own = number[at] - self._given[leg][dataset[at]]
            found = self._starts[leg] + self._in_part(leg, dataset[at], own)
            stop = self._stops[leg]
            position[at] = found if stop is None else np.minimum(found, stop - 1)
        return position

    def _in_part(
        self, part: int, dataset: NDArray[np.int64], number: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        schedule, size = self._parts[part]
        if size == 1:
            return schedule.places(dataset, number)
        block, within = np.divmod(number, size)
        return np.asarray(schedule.places(dataset, block) * size + within)

    def _of_part(
        self, part: int, start: int, stop: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        schedule, size = self._parts[part]
        if size == 1 or stop <= start:
            return schedule.numbered(start, stop)
        first = start // size
        dataset, block = schedule.numbered(first, -(-stop // size))
        at = np.arange(start, stop, dtype=np.int64)
        which = at // size - first
        return dataset[which], block[which] * size + at % size
