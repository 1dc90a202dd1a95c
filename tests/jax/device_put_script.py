"""Puts batches on JAX's CPU device; prints one JSON document of what was seen.

python device_put_script.py SPEC
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import jax
import numpy as np

from autoloader import AutoLoader
from autoloader.jax import device_put


def main(spec: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with AutoLoader(spec, output="numpy", ram_floor="64MiB", isolation="thread") as loader:
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
            next(iter(loader))
        found["whole"] = bool(
            np.array_equal(placed["action"], wanted["action"])
            and np.array_equal(placed["images"]["primary"], wanted["primary"])
        )
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
