"""Under tensor parallelism the data-parallel ranks get different batches, their peers the same."""

import itertools
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from device_mesh_script import RATE, STEPS, error, model
from ended import ran
from rlds_files import write_steps
from streams import write_spec

from autoloader import AutoLoader
from autoloader.errors import UsageError
from autoloader.process.ranks import Neighbours, find_neighbours, find_ranks
from autoloader.sampling.dealing import Ranks

FOLDER = Path(__file__).parent
HELD: dict[str, Any] = {"isolation": "thread", "ram_floor": "64MiB"}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 samples, a pass an epoch, in batches of four."""
    folder = tmp_path_factory.mktemp("data")
    written = write_steps(folder, [[12] * 4])
    mean_std = {"method": "mean_std"}
    normalize = {"action": mean_std, "state": mean_std}
    return write_spec(folder, written, "[12, 16]", normalize=normalize)


@pytest.fixture(scope="module")
def told(
    spec: Path, tmp_path_factory: pytest.TempPathFactory, warm_python: Path
) -> dict[tuple[int, int], Any]:
    """What each process saw, by its place (data-parallel, tensor-parallel)."""
    meeting = str(tmp_path_factory.mktemp("gloo") / "meeting")
    done = ran(
        warm_python, FOLDER / "device_mesh_script.py", spec, meeting,
        env={
            **os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": "0",
            "PYTHONPATH": str(FOLDER.parents[1]), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4",
            "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": f"mesh-{os.getpid()}",
        },
    )  # fmt: skip
    found = json.loads(done.stdout)
    return {(one["place"][0], one["place"][1]): one for one in found}


def rows(one: dict[str, Any]) -> list[tuple[int, ...]]:
    return [tuple(row) for step in one["samples"] for row in step]


def test_peers_get_the_same_batches_and_ranks_different_ones(told: dict[tuple[int, int], Any]):
    assert {place: one["rank_and_world"] for place, one in told.items()} == {
        (dp, tp): [dp, 2] for dp, tp in itertools.product(range(2), repeat=2)
    }
    for dp in range(2):
        assert told[dp, 0]["samples"] == told[dp, 1]["samples"]
    assert [one["length"] for one in told.values()] == [6] * 4
    first, second = rows(told[0, 0]), rows(told[1, 0])
    assert (len(first), len(second), len({*first, *second})) == (24, 24, 48)


def test_all_processes_of_the_node_share_one_child(told: dict[tuple[int, int], Any]):
    assert len({one["pid"] for one in told.values()}) == 1


def test_fsdp_trains_on_them_as_one_process_on_all(told: dict[tuple[int, int], Any], spec: Path):
    policy = model()
    sgd = torch.optim.SGD(policy.parameters(), lr=RATE)
    loaders = [AutoLoader(spec, rank=rank, world_size=2, **HELD) for rank in range(2)]
    try:
        for _, batches in zip(range(STEPS), zip(*loaders, strict=True), strict=False):
            torch.stack([error(policy, batch) for batch in batches]).mean().backward()
            sgd.step()
            sgd.zero_grad()
    finally:
        for loader in loaders:
            loader.close()
    for one in told.values():
        assert one["sharded"] == [1, 3]
        torch.testing.assert_close(torch.tensor(one["weights"]), policy.weight.detach())


def mesh(names: tuple[str, ...], shape: tuple[int, ...], where: list[int] | None) -> Any:
    """What a loader asks of a ``DeviceMesh``; the real one is above."""
    size = torch.Size(shape).numel()
    return SimpleNamespace(
        mesh_dim_names=names, shape=shape, get_coordinate=lambda: where, size=lambda: size
    )


def test_ranks_of_several_dimensions_count_row_by_row():
    names = ("dp_replicate", "dp_shard")
    assert find_ranks(None, None, {"RANK": "9"}, mesh(names, (2, 4), [1, 2])) == Ranks(6, 8)


@pytest.mark.parametrize(
    ("rank", "given", "words"),
    [
        (None, mesh(("dp", "tp"), (2, 2), [0, 1]), "the ranks of tp need the same batches"),
        (None, mesh(("dp",), (2,), None), "not part of the device_mesh"),
        (None, "dp", "is not a torch DeviceMesh"),
        (0, mesh(("dp",), (2,), [0]), "and a device_mesh"),
    ],
)
def test_a_mesh_that_cannot_say_it_is_refused(rank: int | None, given: Any, words: str):
    with pytest.raises(UsageError, match=words) as caught:
        find_ranks(rank, rank and 1, {}, given)
    assert caught.value.remedy


def test_processes_with_the_same_batches_are_neighbours_as_well():
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    found = find_neighbours(Ranks(1, 2), torchrun)
    assert found.local_world_size == 4
    slurm = {
        "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_ID": "0",
    }  # fmt: skip
    assert find_neighbours(Ranks(0, 1), slurm) == Neighbours()
    assert find_neighbours(Ranks(1, 2), slurm).local_world_size == 2
