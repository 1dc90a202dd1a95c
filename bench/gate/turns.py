"""What the gate counts, and how one count is run.

Not here: the counting (``bench.gate.counted``), the limits (``bench.gate.baseline``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.child import environment
from bench.data import ensure_data
from bench.gate.counted import ENVIRONMENT

LONGEST_TURN_S = 600.0

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


class CountFailedError(Exception):
    """A counted loader failed; the message holds the end of what it said."""


def run_counting(name: str) -> dict[str, float]:
    """The counts of ``COUNTINGS[name]``, from a process of its own.

    Raises:
        CountFailedError: it gave none.
    """
    chosen = COUNTINGS[name]
    job = {
        "spec": str(ensure_data("counted")),
        "mixing": chosen.mixing,
        "knobs": chosen.knobs,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.gate.counted", json.dumps(job)],
            capture_output=True,
            text=True,
            env={**environment(), **ENVIRONMENT},
            timeout=LONGEST_TURN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CountFailedError(f"{name}: no counts in {LONGEST_TURN_S:.0f} s") from error
    if done.returncode != 0 or not done.stdout.strip():
        said = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise CountFailedError(f"{name} ended with {done.returncode}:\n{said}")
    counts: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return counts
