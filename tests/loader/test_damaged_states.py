"""A state that is damaged or of another loader is refused, and nothing changes."""

import copy
import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from rlds_files import Written
from trios import mixture, opened

from autoloader import AutoLoader, PipelineSpec, join_states
from autoloader.errors import UsageError
from autoloader.loader import IdleLoader
from autoloader.process.checkpoint import sealed

pytestmark = pytest.mark.usefixtures("one_child")

SAVED = json.loads((Path(__file__).parent / "saved_states.json").read_text())
State = dict[str, Any]


def specs(trio: list[Written]) -> dict[str, tuple[PipelineSpec, dict[str, int]]]:
    """What the saved states were saved with, and are resumed with."""
    a, b, c = trio
    stream = mixture([a, b], [1, 1], reader="stream")
    auto = {"epoch": "auto", "block_length": 2}
    return {
        "indexed": (mixture([a, b], [1, 1]), {}),
        "indexed, rebased": (mixture([a, c, b], [1, 1, 4]), {}),
        "indexed, second epoch": (
            mixture([a, b], [1, 1], mixing={"epoch": "pass"}, weights="natural"),
            {},
        ),
        "stream": (mixture([a, b], [2, 1], reader="stream", mixing=auto), {}),
        "stream, rank 0 of 2": (stream, {"rank": 0, "world_size": 2}),
        "stream, rank 1 of 2": (stream, {"rank": 1, "world_size": 2}),
        "stream, 2 ranks joined": (stream, {"rank": 0, "world_size": 2}),
    }


def rows(loader: AutoLoader, steps: int) -> list[list[Any]]:
    """Dataset, pass, shard, record and t of so many batches."""
    endless = itertools.chain.from_iterable(itertools.repeat(loader))
    return [
        [loader.dataset_names[dataset], *place]
        for batch in itertools.islice(endless, steps)
        for dataset, *place in batch["provenance"].tolist()
    ]


# --- states that were saved before ----------------------------------------------------------------


@pytest.mark.parametrize("name", SAVED)
def test_saved_states_resume_where_they_were_saved(name: str, trio: list[Written]):
    spec, ranks = specs(trio)[name]
    with opened(spec, **ranks) as loader:
        loader.load_state_dict(SAVED[name]["state"])
        again = json.loads(json.dumps(loader.state_dict()))
        assert rows(loader, 8) == SAVED[name]["then"]
        loader.load_state_dict(again)
        assert rows(loader, 4) == SAVED[name]["then"][:12]


def test_saved_states_of_all_ranks_are_joined(trio: list[Written]):
    parts = [SAVED[f"stream, rank {rank} of 2"]["state"] for rank in range(2)]
    spec, _ = specs(trio)["stream, rank 0 of 2"]
    for rank in range(2):
        with opened(spec, rank=rank, world_size=2) as loader:
            loader.load_state_dict(join_states(parts))
            assert rows(loader, 8) == SAVED[f"stream, rank {rank} of 2"]["then"]


# --- damage ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resting(trio: list[Written]) -> Iterator[dict[str, tuple[AutoLoader, State]]]:
    """Loaders that read nothing yet, each with a state of today that fits it."""
    with ExitStack() as stack:
        found = {}
        for name in ("indexed", "indexed, rebased", "indexed, second epoch", "stream",
                     "stream, rank 1 of 2", "stream, 2 ranks joined"):  # fmt: skip
            spec, ranks = specs(trio)[name]
            loader = stack.enter_context(opened(spec, IdleLoader, **ranks))
            loader.load_state_dict(SAVED[name]["state"])
            state = loader.state_dict()
            if name == "stream, 2 ranks joined":
                other = stack.enter_context(opened(spec, IdleLoader, rank=1, world_size=2))
                other.load_state_dict(SAVED[name]["state"])
                state = join_states([state, other.state_dict()])
            if name == "stream":  # it owes a block, and has given a record out of turn
                state["mixer"] |= {"next": 9, "debts": [["b", 2]]}
                state["cursors"]["a"]["passes"]["1"] = {
                    "shards_done": 0, "records_done": [], "beyond": [[0, [1]]], "open": [[0, 0, 2]],
                }  # fmt: skip
                state = sealed(state)
            found[name] = loader, json.loads(json.dumps(state))
        yield found


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a state, holders included."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))


def damaged(state: State) -> Iterator[Any]:
    """The state with each of its parts left out or changed, and what is no such state."""
    for path in leaves(state):
        for other in (None, "x", 10**30, float("nan"), object()):
            changed = copy.deepcopy(state)
            holder: Any = changed
            for key in path[:-1]:
                holder = holder[key]
            if other is None:
                del holder[path[-1]]
            else:
                holder[path[-1]] = other
            yield changed
    yield from (None, [], "state", 3, {}, state["cursors"], {"schema_version": 1, "train": state})
    for key, value in (("split", "val"), ("reader", "graph"), ("seed", 7)):
        yield sealed({**state, key: value})


def test_damaged_states_are_refused_and_change_nothing(
    resting: dict[str, tuple[AutoLoader, State]],
):
    for name, (loader, state) in resting.items():
        for number, changed in enumerate(damaged(state)):
            if number % 50 == 0:  # refused ones must leave any place as it is
                loader.load_state_dict(state if number % 100 else SAVED[name]["state"])
                before = loader.state_dict()
            with pytest.raises(UsageError):
                loader.load_state_dict(changed)
        assert loader.state_dict() == before


@pytest.mark.parametrize(("name", "isolation"), [("indexed", "process"), ("stream", "thread")])
def test_a_running_loader_goes_on_whatever_it_is_asked_to_load(
    name: str,
    isolation: Literal["process", "thread"],
    resting: dict[str, tuple[AutoLoader, State]],
    trio: list[Written],
):
    spec, ranks = specs(trio)[name]
    saved, then = SAVED[name]["state"], SAVED[name]["then"]
    with opened(spec, isolation=isolation, **ranks) as loader:
        loader.load_state_dict(saved)
        went_on, at = 0, 0
        for changed in itertools.islice(damaged(resting[name][1]), 0, None, 10):
            before = loader.state_dict()
            try:
                loader.load_state_dict(changed)
            except UsageError:
                assert loader.state_dict() == before
                if len(then) > 3 * at and before["position"] == saved["position"] + 3 * at:
                    assert rows(loader, 1) == then[3 * at : 3 * at + 3]
                    went_on, at = went_on + 1, at + 1
                continue
            at = 0
            loader.load_state_dict(saved)
        assert went_on > 5
        loader.load_state_dict(saved)
        assert rows(loader, 8) == then
        assert loader.statistics().restarts == 0


# --- what is said ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"position": "9"}, r"its checksum is '\w+', and the rest of it gives"),
        ({"taken": {"a": 5, "b": 4}}, r"its checksum is '\w+', and the rest of it gives"),
        ({"more": 1}, r"its checksum is '\w+', and the rest of it gives"),
        (
            {"seed": float("nan")},
            r"field 'seed' is nan, which no state_dict\(\) holds \(Out of range float",
        ),
        ({"seed": object()}, r"field 'seed' is <object object at .*\(Object of type object"),
        ({"schema_version": 3}, r"schema_version 3; this version of autoloader reads 2"),
        ({"checksum": None}, r"its checksum is None"),
    ],
)
def test_a_damaged_state_is_refused(
    change: State, said: str, resting: dict[str, tuple[AutoLoader, State]]
):
    loader, state = resting["indexed"]
    with pytest.raises(UsageError, match=said):
        loader.load_state_dict({**state, **change})


def test_only_the_states_of_all_ranks_of_one_run_are_joined(
    resting: dict[str, tuple[AutoLoader, State]],
):
    parts = [SAVED[f"stream, rank {rank} of 2"]["state"] for rank in range(2)]
    other = sealed({**parts[1], "seed": 4})
    for states, said in (
        ([], "takes a list of states"),
        (parts[0], "takes a list of states"),
        (parts[::-1], "one state of each rank, saved after the same step"),
        (parts[:1], "one state of each rank, saved after the same step"),
        ([parts[0], other], "are of different loaders: seed: 4 in rank 1, 0 in rank 0"),
        ([parts[0], resting["indexed"][1]], "one state of each rank, saved after the same step"),
    ):
        with pytest.raises(UsageError, match=said):
            join_states(cast("Any", states))


# --- what a state survives, and what it costs -----------------------------------------------------
