"""What the frame cache costs where nothing hits: processor time a sample with it and without.

    python -m bench.cache_cost [--spec mix.yaml] [--cache 1GiB] [--turns 40] [--batches 12]

Every frame is asked for and its next use is worked out; then it is told that none is shown again,
so nothing is held and nothing hits. What is left is what the cache costs by itself.

Two loaders over the same seed stand open in this process and take turns, A B B A, as in
``bench.feature_cost``: a turn ends when the process has come to rest, and the clock is the
processor time of the process. Both decode all their frames; decoding varies more than the cache
costs, so many turns are needed. The interval holds 95 % of the medians of resampled pairs.

Not here: what a cache hits (``bench.cache_hits``), the rate that it gives (``bench --only held``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from autoloader import PipelineSpec
from autoloader.demo.build import ensure_demo
from autoloader.order.next_use import NextUse
from autoloader.order.schedule import NEVER
from autoloader.units import parse_bytes
from bench.feature_cost import interval, opened, turn_s

_AFTER = NextUse.after


def never(self: NextUse, *of: Any) -> NDArray[np.int64]:
    """Works the next uses out, as ``NextUse.after``, and says that there are none."""
    return np.full_like(_AFTER(self, *of), NEVER)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache_cost")
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--cache", type=parse_bytes, default=2**30, help="bytes that it may hold")
    parser.add_argument("--turns", type=int, default=40, help="of each loader")
    parser.add_argument("--batches", type=int, default=12, help="of a turn")
    given = parser.parse_args(arguments)
    spec = PipelineSpec.from_yaml(given.spec or ensure_demo())
    mixing = spec.mixing.model_copy(update={"epoch": "forever"})
    spec = spec.model_copy(update={"mixing": mixing, "reader": "indexed"})
    differences, costs = [], []
    asked = mock.patch.object(NextUse, "after", never)
    with asked, opened(spec) as plain, opened(spec, cache_bytes=given.cache) as cached:
        for turn in range(given.turns):
            both = (plain, cached) if turn % 2 else (cached, plain)
            took = {id(one): turn_s(one, given.batches) for one in both}
            differences.append(took[id(cached)] - took[id(plain)])
            costs.append(took[id(plain)])
    low, high = interval(differences)
    sample_s = statistics.median(costs)
    document = {
        "cache_bytes": given.cache,
        "turns": given.turns,
        "batches": given.batches,
        "processor_us_per_sample": {
            "without": round(sample_s * 1e6, 2),
            "cache": round(statistics.median(differences) * 1e6, 2),
        },
        "cost_ratio": round(statistics.median(differences) / sample_s, 4),
        "interval": [round(low / sample_s, 4), round(high / sample_s, 4)],
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
