"""Chained samples: runs that share frames, and still every sample exactly once a pass."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.samples import draws
from autoloader.samples.windows import valid_range
from autoloader.sampling.chains import chain_difference
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.mixture import MixtureOrder
from autoloader.sampling.plan import SamplePlan
from autoloader.spec import SampleSpec
from tests.index.planned import listed, mixture_of


def sample_of(offsets: list[int], edges: str = "repeat", per_episode: object = "all") -> SampleSpec:
    return SampleSpec.model_validate(
        {
            "frame_offsets": offsets,
            "edges": {"start": edges, "end": edges},
            "per_episode": per_episode,
        }
    )


def table_of(name: str, steps: list[int], sample: SampleSpec) -> DatasetTable:
    return DatasetTable(
        key=draws.dataset_key(0, name),
        sample=sample,
        stride=1,
        steps=np.asarray(steps, dtype=np.int32),
        slice_of=np.zeros(len(steps), dtype=np.int32),
        record_of=np.arange(len(steps), dtype=np.int64),
    )


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[MixtureOrder, list[DatasetTable]]:
    """Chained datasets, most of them; short episodes, so that rests and broken runs abound."""
    tables = []
    for number in range(draw(st.integers(1, 3))):
        k = draw(st.integers(1, 5))
        offsets = draw(st.sampled_from([[0, k], [-k, 0, k], [k, 0], [0, 1, 5]]))
        sample = sample_of(offsets, draw(st.sampled_from(["repeat", "drop"])))
        steps = [*draw(st.lists(st.integers(1, 30), min_size=1, max_size=8)), 31]
        tables.append(table_of(f"{number} {draw(st.integers(0, 99))}", steps, sample))
    weights = draw(st.lists(st.floats(0.2, 3), min_size=len(tables), max_size=len(tables)))
    return mixture_of(tables, weights, draw(st.integers(2, 6)), by_pass=draw(st.booleans())), tables


def positions_of_passes(order: MixtureOrder, tables: list[DatasetTable], passes: int) -> int:
    if order.pass_samples is not None:
        return passes * sum(order.pass_samples)
    pairs = zip(tables, order.shares, strict=True)
    return int(max(passes * table.samples / share for table, share in pairs)) + 100


def runs_by_the_rule(valid: int, k: int, b: int) -> int:
    q, r = divmod(valid, k)
    return r * ((q + 1) // b) + (k - r) * (q // b)


def is_run(rows: list[tuple[int, ...]], k: int) -> bool:
    """Whether samples of a block are t, t+k, … of one episode."""
    episode, t = rows[0][2:]
    return all(row[2:] == (episode, t + k * step) for step, row in enumerate(rows))


@given(mixtures())
def test_a_pass_holds_every_valid_t_exactly_once_though_it_is_chained(
    mixture: tuple[MixtureOrder, list[DatasetTable]],
) -> None:
    order, tables = mixture
    plan = SamplePlan(order, tables, chain=True)
    rows = Counter(listed(plan.samples(0, positions_of_passes(order, tables, 3))))
    for dataset, table in enumerate(tables):
        for pass_ in range(3):
            for episode, steps in enumerate(table.steps.tolist()):
                for t in range(*valid_range(table.sample, steps)):
                    assert rows.pop((dataset, pass_, episode, t)) == 1
    assert all(pass_ >= 3 for _, pass_, _, _ in rows)


@given(mixtures(), st.integers(0, 10**10), st.integers(0, 90), st.integers(0, 90))
def test_the_chained_plan_is_one_sequence_whatever_piece_is_asked_for(
    mixture: tuple[MixtureOrder, list[DatasetTable]], start: int, first: int, second: int
) -> None:
    plan = SamplePlan(*mixture, chain=True)
    middle = start + first
    whole = listed(plan.samples(start, middle + second))
    assert whole == listed(plan.samples(start, middle)) + listed(
        plan.samples(middle, middle + second)
    )


@given(
    st.integers(1, 6),
    st.integers(2, 6),
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.booleans(),
)
def test_a_pass_has_the_full_runs_that_the_residue_classes_give(
    k: int, b: int, steps: list[int], by_pass: bool
) -> None:
    table = table_of("a", steps, sample_of([0, k]))
    plan = SamplePlan(mixture_of([table], [1.0], b, by_pass=by_pass), [table], chain=True)
    wanted = sum(runs_by_the_rule(valid, k, b) for valid in steps)
    rest = table.samples - b * wanted
    for pass_ in range(3):
        planned = plan.samples(pass_ * table.samples, (pass_ + 1) * table.samples)
        # A pass that begins and ends within blocks may have to break one run up for its ends.
        head = 0 if by_pass else min(-pass_ * table.samples % b, table.samples)
        blocks = (table.samples - head) // b
        broken = int(wanted > blocks)
        assert broken <= (rest < b and head > 0)
        in_blocks = listed(planned)[head : head + blocks * b]
        dealt = [in_blocks[at : at + b] for at in range(0, len(in_blocks), b)]
        assert sum(is_run(block, k) for block in dealt) == wanted - broken


def test_a_block_of_a_long_episode_costs_one_decode_more_than_it_has_samples() -> None:
    k, b = 10, 4
    table = table_of("a", [400] * 50, sample_of([0, k]))
    for by_pass in (True, False):
        plan = SamplePlan(mixture_of([table], [1.0], b, by_pass=by_pass), [table], chain=True)
        blocks = [plan.samples(at, at + b) for at in range(0, table.samples, b)]
        decodes = [len({*block.t.tolist(), *(block.t + k).tolist()}) for block in blocks]
        assert sum(count == b + 1 for count in decodes) / len(decodes) > 0.99


def test_runs_begin_at_other_t_in_other_passes() -> None:
    table = table_of("a", [43], sample_of([0, 1]))
    plan = SamplePlan(mixture_of([table], [1.0], 4, by_pass=True), [table], chain=True)
    heads = Counter(
        min(
            int(t[0]) % 4
            for at in range(0, 40, 4)
            if (np.diff(t := plan.samples(43 * pass_ + at, 43 * pass_ + at + 4).t) == 1).all()
        )
        for pass_ in range(200)
    )
    assert set(heads) == {0, 1, 2, 3}
    assert max(heads.values()) < 80


def test_chaining_leaves_a_batch_of_mixed_blocks_nearly_as_many_episodes_as_it_has_blocks() -> None:
    table = table_of("a", [100] * 1000, sample_of([0, 5]))
    order = mixture_of([table], [1.0], 4, by_pass=True)
    chained = SamplePlan(order, [table], chain=True)
    free = SamplePlan(order, [table])
    batches = range(0, 48 * 400, 48)
    assert np.mean([chained.samples(at, at + 48).distinct_episodes for at in batches]) > 11.5
    assert np.mean([free.samples(at, at + 48).distinct_episodes for at in batches]) > 46


@pytest.mark.parametrize(
    ("sample", "difference"),
    [
        (sample_of([0, 10]), 10),
        (sample_of([10, 0]), 10),
        (sample_of([-4, 0, 4]), 4),
        (sample_of([0, 8, 4]), 4),
        (sample_of([0]), 0),
        (sample_of([3, 3]), 0),
        (sample_of([0, 1, 5]), 0),
        (sample_of([0, 5], per_episode=2), 0),
    ],
)
def test_offsets_with_one_difference_are_chained_and_nothing_else(
    sample: SampleSpec, difference: int
) -> None:
    assert chain_difference(sample) == difference
    table = table_of("a", [50], sample)
    order = mixture_of([table], [1.0], 4, by_pass=True)
    assert SamplePlan(order, [table], chain=True).chained == (difference > 0,)
    assert SamplePlan(order, [table]).chained == (False,)
    if not difference:
        wanted = listed(SamplePlan(order, [table]).samples(0, 120))
        assert listed(SamplePlan(order, [table], chain=True).samples(0, 120)) == wanted


def test_blocks_of_one_sample_are_not_chained() -> None:
    table = table_of("a", [50], sample_of([0, 5]))
    order = mixture_of([table], [1.0], 1, by_pass=True)
    assert SamplePlan(order, [table], chain=True).chained == (False,)


@pytest.mark.parametrize(("valid", "b"), [(5, 4), (41, 4), (62, 5), (4, 3)])
def test_a_run_is_broken_up_where_the_ends_of_a_pass_need_more_than_the_rest(
    valid: int, b: int
) -> None:
    table = table_of("a", [valid], sample_of([0, 1]))
    plan = SamplePlan(mixture_of([table], [1.0], b, by_pass=False), [table], chain=True)
    short = 0
    for pass_ in range(8):
        begin = pass_ * valid
        assert sorted(plan.samples(begin, begin + valid).t.tolist()) == list(range(valid))
        short += (valid - -begin % b) // b < valid // b
    assert short  # it happens, and where it does the pass is still whole
