"""The sample plan: which sample position i of the endless sequence is, and nothing else.

    position ──► dataset, number ──► pass, number in the pass ──► shuffled number ──► episode, t
             (schedule)         (divmod)                    (keyed permutation)  (running counts)

With ``chain`` a block of a dataset is a run through one episode instead (``chains``).

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

Not here: the mixing schedule (``order.schedule``), which t are valid (``samples.windows``),
what samples of a block share (``chains``), which positions a rank takes (``order.dealing``),
reading what a sample needs (the reader).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.order.chains import ChainedSamples
from autoloader.order.episodes import DatasetTable, DrawnT, EpisodeCounts, Ints, KeptT
from autoloader.order.mixture import MixtureOrder, PositionSequence
from autoloader.order.permutation import permute, unpermute
from autoloader.samples.draws import PURPOSE_PLAN, fold, fold_array
from autoloader.samples.windows import valid_range


@dataclass(frozen=True, slots=True)
class PlannedSamples:
    """The samples of n positions, in order.

    Attributes:
        dataset: [n] int32, which table.
        pass_: [n] int64, the dataset's pass, from 0.
        episode: [n] int64, the index in the table's arrays.
        t: [n] int64, in the strided episode.
    """

    dataset: NDArray[np.int32]
    pass_: Ints
    episode: Ints
    t: Ints

    def __len__(self) -> int:
        return len(self.t)

    @property
    def distinct_episodes(self) -> int:
        """How many different episodes the samples are of: what chaining takes from a batch."""
        return len(np.unique(np.stack([self.dataset, self.episode]), axis=1).T)


class SamplePlan:
    """What each position of a mixture's endless sequence is.

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
            tables, order.block_length if chain else 1, by_pass=order.pass_samples is not None
        )
        self.chained: tuple[bool, ...] = tuple(self._chains.chained.tolist())
        self.runs: tuple[int, ...] = tuple(self._chains.runs.tolist())
        self._episodes = EpisodeCounts(
            [t.counts[:0] if on else t.counts for t, on in zip(tables, self.chained, strict=True)]
        )
        keys = [fold(table.key, PURPOSE_PLAN) for table in tables]
        self._keys = np.asarray(keys, dtype=np.uint64)
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
            np.concatenate([part.pass_ for part in parts]),
            np.concatenate([part.episode for part in parts]),
            np.concatenate([part.t for part in parts]),
        )

    def samples(self, start: int, stop: int) -> PlannedSamples:
        """The samples at positions [start, stop); start ≥ 0."""
        dataset, number = self._positions.ordinals(start, stop)
        pass_, within = np.divmod(number, self._samples[dataset])
        on = self._chains.chained[dataset]
        if not on.any():
            episode, t = self._shuffled(dataset, pass_, within)
        elif on.all():
            episode, x = self._chains.place(dataset, pass_, within)
            t = self._first_t[dataset] + x
        else:
            episode, t = np.empty_like(number), np.empty_like(number)
            at = np.flatnonzero(~on)
            episode[at], t[at] = self._shuffled(dataset[at], pass_[at], within[at])
            at = np.flatnonzero(on)
            episode[at], x = self._chains.place(dataset[at], pass_[at], within[at])
            t[at] = self._first_t[dataset[at]] + x
        return PlannedSamples(dataset.astype(np.int32), pass_, episode, t)

    def ordinals(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """As of ``PositionSequence``."""
        return self._positions.ordinals(start, stop)

    def positions(self, dataset: Ints, number: Ints) -> Ints:
        """As of ``PositionSequence``."""
        return self._positions.positions(dataset, number)

    def holds(self, dataset: Ints, episode: Ints, t: Ints) -> NDArray[np.bool_]:
        """Whether the rules leave each t [n], which lies in the valid range of its episode."""
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
            key = fold_array(self._keys[dataset[at]], pass_[at])
            image = self._episodes.number_of(dataset[at], episode[at], place[at])
            within[at] = unpermute(image, self._samples[dataset[at]], key)
        at = np.flatnonzero(on)
        if len(at):
            of = dataset[at], pass_[at], episode[at], place[at]
            within[at] = self._chains.numbers(*of)
        return np.where(within < 0, -1, pass_ * self._samples[dataset] + within)

    def _shuffled(self, dataset: Ints, pass_: Ints, within: Ints) -> tuple[Ints, Ints]:
        """(episode, t) of a pass's sample ``within`` where each is drawn on its own, all [n]."""
        key = fold_array(self._keys[dataset], pass_)
        shuffled = permute(within, self._samples[dataset], key)
        episode, place = self._episodes.find(dataset, shuffled)
        t = self._first_t[dataset] + place
        if self._kept is not None:
            self._kept.put(t, dataset, episode, place)
        drawn = np.flatnonzero(self._drawn[dataset])
        if len(drawn):
            t[drawn] = self._draws.t(dataset[drawn], pass_[drawn], episode[drawn], place[drawn])
        return episode, t
