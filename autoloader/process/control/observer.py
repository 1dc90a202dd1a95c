"""Readings for the policy: one pipeline's flow, its memory, and the host around it.

The pipeline has running totals, the control page has the consumer's, the probes read the host.
Here they become the fields of an ``Observation``. Only the policy's thread calls ``readings``.

Not here: deciding from it (``controller.policy``), acting on it (``process.control.pipeline``).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from autoloader.cache.slab import private_bytes
from autoloader.controller.admission import Prices, RollingPrices, price_knobs, price_start
from autoloader.controller.flow import FlowMeter, FlowTotals, StageTotal
from autoloader.controller.observation import CacheReading, Reading
from autoloader.decode.activity import PipelineActivity
from autoloader.formats.files import is_remote
from autoloader.host.probes.gpu import GpuProbe, GpuReading
from autoloader.host.probes.pressure import PressureProbe, ProcessorProbe, ProcessorReading, Watched
from autoloader.host.probes.processes import StorageReads, tree_own_bytes
from autoloader.process.setup import PipelineSetup
from autoloader.samples.resolve import ResolvedMixture
from autoloader.spec.knobs import Knobs

WINDOW_S = 10.0


class Storage(Protocol):
    """Tells bytes from storage (``host.probes.processes.StorageReads``)."""

    def read(self, pids: Sequence[int]) -> int | None:
        """So far, by these processes and others before; ``None``: not known."""
        ...


@dataclass(frozen=True, slots=True)
class _Totals:
    at_s: float
    hits: int
    asked_bytes: int
    reading_s: float
    storage_bytes: int


class Displaced:
    """Cost of the frame cache: it displaces the kernel's pages, so files are read once more.

    Theory of operation. Where all files fit into memory beside the frames nothing is lost. Where
    they do not, some of what is asked for comes from storage again: so do all bytes from storage
    beyond the size of the files. Not all of it is the frames' doing. With as many bytes of pages
    more as they hold, a part held ÷ size of the files of what is asked for would have been in
    memory. So much is put down to them at most, and costs the seconds that its reading took. On the
    other side are the seconds of decoding that hits save. Both are told for a second of the last
    ``WINDOW_S``.

    Fed about once a second by the thread that observes.

    Args:
        storage: what was read from storage.
        file_bytes: tells the size of all files of the mixture; asked once, where it matters.
    """

    def __init__(self, storage: Storage, file_bytes: Callable[[], int]) -> None:
        self._storage = storage
        self._ask_size = file_bytes
        self._file_bytes: int | None = None
        self._totals: deque[_Totals] = deque()
        self._frame_s = 0.0
        self._held = 0

    def note(self, at_s: float, activity: PipelineActivity, pids: Sequence[int]) -> None:
        """Note the bytes read by now; ``pids``: the processes that read."""
        storage_bytes = self._storage.read(pids)
        if storage_bytes is None:
            return
        decoded = activity.datasets.values()
        self._frame_s = sum(d.decode_s for d in decoded) / max(1, sum(d.frames for d in decoded))
        self._held = activity.cache.held_bytes
        totals = _Totals(
            at_s, activity.cache.hits, activity.read_bytes, activity.reading_s, storage_bytes
        )
        self._totals.append(totals)
        while len(self._totals) > 2 and at_s - self._totals[1].at_s >= WINDOW_S:
            self._totals.popleft()

    def seconds(self) -> tuple[float, float]:
        """(decoding that hits save, reading that the frames cause) in a second, of one thread."""
        if len(self._totals) < 2:
            return 0.0, 0.0
        first, last = self._totals[0], self._totals[-1]
        span_s = max(1e-9, last.at_s - first.at_s)
        saved = (last.hits - first.hits) * self._frame_s / span_s
        stored = last.storage_bytes - first.storage_bytes
        if stored <= 0 or not self._held:
            return saved, 0.0
        if self._file_bytes is None:
            self._file_bytes = max(1, self._ask_size())
        if last.storage_bytes <= self._file_bytes:
            return saved, 0.0
        would_be_there = (last.asked_bytes - first.asked_bytes) * self._held / self._file_bytes
        reading = (last.reading_s - first.reading_s) / span_s
        return saved, reading * min(1.0, would_be_there / stored)


def bytes_of_files(mixture: ResolvedMixture) -> int:
    """Of all local files of a mixture; one that is gone counts nothing."""
    paths = {part.path for dataset in mixture.datasets for part in dataset.slices}
    found = 0
    for path in paths:
        if not is_remote(path) and (file := Path(path)).exists():
            found += file.stat().st_size
    return found


_PROBES_EVERY_S = 0.5
"""All pipelines of a process look in turn: a second reading at once would be of milliseconds."""
_MEMORY_EVERY_S = 2.0
_MEMORY_COST_RATIO = 0.002
"""Share of a processor that finding the process's children, and reading what all hold, may cost."""


class ProcessMemory:
    """Bytes that this process and its children hold beside ring and frames, for all pipelines.

    Attributes:
        held_bytes: as read last; ``None``: not read yet.
        at_s: time of the reading, in seconds.
        every_s: seconds from that reading to the next, at least.
    """

    def __init__(self) -> None:
        self.held_bytes: int | None = None
        self.at_s = float("-inf")
        self.every_s = _MEMORY_EVERY_S

    def read(self, at_s: float) -> None:
        """Read again where it is time to."""
        if at_s < self.at_s + self.every_s:
            return
        began = time.thread_time()
        self.held_bytes = max(0, tree_own_bytes(os.getpid()) - private_bytes())
        cost_s = time.thread_time() - began
        self.at_s, self.every_s = at_s, max(_MEMORY_EVERY_S, cost_s / _MEMORY_COST_RATIO)


@dataclass(slots=True)
class Probes:
    """Probes that all pipelines of a process share, beside headroom."""

    pressure: Watched[float]
    processors: Watched[ProcessorReading]
    gpu: Watched[GpuReading]
    memory: ProcessMemory = field(default_factory=ProcessMemory)

    @classmethod
    def of_this_host(cls, visible_devices: str | None, trainer: int) -> Probes:
        """The real ones; arguments as of ``GpuProbe``."""
        clock, gpu = time.monotonic, GpuProbe(visible_devices, trainer)
        return cls(
            Watched(PressureProbe(), "memory pressure (PSI)", clock, every_s=_PROBES_EVERY_S),
            Watched(ProcessorProbe(), "processors", clock, every_s=_PROBES_EVERY_S),
            Watched(gpu, "GPU load", clock, every_s=_PROBES_EVERY_S),
        )


class Observer:
    """Reads one pipeline and its host.

    Args:
        setup: what the pipeline is opened with.
        probes: probes shared by this process.
        own_process: whether this process's memory is the loader's alone.
    """

    def __init__(self, setup: PipelineSetup, probes: Probes, *, own_process: bool) -> None:
        mixture = setup.mixture
        self._shares = dict(zip(mixture.names, setup.order.shares, strict=True))
        self._shards = setup.control.limits.knobs.shards
        self._probes = probes
        self._helped = bool(setup.control.helpers)
        self._page = setup.page
        self._own_process = own_process
        sizes = mixture.sizes
        self._slot_bytes = sizes.batch_bytes
        self._prices = RollingPrices(
            slot_bytes=sizes.batch_bytes,
            record_bytes=sizes.record_bytes,
            picture_bytes=sizes.picture_bytes,
        )
        self._framework_bytes = price_start(setup.knobs, sizes).framework_bytes
        self._held_bytes: int | None = None
        self._held_at_s = float("-inf")
        self._meter = FlowMeter(mixture.spec.batch.size)
        self._page_before = setup.page.consumer[:2]
        self._own = (0, 0)
        self._displaced = Displaced(StorageReads(), lambda: bytes_of_files(mixture))

    @property
    def wanting(self) -> bool:
        """True while the consumer waits for a batch."""
        return self._page.consumer[2] != 0

    @property
    def prices(self) -> Prices:
        """Bytes of one unit of each knob, as measured so far."""
        return self._prices.current()

    def surplus_bytes(self, at_s: float, least: Knobs) -> int | None:
        """Bytes that the process holds above the cost of ``least``; ``None``: not known lately."""
        held = self._held_bytes
        if held is None or at_s - self._held_at_s > 3 * self._probes.memory.every_s:
            return None
        return held - self._framework_bytes - self._private_bytes(least, self.prices)

    def readings(
        self, at_s: float, knobs: Knobs, activity: PipelineActivity, *, parked: bool
    ) -> dict[str, Any]:
        """Fields of an ``Observation`` as of now; of a parked pipeline, no new flow."""
        if self._own_process and not parked:
            # The process is one for all pipelines: the one in use reads for them.
            self._read_memory(at_s, knobs)
        flow = self._flow(at_s, knobs, activity, parked)
        for one in activity.datasets.values():
            if one.queue > 0 and one.queue_bytes > 0:
                self._prices.note_sample(one.queue_bytes / one.queue)
        if activity.run_bytes:
            self._prices.note_run(activity.run_bytes)
        held, pressure = self._held_bytes, self._probes.pressure.read()
        gpu, processors = self._probes.gpu.read(), self._probes.processors.read()
        found: dict[str, Any] = {"prices": self.prices}
        if self._helped:
            found["helpers_possible"] = activity.helpers.possible
        if knobs.reader == "indexed":
            frames = activity.cache
            self._displaced.note(at_s, activity, (os.getpid(), *activity.processes))
            found["cache"] = CacheReading(
                frames.held_bytes,
                frames.threshold is not None,
                frames.late_bytes,
                frames.allocated_bytes,
                *self._displaced.seconds(),
                private=frames.private,
            )
        if held is not None:
            found["loader_bytes"] = Reading(held, at_s - self._held_at_s)
        if pressure is not None:
            found["pressure_percent"] = Reading(*pressure)
        if gpu is not None:
            found["gpu_busy_ratio"] = Reading(gpu[0].busy_ratio, gpu[1])
            found["gpu_shared"] = gpu[0].shared
        if processors is not None:
            used, age_s = processors
            found["idle_cpus"] = Reading(used.idle, age_s)
            if used.others is not None:
                found["others_cpus"] = Reading(used.others, age_s)
        return found | flow

    def _flow(
        self, at_s: float, knobs: Knobs, activity: PipelineActivity, parked: bool
    ) -> dict[str, Any]:
        batches, waited_ns, since_ns = self._page.consumer
        before, self._page_before = self._page_before, (batches, waited_ns)
        if not parked:  # while parked, the page counts another loader's batches
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
                    stages=self._stages(knobs, activity),
                )
            )
        return self._meter.readings() if self._meter.begun else {}

    def _stages(self, knobs: Knobs, activity: PipelineActivity) -> tuple[StageTotal, ...]:
        """The pipeline's stages and their totals."""
        parts = activity.datasets
        workers = max(knobs.decode_threads, knobs.decode_processes)
        decode_s = sum(one.decode_s for one in parts.values())
        decoded = sum(one.decoded for one in parts.values())
        decode = StageTotal(
            "decode",
            "",
            1.0,
            workers,
            decode_s + activity.gather_s,
            decoded + activity.gathered,
        )
        read = {name: one.taken + one.queue for name, one in parts.items()}
        if knobs.reader == "indexed":
            work = sum(one.read_s for one in parts.values())
            return decode, StageTotal("read", "", 1.0, knobs.io_threads, work, sum(read.values()))
        streams = (
            StageTotal("read", name, self._shares[name], 1, one.read_s, read[name])
            for name, one in parts.items()
        )
        return (decode, *streams)

    def _read_memory(self, at_s: float, knobs: Knobs) -> None:
        memory = self._probes.memory
        memory.read(at_s)
        if memory.held_bytes is None or memory.at_s == self._held_at_s:
            return
        self._held_bytes, self._held_at_s = memory.held_bytes, memory.at_s
        prices = self.prices
        private = self._private_bytes(knobs, prices)
        self._prices.note_process(self._held_bytes - self._framework_bytes, private / prices.scale)

    def _private_bytes(self, knobs: Knobs, prices: Prices) -> int:
        """Bytes that the process holds with ``knobs``, without ring and frame cache."""
        shared = knobs.ring_slots * self._slot_bytes
        if knobs.reader == "indexed":
            shared += knobs.cache_bytes
        return price_knobs(knobs, self._shards, prices) - shared
