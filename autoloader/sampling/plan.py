"""The sample plan: which sample position i of the endless sequence is, and the way back.

    position ──► dataset, number ──► pass, number in the pass ──► shuffled number ──► episode, t
             (schedule)         (divmod)                    (keyed permutation)  (running counts)

With ``chain`` a block of a dataset is a run through one episode instead (``chains``). With locality
the permutation is one of blocks and within windows of blocks (``permutation.scatter``), of each
lane's stretch of the files where there are lanes. The plan says which block of stored samples each
sample is of: the samples that one read brings.

It is arithmetic on a seed, a spec and the lengths of the episodes: no file, no state, no knob. A
dataset of V samples in a pass shuffles each pass by a permutation with a key of its own. So every
sample comes exactly once a pass, from anywhere in the dataset. All steps work on arrays: a run of
positions costs the same few hundred microseconds whatever it spans.

Lanes: whole parts of every dataset that batches take turns in, so that nodes share no block.

    batch k        0   1   2   3 │ 4   5   6   7 │ …        G = 4 lanes, lane k mod G
    lane's own     └── round 0 ──┘ └── round 1 ──┘          all lanes of a round are dealt alike
    numbers of d   m·G + 0 … m·G + G−1                      its m-th sample of each lane

Batches are counted from position 0. A schedule deals one lane's positions, and all lanes follow it:
at the same place of a round they have the same dataset. The m-th samples that they take of it have
G numbers in a row. Lane g has the number that is g modulo G. So the samples of a pass
are dealt out evenly. A round always ends with whole numbers 0 … n of each dataset, and any position
is reached without walking. A lane's numbers of a pass are samples of one stretch of the files
(``part_of_lane``; ``number_in_lane`` is its inverse). With W ranks, W a divisor of G, rank r's
batches are those of the lanes that are r modulo W. Positions before the first round of a leg or an
epoch, and behind its last, are dealt without lanes.

Next use: the plan read backwards tells when a frame is needed next.

    frame ──► t that show it ──► number in this pass, in the next ──► position
       (offsets, edges)      (inverse of the plan)             (inverse of the schedule)

A sample at t shows the frames t + offset. So a frame is shown by the samples at frame − offset.
Where an edge repeats, all samples whose windows leave the episode show its first or last frame.
Each of these samples comes once a pass, at a number that the permutation's inverse tells. The
least of them above the present sample's is the next use; one that is through in this pass has its
place in the next pass.

Where weights draw a sample several times in a pass, the first of them is told. Where
``per_episode`` draws the t, two passes are searched; for a t that neither has drawn the mean
of the passes to come is told. Where the datasets' turns are drawn, a use is told as the position at
which it is due, which lies within ``schedule.WINDOW`` blocks of it. Frames are also shown as goals,
which are drawn: these uses are left out. A frame that is shown as a goal is told its next use in
another place. On several nodes a use counts where its position is this node's. Uses are gone
through one after the other until there is one, ``LOOKS`` at most; beyond it is told by the mean of
those to come.

Invariants:
    1. ``samples(a, c)`` is ``samples(a, b)`` followed by ``samples(b, c)``.
    2. V samples of a dataset from one whose number is a multiple of V are its valid samples, each
       once.
    3. ``samples`` says of each position's sample what ``numbers`` and ``positions`` turn back into
       that position.
    4. The same orders and tables give the same samples: on every host, in every process.
    5. A next use lies beyond the position asked at. Except in the cases above it is the first such
       position of the plan that shows the frame.

Not here: the mixing schedule (``sampling.schedule``); valid t and the frames of a sample
(``samples.windows``); frames that samples of a block share (``chains``); positions of a rank
(``sampling.dealing``); reading (``pipeline.read``); the cache (``cache``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoloader.host.frozen import frozen
from autoloader.samples.draws import (
    PURPOSE_PLAN,
    Bools,
    Ints,
    Keys,
    fold,
    fold_array,
    gather,
    permute,
    scatter,
    unpermute,
)
from autoloader.samples.windows import dropped_edges, valid_range
from autoloader.sampling.chains import ChainedSamples
from autoloader.sampling.dealing import NodePart
from autoloader.sampling.episodes import DatasetTable, DrawnByWeight, DrawnT, EpisodeCounts, KeptT
from autoloader.sampling.mixture import Locality, MixtureOrder, PositionSequence
from autoloader.sampling.schedule import NEVER


class LanePart(NamedTuple):
    """Part of a pass that a lane has, all [n]: its stretch of the pass in file order.

    Attributes:
        lane: [n] number of the lane.
        start: [n] first sample of its stretch.
        size: [n] number of samples in its stretch.
        at: [n] number of the sample in its part of the lane.
    """

    lane: Ints
    start: Ints
    size: Ints
    at: Ints


def part_of_lane(pass_: Ints, within: Ints, samples: Ints, lanes: int) -> LanePart:
    """The lane of each pass's sample ``within``, all [n]; a pass has ``samples``."""
    if lanes == 1:
        return LanePart(np.zeros_like(within), np.zeros_like(within), samples, within)
    shift = pass_ * samples % lanes
    lane = (shift + within) % lanes
    start, size = stretch_of_lane(lane, pass_, samples, lanes)
    at = (shift + within) // lanes - _begun(shift, lane, lanes)
    return LanePart(lane, start, size, at)


def lane_of_stored(pass_: Ints, stored: Ints, samples: Ints, lanes: int) -> LanePart:
    """The lane whose stretch holds each pass's sample ``stored`` in file order, all [n]."""
    lane = np.zeros_like(stored)
    for each in range(1, lanes):
        start, _ = stretch_of_lane(np.full_like(stored, each), pass_, samples, lanes)
        lane += start <= stored
    start, size = stretch_of_lane(lane, pass_, samples, lanes)
    return LanePart(lane, start, size, stored - start)


def number_in_lane(pass_: Ints, part: LanePart, samples: Ints, lanes: int) -> Ints:
    """Number of each sample in its pass, all [n]; the arguments as of ``part_of_lane``."""
    shift = pass_ * samples % lanes
    return (part.at + _begun(shift, part.lane, lanes)) * lanes + part.lane - shift


def stretch_of_lane(lane: Ints, pass_: Ints, samples: Ints, lanes: int) -> tuple[Ints, Ints]:
    """(first sample in file order, samples) that each lane has of a pass, all [n]."""
    shift = pass_ * samples % lanes
    start = _before(shift + samples, lane, lanes) - _before(shift, lane, lanes)
    stop = _before(shift + samples, lane + 1, lanes) - _before(shift, lane + 1, lanes)
    return start, stop - start


def _before(stop: Ints, lane: Ints, lanes: int) -> Ints:
    """Number of 0 … stop−1 that are of lanes before ``lane``."""
    return np.asarray(stop // lanes * lane + np.minimum(stop % lanes, lane))


def _begun(shift: Ints, lane: Ints, lanes: int) -> Ints:
    """Number of 0 … shift−1 that are of ``lane``."""
    return _before(shift, lane + 1, lanes) - _before(shift, lane, lanes)


_LANE_BITS = 40
"""Room for the number of a block beside that of its lane."""


class PassOrder:
    """The passes of all datasets.

    Args:
        samples: [D] of a pass.
        keys: [D] of the passes' permutations.
        locality: blocks and lanes; ``None``: any sample may follow any other.
    """

    def __init__(self, samples: Ints, keys: Keys, locality: Locality | None) -> None:
        self._samples, self._keys, self._locality = samples, keys, locality
        # Lanes are shuffled side by side, and have the window's blocks together.
        self._window = 1 if locality is None else max(1, locality.window // locality.lanes)
        self._block = np.asarray(() if locality is None else locality.blocks, dtype=np.int64)

    def stored(self, dataset: Ints, pass_: Ints, within: Ints) -> tuple[Ints, Ints | None]:
        """(which stored sample, its block) a pass's sample ``within`` is, all [n].

        There are no blocks without locality.
        """
        key, samples = fold_array(self._keys[dataset], pass_), self._samples[dataset]
        if self._locality is None:
            return permute(within, samples, key), None
        lanes, block = self._locality.lanes, self._block[dataset]
        part = part_of_lane(pass_, within, samples, lanes)
        own = fold_array(key, part.lane) if lanes > 1 else key
        at = scatter(part.at, part.size, own, block, self._window)
        return part.start + at, (part.lane << _LANE_BITS) + at // block

    def numbers(self, dataset: Ints, pass_: Ints, stored: Ints) -> Ints:
        """Number in its pass of each stored sample, all [n]."""
        key, samples = fold_array(self._keys[dataset], pass_), self._samples[dataset]
        if self._locality is None:
            return unpermute(stored, samples, key)
        lanes, block = self._locality.lanes, self._block[dataset]
        part = lane_of_stored(pass_, stored, samples, lanes)
        own = fold_array(key, part.lane) if lanes > 1 else key
        at = gather(part.at, part.size, own, block, self._window)
        return number_in_lane(pass_, part._replace(at=at), samples, lanes)

    def block(self, dataset: int, pass_: int, block: int) -> tuple[int, int]:
        """The stored samples [start, stop) of a block."""
        assert self._locality is not None
        lane, which = divmod(block, 1 << _LANE_BITS)
        one = np.asarray([lane]), np.asarray([pass_]), self._samples[[dataset]]
        first, length = (int(own[0]) for own in stretch_of_lane(*one, self._locality.lanes))
        size = self._locality.blocks[dataset]
        return first + which * size, first + min((which + 1) * size, length)


@frozen
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


class SamplePlan:
    """Names the sample of each position of a mixture's endless sequence.

    Args:
        order: the mixture's shares, block length and epochs.
        tables: tables of the datasets, in the order of ``order.shares``. Every table has a sample.
            Where an epoch is a pass, it has as many as ``order.pass_samples`` says, or no part in
            the epoch (0).
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
        self._by_weight = DrawnByWeight(tables)

    def spans(self, spans: Sequence[tuple[int, int]]) -> PlannedSamples:
        """The samples at several spans of positions, one after the other."""
        joined: list[tuple[int, int]] = []
        for start, stop in spans:
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], stop)
            else:
                joined.append((start, stop))
        numbered = [self._positions.ordinals(start, stop) for start, stop in joined]
        return self.at(*map(np.concatenate, zip(*numbered, strict=True)))

    def samples(self, start: int, stop: int) -> PlannedSamples:
        """The samples at positions [start, stop); start ≥ 0."""
        return self.at(*self._positions.ordinals(start, stop))

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

    def positions(self, dataset: Ints, number: Ints) -> Ints:
        """Position of each sample ``number`` of each ``dataset``; see ``PositionSequence``."""
        return self._positions.positions(dataset, number)

    def holds(self, dataset: Ints, episode: Ints, t: Ints) -> Bools:
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
            valid = self._episodes.number_of(dataset[at], episode[at], place[at])
            stored = self._by_weight.first(dataset[at], valid)
            at, stored = at[stored >= 0], stored[stored >= 0]
            within[at] = self._passes.numbers(dataset[at], pass_[at], stored)
        at = np.flatnonzero(on)
        if len(at):
            of = dataset[at], pass_[at], episode[at], place[at]
            within[at] = self._chains.numbers(*of)
        return np.where(within < 0, -1, pass_ * self._samples[dataset] + within)

    def _at(self, dataset: Ints, pass_: Ints, stored: Ints) -> tuple[Ints, Ints]:
        """(episode, t) of a pass's samples as they are stored, where each is drawn on its own."""
        valid = self._by_weight.put(stored, dataset)
        episode, place = self._episodes.find(dataset, valid)
        t = self._first_t[dataset] + place
        if self._kept is not None:
            self._kept.put(t, dataset, episode, place)
        drawn = np.flatnonzero(self._drawn[dataset])
        if len(drawn):
            t[drawn] = self._draws.t(dataset[drawn], pass_[drawn], episode[drawn], place[drawn])
        return episode, t


_PASSES = 2
LOOKS = 12
"""Uses that are looked at for one of this node; each takes about 3 µs for a frame."""
_FAR = 3
"""Where no use of this node is found, so many times the mean is told: few of them come later."""


class NextUse:
    """Tells when frames are shown next.

    Args:
        plan: sample plan of the mixture.
        tables: tables of the datasets, as the plan was made of.
    """

    def __init__(self, plan: SamplePlan, tables: Sequence[DatasetTable]) -> None:
        self._plan = plan
        samples = [table.sample for table in tables]
        offsets = [sorted(set(sample.frame_offsets)) for sample in samples]
        self._offsets = np.zeros((len(tables), max(map(len, offsets))), dtype=np.int64)
        self._has = np.zeros(self._offsets.shape, dtype=np.bool_)
        for row, own in enumerate(offsets):
            self._offsets[row, : len(own)], self._has[row, : len(own)] = own, True
        # How many t beyond its own show the first and the last frame of an episode.
        reach = [
            (-min(0, *own) * (s.edges.start == "repeat"), max(0, *own) * (s.edges.end == "repeat"))
            for own, s in zip(offsets, samples, strict=True)
        ]
        self._early, self._late = np.asarray(reach, dtype=np.int64).T
        drawn = [0 if s.per_episode == "all" else s.per_episode for s in samples]
        self._drawn = np.asarray(drawn, dtype=np.int64)
        self._goal = np.asarray([s.goal != "none" for s in samples], dtype=np.bool_)
        self._samples = np.asarray([table.samples for table in tables], dtype=np.int64)
        dropped = [dropped_edges(sample) for sample in samples]
        self._first, self._end = np.asarray(dropped, dtype=np.int64).T

    def after(
        self,
        planned: PlannedSamples,
        steps: Ints,
        frame: Ints,
        position: Ints,
        node: NodePart | None = None,
    ) -> Ints:
        """The next position at which any sample shows each frame at one of its offsets.

        Args:
            planned: n samples whose frames are asked for.
            steps: [n] of the strided episode of each.
            frame: [n, F] frames that they show, as numbers of the strided episode.
            position: [n] where they lie.
            node: node of which positions count; ``None``: all positions count.

        Returns:
            [n, F] int64 positions, each above its sample's own; ``NEVER`` where there is none, as
            of a dataset that gives no more samples from some position on.
        """
        times = frame.shape[1]
        dataset = planned.dataset.astype(np.int64)
        first = self._first[dataset]
        stop = np.maximum(first, steps - self._end[dataset])
        columns = dataset, planned.episode, first, stop, steps - 1
        shown = _Frames(frame.ravel(), *(np.repeat(column, times) for column in columns))
        now = np.repeat(position, times)
        number = self._next_numbers(shown, np.repeat(planned.number, times))
        found = self._positions(shown.dataset, number, now)
        if node is not None:
            self._pass_over(node, shown, now, number, found)
        return found.reshape(frame.shape)

    def _positions(self, dataset: Ints, number: Ints, now: Ints) -> Ints:
        """Where samples lie, beyond ``now``; ``NEVER`` where there is none."""
        found = np.full(len(number), NEVER, dtype=np.int64)
        at = np.flatnonzero(number < NEVER)
        if len(at):
            found[at] = np.maximum(self._plan.positions(dataset[at], number[at]), now[at] + 1)
        return found

    def _pass_over(
        self, node: NodePart, shown: _Frames, now: Ints, number: Ints, found: Ints
    ) -> None:
        """Put the next use of a node in place of those in ``found`` that are other nodes'."""
        left = np.flatnonzero((found < NEVER) & ~node.shows(found))
        for _ in range(LOOKS):
            if not len(left):
                return
            of = _Frames(*(column[left] for column in shown))
            number[left] = self._next_numbers(of, number[left])
            found[left] = self._positions(of.dataset, number[left], found[left])
            left = left[(found[left] < NEVER) & ~node.shows(found[left])]
        found[left] += (found[left] - now[left]) * node.nodes * _FAR // (LOOKS + 1)

    def _next_numbers(self, shown: _Frames, own: Ints) -> Ints:
        """The number, above ``own``, of the next sample of its dataset that shows each frame."""
        dataset, episode = shown.dataset, shown.episode
        pass_ = own // self._samples[dataset]
        row, t = self._shown_by(shown)
        held = self._plan.holds(dataset[row], episode[row], t)
        row, t = row[held], t[held]
        showing = np.bincount(row, minlength=len(own))
        # A frame that one sample of a pass shows is shown by that one now.
        once = (showing == 1) & ~self._goal[dataset]
        number = np.full(len(own), NEVER, dtype=np.int64)
        for ahead in range(_PASSES):
            of, at = (row, t) if ahead else (row[~once[row]], t[~once[row]])
            found = self._plan.numbers(dataset[of], pass_[of] + ahead, episode[of], at)
            later = found > own[of]
            np.minimum.at(number, of[later], found[later])
            unknown = number[row] == NEVER
            row, t = row[unknown], t[unknown]
        left = row[self._drawn[dataset[row]] > 0]
        undrawn = np.flatnonzero(np.bincount(left, minlength=len(own)))
        if len(undrawn):
            of = dataset[undrawn]
            valid = shown.stop[undrawn] - shown.first[undrawn]
            chance = showing[undrawn] * self._drawn[of] / valid
            passes = pass_[undrawn] + _PASSES - 0.5 + 1 / np.minimum(chance, 1)
            number[undrawn] = (passes * self._samples[of]).astype(np.int64)
        return number

    def _shown_by(self, shown: _Frames) -> tuple[Ints, Ints]:
        """(which of the frames, t) of every valid t that shows one of them; t may be twice."""
        frame, dataset, _, first, stop, last = shown
        t = frame[:, None] - self._offsets[dataset]
        row, column = np.nonzero(self._has[dataset] & (t >= first[:, None]) & (t < stop[:, None]))
        rows, ts = [row], [t[row, column]]
        early, late = self._early[dataset], self._late[dataset]
        for on, begin, count in (
            (frame == 0, 0 * frame, early),
            (frame == last, last + 1 - late, late),
        ):
            at = np.flatnonzero(on & (count > 0))
            low = np.maximum(begin[at], first[at])
            high = np.minimum(begin[at] + count[at], stop[at])
            each = np.maximum(high - low, 0)
            rows.append(np.repeat(at, each))
            ts.append(np.arange(int(each.sum())) + np.repeat(low - (np.cumsum(each) - each), each))
        return np.concatenate(rows), np.concatenate(ts)


class _Frames(NamedTuple):
    """Frames of episodes, all [n].

    Attributes:
        frame: number in the strided episode.
        dataset, episode: [n] dataset and episode that each frame is of.
        first, stop: the episode's valid t, and the one after the last.
        last: the episode's last frame.
    """

    frame: Ints
    dataset: Ints
    episode: Ints
    first: Ints
    stop: Ints
    last: Ints


@frozen
class Reuse:
    """Decoding work of a plan.

    Attributes:
        chained: [D] whether the samples of a dataset's blocks share frames.
        decodes: [D] decodes of a sample of each dataset and camera, over a pass.
        alone: [D] the same without chaining.
    """

    chained: tuple[bool, ...]
    decodes: tuple[float, ...]
    alone: tuple[float, ...]


def foretell_reuse(order: MixtureOrder, tables: Sequence[DatasetTable]) -> Reuse:
    """Estimate the decodes of samples; no frame is looked at.

    Args:
        order: the order of the mixture's samples.
        tables: tables of the datasets, each with a sample at least.
    """
    plan = SamplePlan(order, tables, chain=order.chain)
    alone = [table.sample.decodes for table in tables]
    decodes = []
    for table, frames, runs in zip(tables, alone, plan.runs, strict=True):
        saved = (len(set(table.sample.frame_offsets)) - 1) * (order.block_length - 1)
        decodes.append((table.samples * frames - runs * saved) / table.samples)
    return Reuse(plan.chained, tuple(decodes), tuple(map(float, alone)))
