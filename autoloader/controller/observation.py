"""What the policy may know: one frozen snapshot, in which every reading carries its age.

``None`` is unknown. A reading that is too old, not a number, or from the future is unknown too:
``fresh`` is the only way the policy looks at one, so stale evidence cannot slip through.

Units: seconds, bytes, samples per second; ratios are of 1. ``at_s`` is of a monotonic clock.

Not here: taking readings (``headroom``, ``pressure``, ``gpu``, ``flow``), judging them
(``policy``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autoloader.controller.admission import Prices
from autoloader.spec.knobs import Knobs


@dataclass(frozen=True, slots=True)
class Reading:
    """One number and how old it was when the observation was made."""

    value: float
    age_s: float = 0.0


def fresh(reading: Reading | None, oldest_s: float) -> float | None:
    """The number, or ``None`` where it is unknown: absent, stale, or no evidence at all."""
    if reading is None or not math.isfinite(reading.value):
        return None
    return reading.value if 0.0 <= reading.age_s <= oldest_s else None


@dataclass(frozen=True, slots=True)
class StageReading:
    """One stage, or one dataset's part of it.

    Attributes:
        stage: name of the stage, "read" or "decode".
        dataset: whose part; "" where one pool serves all datasets.
        share: of the mixture's samples that pass through here.
        workers: threads (or processes) that work side by side.
        service_s: work of one worker for one sample, waiting for another stage left out.
        busy_ratio: share of the workers' time spent on it.
    """

    stage: str
    dataset: str
    share: float
    workers: int
    service_s: Reading | None
    busy_ratio: Reading | None = None


@dataclass(frozen=True, slots=True)
class CacheReading:
    """The frame cache.

    Attributes:
        held_bytes: that it holds or has promised to.
        wanting: whether it left out frames that are shown again.
        late_bytes: of frames that were to be shown by now, and were not: hits that were foretold
            and did not come.
        allocated_bytes: that would come back without it; ``None``: not known.
        saved_ratio: seconds of a thread's decoding that hits save each second.
        reread_ratio: seconds of a thread's reading that it causes each second, since pages of files
            that it displaced are read again.
        private: what is held is lost once a second process decodes.
    """

    held_bytes: int
    wanting: bool
    late_bytes: int = 0
    allocated_bytes: int | None = None
    saved_ratio: float = 0.0
    reread_ratio: float = 0.0
    private: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything ``decide`` sees of the world.

    Attributes:
        at_s: when it was made.
        knobs: the values in force.
        parked: another loader is in use.
        settled: no change is still on its way (a generation that opens, a queue that drains).
        gate_closed: the reflex admits no reads.
        batches: handed to the consumer so far.
        waiting: the consumer waits for a batch now.
        rate_per_s: samples mixed per second since the observation before.
        wait_ratio: share of the consumer's time spent waiting, over the last seconds.
        demand_per_s: samples per second that the consumer would take if it never waited.
        silent_s: time since the consumer last took or wanted a batch.
        step_s: its usual time between two batches.
        occupancy_ratio: batches ready / slots.
        stages: stages that were measured.
        idle_cpus: processors that nobody used.
        others_cpus: processors that other processes used; unknown where it cannot be told apart.
        headroom_bytes: memory the machine can still give.
        room_bytes: what this pipeline may take of it, of the same reading, where others share it;
            ``None``: nobody does.
        growth_bytes: 99th percentile of what is lost of it in 300 ms.
        loader_bytes: what the loader holds.
        pressure_percent: PSI ``memory some avg10``.
        gpu_busy_ratio: SM activity, or utilisation where the device has no better.
        gpu_shared: other processes use the device, so its load says little about this one.
        cache: the frame cache; ``None`` where there can be none.
        prices: bytes of one unit of each knob.
        helpers_possible: processors of other hosts that may help; 0: not known yet; ``None``: no
            other host is asked to help.
    """

    at_s: float
    knobs: Knobs
    parked: bool = False
    settled: bool = True
    gate_closed: bool = False
    batches: int = 0
    waiting: bool = False
    rate_per_s: Reading | None = None
    wait_ratio: Reading | None = None
    demand_per_s: Reading | None = None
    silent_s: Reading | None = None
    step_s: Reading | None = None
    occupancy_ratio: Reading | None = None
    stages: tuple[StageReading, ...] = ()
    idle_cpus: Reading | None = None
    others_cpus: Reading | None = None
    headroom_bytes: Reading | None = None
    room_bytes: float | None = None
    growth_bytes: Reading | None = None
    loader_bytes: Reading | None = None
    pressure_percent: Reading | None = None
    gpu_busy_ratio: Reading | None = None
    gpu_shared: bool = False
    cache: CacheReading | None = None
    prices: Prices = field(default_factory=Prices)
    helpers_possible: int | None = None
