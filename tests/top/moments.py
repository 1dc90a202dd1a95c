"""A moment of a run, as tests want it."""

from collections.abc import Callable
from typing import Any

from autoloader.telemetry.statistics import (
    CacheStatistics,
    ControllerStatistics,
    DatasetStatistics,
    Move,
    RingStatistics,
    StageMoment,
    Statistics,
)

GIB = 2**30


def a_moment(**changed: Any) -> Statistics:
    """A loader that decodes too slowly, two GiB below its floor; with these changes."""
    moment: dict[str, Any] = {
        "run": "host-4711-20260101T120000", "pipeline": 0, "split": "train",
        "at_s": 1_700_000_100.5, "started_at_s": 1_700_000_000.0, "phase": "running",
        "script": "train.py", "bound_per_s": 2000.0, "limited_by": "decode", "state": "GROW",
        "why": "decode is short", "batches": 100, "samples_per_s": 500.0, "wait_ratio": 0.25,
        "step_s": 0.064, "headroom_bytes": 3 * GIB, "floor_bytes": 5 * GIB,
        "ring": RingStatistics(slots=8, filled=2, allocated_bytes=2**20),
        "cache": CacheStatistics(), "stages": (StageMoment("decode", "", 4, 0.002, 0.9, 2000.0),),
        "datasets": {"bridge": DatasetStatistics(0.5, 0.49, 3200, queue=12)},
        "knobs": {"ring_slots": 8, "decode_threads": 4, "bridge.cycle_length": 2},
        "controller": ControllerStatistics(decisions=100, changes=1),
        "moves": (Move(1_700_000_050.0, "policy", "decode is short", {"decode_threads": (2, 4)}),),
    }  # fmt: skip
    return Statistics(**(moment | changed))


Look = Callable[[Callable[[Statistics], bool]], Statistics]
"""Waits until a run says what is wanted of it (the fixture ``look``)."""
