"""An order with locality: every sample once a pass, from few blocks at a time, and a way back."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoloader.sampling.dealing import Deal, Ranks
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.mixture import Locality, MixtureOrder
from autoloader.sampling.plan import PlannedSamples, SamplePlan
from autoloader.sampling.schedule import Curriculum
from autoloader.spec import SampleSpec
from tests.index.test_next_use import told_and_walked
from tests.index.test_plan_chains import mixtures as chained_mixtures
from tests.index.test_plan_chains import table_of
from tests.index.test_plan_samples import listed, mixture_of, mixtures, samples, valid_samples

Mixture = tuple[MixtureOrder, list[DatasetTable]]
UNDRAWN = samples().map(lambda s: s.model_copy(update={"per_episode": "all"}))


@st.composite
def local(
    draw: st.DrawFn, of: st.SearchStrategy[Mixture], lanes: st.SearchStrategy[int]
) -> Mixture:
    order, tables = draw(of)
    blocks = draw(st.lists(st.integers(1, 40), min_size=len(tables), max_size=len(tables)))
    near = Locality(tuple(blocks), draw(st.integers(1, 6)), draw(lanes), draw(st.integers(1, 9)))
    return replace(order, locality=near), tables


def without_drawn_turns(mixture: Mixture) -> Mixture:
    return replace(mixture[0], draw_key=None), mixture[1]


UNLANED = local(mixtures(), st.just(1))
LANED = local(mixtures(), st.integers(2, 6))


def all_of(plan: SamplePlan, order: MixtureOrder, tables: list[DatasetTable]) -> PlannedSamples:
    """Two passes of every dataset at least."""
    if order.pass_samples is not None:
        return plan.samples(0, 2 * sum(order.pass_samples))
    room = order.block_length * order.lanes * (order.locality.batch if order.locality else 1)
    pairs = zip(tables, order.shares, strict=True)
    return plan.samples(0, int(max((2 * t.samples + 4 * room) / w for t, w in pairs)) + 100)


@given(st.one_of(UNLANED, LANED).map(without_drawn_turns))
def test_a_pass_of_every_dataset_holds_every_valid_sample_exactly_once(mixture: Mixture):
    order, tables = mixture
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for dataset, pass_, episode, t in listed(all_of(SamplePlan(order, tables), order, tables)):
        found.setdefault((dataset, pass_), []).append((episode, t))
    for dataset, table in enumerate(tables):
        for pass_ in (0, 1):
            assert sorted(found[dataset, pass_]) == sorted(valid_samples(table, pass_))


@given(local(chained_mixtures(), st.just(1)))
def test_a_pass_of_chained_blocks_holds_every_valid_t_exactly_once(mixture: Mixture):
    order, tables = mixture
    plan = SamplePlan(order, tables, chain=True)
    rows = Counter(listed(all_of(plan, order, tables)))
    for dataset, table in enumerate(tables):
        for pass_ in (0, 1):
            for sample in valid_samples(table, pass_):
                assert rows[(dataset, pass_, *sample)] == 1


@given(
    st.one_of(
        local(mixtures(UNDRAWN), st.integers(1, 5)).map(lambda m: (*without_drawn_turns(m), False)),
        local(chained_mixtures(), st.just(1)).map(lambda m: (*m, True)),
    ),
    st.integers(0, 4000),
)
def test_the_place_of_every_sample_is_found_again(
    case: tuple[MixtureOrder, list[DatasetTable], bool], start: int
):
    order, tables, chain = case
    plan = SamplePlan(order, tables, chain=chain)
    found = plan.samples(start, start + 200)
    dataset = found.dataset.astype(np.int64)
    number = plan.numbers(dataset, found.pass_, found.episode, found.t)
    assert number.tolist() == found.number.tolist()
    assert plan.positions(dataset, number).tolist() == list(range(start, start + 200))


@given(
    local(mixtures(UNDRAWN), st.just(1)).map(without_drawn_turns),
    st.integers(0, 2000),
    st.integers(1, 8),
)
def test_the_next_use_that_is_told_is_the_next_that_comes(mixture: Mixture, start: int, count: int):
    for told, walked in told_and_walked(mixture, start, count, 600):
        assert walked == told if walked is not None else told >= start + 600


@given(
    st.one_of(
        st.one_of(UNLANED, LANED).map(lambda m: (*m, False)),
        local(chained_mixtures(), st.just(1)).map(lambda m: (*m, True)),
    )
)
def test_a_block_has_the_samples_that_say_they_are_of_it_and_they_are_neighbours(
    case: tuple[MixtureOrder, list[DatasetTable], bool],
):
    order, tables, chain = case
    plan = SamplePlan(order, tables, chain=chain)
    found = all_of(plan, order, tables)
    assert found.block is not None
    assert order.locality is not None
    groups: dict[tuple[int, int, int], set[tuple[int, ...]]] = {}
    for row, block in zip(listed(found), found.block.tolist(), strict=True):
        if block >= 0:
            groups.setdefault((row[0], row[1], block), set()).add(row)
    for (dataset, pass_, block), rows in groups.items():
        every = listed(plan.block(dataset, pass_, block))
        assert rows <= set(every)
        if not chain:
            assert len(every) <= order.locality.blocks[dataset]
            episodes = sorted({row[2] for row in every})
            between = np.flatnonzero(tables[dataset].counts[episodes[0] : episodes[-1] + 1])
            assert len(between) == len(episodes)


def test_ranks_that_divide_the_lanes_read_no_block_of_another_while_their_number_changes():
    tables = [table_of(name, [40] * 60, SampleSpec()) for name in ("a", "b")]
    order = mixture_of(tables, [1, 3], 1, by_pass=False)
    order = replace(order, locality=Locality((50, 80), 4, lanes=4, batch=6))
    plan, base, seen = SamplePlan(order, tables), 0, []
    for world_size, steps in ((4, 30), (2, 61), (1, 7), (4, 50)):
        owners: dict[tuple[int, ...], set[int]] = {}
        for step in range(steps):
            for rank in range(world_size):
                positions = Deal(Ranks(rank, world_size), 6, True, None, base).positions(step)
                found = plan.samples(*positions)
                seen += listed(found)
                assert found.block is not None
                for key in zip(found.dataset, found.pass_, found.block, strict=True):
                    owners.setdefault(tuple(map(int, key)), set()).add(rank)
        assert all(len(ranks) == 1 for ranks in owners.values())
        base += steps * world_size * 6
    assert seen == listed(plan.samples(0, base))


def test_lanes_go_on_where_shares_change_and_the_order_is_told_from_there():
    tables = [table_of(name, [30] * 40, SampleSpec()) for name in ("a", "b")]
    order = mixture_of(tables, [1, 1], 3, by_pass=False)
    order = replace(
        order,
        locality=Locality((50, 80), 4, lanes=3, batch=4),
        curriculum=Curriculum((0.9, 0.1), 900),
    )
    later = order.changed(1000, (0.2, 0.8))
    change = later.changes[0].position
    assert change == 1008  # a round has 12 positions
    assert listed(SamplePlan(later, tables).samples(0, 1008)) == listed(
        SamplePlan(order, tables).samples(0, 1008)
    )
    begun = later.begun_at(1200)
    assert begun.base == change
    rest = SamplePlan(later, tables).samples(1008, 9000)
    assert listed(SamplePlan(begun, tables).samples(1008, 9000)) == listed(rest)
    rows = Counter(listed(SamplePlan(later, tables).samples(0, 9000)))
    assert set(rows.values()) == {1}
    assert MixtureOrder.from_plain(plain_of(later)) == later


def plain_of(order: MixtureOrder) -> dict[str, object]:
    import dataclasses
    import json

    return json.loads(json.dumps(dataclasses.asdict(order)))
