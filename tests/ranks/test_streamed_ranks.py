"""Ranks that stream: each has records of its own, and together they see every sample of a pass."""

import collections
import itertools
import json
from contextlib import ExitStack
from typing import Any, Literal

import pytest
from rlds_files import Written, once, write_pair
from streams import every_strategy, mixture_of, spec_of

from autoloader import AutoLoader, PipelineSpec, join_states
from autoloader.errors import SpecError, UsageError
from autoloader.sampling.dealing import Ranks, check_parts

KNOBS = {"ring_slots": 4, "decode_threads": 1, "queue_samples": 4}
SIZES = {"a": 33, "b": 12}
Place = tuple[int, ...]


# Datasets of 33 and 12 samples, in ten episodes and in two.
pair = once(lambda folder: write_pair(folder, a=[[3, 5, 1, 2], [4, 2, 3], [6, 3, 4]], b=[[7], [5]]))


def loader(
    spec: PipelineSpec,
    rank: int,
    world_size: int,
    isolation: Literal["process", "thread"] = "thread",
) -> AutoLoader:
    return AutoLoader(
        spec,
        rank=rank,
        world_size=world_size,
        isolation=isolation,
        ram_floor="64MiB",
        knobs=KNOBS,
        reproducible=True,
        output="numpy",
    )


class Pass:
    """Counts samples by dataset and pass over all ranks."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], collections.Counter[Place]] = collections.defaultdict(
            collections.Counter
        )

    def note(self, batch: dict[str, Any]) -> None:
        for dataset, pass_, *place in batch["provenance"].tolist():
            self.seen[dataset, pass_][tuple(place)] += 1

    def check(self, dataset: int, pass_: int, samples: int) -> None:
        assert set(self.seen[dataset, pass_].values()) == {1}
        assert len(self.seen[dataset, pass_]) == samples


def steps(every: list[AutoLoader], count: int, got: Pass) -> list[set[Place]]:
    """So many steps of all ranks; the samples of each rank."""
    found: list[set[Place]] = [set() for _ in every]
    endless = [itertools.chain.from_iterable(itertools.repeat(one)) for one in every]
    for _ in range(count):
        for mine, batches in zip(found, endless, strict=True):
            batch = next(batches)
            got.note(batch)
            mine |= {tuple(row) for row in batch["provenance"].tolist()}
    return found


@every_strategy
def test_streamed_ranks_are_disjoint_complete_over_a_pass_and_take_equal_steps(
    pair: tuple[Written, ...], strategy: str
):
    batch, mixing = {"size": 4, "drop_last": False}, {"strategy": strategy}
    spec = spec_of(*pair, reader="stream", batch=batch, weights="natural", mixing=mixing)
    got = Pass()
    with ExitStack() as stack:
        every = [stack.enter_context(loader(spec, rank, 3)) for rank in range(3)]
        assert {len(one) for one in every} == {4}  # 45 samples, 12 a step
        found = steps(every, 4, got)
        assert sum(map(len, found)) == 45
        assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]
        assert {one.statistics().batches for one in every} == {4}
        steps(every, 8, got)
        with pytest.raises(UsageError, match=r"\(1, 3\) \(none is of rank 2\), saved"):
            join_states([one.state_dict() for one in every[:2]])
    for index, samples in enumerate(SIZES.values()):
        got.check(index, 0, samples)
        got.check(index, 1, samples)


@every_strategy
def test_a_state_of_all_ranks_resumes_other_world_sizes_and_no_record_comes_twice(
    pair: tuple[Written, ...], strategy: str
):
    mixing = {"strategy": strategy}
    spec = spec_of(pair[0], reader="stream", batch={"size": 2, "drop_last": True}, mixing=mixing)
    state: str | None = None
    got = Pass()
    for world_size, count in ((2, 3), (3, 2), (3, 1), (1, 30)):
        with ExitStack() as stack:
            every = [
                stack.enter_context(loader(spec, rank, world_size)) for rank in range(world_size)
            ]
            if state is not None:
                for one in every:
                    one.load_state_dict(json.loads(state))
            steps(every, count, got)
            states = [one.state_dict() for one in every]
            state = json.dumps(join_states(states))
    got.check(0, 0, SIZES["a"])
    got.check(0, 1, SIZES["a"])


def test_one_streamed_ranks_state_is_its_own_and_of_use_to_no_other(pair: tuple[Written, ...]):
    spec = spec_of(*pair, reader="stream")
    with loader(spec, 1, 2) as one:
        next(iter(one))
        state = one.state_dict()
    with loader(spec, 1, 2) as same:
        same.load_state_dict(state)
    with loader(spec, 0, 2) as other, pytest.raises(UsageError, match="rank 1 of 2") as caught:
        other.load_state_dict(state)
    assert "join_states" in caught.value.remedy


def test_a_dataset_that_has_nothing_for_some_rank_is_refused(pair: tuple[Written, ...]):
    mixture = mixture_of(pair[1])
    check_parts(mixture, {"b": 12}, Ranks(0, 6))
    with pytest.raises(SpecError, match="12 samples in 2 episodes: too few to be streamed by 7"):
        check_parts(mixture, {"b": 12}, Ranks(0, 7))
