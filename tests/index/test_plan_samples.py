"""The sample plan: every position names one sample, and a pass holds every sample once."""

import os
from dataclasses import replace

import numpy as np
from ended import python
from hypothesis import given
from hypothesis import strategies as st

from autoloader.samples import draws
from autoloader.samples.transforms.keep import Ranges
from autoloader.samples.windows import valid_range, valid_ranges
from autoloader.sampling.dealing import Deal, Ranks
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.mixture import MixtureOrder
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
        t = draws.ordered(
            key, np.arange(*valid_range(table.sample, -(-steps // table.stride)))
        ).tolist()
        if table.kept is not None:
            left = set(table.kept.numbers(episode).tolist())
            t = [each for each in t if each in left]
        count = len(t) if table.sample.per_episode == "all" else table.sample.per_episode
        every += [(episode, each) for each in t[:count]]
    return every


@given(mixtures())
def test_a_pass_of_every_dataset_holds_every_valid_sample_exactly_once(
    mixture: tuple[MixtureOrder, list[DatasetTable]],
):
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
):
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
    mixture: tuple[MixtureOrder, list[DatasetTable]], batch: int, legs: list[tuple[int, int]]
):
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


def test_another_process_with_another_hash_seed_draws_the_same_samples():
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
        python("-c", program, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
