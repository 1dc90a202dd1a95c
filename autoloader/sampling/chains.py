"""Decode reuse: a block's samples chained, so that each but the first needs one new frame.

Where the frame offsets share a difference k, the samples at t, t+k, t+2k, … of an episode show
mostly the same frames. With two offsets b of them take b+1 decodes instead of 2b. The x-th valid
t of an episode belongs to class x mod k. A class is a row of samples that each share a frame with
the next. With V valid t and (q, r) = divmod(V, k) there are r classes of q+1 and k−r of q samples.
A class of m gives ⌊m/b⌋ full runs of b and a rest of m mod b. How many of the rest come before the
first run is drawn per pass, so that runs begin elsewhere in each.

    a pass of a dataset, in its own numbers (b = 4, R runs, L samples left over):
    | head | block | block | block | … | tail |      head + tail < 2b
             └ the image of its number under a permutation of max(R, blocks): below R a run,
               else a block of rest samples, which have a permutation of their own

Where an epoch is a pass, its blocks begin with it and the head is empty. The schedule deals the
tail as single samples. Else blocks go on over the end of a pass, and the head ends the block that
began in the pass before. Head and tail take rest samples; where these do not suffice (L < b) one
run is broken up for them.

With locality the runs and the blocks of rest lie in one row as they are stored, the blocks of rest
evenly among the runs. They take turns by a permutation with locality. The rest comes as it is
stored.

Invariants:
    1. A pass holds every valid t of every episode exactly once.
    2. A block of the schedule that lies in one pass is one run, or samples of the rest.

Not here: which positions a dataset has (``sampling.mixture``), the reuse itself (``decode.jobs``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from autoloader.samples.draws import (
    PURPOSE_CHAIN_HEAD,
    PURPOSE_PLAN,
    PURPOSE_PLAN_REST,
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
from autoloader.sampling.episodes import DatasetTable, EpisodeCounts
from autoloader.sampling.mixture import Locality
from autoloader.spec import SampleSpec


def chain_difference(sample: SampleSpec) -> int:
    """The difference that all neighbouring frame offsets share, or 0 where nothing is chained.

    A chain needs two different offsets at least, and every valid t to be taken.
    """
    differences = {after - before for before, after in pairwise(sorted(set(sample.frame_offsets)))}
    if sample.per_episode != "all" or len(differences) != 1:
        return 0
    return differences.pop()


def why_unchained(sample: SampleSpec, *, keeps: bool = False) -> str | None:
    """Why samples like this are not chained, for people; ``None`` where they are.

    Args:
        sample: the spec's description of a sample.
        keeps: whether rules leave some t out.
    """
    if keeps:
        return "keep leaves t that do not lie in a row"
    if chain_difference(sample):
        return None
    if sample.per_episode != "all":
        return f"per_episode: {sample.per_episode} draws each t on its own"
    if len(set(sample.frame_offsets)) < 2:
        return "a sample has one frame, so there is none to share"
    return f"frame_offsets {list(sample.frame_offsets)} share no difference"


class ChainedSamples:
    """Maps between a sample's number in a pass and (episode, step), where samples come in runs.

    A run is ``block_length`` samples of one episode, so far apart that neighbours share frames.

    Args:
        tables: all datasets of the mixture; one with rules to ``keep`` is not chained, since its
            t do not lie in a row.
        block_length: b, the samples of a run; chained only where it is above 1.
        by_pass: whether an epoch is a pass, so that every pass begins with a block.
        locality: rule of which blocks are stored near to each other; ``None``: there is none.

    Attributes:
        chained: [D] bool, which datasets are.
        runs: [D] int64, full runs of a pass.
    """

    def __init__(
        self,
        tables: Sequence[DatasetTable],
        block_length: int,
        *,
        by_pass: bool,
        locality: Locality | None = None,
    ) -> None:
        self._locality = locality
        near = [max(1, b // block_length) for b in (locality.blocks if locality else ())]
        self._near = np.asarray(near, dtype=np.int64)
        differences = [
            chain_difference(t.sample) if block_length > 1 and t.kept is None else 0 for t in tables
        ]
        self._difference = np.asarray(differences, dtype=np.int64)
        self.chained: Bools = self._difference > 0
        self._block_length = block_length
        self._by_pass = by_pass
        runs, rest = [], []
        for table, k in zip(tables, differences, strict=True):
            counts = table.counts if k else table.counts[:0]
            q, r = np.divmod(counts, max(k, 1))
            full = r * ((q + 1) // block_length) + (k - r) * (q // block_length)
            runs.append(full)
            rest.append(counts - block_length * full)
        self._runs, self._rest = EpisodeCounts(runs), EpisodeCounts(rest)
        self.runs: Ints = self._runs.totals
        self._run_keys, self._rest_keys, self._head_keys = (
            np.asarray([fold(table.key, purpose) for table in tables], dtype=np.uint64)
            for purpose in (PURPOSE_PLAN, PURPOSE_PLAN_REST, PURPOSE_CHAIN_HEAD)
        )

    def place(self, dataset: Ints, pass_: Ints, number: Ints) -> tuple[Ints, Ints, Ints | None]:
        """(episode, which of its valid t, block) of sample ``number`` of a pass, all [n].

        There are blocks with locality alone; −1 is what is of none.
        """
        run, within, rest, unit = self._dealt(dataset, pass_, number)
        found = self._stored(dataset, pass_, run, within, rest)
        if self._locality is None:
            return *found, None
        return *found, np.where(unit < 0, -1, unit // self._near[dataset])

    def _stored(
        self, dataset: Ints, pass_: Ints, run: Ints, within: Ints, rest: Ints
    ) -> tuple[Ints, Ints]:
        episode, x = np.empty_like(run), np.empty_like(run)
        of_run, of_rest = np.flatnonzero(run >= 0), np.flatnonzero(run < 0)
        if len(of_run):
            at = of_run
            episode[at], x[at] = self._of_runs(dataset[at], pass_[at], run[at], within[at])
        if len(of_rest):
            at = of_rest
            episode[at], x[at] = self._of_rest(dataset[at], pass_[at], rest[at])
        return episode, x

    def of_block(self, dataset: int, pass_: int, block: int) -> tuple[Ints, Ints]:
        """(episode, which of its valid t) of every sample of a block, where there is locality."""
        one = np.asarray([dataset]), np.asarray([pass_])
        head, blocks, size, _ = self._pass(*one)
        near = int(self._near[dataset])
        units = np.arange(block * near, min((block + 1) * near, int(size[0])), dtype=np.int64)
        unit = np.repeat(units, self._block_length)
        within = np.tile(np.arange(self._block_length, dtype=np.int64), len(units))
        of = np.full(len(unit), dataset, np.int64)
        spare = np.maximum(blocks - self.runs[dataset], 0)
        run, spared = self._unit(unit, self.runs[of], size, spare)
        own = np.full(len(unit), pass_, np.int64)
        return self._stored(of, own, run, within, head + spared * self._block_length + within)

    def numbers(self, dataset: Ints, pass_: Ints, episode: Ints, x: Ints) -> Ints:
        """The number [n] in its pass of the x-th valid t of each episode: ``place``'s inverse."""
        b, k = self._block_length, self._difference[dataset]
        q, r = self._classes(dataset, episode)
        nth, member = np.divmod(x, k)
        size = q + (member < r)
        head = self._head(dataset, pass_, episode, member, size % b)
        run, within = np.divmod(nth - head, b)
        of_run = (run >= 0) & (run < size // b)
        # How many of its kind the classes before have, then which of its class it is.
        of_long, of_short = (q + 1) // b, q // b
        run += member * of_short + np.minimum(member, r) * (of_long - of_short)
        of_long, of_short = (q + 1) % b, q % b
        rest = np.where(nth < head, nth, nth - size // b * b)
        rest += member * of_short + np.minimum(member, r) * (of_long - of_short)
        number = np.empty_like(x)
        at = np.flatnonzero(of_run)
        if len(at):
            own = self._runs.number_of(dataset[at], episode[at], run[at])
            number[at] = self._undealt(dataset[at], pass_[at], own, within[at])
        at = np.flatnonzero(~of_run)
        if len(at):
            key = fold_array(self._rest_keys[dataset[at]], pass_[at])
            image = self._rest.number_of(dataset[at], episode[at], rest[at])
            own = image
            if self._locality is None:
                own = unpermute(image, self._rest.totals[dataset[at]], key)
            number[at] = self._undealt(dataset[at], pass_[at], np.full_like(own, -1), own)
        return number

    def _undealt(self, dataset: Ints, pass_: Ints, run: Ints, number: Ints) -> Ints:
        """The inverse of ``_dealt``; ``number`` is in the run, or in the rest where run is −1."""
        b, runs = self._block_length, self.runs[dataset]
        head, blocks, size, key = self._pass(dataset, pass_)
        broken, spare = runs > blocks, np.maximum(blocks - runs, 0)
        of_run = run >= 0
        row = np.where(of_run, number, number + broken * b)
        block, within = np.divmod(row - head, b)
        in_spare = ~of_run & (block >= 0) & (block < spare)
        unit = self._unit_of(run, np.where(in_spare, block, -1), runs, size, spare)
        if self._locality is None:
            block = unpermute(unit, size, key)
        else:
            block = gather(unit, size, key, self._near[dataset], self._locality.window)
        within = np.where(of_run, number, within)
        inside = (of_run & (block < blocks)) | in_spare
        outside = np.where(row < head, row, row + (blocks - spare) * b)
        return np.where(inside, head + block * b + within, outside)

    def _unit(self, unit: Ints, runs: Ints, size: Ints, spare: Ints) -> tuple[Ints, Ints]:
        """(run or −1, which block of rest) that each unit of a pass's row is."""
        if self._locality is None:
            return np.where(unit < runs, unit, -1), unit - runs
        before = unit * spare // size
        return np.where((unit + 1) * spare // size > before, -1, unit - before), before

    def _unit_of(self, run: Ints, spared: Ints, runs: Ints, size: Ints, spare: Ints) -> Ints:
        """The inverse of ``_unit``; 0 where both are −1."""
        if self._locality is None:
            return np.where(run >= 0, run, np.where(spared >= 0, runs + spared, 0))
        among = run * size // np.maximum(runs, 1)
        rest = -(-(spared + 1) * size // np.maximum(spare, 1)) - 1
        return np.where(run >= 0, among, np.where(spared >= 0, rest, 0))

    def _pass(self, dataset: Ints, pass_: Ints) -> tuple[Ints, Ints, Ints, Keys]:
        """(samples of the head, blocks, size and key of their permutation) of each pass."""
        b, runs = self._block_length, self.runs[dataset]
        samples = b * runs + self._rest.totals[dataset]
        head = np.zeros_like(pass_) if self._by_pass else np.minimum(-pass_ * samples % b, samples)
        blocks = (samples - head) // b
        # One run more than blocks: the image of the number after the last block is broken up.
        size = np.maximum(np.maximum(runs, blocks), 1)
        return head, blocks, size, fold_array(self._run_keys[dataset], pass_)

    def _dealt(self, dataset: Ints, pass_: Ints, number: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """(run or −1, place in the run, number in the rest, unit or −1) of a pass's samples."""
        b, runs = self._block_length, self.runs[dataset]
        head, blocks, size, key = self._pass(dataset, pass_)
        block, within = np.divmod(number - head, b)
        inside = (block >= 0) & (block < blocks)
        broken = runs > blocks
        turn = np.where(inside, block, size - 1)
        if self._locality is None:
            unit = permute(turn, size, key)
        else:
            unit = scatter(turn, size, key, self._near[dataset], self._locality.window)
        # Samples outside runs, in a row: the head, the blocks of the rest, the tail.
        spare = np.maximum(blocks - runs, 0)
        run, spared = self._unit(unit, runs, size, spare)
        row = np.where(
            inside,
            head + spared * b + within,
            np.where(block < 0, number, number - (blocks - spare) * b),
        )
        of_broken = ~inside & broken & (row < b)
        within = np.where(of_broken, row, within)
        number_in_rest = np.where(broken, row - b, row)
        known = inside | of_broken
        return np.where(known, run, -1), within, number_in_rest, np.where(known, unit, -1)

    def _of_runs(self, dataset: Ints, pass_: Ints, run: Ints, within: Ints) -> tuple[Ints, Ints]:
        episode, number = self._runs.find(dataset, run)
        b, k = self._block_length, self._difference[dataset]
        q, r = self._classes(dataset, episode)
        member, nth = _class_of(number, r, (q + 1) // b, q // b)
        head = self._head(dataset, pass_, episode, member, (q + (member < r)) % b)
        return episode, member + k * (head + nth * b + within)

    def _of_rest(self, dataset: Ints, pass_: Ints, number: Ints) -> tuple[Ints, Ints]:
        key = fold_array(self._rest_keys[dataset], pass_)
        if self._locality is None:
            number = permute(number, self._rest.totals[dataset], key)
        episode, number = self._rest.find(dataset, number)
        b, k = self._block_length, self._difference[dataset]
        q, r = self._classes(dataset, episode)
        member, nth = _class_of(number, r, (q + 1) % b, q % b)
        size = q + (member < r)
        head = self._head(dataset, pass_, episode, member, size % b)
        return episode, member + k * np.where(nth < head, nth, nth + size // b * b)

    def _classes(self, dataset: Ints, episode: Ints) -> tuple[Ints, Ints]:
        """(q, r) of each episode: r classes of q+1 samples, the others of q."""
        runs = self._runs.of_episode(dataset, episode)
        samples = self._block_length * runs + self._rest.of_episode(dataset, episode)
        q, r = np.divmod(samples, self._difference[dataset])
        return q, r

    def _head(
        self, dataset: Ints, pass_: Ints, episode: Ints, member: Ints, left_over: Ints
    ) -> Ints:
        """Number of the ``left_over`` of a class that come before its first run in a pass."""
        drawn = fold_array(self._head_keys[dataset], pass_, episode, member)
        return (drawn % (left_over + 1).astype(np.uint64)).astype(np.int64)


def _class_of(number: Ints, r: Ints, of_long: Ints, of_short: Ints) -> tuple[Ints, Ints]:
    """(class, number in it) where r classes have ``of_long`` things and the others ``of_short``."""
    beyond = number - r * of_long
    long = beyond < 0
    member, nth = np.divmod(
        np.where(long, number, beyond), np.maximum(np.where(long, of_long, of_short), 1)
    )
    return np.where(long, member, r + member), nth
