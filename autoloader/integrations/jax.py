"""JAX's side of the loader: puts a batch on JAX's devices, sharded over all processes.

Theory of operation. An accelerator's copy reads the slot beside the program, and JAX holds the
NumPy array, and with it the slot, until the copy is done. On the CPU, JAX makes no copy of an array
with a slot's alignment. It would keep the slot as long as the JAX array lives. So there the batch
is copied first, and the slot is free at once.

A process knows its rank from an initialised ``jax.distributed`` (``process.ranks``).

Not here: which rows are this process's (``sampling.dealing``), the slot (``decode.ring``), and
``integrations.tfdata``, which JAX programs may use as well.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from autoloader.errors import UsageError
from autoloader.host.extras import needs
from autoloader.samples.layout import Batch

with needs("autoloader.jax"):
    import jax

_ON_THE_HOST = ("language", "provenance")
"""Parts that no model computes with: texts, and places of 64 bits, which JAX would cut to 32."""


def device_put(batch: Batch, sharding: Any = None) -> Batch:
    """The batch with its arrays on devices; texts and ``provenance`` stay, the latter as a copy.

    With several processes every one of them gives its own batch, and the arrays are of all rows
    together: process p's are those at p in the sharding. Integers of 64 bits become 32, unless JAX
    is told otherwise (``jax_enable_x64``).

    Args:
        batch: batch of a loader with ``output="numpy"``. The batch may be dropped, and its slot
            filled again, as soon as the copies are done.
        sharding: a ``jax.sharding.Sharding`` whose first axis is the batch's, a device, or
            ``None`` for the default device.

    Raises:
        UsageError: the rows cannot be dealt to the sharding's devices.
    """
    devices = getattr(sharding, "addressable_devices", None) or {sharding or jax.devices()[0]}
    aliases = any(device.platform == "cpu" for device in devices)

    def put(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: put(inner) for name, inner in part.items()}
        if isinstance(part, list):
            return part
        array = np.array(part) if aliases else np.asarray(part)
        if isinstance(sharding, jax.sharding.Sharding):
            return jax.make_array_from_process_local_data(sharding, array)
        return jax.device_put(array, sharding)

    try:
        placed = {name: put(part) for name, part in batch.items() if name not in _ON_THE_HOST}
    except ValueError as error:
        raise UsageError(
            f"a batch of {len(batch['language'])} rows cannot be placed with {sharding}: {error}",
            remedy=f"make batch.size a multiple of the {len(devices)} devices of this process, "
            "keep drop_last: true, and shard only the first axis",
        ) from error
    placed["language"] = batch["language"]
    if "provenance" in batch:
        placed["provenance"] = np.array(batch["provenance"])
    return cast("Batch", placed)
