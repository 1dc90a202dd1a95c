"""Observations: what the policy knows, and how a pipeline's totals become readings. Pure.

An observation is one frozen snapshot, in which every reading carries its age. ``None`` is unknown.
A reading that is too old, not a number, or from the future is unknown too: the policy looks at
readings only through ``fresh``, so stale evidence cannot slip through.

Totals (batches handed over, seconds waited, samples mixed, seconds of work by stage) come about
once a second. Waits, pace and service times are differences over the last ``WINDOW_S``. The rate is
a difference between two neighbours, long enough to hold two batches. So different rates share
nothing, and a test may compare them. Waits and pace are taken between moments at which the consumer
took or wanted a batch. A pause is no time spent without waiting, and totals from before a long
pause say nothing of now.

Units: seconds, bytes, samples per second; ratios are of 1. ``at_s`` is of a monotonic clock.

Not here: collecting totals and probes (``process.observer``), judging readings
(``policy``).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

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


WINDOW_S = 5.0
LONGEST_RATE_S = 2.4
PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class StageTotal:
    """One stage's (or dataset's) totals: seconds of work of all workers, samples done."""

    stage: str
    dataset: str
    share: float
    workers: int
    work_s: float
    samples: int


@dataclass(frozen=True, slots=True)
class FlowTotals:
    """A pipeline's totals at one time.

    Attributes:
        at_s: time of the reading, in seconds.
        batches: handed to the consumer.
        waited_s: that it waited for them, all in all.
        waiting_since_s: since when it waits now; ``None``: it does not.
        mixed: number of samples mixed so far.
        ready, slots: batches ready, slots of the ring.
        stages: counters of every stage.
    """

    at_s: float
    batches: int
    waited_s: float
    waiting_since_s: float | None
    mixed: int
    ready: int
    slots: int
    stages: tuple[StageTotal, ...] = ()

    @property
    def all_waited_s(self) -> float:
        """Waiting so far, with what is going on."""
        now = 0.0 if self.waiting_since_s is None else self.at_s - self.waiting_since_s
        return self.waited_s + max(0.0, now)


def _aged(value: float, at_s: float, now_s: float) -> Reading:
    """A value that is not new at every reading."""
    return Reading(value, max(0.0, now_s - at_s))


@dataclass(slots=True)
class FlowMeter:
    """Fed with totals, gives readings.

    Attributes:
        batch_size: samples of a batch.
    """

    batch_size: int
    _window: deque[FlowTotals] = field(default_factory=deque)
    _rate: tuple[float, float] | None = None
    _rate_from: FlowTotals | None = None
    _step: float = 0.0
    _now: FlowTotals | None = None
    _totals: deque[FlowTotals] = field(default_factory=deque)
    _moved_s: float | None = None
    _stages: dict[tuple[str, str], tuple[float, float, float]] = field(default_factory=dict)

    def note(self, now: FlowTotals) -> None:
        """One set of totals; they never go back, but after a restart begin anew."""
        last = self._window[-1] if self._window else None
        if last is not None and (now.batches < last.batches or now.mixed < last.mixed):
            self._forget()
            last = None
        active = last is None or now.batches > last.batches or now.waiting_since_s is not None
        if active:
            quiet_s = now.at_s - (now.at_s if self._moved_s is None else self._moved_s)
            if quiet_s > max(PAUSE_S, 3 * self._step):
                self._window.clear()
                self._rate_from = None
            self._moved_s = now.at_s
            self._window.append(now)
        while len(self._window) > 2 and now.at_s - self._window[1].at_s >= WINDOW_S:
            self._window.popleft()
        self._now = now
        self._note_rate(now)
        self._note_stages(now)
        first, last = self._window[0], self._window[-1]
        if last.batches > first.batches:
            self._step = (last.at_s - first.at_s) / (last.batches - first.batches)

    @property
    def begun(self) -> bool:
        """True if there are totals to read."""
        return bool(self._window)

    def readings(self) -> dict[str, Any]:
        """Fields of an ``Observation``, as of the last totals."""
        now, first, last = self._now, self._window[0], self._window[-1]
        assert now is not None
        span = last.at_s - first.at_s
        fields: dict[str, Any] = {
            "batches": now.batches,
            "waiting": now.waiting_since_s is not None,
            "occupancy_ratio": Reading(now.ready / max(1, now.slots)),
            "rate_per_s": _aged(*self._rate, now.at_s) if self._rate else None,
            "step_s": Reading(self._step) if self._step else None,
            "silent_s": Reading(now.at_s - (self._moved_s or now.at_s)),
            "stages": self._stage_readings(now),
        }
        if span > 0:
            waited = min(span, max(0.0, last.all_waited_s - first.all_waited_s))
            fields["wait_ratio"] = Reading(waited / span)
            batches, free = last.batches - first.batches, span - waited
            if batches > 0 and free > span * 1e-3:
                fields["demand_per_s"] = Reading(batches * self.batch_size / free)
        return fields

    def _note_rate(self, now: FlowTotals) -> None:
        since = self._rate_from
        if since is None:
            self._rate_from = now
            return
        span, mixed = now.at_s - since.at_s, now.mixed - since.mixed
        if span > 0 and (mixed >= 2 * self.batch_size or span >= LONGEST_RATE_S):
            self._rate = mixed / span, now.at_s
            self._rate_from = now

    def _note_stages(self, now: FlowTotals) -> None:
        self._totals.append(now)
        while len(self._totals) > 2 and now.at_s - self._totals[1].at_s >= WINDOW_S:
            self._totals.popleft()
        first = self._totals[0]
        span = now.at_s - first.at_s
        before = {(s.stage, s.dataset): s for s in first.stages}
        for total in now.stages:
            key = (total.stage, total.dataset)
            earlier = before.get(key)
            if earlier is None or span <= 0 or total.samples <= earlier.samples:
                continue
            work = max(0.0, total.work_s - earlier.work_s)
            service = work / (total.samples - earlier.samples)
            busy = work / (span * max(1, total.workers))
            self._stages[key] = service, busy, now.at_s

    def _stage_readings(self, now: FlowTotals) -> tuple[StageReading, ...]:
        found = []
        for total in now.stages:
            service = busy = None
            if (key := (total.stage, total.dataset)) in self._stages:
                service_s, busy_ratio, at_s = self._stages[key]
                service = _aged(service_s, at_s, now.at_s)
                busy = _aged(busy_ratio, at_s, now.at_s)
            found.append(
                StageReading(total.stage, total.dataset, total.share, total.workers, service, busy)
            )
        return tuple(found)

    def _forget(self) -> None:
        self._window.clear()
        self._totals.clear()
        self._stages.clear()
        self._rate = self._rate_from = self._moved_s = None
        self._step = 0.0
