"""Observations: what the policy knows, and how a pipeline's totals become readings. Pure.

An observation is one frozen snapshot. ``None`` is unknown: who reads a probe or a meter gives
``None`` for an answer older than ``OLDEST_S``, so stale evidence cannot slip through.

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
from autoloader.host.clock import OLDEST_S
from autoloader.host.frozen import frozen
from autoloader.spec.knobs import Knobs
from autoloader.telemetry.statistics import CacheStatistics, StageMoment


@frozen
class Observation:
    """Everything ``decide`` sees of the world.

    Attributes:
        at_s: time of the observation.
        knobs: the values in force.
        parked: another loader is in use.
        settled: no change is still on its way (a generation that opens, a queue that drains).
        gate_closed: the reflex admits no reads.
        batches: handed to the consumer so far.
        waiting: the consumer waits for a batch now.
        rate_per_s: samples mixed per second, measured lately.
        rate_is_new: whether that rate was measured since the observation before.
        wait_ratio: share of the consumer's time spent waiting, over the last seconds.
        demand_per_s: samples per second that the consumer would take if it never waited.
        silent_s: time since the consumer last took or wanted a batch.
        step_s: usual seconds of the consumer between two batches.
        occupancy_ratio: batches ready / slots.
        stages: stages that were measured.
        idle_cpus: processors that nobody used.
        others_cpus: processors that other processes used; unknown where it cannot be told apart.
        headroom_bytes: headroom; ``None``: not known.
        room_bytes: part of the headroom that this pipeline may take, by the same reading;
            ``None``: no other pipeline shares the headroom.
        growth_bytes: fall of headroom in 300 ms, 99th percentile.
        loader_bytes: bytes that the loader holds.
        pressure_percent: PSI ``memory some avg10``.
        gpu_busy_ratio: SM activity, or utilisation where the device has no better.
        gpu_shared: other processes use the device, so its load says little about this one.
        cache: the frame cache; ``None`` where there can be none.
        saved_ratio: seconds of a thread's decoding that hits save each second.
        reread_ratio: seconds of a thread's reading that held frames cause each second, since pages
            of files that they displaced are read again.
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
    rate_per_s: float | None = None
    rate_is_new: bool = True
    wait_ratio: float | None = None
    demand_per_s: float | None = None
    silent_s: float | None = None
    step_s: float | None = None
    occupancy_ratio: float | None = None
    stages: tuple[StageMoment, ...] = ()
    idle_cpus: float | None = None
    others_cpus: float | None = None
    headroom_bytes: int | None = None
    room_bytes: int | None = None
    growth_bytes: int = 0
    loader_bytes: int | None = None
    pressure_percent: float | None = None
    gpu_busy_ratio: float | None = None
    gpu_shared: bool = False
    cache: CacheStatistics | None = None
    saved_ratio: float = 0.0
    reread_ratio: float = 0.0
    prices: Prices = field(default_factory=Prices)
    helpers_possible: int | None = None


WINDOW_S = 5.0
LONGEST_RATE_S = 2.4
PAUSE_S = 2.0


@frozen
class StageTotal:
    """Totals of a stage, or of a dataset's part: seconds of work of all workers, samples done."""

    stage: str
    dataset: str
    share: float
    workers: int
    work_s: float
    samples: int


@frozen
class FlowTotals:
    """A pipeline's totals at one time.

    Attributes:
        at_s: time of the reading, in seconds.
        batches: handed to the consumer.
        waited_s: that it waited for them so far, with what is going on.
        waiting: whether it waits now.
        mixed: number of samples mixed so far.
        ready, slots: batches ready, slots of the ring.
        stages: counters of every stage.
    """

    at_s: float
    batches: int
    waited_s: float
    waiting: bool
    mixed: int
    ready: int
    slots: int
    stages: tuple[StageTotal, ...] = ()


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
    _pause_s: float = 0.0
    _paused_at: int = 0
    _now: FlowTotals | None = None
    _moved_s: float | None = None
    _stages: dict[tuple[str, str], tuple[float, float, float]] = field(default_factory=dict)

    def note(self, now: FlowTotals) -> None:
        """Take in one set of totals.

        Totals that went back tell of a restart, and the meter begins anew.
        """
        last = self._window[-1] if self._window else None
        if last is not None and (now.batches < last.batches or now.mixed < last.mixed):
            self._forget()
            last = None
        if last is None or now.batches > last.batches or now.waiting:
            quiet_s = now.at_s - (now.at_s if self._moved_s is None else self._moved_s)
            if quiet_s > max(PAUSE_S, 3 * self._step, 2 * self._pause_s):
                self._window.clear()
                self._rate_from = None
                self._pause_s = quiet_s  # another as long is no pause: the training's steps are so
                self._paused_at = now.batches
            elif now.batches > self._paused_at + 1:
                self._pause_s = 0.0  # a whole step since then, which ``_step`` knows
            self._moved_s = now.at_s
            self._window.append(now)
            while len(self._window) > 2 and now.at_s - self._window[1].at_s >= WINDOW_S:
                self._window.popleft()
            self._note_stages(self._window[0], now)
        self._now = now
        self._note_rate(now)
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
        rate, rated_s = self._rate or (None, -math.inf)
        fields: dict[str, Any] = {
            "batches": now.batches,
            "waiting": now.waiting,
            "occupancy_ratio": now.ready / max(1, now.slots),
            "rate_per_s": rate,
            "rate_is_new": rated_s == now.at_s,
            "step_s": self._step or None,
            "silent_s": now.at_s - (self._moved_s or now.at_s),
            "stages": tuple(self._stage(total, now.at_s) for total in now.stages),
        }
        if span > 0:
            waited = min(span, max(0.0, last.waited_s - first.waited_s))
            fields["wait_ratio"] = waited / span
            batches, free = last.batches - first.batches, span - waited
            if batches > 0 and free > span * 1e-3:
                fields["demand_per_s"] = batches * self.batch_size / free
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

    def _note_stages(self, first: FlowTotals, now: FlowTotals) -> None:
        span = now.at_s - first.at_s
        for earlier, total in zip(first.stages, now.stages, strict=False):  # one order, always
            if span <= 0 or total.samples <= earlier.samples:
                continue
            work = max(0.0, total.work_s - earlier.work_s)
            service = work / (total.samples - earlier.samples)
            # Work is counted when it is done: a long piece may end in a short span.
            busy = min(1.0, work / (span * max(1, total.workers)))
            self._stages[total.stage, total.dataset] = service, busy, now.at_s

    def _stage(self, total: StageTotal, now_s: float) -> StageMoment:
        service_s = busy = bound = None
        measured = self._stages.get((total.stage, total.dataset))
        if measured is not None and now_s - measured[2] <= OLDEST_S:
            service_s, busy, _ = measured
            work_s = service_s * total.share
            bound = total.workers / work_s if work_s > 0 else None
        return StageMoment(
            total.stage, total.dataset, total.workers, service_s, busy, bound, total.share
        )

    def _forget(self) -> None:
        self._window.clear()
        self._stages.clear()
        self._rate = self._rate_from = self._moved_s = None
        self._step = self._pause_s = 0.0
