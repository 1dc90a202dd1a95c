"""Puts a running pipeline under control: observes it, decides, applies, and lets the reflex act.

Used in the loader's child, and in the trainer's process with ``isolation="thread"``. This is where
what the controller knows (readings) meets what the pipeline has (totals); neither knows the other.

Before a pipeline opens or takes more memory, what that costs is held against a fresh reading and
promised to it in the budget that all pipelines of the process share.

A pipeline's gate is closed when its trainer has parked it or the reflex admits no reads; both are
kept apart here, so that neither opens what the other has closed.

Not here: deciding (``controller``), running (``pipeline``), messages (``worker``).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from autoloader.controller.admission import (
    RollingPrices,
    price_change,
    price_knobs,
    price_start,
)
from autoloader.controller.budget import SharedBudget
from autoloader.controller.decisions import DecisionLog
from autoloader.controller.flow import FlowMeter, FlowTotals, StageTotal
from autoloader.controller.limits import ControllerLimits
from autoloader.controller.loop import ControlLoop
from autoloader.controller.observation import Observation, Reading
from autoloader.controller.opening import Opening, Pipes, admit_opening
from autoloader.controller.policy import Decision, admitted, decide
from autoloader.controller.probes.gpu import GpuProbe, GpuReading
from autoloader.controller.probes.headroom import HeadroomSource, headroom_or_none
from autoloader.controller.probes.pressure import PressureProbe, ProcessorProbe, ProcessorReading
from autoloader.controller.probes.probe import Probe, Watched
from autoloader.controller.probes.process_memory import tree_pss_bytes
from autoloader.controller.reflex import Action, ReflexLimits, ReflexState, react
from autoloader.controller.states import ControllerState
from autoloader.controller.verification import Verdict
from autoloader.decode.activity import PipelineActivity
from autoloader.knobs import Knobs
from autoloader.process.control_page import ControlPage
from autoloader.ring.memory import RingMemory
from autoloader.samples.resolve import ResolvedMixture

if TYPE_CHECKING:
    from autoloader.pipeline.pipeline import Pipeline

logger = logging.getLogger(__name__)

DECISIONS_VARIABLE = "AUTOLOADER_DECISIONS"
"""Environment variable: the decision log's file, or a directory for one a run; unset: none."""
_BUDGET = SharedBudget()
os.register_at_fork(after_in_child=_BUDGET.forget_all)
"""Of this process, however many ``Control`` it has (``isolation="thread"``: one a loader)."""
_MEMORY_EVERY_S = 2.0
_MEMORY_COST_RATIO = 0.002
_TRIM_COST_RATIO = 0.005
"""Handing memory back walks the whole heap: the first time at once, then no more of a core."""


@dataclass(frozen=True, slots=True)
class ControlOrder:
    """What a trainer asks of the controller; crosses to the child as plain values.

    Attributes:
        limits: what may not be overstepped.
        moves: whether there is a controller at all: policy and reflex.
        decisions: the decision log's file; "": none.
        run: the trainer in that log.
        visible_devices: the trainer's ``CUDA_VISIBLE_DEVICES``; ``None``: not set.
        trainer: its process id.
        batch_size: samples of a batch.
    """

    limits: ControllerLimits
    moves: bool
    decisions: str
    run: str
    visible_devices: str | None
    trainer: int
    batch_size: int

    def plain(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = _ORDER.dump_python(self, mode="json")
        return found

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ControlOrder:
        """From ``plain``."""
        return _ORDER.validate_python(plain)


_ORDER = TypeAdapter(ControlOrder)


@dataclass(slots=True)
class Probes:
    """What all pipelines of a process ask beside headroom."""

    headroom: HeadroomSource
    pressure: Watched[float]
    processors: Watched[ProcessorReading]
    gpu: Watched[GpuReading]

    @classmethod
    def of_this_host(
        cls,
        order: ControlOrder,
        headroom: HeadroomSource,
        *,
        now_s: Callable[[], float] = time.monotonic,
        gpu: Probe[GpuReading] | None = None,
    ) -> Probes:
        """The real ones."""
        return cls(
            headroom,
            Watched(PressureProbe(), "memory pressure (PSI)", now_s),
            Watched(ProcessorProbe(), "processors", now_s),
            Watched(gpu or GpuProbe(order.visible_devices, order.trainer), "GPU load", now_s),
        )


class ControlledPipeline:
    """One pipeline under control; see ``controller.loop.Governed``.

    Args:
        pipeline: governed.
        mixture: what it runs.
        shares: of each dataset.
        order: what its trainer asked.
        probes: of this process.
        page: where the consumer's doings are read.
        opening: its place in the budget.
        budget: shared with the other pipelines of this process.
        record_bytes: mean bytes of a record of each dataset.
        told: called with the knobs and the state's name when either changed; must not wait. Where
            it gives False, it is called again.
        restart: ends this process so that it starts again small; ``None`` where it cannot.
        number: in the decision log.
        own_process: whether this process's memory is the loader's alone.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        mixture: ResolvedMixture,
        shares: tuple[float, ...],
        order: ControlOrder,
        probes: Probes,
        page: ControlPage,
        opening: Opening,
        budget: SharedBudget,
        *,
        record_bytes: dict[str, int],
        told: Callable[[Knobs, str], bool],
        restart: Callable[[str], None] | None,
        number: int = 0,
        own_process: bool = True,
    ) -> None:
        self.pipeline = pipeline
        self._mixture = mixture
        self._shares = dict(zip(mixture.names, shares, strict=True))
        self._limits = order.limits
        self._probes = probes
        self._page = page
        self._share = opening.share
        self._budget = budget
        self._told = told
        self._restart = restart
        self._own_process = own_process
        self._applying = threading.RLock()
        self._gate = threading.Lock()
        self._parked = False
        self._admit = True
        self._closed = False
        self._state = ControllerState()
        self._begun_s: float | None = None
        self._said = ""
        self._reflex = ReflexState()
        self._counted: Counter[str] = Counter()
        self._meter = FlowMeter(order.batch_size)
        self._prices = RollingPrices(
            slot_bytes=mixture.layout.slot_bytes, record_bytes=record_bytes
        )
        knobs = pipeline.knobs
        self._framework_bytes = price_start(
            knobs,
            record_bytes=record_bytes,
            batch_bytes=mixture.layout.slot_bytes,
            with_tensorflow=knobs.reader == "stream",
        ).framework_bytes
        self._held_bytes: int | None = None
        self._held_at_s = float("-inf")
        self._held_next_s = float("-inf")
        self._trim_next_s = float("-inf")
        self._ready = 0
        batches, waited_ns, _ = page.consumer
        self._page_before = (batches, waited_ns)
        self._own = (0, 0)
        self._log = self._open_log(order, number)
        if self._log is not None:
            self._log.admission(
                time.monotonic(),
                "open" if opening.as_asked else "open, with the least knobs",
                opening.price_bytes,
                opening.headroom_bytes,
                opening.as_asked,
            )
        if not opening.as_asked:
            self._tell()

    def _open_log(self, order: ControlOrder, number: int) -> DecisionLog | None:
        if not (order.moves and order.decisions):
            return None
        try:
            log = DecisionLog(Path(order.decisions), pipeline=number, run=order.run)
        except OSError as error:
            logger.warning("no decision log: %s cannot be written: %s", order.decisions, error)
            return None
        log.start(self._limits)
        return log

    def counted(self) -> dict[str, int]:
        """What it did so far; see ``telemetry.ControllerStatistics``."""
        return dict(self._counted)

    @property
    def state_name(self) -> str:
        """The controller's state."""
        return self._state.name.value

    def close(self) -> None:
        """End the log; what was promised is free again."""
        self._budget.leave(self._share)
        if self._log is not None:
            self._log.close()

    # --- from the trainer -------------------------------------------------------------------------

    def park(self, parked: bool) -> None:
        """The trainer uses another loader (True), or this one."""
        with self._gate:
            self._parked = parked
            self._share.in_use = not parked
            self._set_gate()

    def retune(self, knobs: Knobs) -> None:
        """A person's wish; it stands until the policy finds better."""
        with self._applying:
            prices, shards = self._prices.current(), self._limits.knobs.shards
            self._budget.take(self._share, price_change(self.pipeline.knobs, knobs, shards, prices))
            self.pipeline.retune(knobs)
            self._tell()

    # --- the reflex's thread ----------------------------------------------------------------------

    def reflex(self, at_s: float, headroom_bytes: int | None, growth_bytes: int) -> None:
        """See ``Governed.reflex``."""
        before = self._reflex
        below = headroom_bytes is not None and headroom_bytes < self._limits.ram_floor_bytes
        # A consumer that keeps many batches and wants one more has none, whatever lies with it.
        wanting = self._page.consumer[2] != 0 and not self._parked
        self._ready = 0 if wanting else self.pipeline.ready_batches
        reaction = react(
            before,
            at_s=at_s,
            headroom_bytes=headroom_bytes,
            growth_bytes=growth_bytes,
            ready_batches=self._ready,
            surplus_bytes=self._surplus_bytes(at_s) if below else None,
            limits=ReflexLimits(self._limits.ram_floor_bytes, self._limits.margin_bytes),
        )
        self._reflex = reaction.state
        with self._gate:
            self._admit = reaction.admit
            self._set_gate()
        if self._log is not None and (
            before.closed != reaction.state.closed
            or reaction.action in (Action.DROP, Action.RESTART)
        ):
            self._log.reflex(at_s, reaction.action.value, headroom_bytes)
        if reaction.action in (Action.DROP, Action.RESTART):
            self._drop(at_s)
        if reaction.action is Action.RESTART and self._restart is not None:
            self._restart("below the RAM floor and still too large: starting again small")

    def _drop(self, at_s: float) -> None:
        self._counted["drops"] += 1
        with self._applying:
            least = self._limits.least(self.pipeline.knobs)
            if least != self.pipeline.knobs:
                logger.warning("below the RAM floor: minimum knobs, buffers dropped")
                self.pipeline.retune(least)
                self._tell()
            self.pipeline.drop()
        if at_s >= self._trim_next_s:
            began = time.thread_time()
            give_memory_back()
            self._trim_next_s = at_s + (time.thread_time() - began) / _TRIM_COST_RATIO

    def _surplus_bytes(self, at_s: float) -> int | None:
        """What the process holds above what its minimum costs; ``None``: not known lately."""
        held = self._held_bytes
        every_s = max(_MEMORY_EVERY_S, self._held_next_s - self._held_at_s)
        if held is None or at_s - self._held_at_s > 3 * every_s:
            return None
        least = self._limits.least(self.pipeline.knobs)
        price = price_knobs(least, self._limits.knobs.shards, self._prices.current())
        ring = least.ring_slots * self._mixture.layout.slot_bytes
        return held - self._framework_bytes - (price - ring)

    def _set_gate(self) -> None:
        """Under the gate's lock; the pipeline's threads are woken where something changes only."""
        closed = self._parked or not self._admit
        if closed != self._closed:
            self.pipeline.park(closed)
            self._closed = closed

    # --- the policy's thread ----------------------------------------------------------------------

    def govern(self, at_s: float, growth_bytes: int) -> None:
        """See ``Governed.govern``."""
        if self._begun_s is None:
            self._begun_s = at_s
            self._state = ControllerState(since_s=at_s)
        self._read_memory(at_s)
        seen = self.observe(at_s, growth_bytes)
        before = self._state
        answer = decide(before, seen, self._limits)
        if self._log is not None:
            self._log.decision(before, seen, answer)
        self._state = answer.state
        self._counted["decisions"] += 1
        self._counted["taken_back"] += answer.verdict in (Verdict.NOTHING, Verdict.LOST)
        if answer.knobs is not None:
            self._apply(seen, answer)
        self._tell()

    def observe(self, at_s: float, growth_bytes: int) -> Observation:
        """What is known now."""
        with self._applying:
            knobs = self.pipeline.knobs
            activity = self.pipeline.activity()
            settled = self.pipeline.settled
        readings = self._flow(at_s, knobs, activity)
        headroom = headroom_or_none(self._probes.headroom)
        margin = max(self._limits.margin_bytes, growth_bytes)
        gpu = self._probes.gpu.read()
        idle, others = _processors(self._probes.processors.read())
        return Observation(
            at_s=at_s,
            knobs=knobs,
            parked=self._parked,
            settled=settled,
            gate_closed=not self._admit,
            idle_cpus=idle,
            others_cpus=others,
            headroom_bytes=None if headroom is None else Reading(headroom),
            room_bytes=self._budget.room_bytes(self._share, headroom, margin),
            growth_bytes=Reading(growth_bytes),
            loader_bytes=(
                None
                if self._held_bytes is None
                else Reading(self._held_bytes, at_s - self._held_at_s)
            ),
            pressure_percent=_reading(self._probes.pressure.read()),
            gpu_busy_ratio=None if gpu is None else Reading(gpu[0].busy_ratio, gpu[1]),
            gpu_shared=gpu is not None and gpu[0].shared,
            prices=self._prices.current(),
            **readings,
        )

    def _apply(self, seen: Observation, answer: Decision) -> None:
        """Apply a decision, unless the world has changed since it was made."""
        assert answer.knobs is not None
        with self._applying:
            if self.pipeline.knobs != seen.knobs:
                return
            price = price_change(seen.knobs, answer.knobs, self._limits.knobs.shards, seen.prices)
            if price > 0 and not self._promised(price, seen, answer):
                self._counted["refused"] += 1
                return
            self._counted["changes"] += 1
            logger.info("%s: %s", answer.rule, dict(answer.changes))
            self.pipeline.retune(answer.knobs)
            self._tell()

    def _promised(self, price: int, seen: Observation, answer: Decision) -> bool:
        """Hold a growth against a fresh reading: the one decided on is some milliseconds old."""
        assert answer.knobs is not None
        headroom = headroom_or_none(self._probes.headroom)
        may = headroom is not None and admitted(
            replace(seen, room_bytes=None), answer.knobs, self._limits, headroom=Reading(headroom)
        )
        may = may and self._budget.promised(
            self._share,
            price,
            headroom_bytes=headroom,
            margin_bytes=max(self._limits.margin_bytes, self._growth_of(seen)),
        )
        if self._log is not None:
            self._log.admission(seen.at_s, answer.rule, price, headroom, may)
        return may

    @staticmethod
    def _growth_of(seen: Observation) -> int:
        return 0 if seen.growth_bytes is None else int(seen.growth_bytes.value)

    def _tell(self) -> None:
        knobs, state = self.pipeline.knobs, self._state.name.value
        text = f"{state} {knobs.flat()}"
        if text != self._said and self._told(knobs, state):
            self._said = text

    def _flow(self, at_s: float, knobs: Knobs, activity: PipelineActivity) -> dict[str, Any]:
        batches, waited_ns, since_ns = self._page.consumer
        before, self._page_before = self._page_before, (batches, waited_ns)
        if not self._parked:  # while parked, the page counts another loader's batches
            own = (self._own[0] + batches - before[0], self._own[1] + waited_ns - before[1])
            self._own = own
            waiting = None
            if since_ns:  # the page's clock is the system's; ``at_s`` may be a test's
                waiting = at_s - max(0.0, (time.monotonic_ns() - since_ns) / 1e9)
            self._meter.note(
                FlowTotals(
                    at_s=at_s,
                    batches=own[0],
                    waited_s=own[1] / 1e9,
                    waiting_since_s=waiting,
                    mixed=sum(one.taken for one in activity.datasets.values()),
                    ready=activity.ring_filled,
                    slots=activity.ring_slots,
                    stages=stages_of(self._shares, knobs, activity),
                )
            )
        p50_ns, p99_ns = self._page.latencies
        for one in activity.datasets.values():
            if one.queue > 0 and one.queue_bytes > 0:
                self._prices.note_sample(one.queue_bytes / one.queue)
        if activity.run_bytes:
            self._prices.note_run(activity.run_bytes)
        if not self._meter.begun:
            return {}
        readings = self._meter.readings()
        if p99_ns and not self._parked:
            readings["latency_p50_s"] = Reading(p50_ns / 1e9)
            readings["latency_p99_s"] = Reading(p99_ns / 1e9)
        return readings

    def _read_memory(self, at_s: float) -> None:
        # The process is one for all pipelines: the one in use reads for them.
        if not self._own_process or self._parked or at_s < self._held_next_s:
            return
        began = time.thread_time()
        self._held_bytes = tree_pss_bytes(os.getpid(), shared_memory=False)
        cost_s = time.thread_time() - began
        self._held_at_s = at_s
        self._held_next_s = at_s + max(_MEMORY_EVERY_S, cost_s / _MEMORY_COST_RATIO)
        knobs, prices = self.pipeline.knobs, self._prices.current()
        ring = knobs.ring_slots * self._mixture.layout.slot_bytes
        private = price_knobs(knobs, self._limits.knobs.shards, prices) - ring
        self._prices.note_process(self._held_bytes - self._framework_bytes, private / prices.scale)


def stages_of(
    shares: Mapping[str, float],
    knobs: Knobs,
    activity: PipelineActivity,
) -> tuple[StageTotal, ...]:
    """A pipeline's stages and their totals."""
    parts = activity.datasets
    decode = StageTotal(
        "decode",
        "",
        1.0,
        max(knobs.decode_threads, knobs.decode_processes),
        sum(one.decode_s for one in parts.values()),
        sum(one.decoded for one in parts.values()),
    )
    read = {name: one.taken + one.queue for name, one in parts.items()}
    if knobs.reader == "indexed":
        work = sum(one.read_s for one in parts.values())
        one_pool = StageTotal("read", "", 1.0, knobs.io_threads, work, sum(read.values()))
        return decode, one_pool
    streams = [
        StageTotal("read", name, shares[name], 1, one.read_s, read[name])
        for name, one in parts.items()
    ]
    return (decode, *streams)


def give_memory_back() -> None:
    """Have the C library return what it holds free to the kernel (``malloc_trim``)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _reading(found: tuple[float, float] | None) -> Reading | None:
    return None if found is None else Reading(found[0], found[1])


def _processors(
    found: tuple[ProcessorReading, float] | None,
) -> tuple[Reading | None, Reading | None]:
    """(idle, used by others), each unknown where it was not told."""
    if found is None:
        return None, None
    told, age_s = found
    return Reading(told.idle, age_s), None if told.others is None else Reading(told.others, age_s)


class Control:
    """The control of one process: its loop, its probes, and who is governed.

    Args:
        headroom: read by policy and reflex.
        budget: shared by all pipelines; default: by all of this process.
    """

    def __init__(self, headroom: HeadroomSource, budget: SharedBudget | None = None) -> None:
        self._headroom = headroom
        self._budget = budget or _BUDGET
        self._loop = ControlLoop(headroom)
        self._probes: Probes | None = None
        self._has_tensorflow = False

    def open(
        self,
        mixture: ResolvedMixture,
        shares: tuple[float, ...],
        knobs: Knobs,
        order: ControlOrder,
        memory: RingMemory,
        page: ControlPage,
        make: Callable[[Knobs], Pipeline],
        **own: Any,
    ) -> ControlledPipeline:
        """Give a pipeline its place in the budget, make it with the knobs it may have, govern it.

        Args:
            mixture: what it will run.
            shares: of each dataset.
            knobs: asked for.
            order: what its trainer asked.
            memory: its ring.
            page: where the consumer's doings are read.
            make: makes the pipeline, not yet started.
            **own: further arguments of ``ControlledPipeline``.
        """
        sizes = mixture.record_bytes()
        opening = admit_opening(
            self._budget,
            self._headroom,
            knobs,
            order.limits,
            Pipes(sizes, mixture.layout.slot_bytes, memory.allocated_bytes(), self._has_tensorflow),
            name=order.run,
            moves=order.moves,
        )
        self._has_tensorflow |= knobs.reader == "stream"
        if self._probes is None:
            self._probes = Probes.of_this_host(order, self._headroom)
        try:
            one = ControlledPipeline(
                make(opening.knobs),
                mixture,
                shares,
                order,
                self._probes,
                page,
                opening,
                self._budget,
                record_bytes=sizes,
                **own,
            )
        except BaseException:
            self._budget.leave(opening.share)
            raise
        if order.moves:
            self._loop.add(one)
        return one

    def leave(self, one: ControlledPipeline) -> None:
        """Govern it no more."""
        self._loop.remove(one)
        one.close()
