"""Somebody else who fills the object stores of a cluster, and frees them again.

    python -m bench.helpers.hoarder HOST:PORT STORE_BYTES

Lines on stdin: ``here`` fills the store of nodes without processors, ``there`` those of the others,
``free`` gives all back, and says as a line of JSON how much was held, and how long it took to hold
it. What is held is in use, so Ray cannot spill it to disk.

Not here: what becomes of a loader meanwhile (``bench.helpers.faults``).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from autoloader.cluster import ray_client

_PIECE_BYTES = 2 * 2**20


class Hoard:
    """Holds objects of one node's store."""

    def fill(self, store_bytes: int) -> tuple[int, float]:
        """Put objects until they are as many as the store is large; their bytes, and seconds."""
        import ray

        begun = time.monotonic()
        self._held: list[Any] = []
        for _ in range(store_bytes // _PIECE_BYTES):
            reference = ray.put(np.ones(_PIECE_BYTES, np.uint8))
            self._held.append((reference, ray.get(reference)))  # a view: it may not be spilled
        return len(self._held) * _PIECE_BYTES, time.monotonic() - begun


def main(address: str, store_bytes: int) -> None:
    """Do what stdin says."""
    ray = ray_client.join(address)
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    holding: list[Any] = []
    filled: list[Any] = []
    for line in sys.stdin:
        order = line.strip()
        if order == "free":
            print(json.dumps(ray.get(filled)), flush=True)
            for hoard in holding:
                ray.kill(hoard)
            holding.clear()
            filled.clear()
            continue
        nodes = [
            one["NodeID"]
            for one in ray.nodes()
            if one["Alive"] and bool(one["Resources"].get("CPU", 0)) is (order == "there")
        ]
        kind = ray.remote(num_cpus=0)(Hoard)
        own = [
            kind.options(scheduling_strategy=strategy(node_id=name, soft=False)).remote()
            for name in nodes
        ]
        holding += own
        filled += [hoard.fill.remote(store_bytes) for hoard in own]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
