"""A simulated machine with a loader and a consumer on it, in steps of 0.1 s.

Theory of operation. Samples flow through a reading stage (by index: threads; by stream: one stream
a dataset), a buffer of encoded samples, a decode pool and a ring, to a consumer that computes for
``step_s`` a batch and waits where there is none. Stages are bounded by their workers over their
service time, by processors, and by room behind them; service times are noisy, and now and then a
step gives nothing. Memory follows the knobs at the pace of fresh pages, with the frames' true
sizes, which the controller's prices learn late. A changed stream opens beside the old one.

Everything in ``PlantModel`` may be changed while it runs: that is what a disturbance is.

Not here: policy and reflex (they are the real ones, see ``simulation``), disturbances
(``scenarios``).
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from autoloader.controller.admission import Prices, RollingPrices, price_knobs
from autoloader.controller.limits import ControllerLimits
from autoloader.controller.observation import FlowMeter, FlowTotals, Observation, StageTotal
from autoloader.controller.reflex import GrowthMeter
from autoloader.host.units import GIB, MIB
from autoloader.samples.resolve import MixtureSizes
from autoloader.spec.knobs import KnobLimits, Knobs

STEP_S = 0.1
_PAGES_PER_S = 0.4 * GIB
_RUN_SAMPLES = 256
_EPISODE_SAMPLES = 100


@dataclass(slots=True)
class PlantModel:
    """What the machine, the data and the consumer are like; all may change while it runs.

    Attributes:
        cpus: processors.
        total_bytes: memory of the machine.
        limit_bytes: of the loader's cgroup; ``None``: none.
        base_bytes: what the loader holds with no buffers at all.
        decode_s, read_s: service times of one sample.
        read_cpu_ratio: share of reading that is a processor's work.
        storage_factor: how much slower the storage is.
        frame_factor: how much larger frames are.
        batch_size: samples.
        batch_bytes: of a decoded batch.
        sample_bytes: of an encoded sample.
        shares: dataset → share.
        step_s: what the consumer computes for a batch.
        away: the consumer neither takes nor waits.
        parked: another loader is in use.
        stalled: datasets whose files do not answer.
        neighbour_bytes, neighbour_cpus: what others take.
        gpu_busy_ratio: ``None``: no GPU answers.
        pressure_percent: PSI; ``None``: this kernel has none.
        silent: no probe answers, and no totals come.
        hiccup: chance that a step of 0.1 s gives nothing.
        noise: relative standard deviation of service times.
        true_scale: what the process really holds / what its knobs explain.
        open_s: what a new generation of streams takes to open.
    """

    cpus: float = 8
    total_bytes: float = 16 * GIB
    limit_bytes: float | None = None
    base_bytes: float = 0.6 * GIB
    decode_s: float = 0.004
    read_s: float = 0.0008
    read_cpu_ratio: float = 0.3
    storage_factor: float = 1.0
    frame_factor: float = 1.0
    batch_size: int = 48
    batch_bytes: int = 20 * MIB
    sample_bytes: int = 32 * 1024
    shares: dict[str, float] = field(
        default_factory=lambda: {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
    )
    step_s: float = 0.04
    away: bool = False
    parked: bool = False
    stalled: frozenset[str] = frozenset()
    neighbour_bytes: float = 0.0
    neighbour_cpus: float = 0.0
    gpu_busy_ratio: float | None = None
    pressure_percent: float | None = 0.0
    silent: bool = False
    hiccup: float = 0.01
    noise: float = 0.05
    true_scale: float = 1.1
    open_s: float = 1.5


class Plant:
    """A running simulation.

    Args:
        model: to begin with; owned by the plant.
        knobs: to begin with; ``reader`` is "indexed" or "stream".
        seed: of the noise.
    """

    def __init__(self, model: PlantModel, knobs: Knobs, *, seed: int = 0) -> None:
        self.model = model
        self.knobs = knobs
        self.now_s = 0.0
        self.admit = True
        self.batches = 0
        self.waited_s = 0.0
        self.mixed = 0.0
        self.growth = GrowthMeter()
        self._random = random.Random(seed)
        self._running = knobs  # what streams run with; lags behind ``knobs``
        self._opens_s: float | None = None
        self._encoded = 0.0
        self._ring = 0.0
        self._read_per_s = 0.0
        self._busy_s = 0.0
        self._priced: tuple[Knobs, tuple[float, ...], int] | None = None
        self._speeds: tuple[Knobs, dict[str, float]] | None = None
        self._waiting_since: float | None = None
        self._held = model.base_bytes
        self._work = {"decode": 0.0, **{f"read:{name}": 0.0 for name in model.shares}}
        self._done = dict.fromkeys(self._work, 0.0)
        self._idle_cpus = model.cpus
        self._others_cpus = 0.0
        self._meter = FlowMeter(model.batch_size)
        sizes = MixtureSizes(self.record_bytes(), model.batch_bytes)
        self._prices = RollingPrices(sizes, window=60)

    def limits(self, ram_floor_bytes: float = 2 * GIB, **own: Any) -> ControllerLimits:
        """Limits that suit this plant."""
        reader = self.knobs.reader
        least = Knobs.build(
            {
                "reader": reader, "ring_slots": 4, "decode_threads": 1, "cycle_length": 1,
                "num_parallel_calls": 1, "parse_parallel_calls": 1, "stream_prefetch": 0,
                "queue_samples": 1, "shuffle_samples": 0, "io_threads": 1, "read_ahead": 1,
            }
        )  # fmt: skip
        return ControllerLimits(
            ram_floor_bytes=int(ram_floor_bytes),
            knobs=KnobLimits(
                cpus=int(self.model.cpus),
                shards=dict.fromkeys(self.model.shares, 16),
                batch_bytes=self.model.batch_bytes,
            ),
            minimum=least,
            **own,
        )

    def record_bytes(self) -> dict[str, int]:
        """Bytes of an episode of each dataset now."""
        size = int(_EPISODE_SAMPLES * self.model.sample_bytes * self.model.frame_factor)
        return dict.fromkeys(self.model.shares, size)

    def true_prices(self) -> Prices:
        """What a unit of each knob really costs now."""
        size = int(self.model.sample_bytes * self.model.frame_factor)
        return Prices(
            slot_bytes=self.model.batch_bytes,
            sample_bytes=size,
            record_bytes=self.record_bytes(),
            run_bytes=_RUN_SAMPLES * size,
            scale=self.model.true_scale,
        )

    @property
    def headroom_bytes(self) -> int:
        """What can still be given."""
        model = self.model
        room = model.total_bytes - model.neighbour_bytes - self._held
        if model.limit_bytes is not None:
            room = min(room, model.limit_bytes - self._held)
        return max(0, int(room))

    @property
    def held_bytes(self) -> int:
        """What the loader holds."""
        return int(self._held)

    @property
    def surplus_bytes(self) -> int:
        """What the loader holds above its running knobs' own price."""
        return int(self._held - self._price(self.knobs))

    @property
    def ready_batches(self) -> int:
        """Batches in the ring."""
        return int(self._ring)

    def apply(self, knobs: Knobs) -> None:
        """What an actuator does."""
        mine, theirs = self._streams(knobs), self._streams(self._running)
        self.knobs = knobs
        if knobs.reader != "indexed" and mine != theirs:
            if self._opens_s is None:
                self._opens_s = self.now_s + self.model.open_s
        else:
            self._running = knobs

    def drop(self) -> None:
        """What the reflex does below the floor: buffers go, and pages go back."""
        self._encoded = 0.0
        if self._opens_s is None:
            self._held = min(self._held, self._price(self._running))

    def step(self) -> None:
        """Let 0.1 s pass."""
        self.now_s = round(self.now_s + STEP_S, 6)
        if self._opens_s is not None and self.now_s >= self._opens_s:
            self._opens_s, self._running = None, self.knobs
        self._flow()
        self._consume()
        self._hold_memory()
        self.growth.note(self.headroom_bytes)

    def observe(self) -> Observation:
        """What the probes would say; nothing, while they do not answer."""
        model = self.model
        self._meter.note(self._totals())
        seen = Observation(
            at_s=self.now_s,
            knobs=self.knobs,
            parked=model.parked,
            settled=self._opens_s is None,
            gate_closed=not self.admit,
            prices=self._prices.current(),
        )
        if model.silent:
            return seen
        self._learn_prices()
        return replace(
            seen,
            idle_cpus=max(0.0, self._idle_cpus),
            others_cpus=self._others_cpus,
            headroom_bytes=self.headroom_bytes,
            growth_bytes=self.growth.p99_bytes,
            loader_bytes=int(self._held),
            pressure_percent=model.pressure_percent,
            gpu_busy_ratio=model.gpu_busy_ratio,
            prices=self._prices.current(),
            **self._meter.readings(),
        )

    def _learn_prices(self) -> None:
        true = self.true_prices()
        self._prices.note_sample(true.sample_bytes)
        self._prices.note_run(true.run_bytes)
        shards = dict.fromkeys(self.model.shares, 16)
        ring = self._running.ring_slots * self.model.batch_bytes
        explained = price_knobs(self._running, shards, self._prices.current()) - ring
        scale = self._prices.current().scale
        self._prices.note_process(
            max(0.0, self._held - self.model.base_bytes - ring), explained / scale
        )

    def _streams(self, knobs: Knobs) -> list[Any]:
        return [
            (own.cycle_length, own.parse_parallel_calls, own.stream_prefetch)
            for own in (knobs.for_dataset(name) for name in self.model.shares)
        ]

    def _price(self, knobs: Knobs) -> float:
        model = self.model
        sizes = (model.frame_factor, model.sample_bytes, model.batch_bytes, model.true_scale)
        if self._priced is None or self._priced[0] is not knobs or self._priced[1] != sizes:
            shards = dict.fromkeys(model.shares, 16)
            self._priced = (knobs, sizes, price_knobs(knobs, shards, self.true_prices()))
        return model.base_bytes + self._priced[2]

    def _read_rate(self, name: str) -> tuple[float, float]:
        """(workers, samples/s of their dataset) of what reads one dataset."""
        model, knobs = self.model, self._running
        slow = model.read_s * model.storage_factor * model.frame_factor**0.5
        if name in model.stalled:
            return 1.0, 0.0
        if knobs.reader == "indexed":
            return knobs.io_threads * model.shares[name], (
                knobs.io_threads * model.shares[name] / slow
            )
        if self._speeds is None or self._speeds[0] is not knobs:
            self._speeds = (knobs, {name: _speed(knobs, name) for name in model.shares})
        return 1.0, self._speeds[1][name] / slow

    def _flow(self) -> None:
        model, knobs = self.model, self._running
        share = 0.0 if self._random.random() < model.hiccup else 1.0
        wobble = max(0.2, self._random.gauss(1.0, model.noise)) * share
        reading = min(self._read_rate(name)[1] / part for name, part in model.shares.items())
        capacity = max(
            1.0,
            knobs.read_ahead * _RUN_SAMPLES
            if knobs.reader == "indexed"
            else max(knobs.queue_samples, _EPISODE_SAMPLES) * len(model.shares),
        )
        wanted_ring = knobs.ring_slots - self._ring
        read_cpus = model.read_cpu_ratio * self._read_per_s * model.read_s
        # The scheduler shares by runnable threads; each of the neighbour's always runs.
        runnable = knobs.decode_threads + read_cpus
        part = runnable / (runnable + model.neighbour_cpus)
        free_cpus = max(0.3, model.cpus - model.neighbour_cpus, model.cpus * part)
        crowd = max(1.0, runnable / free_cpus)
        penalty = 1.0 - min(0.3, 0.01 * max(0.0, knobs.decode_threads - free_cpus))
        decode_s = model.decode_s * model.frame_factor
        decoding = knobs.decode_threads / crowd * penalty / decode_s
        admitted = self.admit and not model.parked
        room = max(0.0, capacity - self._encoded)
        read = min(reading / crowd**0.3 * wobble * STEP_S, room) if admitted else 0.0
        self._encoded += read
        self._read_per_s += 0.3 * (read / STEP_S - self._read_per_s)
        done = min(self._encoded, decoding * wobble * STEP_S, wanted_ring * model.batch_size)
        done = max(0.0, done)
        self._encoded -= done
        self._ring += done / model.batch_size
        self.mixed += done
        self._note_work(read, done, decode_s * crowd / penalty)

    def _note_work(self, read: float, done: float, decode_s: float) -> None:
        model = self.model
        self._work["decode"] += done * decode_s
        self._done["decode"] += done
        used = done * model.decode_s * model.frame_factor / STEP_S
        for name, part in model.shares.items():
            workers, rate = self._read_rate(name)
            if rate > 0:
                self._work[f"read:{name}"] += read * part * workers / rate
                self._done[f"read:{name}"] += read * part
        used += read * model.read_s * model.read_cpu_ratio / STEP_S
        others = min(model.neighbour_cpus, max(0.0, model.cpus - used))
        self._others_cpus += 0.3 * (others - self._others_cpus)
        self._idle_cpus += 0.3 * (max(0.0, model.cpus - others - used) - self._idle_cpus)

    def _consume(self) -> None:
        if self.model.away:
            self._waiting_since = None
            return
        left = STEP_S
        while left > 1e-9:
            if self._busy_s > 1e-9:
                used = min(self._busy_s, left)
                self._busy_s -= used
                left -= used
            elif self._ring >= 1.0:
                if self._waiting_since is not None:
                    self._waiting_since = None
                self._ring -= 1.0
                self.batches += 1
                self._busy_s = self.model.step_s
            else:
                if self._waiting_since is None:
                    self._waiting_since = self.now_s - left
                self.waited_s += left
                break

    def _hold_memory(self) -> None:
        target = self._price(self._running)
        if self._opens_s is not None:
            target = self._price(self.knobs) + self._price(self._running) - self.model.base_bytes
            target -= self._running.ring_slots * self.model.batch_bytes
        step = _PAGES_PER_S * STEP_S
        if target > self._held and (self.admit or self.ready_batches == 0):
            self._held = min(target, self._held + step)
        elif target < self._held:
            self._held = max(target, self._held - 2.5 * step)

    def _totals(self) -> FlowTotals:
        knobs, model = self._running, self.model
        stages = [
            StageTotal(
                "decode",
                "",
                1.0,
                knobs.decode_threads,
                self._work["decode"],
                round(self._done["decode"]),
            )
        ]
        reads = [f"read:{name}" for name in model.shares]
        if knobs.reader == "indexed":
            work = sum(self._work[read] for read in reads)
            done = sum(self._done[read] for read in reads)
            stages.append(StageTotal("read", "", 1.0, knobs.io_threads, work, round(done)))
        else:
            stages += [
                StageTotal(
                    "read", name, part, 1, self._work[f"read:{name}"],
                    round(self._done[f"read:{name}"]),
                )
                for name, part in model.shares.items()
            ]  # fmt: skip
        return FlowTotals(
            at_s=self.now_s,
            batches=self.batches,
            waited_s=self.waited_s,
            waiting=self._waiting_since is not None,
            mixed=round(self.mixed),
            ready=self.ready_batches,
            slots=self._running.ring_slots,
            stages=tuple(stages),
        )


def _speed(knobs: Knobs, dataset: str) -> float:
    """How much faster a stream is than one with the least knobs."""
    own = knobs.for_dataset(dataset)
    parallel: float = own.cycle_length**0.8 * own.parse_parallel_calls**0.3
    return parallel * (1 + 0.1 * min(2, own.stream_prefetch))
