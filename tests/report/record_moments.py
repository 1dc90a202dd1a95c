"""Moments of runs that never were, for what keeps, exports and draws them."""

from dataclasses import replace
from typing import Any

from autoloader.host.units import GIB
from autoloader.telemetry.statistics import (
    CacheStatistics,
    ControllerStatistics,
    DatasetStatistics,
    RingStatistics,
    StageMoment,
    Statistics,
)

BEGAN_S = 1_700_000_000.0


def a_moment(after_s: float = 100.0, **changed: Any) -> Statistics:
    """A moment so long after the run began: 10 batches a second, decode at half its bound."""
    moment = Statistics(
        run="host-4711-20260101T120000", pipeline=0, split="train", at_s=BEGAN_S + after_s,
        started_at_s=BEGAN_S, phase="running", script="train.py", trainer_pid=4711, worker_pid=4712,
        samples=int(480 * after_s), bound_per_s=960.0, limited_by="decode", state="HOLD",
        why="the consumer waits for nothing", batches=int(10 * after_s), samples_per_s=480.0,
        wait_ratio=0.25, waiting_s=0.0, step_s=0.1, silent_s=0.0, headroom_bytes=8 * GIB,
        floor_bytes=5 * GIB, margin_bytes=GIB // 4, loader_bytes=2 * GIB, pressure_percent=0.0,
        ring=RingStatistics(8, 2, 2**20), cache=CacheStatistics(GIB, GIB // 2, 10, 30, 70),
        stages=(StageMoment("decode", "", 2, 0.002, 0.9, 960.0),),
        datasets={"bridge": DatasetStatistics(0.75, 0.74, 3200, queue=12),
                  "fractal": DatasetStatistics(0.25, 0.26, 1100, queue=3, stalls=2)},
        knobs={"ring_slots": 8, "decode_threads": 2},
        controller=ControllerStatistics(decisions=100, changes=1),
    )  # fmt: skip
    return replace(moment, **changed)
