"""Behaviour cloning in plain JAX: chunks of normalised actions from a frame and the state.

    python train_jax.py mix.yaml --steps 1000     # the same command goes on exactly from there
    python train_jax.py mix.yaml --join HOST:PORT --processes 2 --process 0     # one of several

The spec has a camera "primary", a state, and says how both are normalised. Every process reads its
own part of each step; the arrays are of all of them, and the weights are the same everywhere.
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoloader import AutoLoader
from autoloader.jax import device_put

SEEN = ("images", "state", "action", "action_mask")
"""What the policy computes with, of what a batch holds."""
PATCH = 8


def fresh(state: int, action: int) -> dict[str, np.ndarray]:
    """Weights of a policy from [state] numbers and a frame to [action] numbers."""
    shapes = {"eye": (PATCH * PATCH * 3, 32), "body": (32 + state, 128), "head": (128, action)}
    draw = np.random.default_rng(0)
    return {name: draw.normal(0, 0.05, shape).astype("f") for name, shape in shapes.items()}


def error(weights: Any, batch: Any) -> Any:
    """Mean error of the [B, horizon, A] actions that are there."""
    frames = batch["images"]["primary"][:, -1] / 255.0
    rows, height, width, _ = frames.shape
    patches = frames.reshape(rows, height // PATCH, PATCH, width // PATCH, PATCH, 3)
    patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(rows, -1, PATCH * PATCH * 3)
    seen = jax.nn.gelu(patches @ weights["eye"]).mean(axis=1)
    body = jax.nn.gelu(jnp.concatenate([seen, batch["state"][:, -1]], axis=1) @ weights["body"])
    off = jnp.abs((body @ weights["head"]).reshape(batch["action"].shape) - batch["action"])
    return (off * batch["action_mask"]).sum() / batch["action_mask"].sum()


def stepped(weights: Any, batch: Any) -> Any:
    """The weights after one step of gradient descent, and the error before it."""
    lost, slope = jax.value_and_grad(error)(weights, batch)
    return jax.tree.map(lambda weight, towards: weight - 0.05 * towards, weights, slope), lost


step = jax.jit(stepped)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("spec")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100, help="steps between two lines")
    parser.add_argument("--checkpoint", type=Path, default=Path("policy.npz"))
    parser.add_argument("--join", help="address of process 0, where there are several")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    given, done = parser.parse_args(), 0
    if given.join:
        jax.distributed.initialize(given.join, given.processes, given.process)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*axis)) for axis in (["data"], []))
    with AutoLoader(given.spec, output="numpy") as loader:  # knows jax.process_index()
        layout = loader.plan.mixture.layout
        weights = fresh(layout.state_width, layout.action_rows * layout.action_width)
        if given.checkpoint.exists():
            saved = dict(np.load(given.checkpoint))
            place = json.loads(str(saved.pop("place")))
            loader.load_state_dict(place["loader"])  # exactly behind the last batch
            weights, done = saved, place["steps"]
        weights = jax.device_put(weights, whole)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))  # epoch after epoch
        while done < given.steps:
            done += 1
            batch = device_put(next(batches), rows)
            weights, lost = step(
                weights, {name: part for name, part in batch.items() if name in SEEN}
            )
            if done % given.every == 0 and loader.rank == 0:
                print(f"step {done}: {lost:.4f}", flush=True)
        if loader.rank == 0:  # local data is read by index: any process's place is that of all
            place = json.dumps({"loader": loader.state_dict(), "steps": done})
            np.savez(given.checkpoint, place=place, **jax.tree.map(np.asarray, weights))


if __name__ == "__main__":
    main()
