"""The sample plan: every position names one sample, and a pass holds every sample once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.samples import draws
from autoloader.samples.transforms.keep import Ranges
from autoloader.samples.windows import valid_range, valid_ranges
from autoloader.sampling.dealing import Deal, Ranks
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.mixture import BlockSequence, MixtureOrder, PositionSequence
from autoloader.sampling.plan import SamplePlan
from autoloader.spec import SampleSpec
from tests.index.planned import listed, mixture_of


@st.composite
def samples(draw: st.DrawFn) -> SampleSpec:
    edge = st.sampled_from(["repeat", "zero", "drop"])
    return SampleSpec.model_validate(
        {
            "frame_offsets": draw(st.lists(st.integers(-4, 4), min_size=1, max_size=3)),
            "edges": {"start": draw(edge), "end": draw(edge)},
            "per_episode": draw(st.one_of(st.just("all"), st.integers(1, 6))),
        }
    )


@st.composite
def tables(draw: st.DrawFn, sample: st.SearchStrategy[SampleSpec] | None = None) -> DatasetTable:
    number = draw(st.integers(0, 2**32))
    steps = draw(st.lists(st.integers(1, 30), min_size=1, max_size=12))
    steps.append(40)  # whatever the edges drop, there is a sample
    window, stride = draw(samples() if sample is None else sample), draw(st.integers(1, 3))
    kept = draw(st.none() | kept_of(steps, window, stride))
    return DatasetTable(
        key=draws.dataset_key(0, str(number)),
        sample=window,
        stride=stride,
        steps=np.asarray(steps, dtype=np.int32),
        slice_of=np.arange(len(steps), dtype=np.int32) // 3,
        record_of=np.arange(len(steps), dtype=np.int64) % 3 + 5,
        kept=kept,
    )


@st.composite
def kept_of(draw: st.DrawFn, steps: list[int], sample: SampleSpec, stride: int) -> Ranges:
    """Some of the valid t of each episode, and all of the last one's."""
    strided = -(-np.asarray(steps, dtype=np.int64) // stride)
    valid = Ranges.spans(*valid_ranges(sample, strided))
    rows = st.tuples(st.integers(0, len(steps) - 2), st.integers(0, 30), st.integers(0, 30))
    found = [*draw(st.lists(rows, max_size=20)), (len(steps) - 1, 0, 40)]
    columns = np.asarray(found, dtype=np.int64)
    return valid.both(Ranges.of(len(steps), columns[:, 0], columns[:, 1], columns[:, 2]))


@st.composite
def mixtures(
    draw: st.DrawFn, sample: st.SearchStrategy[SampleSpec] | None = None
) -> tuple[MixtureOrder, list[DatasetTable]]:
    datasets = draw(st.lists(tables(sample), min_size=1, max_size=4))
    weights = draw(st.lists(st.floats(0.05, 5), min_size=len(datasets), max_size=len(datasets)))
    order = mixture_of(datasets, weights, draw(st.integers(1, 7)), by_pass=draw(st.booleans()))
    return replace(order, draw_key=draw(st.none() | st.integers(0, 2**64 - 1))), datasets


def valid_samples(table: DatasetTable, pass_: int) -> list[tuple[int, int]]:
    """Every (episode, t) of a pass, by the definitions that the stream reader follows."""
    every = []
    for episode, steps in enumerate(table.steps.tolist()):
        place = int(table.slice_of[episode]), int(table.record_of[episode])
        key = draws.fold(table.key, draws.PURPOSE_ORDER, pass_, *place)
        t = draws.order(key, *valid_range(table.sample, -(-steps // table.stride))).tolist()
        if table.kept is not None:
            left = set(table.kept.numbers(episode).tolist())
            t = [each for each in t if each in left]
        count = len(t) if table.sample.per_episode == "all" else table.sample.per_episode
        every += [(episode, each) for each in t[:count]]
    return every


def walked(order: MixtureOrder) -> Iterator[tuple[int, int]]:
    """(dataset, its how-manieth sample) of positions 0, 1, …, walking block by block."""
    sequence, seen, block = BlockSequence(order), [0] * len(order.shares), 0
    while True:
        dataset, size = sequence.block(block)
        for _ in range(size):
            yield dataset, seen[dataset]
            seen[dataset] += 1
        block += 1


@given(mixtures(), st.integers(0, 700), st.integers(0, 120))
def test_positions_follow_the_blocks_that_the_mixer_deals(
    mixture: tuple[MixtureOrder, list[DatasetTable]], start: int, count: int
) -> None:
    order, _ = mixture
    dataset, number = PositionSequence(order).ordinals(start, start + count)
    found = list(zip(dataset.tolist(), number.tolist(), strict=True))
    assert found == list(islice(walked(order), start, start + count))


@given(mixtures())
def test_a_pass_of_every_dataset_holds_every_valid_sample_exactly_once(
    mixture: tuple[MixtureOrder, list[DatasetTable]],
) -> None:
    order, datasets = mixture
    if order.pass_samples is None:
        order = replace(order, draw_key=None)  # drawn turns keep shares only over whole windows
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    # Two passes of each, to the end of the block in which the second ends, and one block more.
    most = max(
        (2 * table.samples + 2 * order.block_length) / share
        for table, share in zip(datasets, order.shares, strict=True)
    )
    enough = 2 * sum(d.samples for d in datasets) if order.pass_samples else int(most) + 100
    for dataset, pass_, episode, t in listed(SamplePlan(order, datasets).samples(0, enough)):
        found.setdefault((dataset, pass_), []).append((episode, t))
    for dataset, table in enumerate(datasets):
        for pass_ in (0, 1):
            assert sorted(found[dataset, pass_]) == sorted(valid_samples(table, pass_))


@given(mixtures(), st.integers(0, 10**12), st.integers(0, 150), st.integers(0, 150))
def test_the_plan_is_one_sequence_whatever_piece_is_asked_for(
    mixture: tuple[MixtureOrder, list[DatasetTable]], start: int, first: int, second: int
) -> None:
    plan = SamplePlan(*mixture)
    whole = listed(plan.samples(start, start + first + second))
    assert len(whole) == first + second
    middle = start + first
    assert whole == listed(plan.samples(start, middle)) + listed(
        plan.samples(middle, middle + second)
    )


@given(
    mixtures(),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4)), min_size=1, max_size=4),
)
def test_ranks_share_the_sequence_out_whole_while_their_number_changes(
    mixture: tuple[MixtureOrder, list[DatasetTable]],
    batch: int,
    legs: list[tuple[int, int]],
) -> None:
    plan = SamplePlan(*mixture)
    taken: list[tuple[int, ...]] = []
    base = 0
    for world_size, steps in legs:
        for step in range(steps):
            for rank in range(world_size):
                deal = Deal(Ranks(rank, world_size), batch, True, None, base)
                start = base + (step * world_size + rank) * batch
                assert deal.positions(step) == (start, start + batch)
                taken += listed(plan.samples(*deal.positions(step)))
        base += steps * world_size * batch
    assert taken == listed(plan.samples(0, base))


@given(mixtures(), st.randoms(use_true_random=False))
def test_what_was_asked_for_before_changes_nothing(
    mixture: tuple[MixtureOrder, list[DatasetTable]], random: Random
) -> None:
    order, datasets = mixture
    wanted = listed(SamplePlan(order, datasets).samples(40, 90))
    plan = SamplePlan(order, datasets)
    for _ in range(3):
        start = random.randrange(10**6)
        plan.samples(start, start + 5)
    assert listed(plan.samples(40, 90)) == wanted


def test_another_process_with_another_hash_seed_draws_the_same_samples() -> None:
    program = (
        "import numpy as np\n"
        "from autoloader.sampling.episodes import DatasetTable\n"
        "from autoloader.sampling.plan import SamplePlan\n"
        "from autoloader.samples.draws import dataset_key\n"
        "from autoloader.sampling.mixture import MixtureOrder\n"
        "from autoloader.spec import SampleSpec\n"
        "e = np.arange(50)\n"
        "t = [DatasetTable(dataset_key(7, n), SampleSpec(frame_offsets=(0, 5), per_episode=p), 1,"
        " (20 + e).astype(np.int32), e.astype(np.int32), e) for n, p in [('a', 'all'), ('b', 3)]]\n"
        "s = SamplePlan(MixtureOrder((.25, .75), (.1, .2), 2, None, None), t).samples(995, 1003)\n"
        "print([c.tolist() for c in (s.dataset, s.pass_, s.episode, s.t)])\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


def test_batches_have_as_many_distinct_episodes_as_random_draws_would_give() -> None:
    rng = np.random.default_rng(0)
    steps = rng.integers(20, 200, 300).astype(np.int32)
    table = DatasetTable(
        key=draws.dataset_key(0, "a"),
        sample=SampleSpec(frame_offsets=(0, 5)),
        stride=1,
        steps=steps,
        slice_of=np.zeros(300, dtype=np.int32),
        record_of=np.arange(300, dtype=np.int64),
    )
    plan = SamplePlan(mixture_of([table], [1.0], 1, by_pass=True), [table])
    batches = range(0, table.samples - 48, 48)
    found = np.mean([plan.samples(at, at + 48).distinct_episodes for at in batches])
    owner = np.repeat(np.arange(300), steps)
    drawn = [
        len(np.unique(shuffled[at : at + 48]))
        for shuffled in (rng.permutation(owner) for _ in range(5))
        for at in batches
    ]
    assert abs(found - np.mean(drawn)) < 4 * np.std(drawn) / np.sqrt(len(batches))


@pytest.mark.parametrize("per_episode", ["all", 3])
def test_the_order_of_a_pass_has_no_correlation_with_the_order_of_the_files(
    per_episode: object,
) -> None:
    table = DatasetTable(
        key=draws.dataset_key(0, "a"),
        sample=SampleSpec.model_validate({"frame_offsets": [0], "per_episode": per_episode}),
        stride=1,
        steps=np.full(5_000, 20, dtype=np.int32),
        slice_of=np.zeros(5_000, dtype=np.int32),
        record_of=np.arange(5_000, dtype=np.int64),
    )
    plan = SamplePlan(mixture_of([table], [1.0], 1, by_pass=True), [table])
    for pass_ in (0, 1):
        planned = plan.samples(pass_ * table.samples, (pass_ + 1) * table.samples)
        assert set(planned.pass_.tolist()) == {pass_}
        place = planned.episode * 20 + planned.t
        limit = 4 / np.sqrt(len(place))
        assert abs(np.corrcoef(np.arange(len(place)), place)[0, 1]) < limit
        assert abs(np.corrcoef(place[:-1], place[1:])[0, 1]) < limit


@pytest.mark.parametrize("chain", [False, True])
@given(mixtures())
def test_a_dataset_gives_the_same_samples_in_the_same_order_whatever_it_is_mixed_with(
    chain: bool, mixture: tuple[MixtureOrder, list[DatasetTable]]
) -> None:
    order, datasets = mixture
    by_pass = order.pass_samples is not None
    together = SamplePlan(order, datasets, chain=chain).samples(0, 400)
    for number, table in enumerate(datasets):
        own = np.flatnonzero(together.dataset == number)
        alone = SamplePlan(
            mixture_of([table], [1.0], order.block_length, by_pass=by_pass), [table], chain=chain
        ).samples(0, len(own))
        assert alone.episode.tolist() == together.episode[own].tolist()
        assert alone.t.tolist() == together.t[own].tolist()
        assert alone.pass_.tolist() == together.pass_[own].tolist()
