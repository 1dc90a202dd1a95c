"""``python peer_runs.py SPEC OUT JOBS``: runs peers one after the other, keeps what they gave.

JOBS is a JSON list of [name, kind, settings, samples].
"""

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import open_contender

KEPT = (
    "images", "frame_mask", "action", "action_mask", "state", "state_mask", "language",
    "dataset_index", "episode_index", "step",
)  # fmt: skip


def main() -> None:
    spec, out, jobs = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    found = {name: _given(kind, spec, settings, count) for name, kind, settings, count in jobs}
    out.write_bytes(pickle.dumps(found))
    # What is left of a framework's threads would only delay the test.
    os._exit(0)


def _given(kind: str, spec: Path, settings: dict[str, int], count: int) -> dict[str, Any]:
    contender = open_contender(kind, spec, settings)
    kept: dict[str, list[Any]] = {name: [] for name in KEPT}
    batches, sizes = iter(contender), []
    while sum(sizes) < count:
        batch = next(batches)
        sizes.append(len(batch["dataset_index"]))
        for name in KEPT:
            kept[name].append(np.array(batch[name]))
    contender.close()
    return {"sizes": sizes, **{name: np.concatenate(rows) for name, rows in kept.items()}}


if __name__ == "__main__":
    main()
