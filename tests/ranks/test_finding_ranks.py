"""Which rank a process is, said by arguments, torchrun, Lightning or SLURM, and by nothing less."""

import sys
from types import SimpleNamespace

import pytest

from autoloader.errors import UsageError
from autoloader.process.ranks import Neighbours, find_neighbours, find_ranks
from autoloader.sampling.dealing import Ranks

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip
LIGHTNING = {
    "LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1234",
    "MASTER_ADDR": "127.0.0.1",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "2",
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({}, Ranks(0, 1)),
        (TORCHRUN, Ranks(5, 8)),
        (LIGHTNING, Ranks(1, 2)),
        (SLURM, Ranks(5, 7)),
        (TORCHRUN | SLURM, Ranks(5, 8)),
        ({"RANK": "3"}, Ranks(0, 1)),
        ({"WORLD_SIZE": "3"}, Ranks(0, 1)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "3"}, Ranks(0, 1)),
    ],
)
def test_the_environment_is_read_where_it_is_plain(environment: dict[str, str], ranks: Ranks):
    assert find_ranks(None, None, environment) == ranks


@pytest.mark.parametrize(
    ("rank", "world_size", "environment"),
    [
        (0, None, {}),
        (None, 2, {}),
        (2, 2, {}),
        (-1, 2, {}),
        (0, 0, {}),
        (None, None, {"RANK": "two", "WORLD_SIZE": "3"}),
        (None, None, {"RANK": "3", "WORLD_SIZE": "3"}),
        (None, None, {"LOCAL_RANK": "0", "NODE_RANK": "1", "WORLD_SIZE": "4"}),
    ],
)
def test_ranks_that_cannot_be_are_refused_with_what_to_do(
    rank: int | None, world_size: int | None, environment: dict[str, str]
):
    with pytest.raises(UsageError) as caught:
        find_ranks(rank, world_size, environment)
    assert caught.value.remedy


def test_neighbours_are_those_of_one_node_of_one_start_of_one_job():
    ranks = Ranks(5, 8)
    found = find_neighbours(ranks, TORCHRUN)
    assert found.local_world_size == 4
    for key in ("GROUP_RANK", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
        assert find_neighbours(ranks, {**TORCHRUN, key: "9"}).job != found.job
    slurm = find_neighbours(Ranks(5, 7), SLURM)
    assert slurm.local_world_size == 3
    lightning = find_neighbours(Ranks(1, 2), LIGHTNING)
    assert lightning.local_world_size == 2
    other_node = {**LIGHTNING, "NODE_RANK": "2", "WORLD_SIZE": "12"}
    third = find_neighbours(Ranks(9, 12), other_node)
    assert third.local_world_size == 4
    assert third.job != lightning.job


@pytest.mark.parametrize(
    ("ranks", "environment"),
    [
        (Ranks(0, 1), TORCHRUN),
        (Ranks(1, 2), {}),
        (Ranks(1, 2), {"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"}),
        (Ranks(3, 4), LIGHTNING),
        (Ranks(0, 2), LIGHTNING),
        (Ranks(8, 12), {**LIGHTNING, "NODE_RANK": "2", "WORLD_SIZE": "12"}),
    ],
)
def test_where_neighbours_are_not_plainly_told_a_process_is_alone(
    ranks: Ranks, environment: dict[str, str]
):
    assert find_neighbours(ranks, environment) == Neighbours()


@pytest.mark.parametrize(("initialised", "ranks"), [(True, Ranks(1, 3)), (False, Ranks(5, 8))])
def test_an_initialised_jax_says_it_before_the_environment_does(
    initialised: bool, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
):
    told = SimpleNamespace(
        distributed=SimpleNamespace(is_initialized=lambda: initialised),
        process_index=lambda: 1,
        process_count=lambda: 3,
    )
    monkeypatch.setitem(sys.modules, "jax", told)  # tests/jax has the real one
    assert find_ranks(None, None, TORCHRUN) == ranks
