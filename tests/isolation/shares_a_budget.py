"""Run in a memory cgroup of its own: a validation opens where a full training ring leaves no room.

``python shares_a_budget.py GROUP TRAIN_SPEC FLOOR``; prints one JSON document.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from streams import endless

from autoloader import AutoLoader
from autoloader.controller.limits import MARGIN_BYTES
from autoloader.host.headroom import HeadroomProbe
from autoloader.host.units import GIB, MIB
from autoloader.tune.measurement import Recorder

SPARE_BYTES = 20 * MIB
SLOTS = 20
KNOBS = {"decode_threads": 1, "io_threads": 1, "read_ahead": 1, "cache_bytes": 0}
"""Without a frame cache, which would be what is given back first."""
Rows = list[list[int]]


def rows(batch: dict[str, Any]) -> Rows:
    return batch["provenance"].tolist()


def main(group: str, mix: str, floor: str) -> None:
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    options: dict[str, Any] = {"ram_floor": int(floor), "output": "numpy", "profile": "local_dev"}
    told: dict[str, Any] = {}
    knobs = {**KNOBS, "ring_slots": SLOTS}
    probe = HeadroomProbe()
    with AutoLoader(mix, knobs=knobs, **options) as train:
        batches = endless(train)
        told["train"] = [rows(next(batches))]
        slot = train.plan.mixture.layout.slot_bytes
        while train.statistics().ring.filled < SLOTS - 1:
            time.sleep(0.005)
        # From now on there is room for margin and floor, and for little beside.
        limit = Path(group) / "memory.limit_in_bytes"
        limit.write_text(str(2 * GIB))
        taken = 2 * GIB - probe.read().headroom_bytes  # file pages of the group are left out
        limit.write_text(str(taken + int(floor) + MARGIN_BYTES + SPARE_BYTES))
        told["before"] = [probe.read().headroom_bytes, train.statistics().ring.allocated_bytes]
        with Recorder(probe, period_s=0.05) as sampler:
            with AutoLoader(
                mix, split="val", reproducible=True, knobs={**KNOBS, "ring_slots": 4}, **options
            ) as val:
                ring = train.statistics().ring
                told["after"] = [probe.read().headroom_bytes, ring.allocated_bytes]
                told["slots"] = train.knobs.ring_slots
                told["val"] = [rows(batch) for batch in val]
                told["val_slots"] = val.knobs.ring_slots
                told["val_samples"] = val.plan.counts["a"].samples
            told["train"] += [rows(next(batches)) for _ in range(2 * SLOTS)]
        told |= {"least": sampler.min_headroom_bytes, "slot": slot, "floor": int(floor)}
        told["restarts"] = train.statistics().restarts
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
