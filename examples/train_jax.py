"""Behaviour cloning in plain JAX, by one process or by several.

python train_jax.py data/mix.yaml --steps 1000    # Ctrl-C saves; the same command goes on exactly
python train_jax.py data/mix.yaml --join HOST:PORT --processes 2 --process 0    # one of two
"""

import argparse
import json
import signal
from itertools import chain, repeat
from pathlib import Path

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from policy_jax import error, fresh, placed, stepped

from autoloader import AutoLoader, validation_loaders


def summed(*numbers: float) -> np.ndarray:
    """Each number, added up over all processes. Every process must call it."""
    return process_allgather(np.array(numbers, "f")).reshape(-1, len(numbers)).sum(axis=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("spec", help='has a camera "primary", a state and a split "val"')
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=200, help="steps between validations")
    parser.add_argument("--checkpoint", type=Path, default=Path("policy.npz"))
    parser.add_argument("--join", help="address of process 0, if there are several")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    given, told = parser.parse_args(), np.zeros(1)
    if given.join:
        jax.distributed.initialize(given.join, given.processes, given.process)
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda *_: told.fill(1))
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    held = validation_loaders(given.spec, output="numpy")["val"]
    with held, AutoLoader(given.spec, output="numpy") as loader:  # they know jax.process_index()
        weights = fresh(loader)
        if given.checkpoint.exists():
            weights = dict(np.load(given.checkpoint))
            loader.load_state_dict(json.loads(str(weights.pop("loader"))))
        weights = jax.device_put(weights, whole)
        batches = chain.from_iterable(repeat(loader))  # epoch after epoch
        while loader.batches < given.steps and not summed(*told):  # all stop after the same step
            weights, loss = stepped(weights, placed(next(batches), rows))
            if (step := loader.batches) % given.every == 0:
                own = jax.tree.map(lambda weight: weight.addressable_data(0), weights)
                errors = [float(error(own, placed(batch))) for batch in held]
                (mean,) = summed(sum(errors) / len(errors)) / loader.world_size
                if loader.rank == 0:
                    print(f"step {step}: training {loss:.4f}, validation {mean:.4f}", flush=True)
        if loader.rank == 0:  # any process's place is that of all, where data is local
            np.savez(given.checkpoint, loader=json.dumps(loader.state_dict()), **weights)
