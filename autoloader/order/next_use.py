"""When a frame is needed next: the sample plan, read backwards.

    frame ──► t that show it ──► number in this pass, in the next ──► position
       (offsets, edges)      (inverse of the plan)             (inverse of the schedule)

A sample at t shows the frames t + offset. So a frame is shown by the samples at frame − offset, and
where an edge repeats, the first and the last frame by all whose windows leave the episode there.
Each of these samples comes once a pass, at a number that the permutation's inverse tells. The
least of them above the present sample's is the next use; one that is through in this pass has its
place in the next pass. All of it works on arrays.

Where ``per_episode`` draws the t, two passes are searched; what neither has drawn is given the mean
of the passes to come. Where the datasets' turns are drawn, a use is told as the position at which
it is due, which lies within ``schedule.WINDOW`` blocks of it. Frames are also shown as goals, which
are drawn: these uses are left out. A frame that is shown as a goal is told its next use in another
place.

On several nodes a use counts where its position is this node's. Uses are gone through one after the
other until there is one, ``_LOOKS`` at most; beyond it is told by the mean of those to come.

Invariants:
    1. What is told lies beyond the position asked at.
    2. But for the three cases above it is the first such position of the plan that shows the frame.

Not here: which frames a sample shows (``samples.windows``), what is done about it (``cache``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from autoloader.order.dealing import NodePart
from autoloader.order.episodes import DatasetTable, Ints
from autoloader.order.plan import SamplePlan
from autoloader.order.schedule import NEVER
from autoloader.samples.windows import dropped_edges

_PASSES = 2
_LOOKS = 12
"""Uses that are looked at for one of this node; each takes about 3 µs for a frame."""
_FAR = 3
"""Where no use of this node is found, so many times the mean is told: few of them come later."""
_GAP = 512
"""Positions that lie no further apart are numbered in one piece."""


class NextUse:
    """Tells when frames are shown next.

    Args:
        plan: of the mixture.
        tables: its datasets, those that the plan was made of.
    """

    def __init__(self, plan: SamplePlan, tables: Sequence[DatasetTable]) -> None:
        self._plan = plan
        self._tables = tables
        samples = [table.sample for table in tables]
        offsets = [sorted(set(sample.frame_offsets)) for sample in samples]
        self._offsets = np.zeros((len(tables), max(map(len, offsets))), dtype=np.int64)
        self._has = np.zeros(self._offsets.shape, dtype=np.bool_)
        for row, own in enumerate(offsets):
            self._offsets[row, : len(own)], self._has[row, : len(own)] = own, True
        # How many t beyond its own show the first and the last frame of an episode.
        early = [
            -min(0, *own) if s.edges.start == "repeat" else 0
            for own, s in zip(offsets, samples, strict=True)
        ]
        late = [
            max(0, *own) if s.edges.end == "repeat" else 0
            for own, s in zip(offsets, samples, strict=True)
        ]
        self._early, self._late = (
            np.asarray(early, dtype=np.int64),
            np.asarray(late, dtype=np.int64),
        )
        drawn = [0 if s.per_episode == "all" else s.per_episode for s in samples]
        self._drawn = np.asarray(drawn, dtype=np.int64)
        self._goal = np.asarray([s.goal != "none" for s in samples], dtype=np.bool_)
        self._samples = np.asarray([table.samples for table in tables], dtype=np.int64)
        self._stride = np.asarray([table.stride for table in tables], dtype=np.int64)
        dropped = [dropped_edges(sample) for sample in samples]
        self._first, self._end = np.asarray(dropped, dtype=np.int64).T

    def after(
        self,
        dataset: Ints,
        pass_: Ints,
        episode: Ints,
        frame: Ints,
        position: Ints,
        node: NodePart | None = None,
    ) -> Ints:
        """The next position at which any sample shows each frame at one of its offsets.

        Args:
            dataset: [n] of the samples at ``position``.
            pass_: [n] the pass of their dataset.
            episode: [n] the index in the dataset's table.
            frame: [n, F] frames that they show, as numbers of the strided episode.
            position: [n] where they lie.
            node: whose positions count; ``None``: all.

        Returns:
            [n, F] int64 positions, each above its sample's own; ``NEVER`` where there is none, as
            of a dataset that gives no more samples from some position on.
        """
        frames = frame.shape[1]
        dataset, pass_, episode = (
            np.repeat(column.astype(np.int64), frames) for column in (dataset, pass_, episode)
        )
        now = np.repeat(position, frames)
        own = np.repeat(self._own_numbers(position), frames)
        number = self._next_numbers(dataset, pass_, episode, frame.ravel(), own)
        found = self._positions(dataset, number, now)
        if node is not None:
            self._pass_over(node, dataset, episode, frame.ravel(), now, number, found)
        return found.reshape(frame.shape)

    def _positions(self, dataset: Ints, number: Ints, now: Ints) -> Ints:
        """Where samples lie, beyond ``now``; ``NEVER`` where there is none."""
        found = np.full(len(number), NEVER, dtype=np.int64)
        at = np.flatnonzero(number < NEVER)
        if len(at):
            found[at] = np.maximum(self._plan.positions(dataset[at], number[at]), now[at] + 1)
        return found

    def _pass_over(
        self,
        node: NodePart,
        dataset: Ints,
        episode: Ints,
        frame: Ints,
        now: Ints,
        number: Ints,
        found: Ints,
    ) -> None:
        """Put the next use of a node in place of those in ``found`` that are other nodes'."""
        left = np.flatnonzero((found < NEVER) & ~node.shows(found))
        for _ in range(_LOOKS):
            if not len(left):
                return
            of, last = dataset[left], number[left]
            number[left] = self._next_numbers(
                of, last // self._samples[of], episode[left], frame[left], last
            )
            found[left] = self._positions(of, number[left], found[left])
            left = left[(found[left] < NEVER) & ~node.shows(found[left])]
        found[left] += (found[left] - now[left]) * node.nodes * _FAR // (_LOOKS + 1)

    def _next_numbers(
        self, dataset: Ints, pass_: Ints, episode: Ints, frame: Ints, own: Ints
    ) -> Ints:
        """The number, above ``own``, of the next sample of its dataset that shows each frame."""
        first, stop, last = self._valid(dataset, episode)
        row, t = self._shown_by(dataset, frame, first, stop, last)
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
        undrawn = np.unique(row[self._drawn[dataset[row]] > 0])
        if len(undrawn):
            of = dataset[undrawn]
            chance = showing[undrawn] * self._drawn[of] / (stop[undrawn] - first[undrawn])
            passes = pass_[undrawn] + _PASSES - 0.5 + 1 / np.minimum(chance, 1)
            number[undrawn] = (passes * self._samples[of]).astype(np.int64)
        return number

    def _own_numbers(self, position: Ints) -> Ints:
        """The number of each position's sample among those of its dataset."""
        order = np.argsort(position, kind="stable")
        ascending = position[order]
        number = np.empty_like(ascending)
        cuts = np.flatnonzero(np.diff(ascending) > _GAP) + 1
        for own in np.split(np.arange(len(ascending)), cuts):
            if len(own):
                begin = int(ascending[own[0]])
                numbers = self._plan.ordinals(begin, int(ascending[own[-1]]) + 1)[1]
                number[order[own]] = numbers[ascending[own] - begin]
        return number

    def _valid(self, dataset: Ints, episode: Ints) -> tuple[Ints, Ints, Ints]:
        """(first valid t, the one after the last, last frame) of each episode."""
        steps = np.empty_like(dataset)
        order = np.argsort(dataset, kind="stable")
        edges = np.flatnonzero(np.diff(dataset[order], prepend=-1, append=-1)).tolist()
        for begin, end in pairwise(edges):
            rows = order[begin:end]
            steps[rows] = self._tables[dataset[rows[0]]].steps[episode[rows]]
        steps = -(-steps // self._stride[dataset])
        first = self._first[dataset]
        return first, np.maximum(first, steps - self._end[dataset]), steps - 1

    def _shown_by(
        self, dataset: Ints, frame: Ints, first: Ints, stop: Ints, last: Ints
    ) -> tuple[Ints, Ints]:
        """(which of the frames, t) of every valid t that shows one of them; t may be twice."""
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
