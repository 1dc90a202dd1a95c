"""What passing features costs: processor time a sample with them and without, in turn.

    python -m bench.feature_cost [--spec mix.yaml] [--pairs 8] [--batches 60]

Six features of the steps and the episode (``FEATURES``) are named in every dataset that has them.
Loaders with and without them are opened one after the other, in this process, with one decode
thread and no controller; processor time of the process is taken between two batches, so that other
work on the machine counts little. The median of the pairs' ratios is told, with their spread.

Not here: samples per second (``bench.suite``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from autoloader import AutoLoader, PipelineSpec
from autoloader.demo.build import ensure_demo
from autoloader.samples.resolve import resolve

FEATURES = {
    "reward": "reward",
    "discount": "discount",
    "is_first": "is_first",
    "is_last": "is_last",
    "is_terminal": "is_terminal",
    "file_path": "episode_metadata/file_path",
}
_WARM_BATCHES = 6


def with_features(spec: PipelineSpec) -> PipelineSpec:
    """The spec with those of ``FEATURES`` that each dataset has."""
    datasets = []
    for declared, found in zip(spec.datasets, resolve(spec).datasets, strict=True):
        there = {name: path for name, path in FEATURES.items() if path in found.features}
        datasets.append(declared.model_copy(update={"features": there}))
    return spec.model_copy(update={"datasets": tuple(datasets)})


def processor_s_per_sample(spec: PipelineSpec, batches: int) -> float:
    """Processor seconds of this process for a sample of ``spec``, read by index."""
    with AutoLoader(
        spec,
        isolation="thread",
        controller=False,
        ram_floor="256MB",
        output="numpy",
        knobs={"reader": "indexed", "decode_threads": 1, "ring_slots": 4},
    ) as loader:
        rows = iter(loader)
        for _ in range(_WARM_BATCHES):
            next(rows)
        before, samples = time.process_time(), 0
        for _ in range(batches):
            samples += len(next(rows)["language"])
        return (time.process_time() - before) / samples


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.feature_cost")
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--batches", type=int, default=60)
    given = parser.parse_args(arguments)
    spec = PipelineSpec.from_yaml(given.spec or ensure_demo())
    spec = spec.model_copy(
        update={"mixing": spec.mixing.model_copy(update={"epoch": "forever"}), "reader": "indexed"}
    )
    both = (spec, with_features(spec))
    for one in both:  # indexes are built, files are read once
        processor_s_per_sample(one, 2)
    ratios, without, named = [], [], []
    for pair in range(given.pairs):
        first, second = (0, 1) if pair % 2 == 0 else (1, 0)
        found = dict.fromkeys((0, 1), 0.0)
        for which in (first, second):
            found[which] = processor_s_per_sample(both[which], given.batches)
        without.append(found[0])
        named.append(found[1])
        ratios.append(found[1] / found[0] - 1)
    document = {
        "datasets": len(spec.datasets),
        "pairs": given.pairs,
        "batches": given.batches,
        "processor_ms_per_sample": {
            "without": round(statistics.median(without) * 1e3, 4),
            "with": round(statistics.median(named) * 1e3, 4),
        },
        "cost_ratio": round(statistics.median(ratios), 4),
        "spread": [round(min(ratios), 4), round(max(ratios), 4)],
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
