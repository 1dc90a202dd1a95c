"""Readings of a running pipeline and its host, for the policy and as snapshots for people.

The pipeline has running totals, the ring has the consumer's, the probes read the host.
About once a second the policy's thread makes an ``Observation`` of them, and a snapshot of that:
no probe and no part of the pipeline is asked twice.

Not here: deciding (``controller.policy``), acting (``process.control``), fields of a snapshot
(``telemetry.statistics``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from autoloader.controller.admission import Prices, RollingPrices, price_knobs, price_start
from autoloader.controller.limits import ControllerLimits
from autoloader.controller.observation import FlowMeter, FlowTotals, Observation, StageTotal
from autoloader.controller.policy import SATISFIED_RATIO
from autoloader.controller.proposals import known_stages, margin
from autoloader.controller.states import State
from autoloader.decode.message import BadRecord
from autoloader.errors import printable
from autoloader.host.clock import Watched
from autoloader.host.gpu import GpuProbe
from autoloader.host.headroom import PressureProbe
from autoloader.host.machine import memory_bytes, usable_processors
from autoloader.host.processes import OtherProcesses, ProcessorProbe, StorageReads, tree_own_bytes
from autoloader.host.units import MIB, format_bytes
from autoloader.process.setup import PipelineSetup
from autoloader.spec import PipelineSpec
from autoloader.spec.knobs import PIXEL_THREADS, Knobs
from autoloader.telemetry.progress import current
from autoloader.telemetry.run_record import RunFile, RunLog
from autoloader.telemetry.statistics import DatasetStatistics, Move, Statistics
from autoloader.telemetry.verdict import changes_words

if TYPE_CHECKING:
    from autoloader.telemetry.exporter import Exporter

logger = logging.getLogger(__name__)


WINDOW_S = 10.0


@dataclass(slots=True)
class Displaced:
    """Cost of the frame cache: it displaces the kernel's pages, so files are read once more.

    Theory of operation. Where all files fit into memory beside the frames nothing is lost. Where
    they do not, some of what is asked for comes from storage again: so do all bytes from storage
    beyond the size of the files. Not all of it is the frames' doing. Pages of as many bytes would
    have held a part of the reads, frame bytes ÷ bytes of all files. At most this part is charged to
    the frames, as the seconds that its reading took. On the other side are the seconds of decoding
    that hits save. Both are figures for one second, over the last ``WINDOW_S``.

    Fed about once a second by the thread that observes.

    Attributes:
        storage: gives the bytes that these processes, and others before, read from storage.
        file_bytes: tells the size of all files of the mixture; asked where it matters.
    """

    storage: Callable[[Sequence[int]], int | None]
    file_bytes: Callable[[], int]
    # Time, frames from the cache, bytes asked for, seconds of reading, bytes from storage.
    _totals: deque[tuple[float, int, int, float, int]] = field(default_factory=deque)
    _frame_s: float = 0.0
    _held: int = 0

    def note(self, at_s: float, activity: Statistics, pids: Sequence[int]) -> None:
        """Note the bytes read by now; ``pids``: the processes that read."""
        storage_bytes = self.storage(pids)
        if storage_bytes is None:
            return
        decoded = activity.datasets.values()
        self._frame_s = sum(d.decode_s for d in decoded) / max(1, sum(d.frames for d in decoded))
        self._held = activity.cache.held_bytes
        asked, took_s = activity.read_bytes, activity.reading_s
        self._totals.append((at_s, activity.cache.hits, asked, took_s, storage_bytes))
        while len(self._totals) > 2 and at_s - self._totals[1][0] >= WINDOW_S:
            self._totals.popleft()

    def seconds(self) -> tuple[float, float]:
        """(decoding that hits save, reading that the frames cause) in a second, of one thread."""
        if len(self._totals) < 2:
            return 0.0, 0.0
        first, last = self._totals[0], self._totals[-1]
        span_s, hits, asked, took_s, stored = (
            now - was for was, now in zip(first, last, strict=True)
        )
        span_s = max(1e-9, span_s)
        saved = hits * self._frame_s / span_s
        if stored <= 0 or not self._held:
            return saved, 0.0
        file_bytes = max(1, self.file_bytes())
        if last[-1] <= file_bytes:
            return saved, 0.0
        would_be_there = asked * self._held / file_bytes
        return saved, took_s / span_s * min(1.0, would_be_there / stored)


_PRESSURE_EVERY_S = 0.5
"""All pipelines of a process look in turn: what one has read serves the others."""
_PROBES_EVERY_S = 2.0
"""Finding the process's children takes a look at each of its threads."""


class Probes:
    """Probes that all pipelines of a process share, beside headroom.

    Args:
        visible_devices: as ``GpuProbe`` takes it.
        trainer: process id of the trainer.
    """

    def __init__(self, visible_devices: str | None, trainer: int) -> None:
        every_s, gpu = _PROBES_EVERY_S, GpuProbe(visible_devices, trainer)
        pressure = PressureProbe().read
        self.pressure = Watched(pressure, "memory pressure (PSI)", every_s=_PRESSURE_EVERY_S)
        self.processors = Watched(ProcessorProbe().read, "processors", every_s=every_s)
        self.gpu = Watched(gpu.read, "GPU load", every_s=every_s)
        held = partial(tree_own_bytes, os.getpid())
        self.memory = Watched(held, "memory of this process", every_s=every_s)


_SHORT = (State.SHRINK, State.EMERGENCY)
_QUIET_S = 60.0
"""An episode that begins so soon after another one is the same trouble: it is told at INFO."""
_MUCH_BYTES = 64 * MIB
"""Who took less than this is not named: processes grow and shrink all the time."""


@dataclass(slots=True)
class Pressure:
    """Tells people that memory got short, what was given up for it, and when it is back.

    Theory of operation. Pressure comes in episodes: it begins with the first time that knobs shrink
    because memory is short, and ends when the controller is neither in SHRINK nor in EMERGENCY. One
    line says that it began, and which process took the memory; another says that it is over.
    Further shrinking meanwhile is logged at INFO, and so is an episode soon after another one.

    One pipeline's; the reflex's thread and the policy's call it in turns.

    Attributes:
        floor_bytes: bytes of the RAM floor.
        neighbours: other processes that may have taken memory.
    """

    floor_bytes: int
    neighbours: OtherProcesses = field(default_factory=OtherProcesses)
    _level: int | None = None
    _over_s: float = float("-inf")

    def shrunk(self, at_s: float, headroom_bytes: int | None, before: Knobs, after: Knobs) -> str:
        """Knobs have become smaller because memory is short: say so.

        Args:
            at_s: time of a monotonic clock, in seconds.
            headroom_bytes: headroom at that time; ``None``: not known.
            before: values of the knobs before.
            after: values of the knobs now.

        Returns:
            Why, in short: "headroom 1.90 GiB below the floor of
            4.66 GiB (+2.40 GiB by pid 4711 python)".
        """
        why = f"{self._where(headroom_bytes)}{self._who(at_s)}"
        level = logging.INFO
        if self._level is None:
            soon = at_s - self._over_s < _QUIET_S
            self._level = level = logging.INFO if soon else logging.WARNING
        changes = {key: (was, now) for key, (now, was) in after.changed(before).items()}
        logger.log(level, "%s: %s", why, changes_words(changes))
        return why

    def look(self, at_s: float, headroom_bytes: int | None, state: State) -> str:
        """The controller has looked: in this state it is now.

        Args:
            at_s: time of a monotonic clock, in seconds.
            headroom_bytes: headroom now; ``None``: not known.
            state: name of the controller's state.

        Returns:
            That memory is back, where it is since this look; else "".
        """
        back = ""
        if state in _SHORT:
            return back
        if self._level is not None:
            level, self._level, self._over_s = self._level, None, at_s
            back = f"memory is back: {self._where(headroom_bytes)}"
            logger.log(level, "%s; knobs grow again where that pays", back)
        self.neighbours.look(at_s)
        return back

    def _where(self, headroom_bytes: int | None) -> str:
        if headroom_bytes is None:
            return "headroom unknown"
        above = headroom_bytes - self.floor_bytes
        where = "above" if above >= 0 else "below"
        floor = format_bytes(self.floor_bytes)
        return f"headroom {format_bytes(abs(above))} {where} the floor of {floor}"

    def _who(self, at_s: float) -> str:
        most = self.neighbours.most_grown(at_s)
        if most is None or most.grown_bytes < _MUCH_BYTES:
            return ""
        name = f" {printable(most.name)}" if most.name else ""
        return f" (+{format_bytes(most.grown_bytes)} by pid {most.pid}{name})"


Sink: TypeAlias = "RunFile | RunLog | Exporter"
"""Receiver of snapshots. It is called from the policy's thread: it must not wait, nor raise."""


def _open_sinks(
    setup: PipelineSetup, number: int, quarantined: Callable[[], Sequence[BadRecord]]
) -> tuple[Sink, ...]:
    """Places that moments of a pipeline are written to."""
    request = setup.control
    found: list[Sink] = [RunFile(request.run, number)]
    if request.record:
        facts = facts_of(setup)
        found.append(
            RunLog(
                Path(request.record) / f"{setup.mixture.split}-{number}.jsonl",
                facts=lambda: facts,
                bad=lambda: [asdict(one) for one in quarantined()],
                in_ring=request.record_in_ring,
            )
        )
    if request.metrics_port or request.metrics_file:
        from autoloader.telemetry.exporter import Exporter

        port, file = request.metrics_port, request.metrics_file
        found.append(Exporter(request.run, number, port=port, file=file))
    _open.update(found)
    return tuple(found)


def end_all() -> None:
    """End all records, files and exports of this process, which ends without closing pipelines."""
    for sink in list(_open):
        sink.close()


_open: weakref.WeakSet[Sink] = weakref.WeakSet()
os.register_at_fork(after_in_child=_open.clear)


def facts_of(setup: PipelineSetup) -> dict[str, Any]:
    """Facts of the start for the record; plain values."""
    spec = setup.mixture.spec
    return {
        "autoloader": sys.modules["autoloader"].__version__,  # the front door is above this
        "python": platform.python_version(),
        "reader": setup.knobs.reader,
        "batch_size": spec.batch.size,
        "batch_bytes": setup.mixture.layout.slot_bytes,
        "cameras": {name: list(camera.size) for name, camera in spec.cameras.items()},
        **identity_of(spec),
        **setup.control.facts,
    }


def identity_of(spec: PipelineSpec) -> dict[str, str]:
    """Facts by which another run of a spec on this host is found."""
    written = json.dumps(spec.model_dump(mode="json"), sort_keys=True)
    memory = format_bytes(memory_bytes())
    return {
        "host": f"{socket.gethostname()}: {usable_processors()} processors, {memory}",
        "spec_digest": hashlib.sha256(written.encode()).hexdigest()[:16],
    }


_SEEN = sorted(
    Observation.__dataclass_fields__.keys()
    & Statistics.__dataclass_fields__.keys() - {"at_s", "knobs", "cache"}
)
"""Readings of an observation that statistics hold by the same name."""
_KEPT_MOVES = 12
_KEPT_MOMENTS = 60
_UNJUDGED = ("", "undecided")


class Observer:
    """Reads one pipeline and its host, for the policy; makes snapshots of that for people.

    Args:
        setup: setup that the pipeline was opened with.
        probes: probes shared by this process.
        number: number of the pipeline among those of its trainer.
        quarantined: gives its bad records.
        own_process: whether this process's memory is the loader's alone.

    Attributes:
        pressure: tells people when memory is short.
    """

    def __init__(
        self,
        setup: PipelineSetup,
        probes: Probes,
        number: int,
        quarantined: Callable[[], Sequence[BadRecord]],
        *,
        own_process: bool,
    ) -> None:
        request, mixture = setup.control, setup.mixture
        self._setup, self._limits = setup, request.limits
        self._knobs = setup.knobs.flat()
        self._sinks = _open_sinks(setup, number, quarantined)
        self._probes = probes
        self._own_process = own_process
        sizes = mixture.sizes  # asks the file system
        self._prices = RollingPrices(sizes)
        self._framework_bytes = price_start(setup.knobs, sizes).parts["framework"]
        self._batch_size = mixture.spec.batch.size
        self._meter = FlowMeter(self._batch_size)
        self._before = setup.memory.consumed()
        local = [one for one in mixture.datasets if not one.remote]
        file_bytes = cache(lambda: sum(one.record_bytes * one.records for one in local))
        self._displaced = Displaced(StorageReads().read, file_bytes)
        self.pressure = Pressure(request.limits.ram_floor_bytes)
        self._moves: deque[Move] = deque(maxlen=_KEPT_MOVES)
        self._headrooms: deque[int | None] = deque(maxlen=_KEPT_MOMENTS)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._closed = False
        self._said: dict[str, Any] = {
            "run": request.run,
            "pipeline": number,
            "split": mixture.split,
            "started_at_s": time.time(),
            "rank": setup.ranks.rank,
            "world_size": setup.ranks.world_size,
            "node": request.node or request.run,
            "script": request.script,
            "trainer_pid": request.trainer,
            "worker_pid": os.getpid(),
            "floor_bytes": request.limits.ram_floor_bytes,
            "restarts": setup.restarts,
        }

    @property
    def wanting(self) -> bool:
        """True while the consumer waits for a batch of this pipeline."""
        return self._setup.memory.waiting_since_ns() != 0

    @property
    def prices(self) -> Prices:
        """Bytes of one unit of each knob, as measured so far."""
        return self._prices.current()

    def surplus_bytes(self, least: Knobs) -> int | None:
        """Bytes that the process holds above the cost of ``least``; ``None``: not known."""
        held = self._probes.memory.read() if self._own_process else None
        if held is None:
            return None
        return held - self._framework_bytes - self._private_bytes(least, self.prices)

    def readings(
        self, at_s: float, knobs: Knobs, activity: Statistics, *, parked: bool
    ) -> dict[str, Any]:
        """Fields of an ``Observation`` as of now; of a parked pipeline, no new flow."""
        held = self._probes.memory.read() if self._own_process else None
        if held is not None and not parked:
            # The process is one for all pipelines: the one in use learns from its memory.
            prices = self.prices
            private = self._private_bytes(knobs, prices)
            self._prices.note_process(held - self._framework_bytes, private / prices.scale)
        flow = self._flow(at_s, knobs, activity, parked)
        for one in activity.datasets.values():
            if one.queue > 0 and one.queue_bytes > 0:
                self._prices.note_sample(one.queue_bytes / one.queue)
        if activity.run_bytes:
            self._prices.note_run(activity.run_bytes)
        found: dict[str, Any] = {"prices": self.prices, "loader_bytes": held}
        if self._setup.control.helpers and activity.helpers:
            found["helpers_possible"] = activity.helpers.possible
        if knobs.reader == "indexed":
            self._displaced.note(at_s, activity, (os.getpid(), *activity.processes))
            found["cache"] = activity.cache
            found["saved_ratio"], found["reread_ratio"] = self._displaced.seconds()
        found["pressure_percent"] = self._probes.pressure.read()
        if (gpu := self._probes.gpu.read()) is not None:
            found |= {"gpu_busy_ratio": gpu.busy_ratio, "gpu_shared": gpu.shared}
        if (processors := self._probes.processors.read()) is not None:
            found |= {"idle_cpus": processors.idle, "others_cpus": processors.others}
        return found | flow

    def _flow(
        self, at_s: float, knobs: Knobs, activity: Statistics, parked: bool
    ) -> dict[str, Any]:
        if not parked:
            batches, waited_ns = self._setup.memory.consumed()
            self._meter.note(
                FlowTotals(
                    at_s=at_s,
                    batches=batches - self._before[0],
                    waited_s=(waited_ns - self._before[1]) / 1e9 + self._waiting_s(),
                    waiting=self.wanting,
                    mixed=activity.samples,
                    ready=activity.ring.filled,
                    slots=activity.ring.slots,
                    stages=self._stages(knobs, activity),
                )
            )
        return self._meter.readings() if self._meter.begun else {}

    def _waiting_s(self) -> float:
        """Seconds that the consumer has waited for the batch that it wants now."""
        since_ns = self._setup.memory.waiting_since_ns()
        return max(0.0, (time.monotonic_ns() - since_ns) / 1e9) if since_ns else 0.0

    def _stages(self, knobs: Knobs, activity: Statistics) -> tuple[StageTotal, ...]:
        """The pipeline's stages and their totals."""
        parts, done, least = activity.datasets, activity.work, knobs.decode_processes
        each = ((one, max(getattr(knobs, n), least)) for one, n in PIXEL_THREADS.items())
        found = [StageTotal(one, "", 1.0, n, *done.get(one, (0.0, 0))) for one, n in each]
        read = {name: one.samples + one.queue for name, one in parts.items()}
        if knobs.reader == "indexed":
            work = sum(one.read_s for one in parts.values())
            return (*found, StageTotal("read", "", 1.0, knobs.io_threads, work, sum(read.values())))
        streams = (
            StageTotal("read", name, one.weight, 1, one.read_s, read[name])
            for name, one in parts.items()
        )
        return (*found, *streams)

    def _private_bytes(self, knobs: Knobs, prices: Prices) -> int:
        """Bytes that the process holds with ``knobs``, without ring and frame cache."""
        shared = knobs.ring_slots * self._setup.memory.slot_bytes
        if knobs.reader == "indexed":
            shared += knobs.cache_bytes
        return price_knobs(knobs, self._limits.knobs.shards, prices) - shared

    def moved(self, by: str, why: str, after: Knobs, before: Knobs) -> None:
        """Knobs moved; see ``telemetry.statistics.Move``. Any thread."""
        changes = {knob: (was, now) for knob, (now, was) in after.changed(before).items()}
        with self._lock:
            if changes:
                self._knobs = after.flat()
            self._moves.append(Move(time.time(), by, why, changes))

    def judged(self, verdict: str) -> None:
        """Verdict on the policy's last change. Any thread."""
        with self._lock:
            for at, move in reversed([*enumerate(self._moves)]):
                if move.by == "policy" and move.verdict in _UNJUDGED:
                    self._moves[at] = replace(move, verdict=verdict)
                    return

    def publish(
        self, seen: Observation, activity: Statistics, *, opened: bool, **said: Any
    ) -> None:
        """Hand the statistics of this second to all sinks.

        Args:
            seen: observation of this second.
            activity: the pipeline's, of the same time.
            opened: whether the reader is open.
            said: figures of the controller; fields of ``Statistics``.
        """
        state = said.get("state")
        self._headrooms.append(seen.headroom_bytes)
        with self._lock:
            moves, knobs = tuple(self._moves), self._knobs
        read = {name: getattr(seen, name) for name in _SEEN}
        took_per_s = self._batch_size / seen.step_s if seen.step_s else None
        stages = [one.bound_per_s for one in seen.stages if one.bound_per_s]
        self._said = (
            self._said
            | read
            | said
            | {
                "at_s": time.time(),
                "phase": _phase(seen, state, opened=opened),
                "doing": self._doing(seen, activity) if opened else current(),
                "bound_per_s": max(min(stages), took_per_s or 0.0) if stages else None,
                "limited_by": limited_by(seen, state, self._limits),
                "samples_per_s": took_per_s,
                "waiting_s": 0.0 if seen.parked else self._waiting_s(),
                "margin_bytes": margin(seen, self._limits),
                "knobs": knobs,
                "moves": moves,
                "most_headroom_bytes": max(
                    (one for one in self._headrooms if one is not None), default=None
                ),
            }
        )
        moment = self.told(activity)
        with self._writing:
            if not self._closed:
                for sink in self._sinks:
                    sink.write(moment)

    def told(self, activity: Statistics, **now: Any) -> Statistics:
        """Counts of the pipeline, the readings of the last second and ``now``. Any thread."""
        return replace(activity, **self._said | now)

    def _doing(self, seen: Observation, activity: Statistics) -> str:
        if not seen.waiting:
            return ""
        used = {name: own for name, own in activity.datasets.items() if own.weight}
        return waited_for(seen.knobs.reader, used)

    def close(self) -> None:
        """The pipeline has ended: nothing is said any more."""
        with self._writing:
            self._closed = True
            for sink in self._sinks:
                sink.close()


def limited_by(seen: Observation, state: str | None, limits: ControllerLimits) -> str:
    """Resource that a faster run would need first; see ``telemetry.Statistics``.

    Args:
        seen: observation of this second.
        state: the controller's; ``None``: there is none.
        limits: limits of the controller.
    """
    short = seen.gate_closed or state in (State.SHRINK.value, State.EMERGENCY.value)
    if seen.wait_ratio is None:
        return "memory" if short else ""
    if seen.wait_ratio < SATISFIED_RATIO:
        return "gpu" if (seen.gpu_busy_ratio or 0.0) >= limits.gpu_busy_ratio else "training"
    if short:
        return "memory"
    return next((one.name for one in known_stages(seen)), "")


def _phase(seen: Observation, state: str | None, *, opened: bool) -> str:
    """Phase of a pipeline: opening, parked, filling or running."""
    if not opened:
        return "opening"
    if seen.parked or state == State.PARKED.value:
        return "parked"
    return "running" if seen.batches else "filling"


def waited_for(reader: str, datasets: Mapping[str, DatasetStatistics]) -> str:
    """Describe what a consumer waits for: "12/29 ready, waiting for bridge (opening …)".

    Args:
        reader: name of the reader, "stream" or "indexed".
        datasets: names of the datasets that have a share.

    Returns:
        "" where it is none of these.
    """
    late = [name for name, own in datasets.items() if own.awaits]
    if reader == "indexed":  # it reads what comes next, of whatever dataset
        return f"waiting for {late[0]} ({datasets[late[0]].awaits})" if late else ""
    missing = [name for name, own in datasets.items() if not (own.queue or own.samples)]
    empty = missing or [name for name, own in datasets.items() if not own.queue]
    if not empty or (len(empty) == len(datasets) and not missing):
        return ""
    words = f"{len(datasets) - len(missing)}/{len(datasets)} ready, " if missing else ""
    awaits = datasets[empty[0]].awaits
    return f"{words}waiting for {empty[0]}" + (f" ({awaits})" if awaits else "")
