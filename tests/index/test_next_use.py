"""Next uses: what the plan read backwards says is what walking it forwards finds."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autoloader.samples.draws import MAX_SIZE, permute, unpermute
from autoloader.samples.windows import rows
from autoloader.sampling.dealing import Deal, NodePart, Ranks
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.mixture import MixtureOrder
from autoloader.sampling.plan import NextUse, PlannedSamples, SamplePlan
from autoloader.sampling.schedule import Curriculum
from tests.index.test_plan_chains import mixtures as chained_mixtures
from tests.index.test_plan_samples import mixture_of, mixtures, samples, tables

Mixture = tuple[MixtureOrder, list[DatasetTable]]
KEYS = st.integers(0, 2**64 - 1)
SHORT = settings(max_examples=settings.default.max_examples // 2)
"""Each walks hundreds of positions."""


def shown(planned: PlannedSamples, tables: list[DatasetTable]) -> list[NDArray[np.int64]]:
    """Of each sample the frames that it shows and does not black out, as numbers of its episode."""
    found = []
    for dataset, episode, t in zip(planned.dataset, planned.episode, planned.t, strict=True):
        table = tables[int(dataset)]
        steps = -(-int(table.steps[episode]) // table.stride)
        offsets = np.asarray(table.sample.frame_offsets)
        window = rows(np.asarray([t]), offsets, steps, table.sample)
        found.append(window.index[0][~window.zeroed[0]])
    return found


def lengths(planned: PlannedSamples, tables: list[DatasetTable]) -> NDArray[np.int64]:
    """Steps of each sample's strided episode."""
    pairs = zip(planned.dataset.tolist(), planned.episode.tolist(), strict=True)
    return np.asarray([-(-int(tables[d].steps[e]) // tables[d].stride) for d, e in pairs])


def walked_uses(
    planned: PlannedSamples, frames: list[NDArray[np.int64]], start: int
) -> dict[tuple[int, int, int], list[int]]:
    """Every frame's positions, ascending."""
    uses: dict[tuple[int, int, int], list[int]] = {}
    pairs = zip(planned.dataset.tolist(), planned.episode.tolist(), frames, strict=True)
    for position, (dataset, episode, own) in enumerate(pairs, start):
        for frame in set(own.tolist()):
            uses.setdefault((dataset, episode, frame), []).append(position)
    return uses


def told_and_walked(
    mixture: Mixture,
    start: int,
    count: int,
    ahead: int,
    *,
    chain: bool = False,
    node: NodePart | None = None,
) -> list[tuple[int, int | None]]:
    """(what is told, what a walk of ``ahead`` positions finds) of the frames of some samples."""
    order, tables = mixture
    plan = SamplePlan(order, tables, chain=chain)
    planned = plan.samples(start, start + count + ahead)
    frames = shown(planned, tables)
    uses = walked_uses(planned, frames, start)
    next_use = NextUse(plan, tables)
    pairs = []
    for n in range(count):
        own = frames[n]
        one = plan.samples(start + n, start + n + 1)
        told = next_use.after(one, lengths(one, tables), own[None], np.asarray([start + n]), node)
        for frame, q in zip(own.tolist(), told[0].tolist(), strict=True):
            after = uses[int(planned.dataset[n]), int(planned.episode[n]), frame]
            later = [each for each in after if each > start + n]
            if node is not None:
                mine = node.shows(np.asarray(later, np.int64))
                later = [each for each, own in zip(later[:13], mine, strict=False) if own]
            pairs.append((q, next(iter(later), None)))
    return pairs


@st.composite
def undrawn_mixtures(draw: st.DrawFn) -> Mixture:
    """Whatever a plan can be but with drawn t or turns; in some the shares change half way."""
    every = samples().map(lambda s: s.model_copy(update={"per_episode": "all"}))
    order, tables = draw(mixtures(every))
    order = replace(order, draw_key=None)
    if order.pass_samples is None and draw(st.booleans()):
        given_ = draw(st.lists(st.integers(0, 99), min_size=len(tables), max_size=len(tables)))
        order = replace(order, base=draw(st.integers(0, 50)), given=tuple(given_))
    if order.pass_samples is None and draw(st.booleans()):
        if draw(st.booleans()):
            moves = Curriculum(draw(shares_of(len(tables))), draw(st.integers(1, 3000)))
            order = replace(order, curriculum=moves)
        for position in draw(st.lists(st.integers(0, 2000), max_size=2)):
            order = order.changed(order.base + position, draw(shares_of(len(tables))))
    return order, tables


def shares_of(datasets: int) -> st.SearchStrategy[tuple[float, ...]]:
    """Shares of so many datasets, some of them 0."""
    weights = st.lists(st.integers(0, 5), min_size=datasets, max_size=datasets).filter(any)
    return weights.map(lambda found: tuple(weight / sum(found) for weight in found))


@SHORT
@given(undrawn_mixtures(), st.integers(0, 3000), st.integers(1, 12))
def test_the_next_use_that_is_told_is_the_next_that_comes(mixture: Mixture, start: int, count: int):
    start += mixture[0].base
    for told, walked in told_and_walked(mixture, start, count, 900):
        assert told == walked if walked is not None else told >= start + count + 900


@SHORT
@given(undrawn_mixtures(), st.integers(0, 3000), st.integers(1, 12), st.integers(2, 4))
def test_the_next_use_of_a_node_is_the_next_that_it_shows(
    mixture: Mixture, start: int, count: int, nodes: int
):
    node = NodePart(mixture[0].base, 3, nodes - 1, 1, nodes)
    start += mixture[0].base
    for told, walked in told_and_walked(mixture, start, count, 900, node=node):
        assert told == walked if walked is not None else told > start


def test_a_node_shows_what_its_ranks_are_dealt():
    deals = [Deal(Ranks(rank, 6), 4, True, None, base=50) for rank in range(6)]
    for rank, deal in enumerate(deals):
        node = NodePart.of(deal, 2)
        assert node.nodes == 3
        of_node = [one for one in deals if one.ranks.rank // 2 == rank // 2]
        mine = {q for one in of_node for n in range(5) for q in range(*one.positions(n))}
        every = np.arange(50, 50 + 5 * 24)
        assert set(every[node.shows(every)].tolist()) == mine
    assert NodePart.of(deals[0], 6) is None


@SHORT
@given(chained_mixtures(), st.integers(0, 3000), st.integers(1, 12))
def test_the_next_use_in_a_chained_plan_is_the_next_that_comes(
    mixture: Mixture, start: int, count: int
):
    for told, walked in told_and_walked(mixture, start, count, 900, chain=True):
        assert told == walked if walked is not None else told >= start + count + 900


@given(
    tables(samples().map(lambda s: s.model_copy(update={"per_episode": 3}))), st.integers(0, 900)
)
def test_where_t_are_drawn_two_passes_are_searched_and_then_the_mean_is_told(
    table: DatasetTable, start: int
):
    order = mixture_of([table], [1.0], 1, by_pass=False)
    searched = (start // table.samples + 2) * table.samples
    for told, walked in told_and_walked((order, [table]), start, 5, 3 * table.samples):
        if told < searched or (walked is not None and walked < searched):
            assert told == walked


@given(st.integers(1, MAX_SIZE) | st.integers(1, 50), KEYS, st.data())
def test_a_permuted_number_is_found_again(size: int, key: int, data: st.DataObject):
    drawn = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=30))
    numbers = np.asarray(drawn, dtype=np.int64)
    sizes, keys = np.full(len(drawn), size), np.full(len(drawn), key, dtype=np.uint64)
    assert unpermute(permute(numbers, sizes, keys), sizes, keys).tolist() == drawn
