"""Weights that are set while running, schedules, and weight 0: the same samples after any cut."""

import collections
import itertools
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlds_files import Written
from streams import every_strategy
from trios import KNOBS, mixture, opened

from autoloader import AutoLoader, join_states
from autoloader.errors import SpecError, UsageError
from autoloader.loader import IdleLoader
from autoloader.process.checkpoint import sealed

BATCH = 3
Row = tuple[int, ...]
State = dict[str, Any]


def taken(loader: AutoLoader, steps: int) -> list[Row]:
    """The samples of the next batches, over epochs."""
    found: list[Row] = []
    while steps:
        for batch in itertools.islice(loader, steps):
            found += map(tuple, batch["provenance"].tolist())
            steps -= 1
    return found


def state_of(loader: AutoLoader) -> State:
    return json.loads(json.dumps(loader.state_dict()))


def counts(rows: list[Row]) -> list[int]:
    found = collections.Counter(row[0] for row in rows)
    return [found[dataset] for dataset in range(3)]


def near(rows: list[Row], *due: int) -> bool:
    """Whether every dataset gave as many samples as it was due, or one more or less."""
    return all(abs(a - b) <= (b > 0) for a, b in zip(counts(rows), due, strict=True))


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_weights_hold_from_the_named_batch_on_and_after_any_resume(
    trio: list[Written], reader: str
):
    spec = mixture(trio, [1, 1, 0], reader=reader)
    with opened(spec) as loader:
        rows = taken(loader, 4)
        loader.set_weights({"c": 2})
        saved = [(loader.batches, state_of(loader))]
        rows += taken(loader, 4)
        loader.set_weights({"a": 0, "c": 3}, at_batch=16)
        saved.append((loader.batches, state_of(loader)))
        rows += taken(loader, 10)
        assert loader.statistics().datasets["a"].weight == 0
        saved.append((loader.batches, state_of(loader)))
        rows += taken(loader, 4)
    assert near(rows[: 4 * BATCH], 6, 6, 0)
    assert near(rows[4 * BATCH : 16 * BATCH], 9, 9, 18)
    assert near(rows[16 * BATCH :], 0, 5, 13)
    assert len(set(rows)) == len(rows)  # provenance has the pass in it
    for name, samples in enumerate((15, 12, 9)):
        first = [row for row in rows if row[:2] == (name, 0)]
        assert len(first) == min(samples, counts(rows)[name])
    for batches, state in saved:
        with opened(spec) as again:
            again.load_state_dict(state)
            assert again.batches == batches
            if batches == 8:
                assert taken(again, 14) == rows[8 * BATCH :]
            elif batches == 18:
                assert taken(again, 4) == rows[18 * BATCH :]


@settings(
    max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 5), max_size=3),
            st.integers(0, 3),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([1, 2]),
    st.sampled_from(["python", "sample"]),
    st.booleans(),
)
def test_killed_and_resumed_anywhere_it_gives_the_same_samples_as_undisturbed(
    trio: list[Written],
    legs: list[tuple[int, dict[str, int], int, bool]],
    block_length: int,
    strategy: str,
    moves: bool,
):
    mixing = {"epoch": 40, "block_length": block_length, "strategy": strategy}
    top: dict[str, Any] = {"mixing": mixing}
    if moves:
        top["weights"] = {"from": {"a": 4}, "to": {"a": 0, "b": 3}, "over": 30}
    spec = mixture(trio, [1, 2, 3], **top)

    def told(interrupted: bool) -> tuple[list[Row], State]:
        loader, rows = opened(spec), []
        try:
            for steps, weights, ahead, killed in legs:
                rows += taken(loader, steps)
                if {"a": 1, "b": 2, "c": 3, **weights} != {"a": 0, "b": 0, "c": 0}:
                    loader.set_weights(weights, at_batch=loader.batches + ahead)
                if killed and interrupted:
                    state = state_of(loader)
                    loader.close()
                    loader = opened(spec)
                    loader.load_state_dict(state)
            return rows + taken(loader, 6), state_of(loader)
        finally:
            loader.close()

    assert told(interrupted=True) == told(interrupted=False)


def test_a_child_that_is_killed_goes_on_with_the_weights_that_were_set(trio: list[Written]):
    mixing = {"epoch": "forever", "block_length": 3, "chain": True}
    spec = mixture(trio, [1, 1, 1], mixing=mixing, sample={"frame_offsets": [0, 1]})
    with opened(spec) as loader:
        whole = taken(loader, 2)
        loader.set_weights({"c": 4})
        loader.set_weights({"c": 0}, at_batch=12)
        whole += taken(loader, 20)
    for name, samples in enumerate((15, 12, 9)):  # with chained samples too, each once in a pass
        passes = collections.Counter(row[1] for row in set(whole) if row[0] == name)
        assert all(passes[done] == samples for done in range(max(passes)))
    assert len(set(whole)) == len(whole)
    assert not counts(whole[12 * BATCH + 2 :])[2]
    knobs = {**KNOBS, "decode_processes": 2, "cache_bytes": "20MB"}
    with opened(spec, isolation="process", knobs=knobs) as loader:
        rows = taken(loader, 2)
        loader.set_weights({"c": 4})
        rows += taken(loader, 3)
        loader.set_weights({"c": 0}, at_batch=12)
        rows += taken(loader, 3)
        os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)
        rows += taken(loader, 14)
        assert loader.statistics().restarts == 1
    assert rows == whole


@every_strategy
def test_ranks_name_the_batch_and_share_what_comes(trio: list[Written], strategy: str):
    spec = mixture(trio, [1, 1, 1], mixing={"epoch": "forever", "strategy": strategy})
    with opened(spec) as alone:
        whole = taken(alone, 4)
        alone.set_weights({"a": 4})
        whole += taken(alone, 4)
    rows: list[list[Row]] = []
    states = []
    for rank in range(2):
        with opened(spec, rank=rank, world_size=2) as loader:
            with pytest.raises(UsageError, match="without at_batch, on 2 ranks"):
                loader.set_weights({"a": 4})
            first = taken(loader, rank)  # not at the same step: the batch says when
            loader.set_weights({"a": 4}, at_batch=2)
            rows.append(first + taken(loader, 3 - rank))
            states.append(state_of(loader))
            with pytest.raises(UsageError, match="at_batch=2 lies before the next batch"):
                loader.set_weights({"a": 4}, at_batch=2)
            rows[rank] += taken(loader, 1)
    dealt = [row for step in range(4) for own in rows for row in own[3 * step : 3 * step + 3]]
    assert dealt == whole
    with opened(spec) as alone:
        alone.load_state_dict(join_states(states))
        assert taken(alone, 2) == whole[18:]
    forgot = sealed({k: v for k, v in states[1].items() if k not in ("weights", "rebased")})
    with pytest.raises(UsageError, match=r"rank 0 and rank 1 are of different loaders: rebased"):
        join_states([states[0], forgot])


def test_a_schedule_moves_the_shares_is_saved_and_ends_when_weights_are_set(trio: list[Written]):
    moves = {"from": {"a": 1, "c": 0}, "to": {"a": 0}, "over": 120}
    spec = mixture(trio, [1, 0, 1], weights=moves)
    with opened(spec) as loader:
        rows = taken(loader, 20)
        state = state_of(loader)
        rows += taken(loader, 24)
        assert loader.statistics().datasets["c"].weight == 1
    assert near(rows[:60], 45, 0, 15)
    assert near(rows[60:120], 15, 0, 45)
    assert near(rows[120:], 0, 0, 12)
    with opened(spec) as again:
        again.load_state_dict(state)
        assert taken(again, 24) == rows[60:]
        again.load_state_dict(state)
        again.set_weights({"b": 1})
        assert near(taken(again, 6), 6, 6, 6)
    other = mixture(trio, [1, 0, 1], weights={**moves, "over": 240})
    with opened(other) as again:  # another schedule holds from the state on
        again.load_state_dict(state)
        assert again.state_dict()["rebased"]["position"] == 60
        assert near(taken(again, 20), 37, 0, 23)  # from a quarter of the way to a half


@pytest.fixture(scope="module")
def idle(trio: list[Written]) -> Iterator[AutoLoader]:
    with opened(mixture(trio, [1, 1, 0]), IdleLoader) as loader:
        yield loader


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"weights": {"d": 1}}, "there is no dataset 'd'"),
        ({"weights": {"a": -1}}, "weight of dataset 'a' is -1;"),
        ({"weights": {"a": True}}, "weight of dataset 'a' is True;"),
        ({"weights": {"a": float("nan")}}, "weight of dataset 'a' is nan;"),
        ({"weights": {"a": 1e308}}, r"weight of dataset 'a' is 1e\+308;"),
        ({"weights": [1, 2]}, "is not a mapping"),
        ({"weights": {"a": 0, "b": 0}}, "every dataset would have weight 0"),
        ({"weights": {"a": 1}, "at_batch": -1}, "at_batch=-1 lies before the next batch"),
        ({"weights": {"a": 1}, "at_batch": 2.5}, "whole number, and is 2.5"),
    ],
)
def test_weights_that_cannot_be_are_refused_and_change_nothing(
    idle: AutoLoader, arguments: dict[str, Any], said: str
):
    before = idle.state_dict()
    with pytest.raises(UsageError, match=said):
        idle.set_weights(**arguments)
    assert idle.state_dict() == before


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"to": {"d": 1}, "over": 9}, "weights: there is no dataset 'd'"),
        ({"to": {"a": 1}}, "weights.over is required"),
        ({"to": {"a": -1}, "over": 9}, r"weights.to.a: -1"),
        ({"form": {}, "to": {"a": 1}, "over": 9}, "unknown key 'form'"),
        ("even", "weights: 'even'"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_with_its_field(
    trio: list[Written], weights: Any, said: str
):
    with pytest.raises(SpecError, match=said):
        mixture(trio, [1, 1, 1], weights=weights)
