"""One of two JAX processes on the CPU: half an epoch, then a new loader that resumes the rest.

    python two_processes_script.py SPEC PORT PROCESS

Prints one JSON document: its rank, the places it was given, and what became of a batch on its own
device, and of one sharded over both.
"""

import gc
import json
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoloader import AutoLoader
from autoloader.jax import device_put

HELD: dict[str, Any] = {"output": "numpy", "ram_floor": "64MiB", "isolation": "thread"}


def placed_alone(loader: AutoLoader) -> dict[str, Any]:
    """What a batch on the device is, and whether its slot is free while the batch stays whole."""
    found: dict[str, Any] = {}
    lent = loader._delivery.lender
    batch = next(iter(loader))
    wanted = {"action": batch["action"].copy(), "primary": batch["images"]["primary"].copy()}
    placed = device_put(batch)
    found["kinds"] = {
        name: [isinstance(part, jax.Array), str(part.dtype), list(part.shape)]
        for name, part in {**placed, **placed["images"]}.items()
        if hasattr(part, "dtype")
    }
    found["texts"] = placed["language"] == batch["language"]
    del batch
    gc.collect()
    lent.collect()
    found["lent"] = len(lent.lent)  # while the arrays on the device are alive
    for _ in range(8):  # the slots are filled again
        next(iter(loader), None)
    found["whole"] = bool(
        np.array_equal(placed["action"], wanted["action"])
        and np.array_equal(placed["images"]["primary"], wanted["primary"])
    )
    return found


def main(spec: str, port: str, process: str) -> dict[str, Any]:
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process))
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    places = []
    with AutoLoader(spec, **HELD) as loader:
        alone = placed_alone(loader)
    with AutoLoader(spec, **HELD) as loader:
        found: dict[str, Any] = {"rank": loader.rank, "world_size": loader.world_size}
        for _ in range(len(loader) // 2):
            batch = next(iter(loader))
            placed = device_put(batch, rows)
            places += placed["provenance"].tolist()
            (own,) = placed["action"].addressable_shards
            assert np.array_equal(own.data, batch["action"])
        found["shape"] = list(placed["action"].shape)
        state = loader.state_dict()
    found["half"] = len(places)
    with AutoLoader(spec, **HELD) as loader:
        loader.load_state_dict(state)
        for batch in loader:
            places += batch["provenance"].tolist()
    return {**found, "alone": alone, "places": places}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
