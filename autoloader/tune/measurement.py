"""Measures one loader in this process: rate, latency, memory, mixture, and its trace.

Theory of operation. The consumer here is this thread. Latency of a batch is the time from asking
for the batch to having it. ``wait_ratio`` is the sum of the latencies over the measured time; the
consumer sleeps to simulate a trainer's step. Warm-up batches are not counted. The measured time
runs from the last warm-up batch, whose step it has, to the last measured batch. A thread samples
memory and headroom, from before the loader is made until the loader is closed.

A trace is the resources that a sample takes: processor time, bytes and waits by stage. It is the
difference of two readings. Threads that ended in between are missing, so knobs must hold still.
For every thread the kernel counts how long the thread ran, and how long it stood ready without a
free processor (``/proc/PID/task/TID/schedstat``). The rest of the time the thread waited for
something else. Threads of the loader have names (``host.threads``), so times add up by stage.
Bytes come from ``/proc/PID/io``: asked of files, and come from a block device. Waiting for a disk
is the time in which some thread sleeps in the kernel for it. Such a thread is in state D, or in a
positional read that has not returned (state S, with a FUSE file system). The recorder looks ten
times a second. ``host.processes`` tells what other processes took of the processors meanwhile.

Not here: watching a measurement from outside (``trial``), showing it (``cli.tune``), what
follows from a trace (``tune.bound``).
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from autoloader.errors import SpecError, UsageError
from autoloader.host.frozen import frozen
from autoloader.host.headroom import HeadroomProbe, headroom_or_none
from autoloader.host.processes import ProcessorProbe, descendants, tree_own_bytes
from autoloader.host.supervision import ThreadVitals, read_vitals
from autoloader.spec.knobs import STAGES
from autoloader.tune.trial import TrialProgress

if TYPE_CHECKING:
    from autoloader.loader import AutoLoader

REPORT_BATCHES = 10
"""Measured batches between two progress reports."""

WINDOW_BATCHES, MOST_WINDOWS, SETTLED_RATIO = 8, 6, 0.1
"""A rate has settled when two windows of batches in a row differ by at most this; else after so
many windows it is taken as it is."""

LEAST_WARMUP = 8
LEAST_BATCHES = 160
"""Fewest batches, before and in a measurement, from which a figure means anything."""


def measure(
    open_loader: Callable[[], AutoLoader],
    *,
    warmup: int,
    batches: int,
    step_time_s: float = 0.0,
    progress: Callable[[TrialProgress], None] | None = None,
    settle: bool = False,
    now_s: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Measure what ``open_loader`` makes, and close it.

    Args:
        open_loader: function that makes the loader.
        warmup: batches asked for before measuring.
        batches: number of batches to measure.
        step_time_s: a trainer's step, simulated by sleeping this long after each batch.
        progress: told every ``REPORT_BATCHES`` measured batches and at the end.
        settle: go on with the warm-up until the rate holds still.
        now_s: function that gives the time in seconds.
        sleep: function that waits some seconds.

    Returns:
        The document of ``measure --json``.
        "samples_per_s": delivered samples over measured time.
        "batches_per_s": delivered batches over measured time.
        "batch_latency_s": seconds from asking for a batch to having it: p50, p90, p99.
        "time_to_first_batch_s": seconds from ``AutoLoader(...)`` to the first batch.
        "peak_rss_bytes": sampled peak of what the loader adds, and its decoded frames at the end.
        "min_headroom_bytes": lowest sampled headroom; ``None`` where it cannot be read.
        "wait_ratio": time waited for batches over measured time, 0 to 1.
        "mixture": per dataset the weight asked for and the share of measured samples, both of 1.
        "knobs": the values in force at the end.
        "samples": number of samples that were measured.
        "datasets": datasets in the mixture.
        "decodes_per_sample": frames decoded for a sample since the loader began; ``None`` where
        TensorFlow decodes.
        "cache": decoded frames held at the end, and how many were shown from there
        (``telemetry.CacheStatistics``).
        "batch_call_s": mean seconds of the spec's ``batch.call`` for a batch.
        "trace": costs of a sample, stage by stage (``Trace``).
        "interrupted": whether Ctrl-C ended it early.

    Raises:
        AutoloaderError: whatever the loader raises; ``UsageError`` for impossible counts.
    """
    if warmup < 0 or batches < 1 or step_time_s < 0:
        raise UsageError(
            f"warmup={warmup}, batches={batches}, step_time={step_time_s} s cannot be measured",
            remedy="give a warmup of 0 or more, at least 1 batch, and a step time of 0 or more",
        )
    with Recorder(HeadroomProbe()) as recorder:
        opened_s = now_s()
        loader = open_loader()
        try:
            stream = _without_end(loader, now_s, sleep, step_time_s)
            next(stream)
            first_s = now_s() - opened_s
            _warm_up(stream, warmup - 1)
            if settle:
                _settle(stream, now_s)
            recorder.begin()
            latencies_s: list[float] = []
            counted = np.zeros(len(loader.dataset_names), np.int64)
            samples, measured_s, began_s = 0, 1e-9, now_s()
            try:
                for waited_s, batch in islice(stream, batches):
                    latencies_s.append(waited_s)
                    samples += len(batch["action"])
                    if "dataset_index" in batch:
                        index = np.asarray(batch["dataset_index"])
                        counted += np.bincount(index, minlength=len(counted))
                    del batch  # its slot goes back to the ring before the next is asked for
                    measured_s, done = max(now_s() - began_s, 1e-9), len(latencies_s)
                    if progress is not None and (done % REPORT_BATCHES == 0 or done == batches):
                        progress(TrialProgress(done, samples / measured_s))
            except KeyboardInterrupt:
                if settle or not samples:  # a study ends whole
                    raise
            trace = recorder.end(samples)
            recorder.sample()
            statistics = loader.statistics().as_dict()
            datasets, cache = statistics["datasets"], statistics.get("cache")
            quantiles = np.quantile(latencies_s, (0.5, 0.9, 0.99)).tolist()
            # Shares are the loader's own where batches do not say whose they are (metadata).
            known = int(counted.sum())
            whole = sum(own["weight"] for own in datasets.values()) or 1.0
            return {
                "samples_per_s": samples / measured_s,
                "batches_per_s": len(latencies_s) / measured_s,
                "batch_latency_s": dict(zip(("p50", "p90", "p99"), quantiles, strict=True)),
                "time_to_first_batch_s": first_s,
                "peak_rss_bytes": recorder.peak_rss_bytes + (cache["held_bytes"] if cache else 0),
                "min_headroom_bytes": recorder.min_headroom_bytes,
                "wait_ratio": min(1.0, sum(latencies_s) / measured_s),
                "mixture": {
                    name: {
                        "weight": float(datasets[name]["weight"]) / whole,
                        "share": count / known if known else float(datasets[name]["share"]),
                    }
                    for name, count in zip(loader.dataset_names, counted.tolist(), strict=True)
                },
                "knobs": loader.knobs.flat(),
                "samples": samples,
                "datasets": len(loader.dataset_names),
                "decodes_per_sample": statistics.get("decodes_per_sample"),
                "cache": cache,
                "batch_call_s": statistics.get("batch_call_s"),
                "trace": asdict(trace),
                "interrupted": len(latencies_s) < batches,
            }
        finally:
            loader.close()


_Batches = Iterator[tuple[float, Mapping[str, Any]]]


def _without_end(
    loader: AutoLoader,
    now_s: Callable[[], float],
    sleep: Callable[[float], None],
    step_time_s: float,
) -> _Batches:
    """(seconds waited for it, batch) of one epoch after the other; a step lies before the next.

    An epoch without a batch is an error, not a hang.
    """
    asked_s = now_s()
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield now_s() - asked_s, batch
            del batch
            if step_time_s > 0:
                sleep(step_time_s)
            asked_s = now_s()
        if empty:
            raise SpecError(
                "batch.size: an epoch of this mixture has fewer samples than one batch, and "
                "batch.drop_last: true drops incomplete batches",
                remedy="lower batch.size, set batch.drop_last: false, or make mixing.epoch longer",
            )


def _warm_up(stream: _Batches, count: int) -> None:
    """Take batches that are not measured."""
    for _ in range(count):
        next(stream)


def _settle(stream: _Batches, now_s: Callable[[], float]) -> None:
    """Take batches until two windows in a row pass equally fast, or patience ends."""
    before_s = -math.inf
    for _ in range(MOST_WINDOWS):
        began_s = now_s()
        _warm_up(stream, WINDOW_BATCHES)
        took_s = now_s() - began_s
        if abs(took_s - before_s) <= SETTLED_RATIO * max(took_s, before_s):
            return
        before_s = took_s


_PERIOD_S = 0.1
_REFRESH = 10
"""Looks at states between two looks at which threads there are, and at what others use."""

_POSITIONAL_READS = {"x86_64": (b"17", b"295", b"327"), "aarch64": (b"67", b"69", b"286")}.get(
    os.uname().machine, ()
)
"""Numbers of pread64, preadv and preadv2: what files are read with, and pipes are not."""

_ONE_OF_A_KIND = ("loader-deal", "loader-deliver", "loader-mix")
"""Threads of which a loader's own child has one each, whatever the knobs say."""
_STAGES = {f"loader-{name}": name for name in STAGES} | dict.fromkeys(
    (*_ONE_OF_A_KIND, "loader-fill"), "mix"
)
"""Beginning of a thread's name → stage that its time counts for."""


@frozen
class StageCost:
    """Seconds that one sample takes of one stage, all threads of the stage together.

    Attributes:
        cpu_s: processor seconds.
        queued_s: seconds in which threads were ready to run, with no processor free.
        blocked_s: seconds in which threads waited for anything else: other stages, a lock, a disk.
        threads: number of threads of the stage.
    """

    cpu_s: float
    queued_s: float
    blocked_s: float
    threads: int


@frozen
class Trace:
    """Resources that a sample took in one measurement.

    All figures are for one sample, except ``samples``, ``duration_s``, ``disk_bytes_per_s``,
    ``disk_busy_ratio`` and ``others_cpus``.

    Attributes:
        samples: number of samples that were delivered meanwhile.
        duration_s: seconds of wall time.
        stages: name of a stage → its seconds: read, decode (with all other stages that make
            pixels), mix, consumer, other.
        one_thread_s: processor seconds of the busiest of the threads of which there is always one.
        read_bytes: bytes asked of files; ``None`` where the kernel does not say.
        disk_bytes: part of ``read_bytes`` that came from a block device; a network's file system
            counts none.
        disk_busy_ratio: share of the time that some thread slept for a disk, 0 to 1.
        others_cpus: mean number of processors that other processes used; ``None``: not known.
    """

    samples: int
    duration_s: float
    stages: Mapping[str, StageCost]
    one_thread_s: float
    read_bytes: float | None = None
    disk_bytes: float | None = None
    disk_busy_ratio: float = 0.0
    others_cpus: float | None = None

    @property
    def cpu_s(self) -> float:
        """Processor seconds that one sample takes, summed over all stages, the consumer too."""
        return sum(stage.cpu_s for stage in self.stages.values())

    @property
    def disk_bytes_per_s(self) -> float | None:
        """Rate of the disk, in bytes/s, while threads waited for it; ``None``: none ever did."""
        if not self.waited_bytes or self.disk_busy_ratio <= 0:
            return None
        return self.waited_bytes * self.samples / (self.duration_s * self.disk_busy_ratio)

    @property
    def waited_bytes(self) -> float:
        """Bytes of a sample that threads waited for: the block device's, else all of files."""
        if self.disk_bytes:
            return self.disk_bytes
        return (self.read_bytes or 0.0) if self.disk_busy_ratio > 0 else 0.0


_Reading = tuple[dict[int, tuple[bool, ThreadVitals]], dict[int, tuple[int, int]]]
"""Counts of the kernel: by thread, and by process the bytes asked of files and of a disk.

Beside the counts of a thread: whether it is one of this process.
"""


class Recorder:
    """Records the process that makes it and all its children, in a ``with`` block.

    Memory and headroom are sampled in the whole block, and once more at its start and at its end,
    so there are figures however short it is. Memory that comes and goes between two samples is not
    seen. A trace is taken from ``begin`` to ``end``.

    Args:
        headroom: source of ``min_headroom_bytes``; ``None`` leaves it out.
        period_s: time between two samples.

    Attributes:
        min_headroom_bytes: least headroom at any sample; ``None``: not measured.
    """

    def __init__(
        self, headroom: HeadroomProbe | None = None, *, period_s: float = _PERIOD_S
    ) -> None:
        self._headroom = headroom
        self._period_s = period_s
        self._baseline_bytes = self._peak_bytes = 0
        self.min_headroom_bytes: int | None = None
        self._tracing = False
        self._tasks: list[Path] = []
        self._looks = self._asleep = 0
        self._others: list[float] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def __enter__(self) -> Recorder:
        self.sample()
        self._baseline_bytes = self._peak_bytes
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.sample()

    @property
    def peak_rss_bytes(self) -> int:
        """Most bytes held at any sample, less what was held at the start; never negative."""
        return max(0, self._peak_bytes - self._baseline_bytes)

    def sample(self) -> None:
        """Take one sample of memory and headroom now, from any thread."""
        held = tree_own_bytes(os.getpid(), shared_memory=True)
        free = None if self._headroom is None else headroom_or_none(self._headroom)
        with self._lock:
            self._peak_bytes = max(self._peak_bytes, held)
            known = [one for one in (self.min_headroom_bytes, free) if one is not None]
            self.min_headroom_bytes = min(known, default=None)

    def begin(self) -> None:
        """Take the first reading of a trace; from here on states are looked at."""
        self._processors = ProcessorProbe()
        self._began_s = time.perf_counter()
        self._before = self._read()
        self._tracing = True

    def end(self, samples: int) -> Trace:
        """Take the second reading; so many samples were delivered since ``begin``."""
        with self._lock:
            self._tracing = False
        now = self._read()
        duration_s = time.perf_counter() - self._began_s
        self._note_others()
        return Trace(
            samples=samples,
            duration_s=duration_s,
            disk_busy_ratio=self._asleep / self._looks if self._looks else 0.0,
            others_cpus=fmean(self._others) if self._others else None,
            **_costs(self._before, now, max(1, samples), duration_s),
        )

    def _note_others(self) -> None:
        used = self._processors.read()
        if used is not None and used.others is not None:
            self._others.append(used.others)

    def _read(self) -> _Reading:
        threads, io = {}, {}
        for pid in _pids():
            for tid, one in read_vitals(pid).threads.items():
                threads[tid] = pid == os.getpid(), one
            with contextlib.suppress(psutil.Error, OSError):
                counted = psutil.Process(pid).io_counters()
                io[pid] = counted.read_chars, counted.read_bytes
        return threads, io

    def _run(self) -> None:
        while not self._done.wait(self._period_s):
            self.sample()
            with self._lock:
                if self._tracing:
                    self._look()

    def _look(self) -> None:
        if self._looks % _REFRESH == 0:
            self._tasks = [task for pid in _pids() for task in _tasks(pid)]
            self._note_others()
        self._looks += 1
        self._asleep += any(map(_sleeps_for_disk, self._tasks))


def _costs(before: _Reading, now: _Reading, samples: int, duration_s: float) -> dict[str, Any]:
    """Fields of ``Trace`` that are the difference of two readings."""
    (threads_then, io_then), (threads, io) = before, now
    stages: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    one_thread_s = 0.0
    for tid, (own, used) in threads.items():
        _, then = threads_then.get(tid, (own, _NOTHING))
        ran_s, queued_s = used.cpu_s - then.cpu_s, used.delay_s - then.delay_s
        blocked_s = max(0.0, duration_s - ran_s - queued_s)
        kind = next((prefix for prefix in _STAGES if used.name.startswith(prefix)), "")
        stage = _STAGES.get(kind, "consumer" if own else "other")
        stages[stage].append((ran_s / samples, queued_s / samples, blocked_s / samples, 1))
        if kind in _ONE_OF_A_KIND or tid == os.getpid():
            one_thread_s = max(one_thread_s, ran_s / samples)
    bytes_of = [np.subtract(counted, io_then.get(pid, (0, 0))) for pid, counted in io.items()]
    asked, come = (np.sum(bytes_of, axis=0) / samples).tolist() if io else (None, None)
    every = sorted(stages.items())
    return {
        "stages": {name: StageCost(*map(sum, zip(*of, strict=True))) for name, of in every},
        "one_thread_s": one_thread_s,
        "read_bytes": asked,
        "disk_bytes": come,
    }


_NOTHING = ThreadVitals("", 0.0)


def _pids() -> list[int]:
    return [os.getpid(), *descendants(os.getpid())]


def _tasks(pid: int) -> Iterable[Path]:
    """Folders of a process's threads; none where it has ended."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _sleeps_for_disk(task: Path) -> bool:
    """True if a thread sleeps in the kernel for a disk."""
    try:
        stat = (task / "stat").read_bytes()
    except OSError:
        return False
    state = stat[stat.rindex(b")") + 2 : stat.rindex(b")") + 3]
    if state != b"S" or not _POSITIONAL_READS:
        return state == b"D"
    try:
        call = (task / "syscall").read_bytes().partition(b" ")[0]
    except OSError:
        return False
    return call in _POSITIONAL_READS
