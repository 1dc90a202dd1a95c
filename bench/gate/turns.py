"""What the gate counts, and how one count is run.

Not here: the counting (``bench.gate.counted``), the limits (``bench.gate.baseline``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.child import answer
from bench.data import ensure_data
from bench.gate.counted import ENVIRONMENT

_INDEXED = {
    "reader": "indexed",
    "ring_slots": 8,
    "decode_threads": 2,
    "io_threads": 1,
    "read_ahead": 1,
}
_STREAM = {
    "reader": "stream",
    "ring_slots": 8,
    "decode_threads": 2,
    "cycle_length": 1,
    "num_parallel_calls": 1,
    "parse_parallel_calls": 1,
    "stream_prefetch": 0,
    "queue_samples": 32,
}


@dataclass(frozen=True, slots=True)
class Counting:
    """One way to run the loader whose doings are counted.

    Attributes:
        knobs: held still.
        mixing: changes to that section of the spec.
        edge: what part of all that is read may fall to either side of the count's ends.
    """

    knobs: Mapping[str, Any]
    mixing: Mapping[str, Any] = field(default_factory=dict)
    edge: float = 0.15


SHORT = ("by index",)
"""What the test suite counts too."""

COUNTINGS: Mapping[str, Counting] = {
    "by index": Counting(_INDEXED),
    "by index, chained": Counting(_INDEXED, {"chain": True, "block_length": 4}),
    "by index, two processes": Counting({**_INDEXED, "decode_processes": 2}, edge=0.3),
    "stream": Counting(_STREAM),
}


def run_counting(name: str) -> dict[str, float]:
    """The counts of ``COUNTINGS[name]``, from a process of its own.

    Raises:
        ChildFailedError: it gave none.
    """
    chosen, spec = COUNTINGS[name], ensure_data("counted")
    job = {"spec": str(spec), "mixing": chosen.mixing, "knobs": chosen.knobs}
    counts: dict[str, float] = answer("bench.gate.counted", json.dumps(job), own=ENVIRONMENT)
    return counts
