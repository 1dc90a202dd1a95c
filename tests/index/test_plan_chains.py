"""Chained samples: runs that share frames, and still every sample exactly once a pass."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoloader.samples import draws
from autoloader.samples.windows import valid_range
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


@given(mixtures())
def test_a_pass_holds_every_valid_t_exactly_once_though_it_is_chained(
    mixture: tuple[MixtureOrder, list[DatasetTable]],
):
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
):
    plan = SamplePlan(*mixture, chain=True)
    middle = start + first
    whole = listed(plan.samples(start, middle + second))
    assert whole == listed(plan.samples(start, middle)) + listed(
        plan.samples(middle, middle + second)
    )


def test_blocks_of_one_sample_are_not_chained():
    table = table_of("a", [50], sample_of([0, 5]))
    order = mixture_of([table], [1.0], 1, by_pass=True)
    assert SamplePlan(order, [table], chain=True).chained == (False,)
