"""Which trainer of how many this process is, and which of them share its machine.

The first of these that is plainly there decides:

1. the arguments ``rank`` and ``world_size``, or ``device_mesh``;
2. an initialised ``torch.distributed`` process group (looked at only where torch is imported);
3. an initialised ``jax.distributed`` (looked at only where JAX is imported);
4. ``RANK`` and ``WORLD_SIZE``, as torchrun sets them;
5. ``LOCAL_RANK``, ``NODE_RANK`` and ``WORLD_SIZE``, as Lightning's launcher sets them;
6. ``SLURM_PROCID`` and ``SLURM_NTASKS`` of a step that srun started (a batch script has them too,
   and is one process);
7. else this is the only one.

The same environment (``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``, Lightning's, or SLURM's) says which
trainers share the machine, also where ``rank`` and ``world_size`` are given. Without it a process
is assumed to be alone. Processes that get the same batches (tensor parallel ones) share the machine
as well.

Not here: what a rank reads (``sampling.dealing``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from autoloader.errors import UsageError, shown
from autoloader.host.frozen import frozen
from autoloader.sampling.dealing import Ranks

ALONE = Ranks()
_SAME_BATCHES = frozenset({"tp", "sp", "cp", "pp", "ep", "tensor", "model", "pipeline", "context"})
"""Names of mesh dimensions whose ranks work on one batch together."""


@frozen
class Neighbours:
    """The trainers of one machine.

    Attributes:
        local_world_size: number of ranks on the machine.
        job: name of this job, its start and its node, which no other on the machine has.
    """

    local_world_size: int = 1
    job: str = ""


def refuse_torch_worker(rank: int | None, world_size: int | None) -> None:
    """Refuse a worker of a torch ``DataLoader`` that was not told which samples are its own.

    Every worker would give all of them.

    Raises:
        UsageError: this process is such a worker, and has no rank.
    """
    torch_data = sys.modules.get("torch.utils.data")
    worker = torch_data.get_worker_info() if torch_data is not None else None
    if worker is not None and (rank is None or world_size is None):
        raise UsageError(
            f"this process is worker {worker.id} of {worker.num_workers} of a torch DataLoader: "
            f"all {worker.num_workers} would give the same samples",
            remedy="make the AutoLoader in the trainer's process, and use "
            "loader.as_torch_dataloader(); or pass AutoLoader(rank=…, world_size=…) in each worker",
        )


def find_ranks(
    rank: int | None,
    world_size: int | None,
    environment: Mapping[str, str],
    device_mesh: Any = None,
) -> Ranks:
    """Which rank of how many this process is.

    Args:
        rank: as the caller says, or ``None``.
        world_size: number of ranks; ``None`` takes the launcher's.
        environment: environment variables of this process.
        device_mesh: a ``torch.distributed.device_mesh.DeviceMesh`` of the data-parallel dimensions
            alone, whose ranks, in row-major order, get different batches. ``None``: there is none.

    Raises:
        UsageError: only one of the two is given, or a mesh beside them; or they, the mesh or the
            environment make no sense.
    """
    if device_mesh is not None:
        if rank is not None or world_size is not None:
            raise UsageError(
                f"rank={rank}, world_size={world_size} and a device_mesh: both say the rank",
                remedy="give rank= and world_size=, or device_mesh= alone",
            )
        return _checked(_of_mesh(device_mesh), "device_mesh")
    if (rank is None) != (world_size is None):
        raise UsageError(
            f"rank={rank}, world_size={world_size}: only one of the two is given",
            remedy="give both; or give neither, to take them from torch.distributed or the "
            "launcher's environment variables",
        )
    if rank is not None and world_size is not None:
        return _checked((rank, world_size), "arguments")
    if (group := _process_group()) is not None:
        return _checked(group, "torch.distributed")
    if (processes := _jax_processes()) is not None:
        return _checked(processes, "jax.distributed")
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _checked(_numbers(environment, "RANK", "WORLD_SIZE"), "RANK and WORLD_SIZE")
    if {"LOCAL_RANK", "NODE_RANK", "WORLD_SIZE"} <= environment.keys():
        local, node, size = _numbers(environment, "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
        if node > 0:
            raise UsageError(
                f"environment variables NODE_RANK={node} and LOCAL_RANK={local} do not say which "
                f"of {size} ranks this process is",
                remedy="call torch.distributed.init_process_group before making the AutoLoader, or "
                "pass rank= and world_size=",
            )
        return _checked((local, size), "LOCAL_RANK and WORLD_SIZE")
    if _in_slurm_step(environment):
        return _checked(
            _numbers(environment, "SLURM_PROCID", "SLURM_NTASKS"), "SLURM_PROCID and SLURM_NTASKS"
        )
    return ALONE


def find_neighbours(ranks: Ranks, environment: Mapping[str, str]) -> Neighbours:
    """The ranks that share this machine; this rank alone where the environment does not say."""
    if ranks.world_size == 1:
        return Neighbours()
    port = environment.get("MASTER_PORT", "")
    if {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} <= environment.keys():
        local, size = _numbers(environment, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        parts = [
            "torchrun", environment.get("TORCHELASTIC_RUN_ID", ""), port,
            environment.get("TORCHELASTIC_RESTART_COUNT", ""), environment.get("GROUP_RANK", ""),
        ]  # fmt: skip
    elif {"LOCAL_RANK", "NODE_RANK", "WORLD_SIZE"} <= environment.keys():
        local, node, world_size = _numbers(environment, "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
        if world_size != ranks.world_size:
            return Neighbours()
        # How many a node has is not said. The first one cannot know of others: it counts all.
        size, rest = divmod(ranks.rank - local, node) if node else (world_size, local - ranks.rank)
        if rest:
            return Neighbours()
        parts = ["lightning", environment.get("MASTER_ADDR", ""), port, str(node)]
    elif _in_slurm_step(environment) and "SLURM_LOCALID" in environment:
        (local,) = _numbers(environment, "SLURM_LOCALID")
        size = _slurm_tasks_here(environment)
        parts = [
            "slurm", environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", ""),
            environment.get("SLURM_NODEID", ""), environment.get("SLURM_RESTART_COUNT", ""),
        ]  # fmt: skip
    else:
        return Neighbours()
    if not 0 <= local < size <= max(ranks.world_size, _processes(environment)):
        return Neighbours()
    return Neighbours(size, ":".join(parts))


def _of_mesh(mesh: Any) -> tuple[int, int]:
    """(rank, ranks) of this process in a mesh."""
    try:
        names, sizes, where = mesh.mesh_dim_names or (), mesh.shape, mesh.get_coordinate()
    except AttributeError as error:
        raise UsageError(
            f"device_mesh={shown(mesh)} is not a torch DeviceMesh",
            remedy='pass the data-parallel part of a DeviceMesh: device_mesh=mesh["dp"]',
        ) from error
    if same := [name for name in names if name in _SAME_BATCHES]:
        raise UsageError(
            f"device_mesh has the dimensions {', '.join(names)}: the ranks of {', '.join(same)} "
            "need the same batches, not different ones",
            remedy='give the data-parallel dimensions alone, such as device_mesh=mesh["dp"]',
        )
    if where is None:
        raise UsageError(
            "this process is not part of the device_mesh",
            remedy="make the loader only in processes of the mesh",
        )
    rank = 0
    for at, size in zip(where, sizes, strict=True):
        rank = rank * size + at
    return rank, mesh.size()


def _processes(environment: Mapping[str, str]) -> int:
    """Processes of the job, those that share batches with others included; 0 where not told."""
    told = (environment.get(name, "") for name in ("WORLD_SIZE", "SLURM_NTASKS"))
    return max((int(one) for one in told if one.isdecimal()), default=0)


def _process_group() -> tuple[int, int] | None:
    """(rank, world size) of an initialised process group; imports nothing."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def gathered(values: Mapping[str, float]) -> list[dict[str, float]]:
    """Gather the values of each process, by rank: ``all_gather_object`` of ``torch.distributed``.

    A collective: every process of the group must call it, or those that do wait for ever.

    Args:
        values: figures of this process, by name.

    Raises:
        UsageError: there is no process group.
    """
    if (group := _process_group()) is None:
        raise UsageError(
            "all_ranks=True needs torch.distributed, which is not initialised",
            remedy="call torch.distributed.init_process_group first, or leave all_ranks out to get "
            "the values of this node",
        )
    every: list[Any] = [None] * group[1]
    sys.modules["torch.distributed"].all_gather_object(every, dict(values))
    return every


def _jax_processes() -> tuple[int, int] | None:
    """(process, processes) of an initialised ``jax.distributed``; imports nothing."""
    jax = sys.modules.get("jax")
    told = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if jax is None or told is None or not told():
        return None
    return jax.process_index(), jax.process_count()


def _in_slurm_step(environment: Mapping[str, str]) -> bool:
    """True if ``srun`` has started this process."""
    if not {"SLURM_PROCID", "SLURM_NTASKS"} <= environment.keys():
        return False
    steps = ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS")
    return environment["SLURM_PROCID"] != "0" or any(name in environment for name in steps)


def _slurm_tasks_here(environment: Mapping[str, str]) -> int:
    """Tasks of this node, of a list like ``4(x2),3``; 0 where it is not given."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    node = int(environment.get("SLURM_NODEID", "0"))
    for tasks, _, times in re.findall(r"(\d+)(\(x(\d+)\))?", text or ""):
        node -= int(times or 1)
        if node < 0:
            return int(tasks)
    return 0


def _numbers(environment: Mapping[str, str], *names: str) -> tuple[int, ...]:
    """Whole numbers of these variables; ``UsageError`` where one is none."""
    try:
        return tuple(int(environment[name]) for name in names)
    except ValueError as error:
        found = ", ".join(f"{name}={environment[name]!r}" for name in names)
        raise UsageError(
            f"environment variables {found}: each must be a whole number",
            remedy=f"set {' and '.join(names)} as the launcher (torchrun, srun) does, or pass "
            "AutoLoader(…, rank=…, world_size=…)",
        ) from error


def _checked(found: tuple[int, ...], source: str) -> Ranks:
    """Rank and number of ranks; ``UsageError`` where there is no such rank."""
    rank, world_size = found
    if not 0 <= rank < world_size:
        raise UsageError(
            f"rank={rank}, world_size={world_size} (from {source}): there is no such rank",
            remedy=f"with world_size={world_size}, ranks go from 0 to {world_size - 1}"
            if world_size > 0
            else "give a world_size of 1 or more: the number of ranks",
        )
    return Ranks(rank, world_size)
