"""The sample plan: which sample position i of the endless sequence is, and nothing else.

    position ──► dataset, number ──► pass, number in the pass ──► shuffled number ──► episode, t
             (schedule)         (divmod)                    (keyed permutation)  (running counts)

With ``chain`` a block of a dataset is a run through one episode instead (``chains``). With locality
the permutation is one of blocks and within windows of blocks (``sampling.local``), and the plan
says which block of stored samples each sample is of.

It is arithmetic on a seed, a spec and the lengths of the episodes: no file, no state, no knob. A
dataset of V samples in a pass shuffles each pass by a permutation with a key of its own, so every
sample comes exactly once a pass, from anywhere in the dataset. All steps work on arrays: a run of
positions costs the same few hundred microseconds whatever it spans.

Invariants:
    1. ``samples(a, c)`` is ``samples(a, b)`` followed by ``samples(b, c)``.
    2. V samples of a dataset from one whose number is a multiple of V are its valid samples, each
       once.
    3. ``samples`` says of each position's sample what ``numbers`` and ``positions`` turn back into
       that position.
    4. The same orders and tables give the same samples: on every host, in every process.

Not here: the mixing schedule (``sampling.schedule``), which t are valid (``samples.windows``),
what samples of a block share (``chains``), which positions a rank takes (``sampling.dealing``),
reading what a sample needs (the reader).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.samples.draws import PURPOSE_PLAN, fold
from autoloader.samples.windows import valid_range
from autoloader.sampling.chains import ChainedSamples
from autoloader.sampling.episodes import DatasetTable, DrawnT, EpisodeCounts, Ints, KeptT
from autoloader.sampling.local import PassOrder
from autoloader.sampling.mixture import MixtureOrder, PositionSequence
from autoloader.spec import SampleSpec


@dataclass(frozen=True, slots=True)
class PlannedSamples:
    """The samples of n positions, in order.

    Attributes:
        dataset: [n] int32, which table.
        number: [n] int64, which of the samples that its dataset gives over all passes; −1 where
            that was not asked for (``SamplePlan.block``).
        pass_: [n] int64, the dataset's pass, from 0.
        episode: [n] int64, the index in the table's arrays.
        t: [n] int64, in the strided episode.
        block: [n] int64, the block of its pass that each lies in, as ``SamplePlan.block`` takes it,
            −1: none; without locality ``None``.
    """

    dataset: NDArray[np.int32]
    number: Ints
    pass_: Ints
    episode: Ints
    t: Ints
    block: Ints | None = None

    def __len__(self) -> int:
        return len(self.t)

    @property
    def distinct_episodes(self) -> int:
        """Number of different episodes among the samples; chaining makes it smaller."""
        return len(np.unique(np.stack([self.dataset, self.episode]), axis=1).T)


class SamplePlan:
    """Names the sample of each position of a mixture's endless sequence.

    Args:
        order: the mixture's shares, block length and epochs.
        tables: its datasets, in the order of ``order.shares``; every one has a sample, and
            where an epoch is a pass, as many as ``order.pass_samples`` says, or has no part in it
            (0).
        chain: let the samples of a block share frames where the offsets allow it (``chains``).

    Attributes:
        chained: [D] whether the samples of a dataset's blocks are chained.
        runs: [D] full runs of a pass; 0 where a dataset is not chained.
    """

    def __init__(
        self, order: MixtureOrder, tables: Sequence[DatasetTable], *, chain: bool = False
    ) -> None:
        self._positions = PositionSequence(order)
        self._samples = np.asarray([table.samples for table in tables], dtype=np.int64)
        assert len(tables) == len(order.shares)
        assert (self._samples > 0).all()
        pairs = zip(order.pass_samples or (), self._samples.tolist(), strict=False)
        assert all(own in (0, samples) for own, samples in pairs)
        self._chains = ChainedSamples(
            tables,
            order.block_length if chain else 1,
            by_pass=order.pass_samples is not None,
            locality=order.locality,
        )
        self.chained: tuple[bool, ...] = tuple(self._chains.chained.tolist())
        self.runs: tuple[int, ...] = tuple(self._chains.runs.tolist())
        self._episodes = EpisodeCounts(
            [t.counts[:0] if on else t.counts for t, on in zip(tables, self.chained, strict=True)]
        )
        keys = [fold(table.key, PURPOSE_PLAN) for table in tables]
        self._local = order.locality is not None
        self._passes = PassOrder(self._samples, np.asarray(keys, dtype=np.uint64), order.locality)
        first = [valid_range(table.sample, 0)[0] for table in tables]
        self._first_t = np.asarray(first, dtype=np.int64)
        self._kept = KeptT(tables) if any(t.kept is not None for t in tables) else None
        self._drawn = np.asarray([table.sample.per_episode != "all" for table in tables])
        self._draws = DrawnT(tables)

    def spans(self, spans: Sequence[tuple[int, int]]) -> PlannedSamples:
        """The samples at several spans of positions, one after the other."""
        joined: list[tuple[int, int]] = []
        for start, stop in spans:
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], stop)
            else:
                joined.append((start, stop))
        parts = [self.samples(start, stop) for start, stop in joined]
        if len(parts) == 1:
            return parts[0]
        return PlannedSamples(
            np.concatenate([part.dataset for part in parts]),
            np.concatenate([part.number for part in parts]),
            np.concatenate([part.pass_ for part in parts]),
            np.concatenate([part.episode for part in parts]),
            np.concatenate([part.t for part in parts]),
            None
            if not self._local
            else np.concatenate([part.block for part in parts if part.block is not None]),
        )

    def samples(self, start: int, stop: int) -> PlannedSamples:
        """The samples at positions [start, stop); start ≥ 0."""
        dataset, number = self._positions.ordinals(start, stop)
        return self.at(dataset, number)

    def at(self, dataset: Ints, number: Ints) -> PlannedSamples:
        """The samples that the datasets give as their ``number``-th [n], over all passes."""
        pass_, within = np.divmod(number, self._samples[dataset])
        episode, t, block = (np.empty_like(within) for _ in range(3))
        on = self._chains.chained[dataset]
        at = np.flatnonzero(~on)
        if len(at):
            stored, of = self._passes.stored(dataset[at], pass_[at], within[at])
            episode[at], t[at] = self._at(dataset[at], pass_[at], stored)
            if of is not None:
                block[at] = of
        at = np.flatnonzero(on)
        if len(at):
            episode[at], x, of = self._chains.place(dataset[at], pass_[at], within[at])
            t[at] = self._first_t[dataset[at]] + x
            if of is not None:
                block[at] = of
        return PlannedSamples(
            dataset.astype(np.int32), number, pass_, episode, t, block if self._local else None
        )

    def block(self, dataset: int, pass_: int, block: int) -> PlannedSamples:
        """The samples of a block, as they are stored, where there is locality."""
        if self._chains.chained[dataset]:
            episode, x = self._chains.of_block(dataset, pass_, block)
            t = self._first_t[dataset] + x
        else:
            stored = np.arange(*self._passes.block(dataset, pass_, block), dtype=np.int64)
            own = np.full(len(stored), dataset, np.int64), np.full(len(stored), pass_, np.int64)
            episode, t = self._at(*own, stored)
        n = len(t)
        return PlannedSamples(
            np.full(n, dataset, np.int32), np.full(n, -1, np.int64), np.full(n, pass_, np.int64),
            episode, t, np.full(n, block, np.int64),
        )  # fmt: skip

    def ordinals(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """As of ``PositionSequence``."""
        return self._positions.ordinals(start, stop)

    def positions(self, dataset: Ints, number: Ints) -> Ints:
        """As of ``PositionSequence``."""
        return self._positions.positions(dataset, number)

    def holds(self, dataset: Ints, episode: Ints, t: Ints) -> NDArray[np.bool_]:
        """True for each t [n] that the rules leave; t lies in the valid range of its episode."""
        place = np.zeros_like(t)
        if self._kept is not None:
            self._kept.put_places(place, dataset, episode, t)
        return np.asarray(place >= 0)

    def numbers(self, dataset: Ints, pass_: Ints, episode: Ints, t: Ints) -> Ints:
        """The number among all samples that its dataset gives of sample (pass, episode, t).

        All are [n], and every t one that the rules leave; −1 where the pass has not drawn it.
        """
        place = t - self._first_t[dataset]
        if self._kept is not None:
            self._kept.put_places(place, dataset, episode, t)
        drawn = np.flatnonzero(self._drawn[dataset])
        if len(drawn):
            of = dataset[drawn], pass_[drawn], episode[drawn], t[drawn]
            place[drawn] = self._draws.places(*of)
        within = np.full_like(t, -1)
        on = self._chains.chained[dataset]
        at = np.flatnonzero(~on & (place >= 0))
        if len(at):
            stored = self._episodes.number_of(dataset[at], episode[at], place[at])
            within[at] = self._passes.numbers(dataset[at], pass_[at], stored)
        at = np.flatnonzero(on)
        if len(at):
            of = dataset[at], pass_[at], episode[at], place[at]
            within[at] = self._chains.numbers(*of)
        return np.where(within < 0, -1, pass_ * self._samples[dataset] + within)

    def _at(self, dataset: Ints, pass_: Ints, stored: Ints) -> tuple[Ints, Ints]:
        """(episode, t) of a pass's samples as they are stored, where each is drawn on its own."""
        episode, place = self._episodes.find(dataset, stored)
        t = self._first_t[dataset] + place
        if self._kept is not None:
            self._kept.put(t, dataset, episode, place)
        drawn = np.flatnonzero(self._drawn[dataset])
        if len(drawn):
            t[drawn] = self._draws.t(dataset[drawn], pass_[drawn], episode[drawn], place[drawn])
        return episode, t


_BATCHES = 64


@dataclass(frozen=True, slots=True)
class Reuse:
    """Decoding work of a plan.

    Attributes:
        chained: [D] whether the samples of a dataset's blocks share frames.
        decodes: [D] decodes of a sample of each dataset and camera, over a pass.
        alone: [D] the same without chaining.
        distinct_episodes: mean number of different episodes in a batch.
    """

    chained: tuple[bool, ...]
    decodes: tuple[float, ...]
    alone: tuple[float, ...]
    distinct_episodes: float


def foretell_reuse(order: MixtureOrder, tables: Sequence[DatasetTable], batch: int) -> Reuse:
    """Estimate cost and variety of batches of ``batch`` samples; no frame is looked at.

    Args:
        order: the order of the mixture's samples.
        tables: its datasets, each with a sample at least.
        batch: samples of a batch.
    """
    plan = SamplePlan(order, tables, chain=order.chain)
    alone = [_frames(table.sample) for table in tables]
    decodes = []
    for table, frames, runs in zip(tables, alone, plan.runs, strict=True):
        saved = (len(set(table.sample.frame_offsets)) - 1) * (order.block_length - 1)
        decodes.append((table.samples * frames - runs * saved) / table.samples)
    counts = [
        plan.samples(start, start + batch).distinct_episodes
        for start in range(0, _BATCHES * batch, batch)
    ]
    return Reuse(plan.chained, tuple(decodes), tuple(map(float, alone)), float(np.mean(counts)))


def _frames(sample: SampleSpec) -> int:
    return len(set(sample.frame_offsets)) + (sample.goal != "none")
