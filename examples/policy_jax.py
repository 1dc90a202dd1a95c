"""The policy that ``train_jax.py`` trains, in plain JAX. Put your own model in its place.

docs/reference/batch.md has the keys and shapes of a batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoloader import AutoLoader, Batch
from autoloader.jax import device_put


def fresh(loader: AutoLoader) -> dict[str, np.ndarray]:
    """Weights before the first step, for the sizes of a loader's batches."""
    layout = loader.plan.mixture.layout
    state, actions = layout.state_width, layout.action_rows * layout.action_width
    shapes = {"eye": (8, 8, 3, 32), "body": (32 + state, 128), "head": (128, actions)}
    draw = np.random.default_rng(0)
    return {name: draw.normal(0, 0.05, shape).astype("f") for name, shape in shapes.items()}


def placed(batch: Batch, sharding: Any = None) -> dict[str, Any]:
    """The arrays that the policy computes with, on JAX's devices."""
    moved = device_put(batch, sharding)
    wanted = {"state": moved["state"], "action": moved["action"], "mask": moved["action_mask"]}
    return {"frames": moved["images"]["primary"], **wanted}


@jax.jit
def error(weights: Any, batch: Any) -> Any:
    """Mean absolute error of the [B, horizon, A] actions that are there."""
    frames = batch["frames"][:, -1] / 255.0
    seen = jax.lax.conv_general_dilated(
        frames, weights["eye"], (8, 8), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    seen = jnp.concatenate([jax.nn.gelu(seen).mean(axis=(1, 2)), batch["state"][:, -1]], axis=1)
    found = jax.nn.gelu(seen @ weights["body"]) @ weights["head"]
    off = jnp.abs(found.reshape(batch["action"].shape) - batch["action"])
    return (off * batch["mask"]).sum() / batch["mask"].sum()


@jax.jit
def stepped(weights: Any, batch: Any) -> Any:
    """The weights after one step of gradient descent, and the error before it."""
    lost, slope = jax.value_and_grad(error)(weights, batch)
    return jax.tree.map(lambda weight, towards: weight - 0.05 * towards, weights, slope), lost
