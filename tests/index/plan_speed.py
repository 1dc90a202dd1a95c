"""How fast the sample plan is over 1,000 datasets and 10 million episodes; run by hand.

    python tests/index/plan_speed.py [datasets] [episodes] [per_episode] [block_length] [chain]

Prints one JSON object: seconds to open (tables and plan), peak resident bytes above the bare
imports, positions per second in runs of 256, in order and at random places.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np

from autoloader.order.episodes import DatasetTable
from autoloader.order.mixture import MixtureOrder
from autoloader.order.plan import SamplePlan
from autoloader.samples.draws import PURPOSE_PHASE, dataset_key, fold, unit
from autoloader.spec import SampleSpec

RUN = 256
RUNS = 400


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def synthetic_tables(datasets: int, episodes: int, sample: SampleSpec) -> list[DatasetTable]:
    rng = np.random.default_rng(0)
    shares = rng.lognormal(0, 1, datasets)
    sizes = np.maximum(shares / shares.sum() * episodes, 1).astype(int)
    return [
        DatasetTable(
            key=dataset_key(0, f"dataset_{number}"),
            sample=sample,
            stride=1,
            steps=rng.integers(20, 400, size, dtype=np.int32),
            slice_of=np.arange(size, dtype=np.int32) // 100,
            record_of=np.arange(size, dtype=np.int64) % 100,
        )
        for number, size in enumerate(sizes.tolist())
    ]


def rates(plan: SamplePlan, starts: list[int]) -> dict[str, float]:
    """Positions per second of wall time and of this process's CPU time: the best of three."""
    best = {"wall": 0.0, "cpu": 0.0}
    for _ in range(3):
        wall, cpu = time.perf_counter(), time.process_time()
        for start in starts:
            plan.samples(start, start + RUN)
        took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        best = {clock: max(best[clock], len(starts) * RUN / took[clock]) for clock in best}
    return best


def main() -> None:
    words = dict(enumerate(sys.argv[1:]))
    datasets, episodes = int(words.get(0, 1000)), int(words.get(1, 10_000_000))
    per_episode = words.get(2, "all")
    sample = SampleSpec.model_validate(
        {
            "frame_offsets": [0, 5],
            "per_episode": per_episode if per_episode == "all" else int(per_episode),
        }
    )
    bare = peak_bytes()
    begin = time.perf_counter()
    tables = synthetic_tables(datasets, episodes, sample)
    made = time.perf_counter()
    keys = [table.key for table in tables]
    order = MixtureOrder(
        shares=tuple(np.random.default_rng(1).dirichlet(np.full(datasets, 2.0)).tolist()),
        phases=tuple(unit(fold(key, PURPOSE_PHASE)) for key in keys),
        block_length=int(words.get(3, 1)),
        pass_samples=None,
        epoch_samples=None,
    )
    plan = SamplePlan(order, tables, chain=words.get(4) == "chain")
    opened = time.perf_counter()
    in_order = [10**7 + RUN * run for run in range(RUNS)]
    at_random = np.random.default_rng(2).integers(0, 10**10, RUNS).tolist()
    figures = {
        "datasets": datasets,
        "episodes": sum(len(table.steps) for table in tables),
        "samples": sum(table.samples for table in tables),
        "tables_s": made - begin,
        "plan_s": opened - made,
        "peak_bytes": peak_bytes() - bare,
        "positions_per_s": {
            "in order": rates(plan, in_order),
            "at random places": rates(plan, at_random),
        },
    }
    print(json.dumps(figures, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
