"""The order of a mixture: its shares, its epochs, and the dataset of each block and position.

Not here: the low-discrepancy schedule itself and shares that change during the run (``schedule``),
lanes' parts of a dataset (``plan``), debts (``pipeline.read.mixer``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from math import lcm
from typing import Any

import numpy as np

from autoloader.errors import SpecError
from autoloader.host.frozen import frozen
from autoloader.samples.draws import PURPOSE_CHOICE, PURPOSE_PHASE, Ints, dataset_key, fold, unit
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.kinds import KindSchedule, KindsOfSteps
from autoloader.sampling.schedule import (
    NEVER,
    SCALE_BITS,
    Change,
    Curriculum,
    DrawnSchedule,
    Schedule,
    Stretch,
    block_start,
    shares_on_the_way,
    stretches_of,
)
from autoloader.spec import CurriculumSpec
from autoloader.spec.block import adapter

_CHUNK = 1024
_KEPT = 16
"""Kinds of epochs, told apart by where their rounds begin, whose pieces are kept."""


@frozen
class Locality:
    """Nearness in storage of the samples in a stretch of the order.

    Attributes:
        blocks: [D] samples of a block of each dataset.
        window: K, blocks among which samples are shuffled; lanes have as many together.
        lanes: G, parts of every dataset that batches take turns in; 1 is none.
        batch: samples of a batch, by which lanes take turns.
    """

    blocks: tuple[int, ...]
    window: int
    lanes: int = 1
    batch: int = 1


@frozen
class MixtureOrder:
    """Parameters of a mixture's order.

    Attributes:
        shares: [D] share of each dataset, summing to 1.
        phases: [D] phase of each dataset in the schedule, in [0, 1).
        block_length: number of samples in a row from one dataset.
        pass_samples: [D] samples of a pass where an epoch is one pass of every dataset, else
            ``None``.
        epoch_samples: samples of an epoch over all ranks; ``None``: the epoch is endless.
        chain: whether the samples of a block share frames where their offsets allow it.
        base: the position that this order begins at; another order came before.
        given: [D] samples that each dataset had given before ``base``; empty: none.
        draw_key: key of the draws of datasets' turns (``strategy: sample``).
        curriculum: shares at the end of the move; ``None``: shares do not move.
        changes: shares that were set while running, from their positions on, in order. They end a
            curriculum. None where an epoch is one pass of every dataset.
        locality: rule that samples which follow each other are stored near to each other; ``None``:
            any sample of a dataset may follow any other.
        steps: steps of one kind each, from ``base`` on; ``None``: kinds mix in a batch.
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
    steps: KindsOfSteps | None = None

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> MixtureOrder:
        """An order from ``dataclasses.asdict`` of one that went through JSON."""
        order: MixtureOrder = adapter(cls).validate_python(plain)
        return order

    @property
    def lanes(self) -> int:
        """Lanes that batches take turns in; 1 is none."""
        return 1 if self.locality is None else self.locality.lanes

    def legs(self) -> Iterator[tuple[int, int | None, Schedule]]:
        """(start, stop, schedule) of its legs, in order, where epochs are not passes.

        ``stop`` is the position behind the last; ``None``: without end.
        """
        assert self.pass_samples is None
        stretches = list(stretches_of(self.base, self.shares, self.block_length, self.curriculum))
        if self.changes:
            kept = [one for one in stretches if one.start < self.changes[0].position]
            stretches = [*kept, *(Stretch(one.position, one.shares) for one in self.changes)]
        stops = [one.start for one in stretches[1:]] + [None]
        ahead = [0] * len(self.shares)
        for one, stop in zip(stretches, stops, strict=True):
            phases = self.phases
            if one.whole:
                # What is within one block is told exactly: 47 bits fit in a float's 53.
                pairs = zip(phases, ahead, strict=True)
                phases = tuple(u + a / (1 << SCALE_BITS) for u, a in pairs)
            schedule = Schedule(one.shares, phases)
            if self.steps is not None:
                schedule = KindSchedule(one.shares, phases, self.steps.after(one.start - self.base))
            if self.draw_key is not None:
                key = self.draw_key if one.number is None else fold(self.draw_key, one.number)
                # Turns are drawn within the stretch, so that its shares are exact at its own end.
                last = None if one.end is None else (one.end - one.start) // self.block_length
                schedule = DrawnSchedule(one.shares, phases, key=key, last=last)
            yield one.start, stop, schedule
            if stop is not None and one.whole:
                blocks = (stop - one.start) // self.block_length
                dealt = schedule.counts_before(blocks).tolist()
                ahead = [
                    a + (n << SCALE_BITS) - blocks * w
                    for a, n, w in zip(ahead, dealt, one.whole, strict=True)
                ]

    def samples_before(self, position: int) -> tuple[int, ...]:
        """[D] samples of each dataset before ``position``, where epochs are not passes.

        With lanes, of a position at which shares may change (``changed``).
        """
        return PositionSequence(self).samples_before(position)

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
            steps=None if self.steps is None else self.steps.after(position - self.base),
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
        """This order, told from the last change that ``position`` has reached."""
        reached = [one.position for one in self.changes if one.position <= position]
        return self.from_position(reached[-1]) if reached else self


def mixture_order(
    mixture: ResolvedMixture,
    samples: Mapping[str, int],
    sizes: Mapping[str, int] | None = None,
    world_size: int = 1,
) -> MixtureOrder:
    """Shares and epoch of a mixture (design: "Epochs").

    Args:
        mixture: mixture that the order is of.
        samples: samples of a pass, by dataset name.
        sizes: dataset name → factor of its weight with ``natural_scaled`` (``DatasetCount.size``);
            ``None``: ``samples``.
        world_size: number of ranks that share it.
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
    epoch_samples = sum(counts) if by_pass else None if epoch == "forever" else int(epoch)
    return MixtureOrder(
        shares=shares,
        phases=tuple(phase_of(dataset.key) for dataset in mixture.datasets),
        block_length=spec.mixing.block_length,
        pass_samples=tuple(counts) if by_pass else None,
        epoch_samples=epoch_samples,
        chain=spec.mixing.chain,
        draw_key=fold(dataset_key(spec.seed, ""), PURPOSE_CHOICE)
        if spec.mixing.strategy == "sample"
        else None,
        curriculum=Curriculum(last, moves.over) if moves else None,
        locality=locality_of(mixture, samples),
        steps=steps_of(mixture, epoch_samples, world_size),
    )


def steps_of(
    mixture: ResolvedMixture, epoch_samples: int | None, world_size: int
) -> KindsOfSteps | None:
    """Steps of one kind each, where the spec asks for them and there are two kinds."""
    if mixture.spec.mixing.unit == "sample":
        return None
    kinds = tuple(int(one.directory.still) for one in mixture.datasets)
    if len(set(kinds)) == 1:
        return None
    batch = mixture.spec.batch
    return KindsOfSteps(kinds, batch.size, world_size, batch.drop_last, epoch_samples)


def locality_of(mixture: ResolvedMixture, samples: Mapping[str, int]) -> Locality | None:
    """The locality of a mixture's order; ``None`` where its spec asks for none.

    Args:
        mixture: the mixture; its files are asked for their sizes.
        samples: dataset name → number of samples of a pass.
    """
    asked = mixture.spec.mixing.locality
    if asked is None:
        return None
    blocks = []
    for dataset in mixture.datasets:
        # A pass's samples lie evenly in the bytes of its records, near enough.
        own = dataset.record_bytes * dataset.records / max(1, samples[dataset.name])
        blocks.append(max(1, int(asked.block / max(1.0, own))))
    return Locality(tuple(blocks), asked.window, asked.lanes, mixture.spec.batch.size)


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
        samples: dataset name → samples of a pass: natural shares, so that passes end together.
        sizes: dataset name → factor of its weight with ``natural_scaled``.
        weights: dataset name → weight; one left out has its own ``weight``.

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
            remedy="give at least one dataset a weight above 0",
            path="datasets",
        )
    return tuple(weight / total for weight in own)


def blocks_of_stream(order: MixtureOrder, position: int, streams: int) -> int:
    """Blocks that each of ``streams`` sequences of an order has dealt before ``position``."""
    return -(-(position - order.base) // (order.block_length * streams))


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """A stretch of positions that one schedule deals.

    Attributes:
        start, stop: positions of the piece; ``None``: it has no end.
        schedule: schedule of the piece's blocks, or of each lane's.
        size: number of samples of a block.
        laned: whether the piece is rounds of lanes.
        given: [D] number of samples that each dataset gave before the piece.
    """

    start: int
    stop: int | None
    schedule: Schedule
    size: int
    laned: bool
    given: Ints


class PositionSequence:
    """Position i of the endless sequence: its dataset, and which of that dataset's samples it is.

    Any position is reached without walking. A reader that never lets another dataset go first gives
    this sequence. With lanes (``plan``) batches take
    turns in parts of every dataset; one lane is the whole of them.

    Invariants:
        1. Every number of every dataset has one position.
        2. ``positions`` is the inverse of ``ordinals``.

    Args:
        order: the order of the mixture.

    Attributes:
        pieces: stretches of the order, each with one schedule; where an epoch is a pass, those of
            an epoch that begins at position 0.
    """

    def __init__(self, order: MixtureOrder) -> None:
        self._order, self._lanes, self._length = order, order.lanes, order.block_length
        laned = order.locality if order.lanes > 1 else None
        self._batch = 1 if laned is None else laned.batch
        self._round = self._lanes * self._batch
        self._passes: dict[int, list[_Piece]] = {}
        self._pass_samples: Ints | None = None
        self.pieces: list[_Piece] = []
        self._epoch = 0
        if order.pass_samples is not None:
            self._pass_samples = np.asarray(order.pass_samples, dtype=np.int64)
            self._epoch = int(self._pass_samples.sum())
            self.pieces = self._of_pass(0)
            return
        given = np.asarray(order.given or (0,) * len(order.shares), dtype=np.int64)
        for start, stop, schedule in order.legs():
            given = self._add_leg(start, stop, schedule, given)

    def samples_before(self, position: int) -> tuple[int, ...]:
        """[D] samples of each dataset before a position, where epochs are not passes.

        With lanes the position begins a round, or a leg.
        """
        of, _ = self._piece_at(position)
        return tuple((of.given + self._counted(of, position - of.start)).tolist())

    def ordinals(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Dataset [n] int64 of each position in [start, stop), and its number there [n] int64.

        The n-th sample that a dataset gives, counted from the start of the run over all passes,
        has number n.
        """
        found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        while start < stop:
            of, epoch = self._piece_at(start)
            first = epoch * self._epoch
            until = stop if of.stop is None else min(stop, first + of.stop)
            found.append(self._dealt(of, start - first, until - first, epoch))
            start = until
        datasets, numbers = zip(*found, strict=True)
        return np.concatenate(datasets), np.concatenate(numbers)

    def positions(self, dataset: Ints, number: Ints) -> Ints:
        """Position [n] of each dataset's sample ``number`` [n], as of ``ordinals``.

        Where the datasets' turns are drawn it is the position at which the sample is due; where
        the dataset gives no such sample any more it is ``NEVER``.
        """
        if self._pass_samples is None:
            return self._placed(self.pieces, dataset, number, number)
        epoch, rest = np.divmod(number, self._pass_samples[dataset])
        first = epoch * self._epoch
        if self._round == 1:
            position = self._placed(self._of_pass(0), dataset, number, rest)
        else:
            position = np.empty(len(number), dtype=np.int64)
            head = -first % self._round
            for own in np.unique(head).tolist():
                at = np.flatnonzero(head == own)
                position[at] = self._placed(self._of_pass(own), dataset[at], number[at], rest[at])
        return np.where(position == NEVER, NEVER, position + first)

    def _piece_at(self, position: int) -> tuple[_Piece, int]:
        """The piece that a position lies in, and its epoch; 0 where epochs are not passes."""
        epoch, pieces = 0, self.pieces
        if self._pass_samples is not None:
            epoch, position = divmod(position, self._epoch)
            pieces = self._of_pass(-epoch * self._epoch % self._round)
        return pieces[bisect_right([one.start for one in pieces], position) - 1], epoch

    def _placed(self, pieces: list[_Piece], dataset: Ints, number: Ints, rest: Ints) -> Ints:
        """Position [n] in its epoch of each sample, ``NEVER`` where no piece deals it.

        Args:
            pieces: all pieces of the order, or of one kind of epoch.
            dataset: [n] dataset of each sample.
            number: [n] number of each sample in its dataset, over all passes.
            rest: [n] its number in the epoch.
        """
        position = np.full(len(number), NEVER, dtype=np.int64)
        which = (np.stack([one.given for one in pieces])[:, dataset] <= rest).sum(axis=0) - 1
        for row, of in enumerate(pieces):
            at = np.flatnonzero((which == row) & of.schedule.deals[dataset])
            if not len(at):
                continue
            own = dataset[at]
            place = rest[at] - of.given[own]
            if of.laned:
                turn = self._in_schedule(of, own, place // self._lanes)
                batch = turn // self._batch * self._lanes + number[at] % self._lanes
                place = batch * self._batch + turn % self._batch
            else:
                place = self._in_schedule(of, own, place)
            place += of.start
            if of.stop is not None:
                place = np.minimum(place, of.stop - 1)  # drawn turns: told by when they are due
            position[at] = place
        return position

    def _in_schedule(self, of: _Piece, dataset: Ints, number: Ints) -> Ints:
        if of.size == 1:
            return of.schedule.places(dataset, number)
        block, within = np.divmod(number, of.size)
        return np.asarray(of.schedule.places(dataset, block) * of.size + within)

    def _dealt(self, of: _Piece, start: int, stop: int, epoch: int) -> tuple[Ints, Ints]:
        """(dataset, number) of positions [start, stop) of a piece."""
        given = of.given
        if self._pass_samples is not None:
            given = given + self._pass_samples * epoch
        if not of.laned:
            dataset, number = self._numbered(of, start - of.start, stop - of.start)
            return dataset, given[dataset] + number
        at = np.arange(start - of.start, stop - of.start, dtype=np.int64)
        batch, within = np.divmod(at, self._batch)
        turn = batch // self._lanes * self._batch + within
        low = int(turn.min())
        dataset, number = self._numbered(of, low, int(turn.max()) + 1)
        dataset, number = dataset[turn - low], number[turn - low]
        lane = (batch % self._lanes - given[dataset]) % self._lanes
        return dataset, given[dataset] + number * self._lanes + lane

    def _numbered(self, of: _Piece, start: int, stop: int) -> tuple[Ints, Ints]:
        """(dataset, which of its samples) at places [start, stop) of a piece's schedule."""
        if of.size == 1:
            return of.schedule.numbered(start, stop)
        first = start // of.size
        dataset, block = of.schedule.numbered(first, -(-stop // of.size))
        at = np.arange(start, stop, dtype=np.int64)
        which = at // of.size - first
        return dataset[which], block[which] * of.size + at % of.size

    def _counted(self, of: _Piece, positions: int) -> Ints:
        """[D] samples of each dataset in the first positions of a piece; whole rounds of lanes."""
        turns = positions // self._lanes if of.laned else positions
        blocks, left = divmod(turns, of.size)
        counts = of.schedule.counts_before(blocks) * of.size
        if left:
            counts[of.schedule.blocks(blocks, blocks + 1)[0]] += left
        return np.asarray(counts * (self._lanes if of.laned else 1))

    def _add_leg(self, start: int, stop: int | None, schedule: Schedule, given: Ints) -> Ints:
        """Add the pieces of a leg; the samples that each dataset gave by its end."""
        begin = -(-start // self._round) * self._round
        cuts = [start, begin, stop]
        if stop is not None:
            begin = min(begin, stop)
            cuts = [start, begin, max(begin, stop // self._round * self._round), stop]
        for number, (first, end) in enumerate(pairwise(cuts)):
            assert first is not None
            if first != end:
                laned = number == 1 and self._lanes > 1
                piece = _Piece(first, end, schedule, self._length, laned, given)
                self.pieces.append(piece)
                if end is not None:
                    given = given + self._counted(piece, end - first)
        return given

    def _of_pass(self, head: int) -> list[_Piece]:
        """The pieces of an epoch that is one pass, in its own positions.

        The pieces are the head, the full blocks of every dataset's pass, and single samples that
        are left over.

        Args:
            head: positions from the epoch's start to its first round of lanes; 0 without lanes.
        """
        if head in self._passes:
            return self._passes[head]
        assert self._pass_samples is not None
        pieces: list[_Piece] = []
        left = self._pass_samples
        given = np.zeros_like(left)
        for part in ("head", "rounds", "tail"):
            start = pieces[-1].stop or 0 if pieces else 0
            counts, size = left, 1
            if part == "rounds":
                counts, size = left // self._lanes // self._length, self._length
                whole = int(counts.sum()) * size * self._lanes
                stop = start + min(self._epoch - start, whole) // self._round * self._round
            else:
                stop = min(head, self._epoch) if part == "head" else self._epoch
            if stop == start:
                continue
            laned = part == "rounds" and self._lanes > 1
            blocks, key = counts.tolist(), self._order.draw_key
            make = Schedule if key is None else partial(DrawnSchedule, key=key)
            schedule = make(blocks, self._order.phases, finite=blocks)
            piece = _Piece(start, stop, schedule, size, laned, given)
            pieces.append(piece)
            dealt = self._counted(piece, stop - start)
            given, left = given + dealt, left - dealt
        if len(self._passes) >= _KEPT:
            self._passes.clear()
        self._passes[head] = pieces
        return pieces


class BlockSequence:
    """Block j of the endless sequence without lanes: its dataset and its samples.

    With ``pass_samples`` every epoch deals each dataset's pass exactly: first the full blocks by
    schedule, then the samples that are left over, by a schedule of single samples.

    Args:
        order: order whose blocks are counted from its ``base``.
        streams: number of sequences of this order that run side by side and share its positions.
            Where the shares change, each has done its part of the blocks before.
    """

    def __init__(self, order: MixtureOrder, streams: int = 1) -> None:
        self._chunk = np.empty(0, dtype=np.int64)
        self._chunk_of = -1, -1
        self._parts = PositionSequence(order).pieces
        self.blocks_per_epoch: int | None = None
        if order.pass_samples is None:
            self._starts = [blocks_of_stream(order, one.start, streams) for one in self._parts]
        else:
            ends = accumulate(((one.stop or 0) - one.start) // one.size for one in self._parts)
            *self._starts, self.blocks_per_epoch = 0, *ends

    def block(self, j: int) -> tuple[int, int]:
        """(dataset, samples) of block ``j``."""
        if self.blocks_per_epoch is not None:
            j %= self.blocks_per_epoch
        part = bisect_right(self._starts, j) - 1
        j -= self._starts[part]
        start = j - j % _CHUNK
        if (start, part) != self._chunk_of:
            self._chunk = self._parts[part].schedule.blocks(start, start + _CHUNK)
            self._chunk_of = start, part
        return int(self._chunk[j - start]), self._parts[part].size
