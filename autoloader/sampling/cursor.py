"""Cursors: what of a dataset's passes has been taken, to the sample, in a few numbers.

One mechanism serves live retuning, crash recovery and resume: a cursor is the fold of everything
taken so far, and a reader can be opened at any cursor. Records of a shard come in order, and so do
samples of an episode, in their keyed order. So a shard is a count of records done (and the few done
beyond it). An open episode is a count of samples taken.

Invariants:
    1. Folding the same samples in any order that keeps each episode's order gives the same cursor.
    2. ``from_state(state())`` is the same cursor; the state is JSON and small.
    3. A pass is complete when every record is; then the next pass is the current one.

Not here: which samples exist (``index``), the mixer's place (``pipeline.read.mixer``).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoloader.errors import UsageError
from autoloader.samples import draws
from autoloader.samples.block import Place, ReaderStart
from autoloader.samples.draws import PURPOSE_SHARDS
from autoloader.samples.resolve import ResolvedDataset


@dataclass(slots=True)
class _PassState:
    """Progress of one pass.

    Attributes:
        upto: for each slice, number of records at its front that are done.
        beyond: slice → numbers of done records behind these.
        open: (slice, record) → number of samples taken of an episode that is not done.
        left: number of records that are not done.
    """

    upto: list[int]
    beyond: dict[int, set[int]] = field(default_factory=dict)
    open: dict[tuple[int, int], int] = field(default_factory=dict)
    left: int = 0


class DatasetCursor:
    """The cursor of one dataset.

    Args:
        starts: first record of each slice.
        counts: records of each slice.
        key: the dataset's key; orders the shards in ``state``.
    """

    def __init__(self, starts: Sequence[int], counts: Sequence[int], key: int) -> None:
        self._starts = tuple(starts)
        self._counts = tuple(counts)
        self._key = key
        # Which records there are: a state fits these and no others.
        which = hashlib.blake2b(repr((self._starts, self._counts)).encode(), digest_size=4)
        self._shape = f"{sum(self._counts)}/{len(self._counts)}/{which.hexdigest()}"
        self.pass_ = 0
        self._passes: dict[int, _PassState] = {}

    @classmethod
    def of(cls, dataset: ResolvedDataset) -> DatasetCursor:
        """The cursor at the beginning of a dataset."""
        return cls(
            [piece.start for piece in dataset.slices],
            [piece.stop - piece.start for piece in dataset.slices],
            dataset.key,
        )

    def copy(self) -> DatasetCursor:
        """An independent cursor at the same place."""
        twin = DatasetCursor(self._starts, self._counts, self._key)
        twin.pass_ = self.pass_
        twin._passes = copy.deepcopy(self._passes)
        return twin

    def _state_of(self, pass_: int) -> _PassState:
        state = self._passes.get(pass_)
        if state is None:
            state = _PassState([0] * len(self._counts), left=sum(self._counts))
            self._passes[pass_] = state
        return state

    def take(self, pass_: int, shard: int, record: int, total: int) -> None:
        """Count one more sample of an episode as taken; it has ``total`` of them in this pass."""
        state = self._state_of(pass_)
        taken = state.open.get((shard, record), 0) + 1
        if taken < total:
            state.open[shard, record] = taken
        else:
            state.open.pop((shard, record), None)
            self._complete(pass_, state, shard, record)

    def close(self, place: Place) -> None:
        """A record that gives no (further) sample is done."""
        state = self._state_of(place.pass_)
        state.open.pop((place.shard, place.record), None)
        self._complete(place.pass_, state, place.shard, place.record)

    def _complete(self, pass_: int, state: _PassState, shard: int, record: int) -> None:
        number = record - self._starts[shard]
        beyond = state.beyond.setdefault(shard, set())
        if number < state.upto[shard] or number in beyond:
            raise AssertionError(f"record {record} of shard {shard}, pass {pass_}, done twice")
        beyond.add(number)
        while state.upto[shard] in beyond:
            beyond.remove(state.upto[shard])
            state.upto[shard] += 1
        if not beyond:
            del state.beyond[shard]
        state.left -= 1
        while (current := self._passes.get(self.pass_)) is not None and current.left == 0:
            del self._passes[self.pass_]
            self.pass_ += 1

    def taken(self, place: Place) -> int | None:
        """Samples of an episode already taken, or ``None`` where it is done."""
        if place.pass_ < self.pass_:
            return None
        state = self._passes.get(place.pass_)
        if state is None:
            return 0
        number = place.record - self._starts[place.shard]
        if number < state.upto[place.shard] or number in state.beyond.get(place.shard, ()):
            return None
        return state.open.get((place.shard, place.record), 0)

    def records_of(self, shard: int) -> range:
        """Its records of a shard."""
        return range(self._starts[shard], self._starts[shard] + self._counts[shard])

    def take_over(self, others: Sequence[DatasetCursor]) -> None:
        """Stand where ``others``, cursors over other parts of the same files, stand together.

        Records that none of them has are open.
        """
        first, last = (extreme(other.pass_ for other in others) for extreme in (min, max))
        begun = {number for other in others for number in other._passes}  # noqa: SLF001 its own class
        self.pass_, self._passes = first, {}
        for pass_ in sorted({*range(first, last), *begun}):
            for shard in range(len(self._counts)):
                mine = self.records_of(shard)
                for other in others:
                    theirs = other.records_of(shard)
                    first, stop = max(mine.start, theirs.start), min(mine.stop, theirs.stop)
                    for record in range(first, stop):
                        self._adopt(Place(0, pass_, shard, record), other)

    def _adopt(self, place: Place, other: DatasetCursor) -> None:
        taken = other.taken(place)
        if taken is None:
            self.close(place)
        elif taken:
            self._state_of(place.pass_).open[place.shard, place.record] = taken

    def start(self) -> ReaderStart:
        """Where a reader must open to miss nothing; what it brings twice, ``taken`` tells."""
        state = self._passes.get(self.pass_)
        skip = tuple(state.upto) if state is not None else (0,) * len(self._counts)
        return ReaderStart(self.pass_, skip)

    def comes_next(self, side_by_side: int) -> tuple[int, bool]:
        """The slice of which something is due next, and whether anything of it has come.

        Any thread may ask; while its owner takes, it may be told what was due a moment ago.

        Args:
            side_by_side: slices that are read at a time: of one that has given nothing yet, the
                first is waited for.
        """
        pass_ = self.pass_
        state = self._passes.get(pass_)
        due = [
            (shard, state is not None and bool(state.upto[shard] or shard in state.beyond))
            for shard in self._order(pass_)
            if state is None or state.upto[shard] < self._counts[shard]
        ][:side_by_side]
        if not due:  # the owner is just ending this pass
            return self._order(pass_ + 1)[0], False
        return next((one for one in due if not one[1]), due[0])

    def state(self) -> dict[str, Any]:
        """Plain values: per pass, shards done as a prefix of the keyed order, and exceptions."""
        passes = {}
        for number, state in sorted(self._passes.items()):
            order = self._order(number)
            prefix = 0
            while prefix < len(order) and state.upto[order[prefix]] == self._counts[order[prefix]]:
                prefix += 1
            passes[str(number)] = {
                "shards_done": prefix,
                "records_done": [
                    [shard, state.upto[shard]] for shard in order[prefix:] if state.upto[shard]
                ],
                "beyond": [[s, sorted(records)] for s, records in sorted(state.beyond.items())],
                "open": [[s, r, taken] for (s, r), taken in sorted(state.open.items())],
            }
        return {"pass": self.pass_, "records": self._shape, "passes": passes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to the place in ``state``; where that is none of these files, stay.

        Args:
            state: result of ``state``, of the right types.

        Raises:
            UsageError: the state was saved for other files.
        """
        if state["records"] != self._shape:
            raise UsageError(
                f"the state was saved for other files: it has {state['records']!r} (episodes/"
                f"shards/hash of the episodes of each shard), and the dataset has {self._shape!r}",
                remedy="resume with the same split and files as the state was saved with",
            )
        self.pass_ = int(state["pass"])
        saved = state["passes"].items()
        self._passes = {int(number): self._restored(int(number), one) for number, one in saved}

    def _restored(self, number: int, saved: Mapping[str, Any]) -> _PassState:
        """Pass that ``state`` describes."""
        upto = [0] * len(self._counts)
        for shard in self._order(number)[: saved["shards_done"]]:
            upto[shard] = self._counts[shard]
        for shard, records in saved["records_done"]:
            upto[shard] = records
        beyond = {shard: set(records) for shard, records in saved["beyond"]}
        open_ = {(shard, record): taken for shard, record, taken in saved["open"]}
        left = sum(self._counts) - sum(upto) - sum(map(len, beyond.values()))
        return _PassState(upto, beyond, open_, left)

    def _order(self, pass_: int) -> list[int]:
        key = draws.fold(self._key, PURPOSE_SHARDS, pass_)
        return list(draws.ordered(key, np.arange(len(self._counts))).tolist())
