"""Four gloo processes: two data-parallel ranks of two tensor-parallel processes each.

    python device_mesh_script.py SPEC MEETING

Trains a model with FSDP2 over the data-parallel dimension, as each process gets its batches. Prints
of each, as JSON: its place in the mesh, its samples, and the weights that came of them.
"""

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from autoloader import AutoLoader
from tests.in_forks import together

STEPS = 3
RATE = 0.1


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def error(policy: nn.Module, batch: Any) -> torch.Tensor:
    return (policy(batch["state"][:, -1]) - batch["action"][:, 0]).pow(2).mean()


def main(spec: str, meeting: str, rank: int) -> dict[str, Any]:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    policy = model()
    fully_shard(policy, mesh=mesh["dp"])
    sgd = torch.optim.SGD(policy.parameters(), lr=RATE)
    with AutoLoader(spec, device_mesh=mesh["dp"], ram_floor="64MiB") as loader:
        found: dict[str, Any] = {
            "place": mesh.get_coordinate(),
            "rank_and_world": [loader.rank, loader.world_size],
            "length": len(loader),
            "pid": loader.statistics().worker_pids[0],
        }
        dist.barrier()  # all are open: nobody's child ends before another one comes
        found["samples"] = []
        for step, batch in enumerate(loader):
            found["samples"].append(batch["provenance"].tolist())
            if step < STEPS:
                error(policy, batch).backward()
                sgd.step()
                sgd.zero_grad()
    assert isinstance(policy.weight, DTensor)
    found["sharded"] = list(policy.weight.to_local().shape)
    found["weights"] = policy.weight.full_tensor().tolist()
    dist.barrier()
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    torch.optim.SGD([torch.zeros(1)])  # what it imports is imported once as well
    sys.stdout.write(json.dumps(together(main, [(*sys.argv[1:], rank) for rank in range(4)])))
