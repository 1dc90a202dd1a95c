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
other until there is one, ``LOOKS`` at most; beyond it is told by the mean of those to come.

Invariants:
    1. What is told lies beyond the position asked at.
    2. But for the three cases above it is the first such position of the plan that shows the frame.

Not here: which frames a sample shows (``samples.windows``), what is done about it (``cache``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoloader.samples.windows import dropped_edges
from autoloader.sampling.dealing import NodePart
from autoloader.sampling.episodes import DatasetTable, Ints
from autoloader.sampling.plan import PlannedSamples, SamplePlan
from autoloader.sampling.schedule import NEVER

_PASSES = 2
LOOKS = 12
"""Uses that are looked at for one of this node; each takes about 3 µs for a frame."""
_FAR = 3
"""Where no use of this node is found, so many times the mean is told: few of them come later."""


class NextUse:
    """Tells when frames are shown next.

    Args:
        plan: sample plan of the mixture.
        tables: its datasets, those that the plan was made of.
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
            node: whose positions count; ``None``: all.

        Returns:
            [n, F] int64 positions, each above its sample's own; ``NEVER`` where there is none, as
            of a dataset that gives no more samples from some position on.
        """
        times = frame.shape[1]
        dataset = planned.dataset.astype(np.int64)
        first = self._first[dataset]
        columns = (
            dataset,
            planned.episode,
            first,
            np.maximum(first, steps - self._end[dataset]),
            steps - 1,
        )
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
            of = shown.at(left)
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
        dataset, frame, first, stop, last = (
            shown.dataset, shown.frame, shown.first, shown.stop, shown.last,
        )  # fmt: skip
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


@dataclass(frozen=True, slots=True)
class _Frames:
    """Frames of episodes, all [n].

    Attributes:
        frame: number in the strided episode.
        dataset, episode: whose.
        first, stop: the episode's valid t, and the one after the last.
        last: the episode's last frame.
    """

    frame: Ints
    dataset: Ints
    episode: Ints
    first: Ints
    stop: Ints
    last: Ints

    def at(self, rows: Ints) -> _Frames:
        """Those of ``rows``."""
        return _Frames(*(getattr(self, name)[rows] for name in self.__slots__))
