"""Measures one loader in this process: rate, latency, memory, mixture.

Theory of operation. The consumer here is this thread. Latency of a batch is the time from asking
to having it; ``wait_ratio`` is the sum of those over the measured time, in which a trainer's step
is simulated by sleeping. Warm-up batches are asked for and not counted; measured time runs from
the last of them to the last measured batch and its step. Memory and headroom are sampled by a
thread of their own, from before the loader is made until it is closed.

Not here: watching a measurement from outside (``trial``), showing it (``cli.tune``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from autoloader.errors import SpecError, UsageError
from autoloader.host.headroom import HeadroomProbe
from autoloader.host.processes import PeakSampler
from autoloader.tune.bound.trace import Trace, TraceRecorder
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
"""What a figure needs before it means anything (field record, B)."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Fields of ``measure --json``; design §3.

    Attributes:
        samples_per_s: delivered samples over measured time.
        batches_per_s: delivered batches over measured time.
        batch_latency_s: seconds from asking for a batch to having it: p50, p90, p99.
        time_to_first_batch_s: seconds from ``AutoLoader(...)`` to the first batch.
        peak_rss_bytes: sampled peak of what the loader adds, and its decoded frames at the end.
        min_headroom_bytes: lowest sampled headroom; ``None`` where it cannot be read.
        wait_ratio: time waited for batches over measured time, 0 to 1.
        mixture: per dataset the weight asked for and the share of measured samples, both of 1.
        knobs: the values in force at the end.
        samples: number of samples that were measured.
        datasets: datasets in the mixture.
        decodes_per_sample: frames decoded for a sample since the loader began; ``None`` where
            TensorFlow decodes.
        distinct_episodes_per_batch: mean number of different episodes in a measured batch;
            ``None`` where batches do not say (``metadata``).
        batch_call_s: mean seconds of the spec's ``batch.call`` for a batch.
        cache: decoded frames held at the end, and how many were shown from there
            (``telemetry.CacheStatistics``).
        trace: what was used for each sample, stage by stage (``tune.bound.trace.Trace``).
    """

    samples_per_s: float
    batches_per_s: float
    batch_latency_s: Mapping[str, float]
    time_to_first_batch_s: float
    peak_rss_bytes: int
    min_headroom_bytes: int | None
    wait_ratio: float
    mixture: Mapping[str, Mapping[str, float]]
    knobs: Mapping[str, Any]
    samples: int
    datasets: int
    decodes_per_sample: float | None = None
    distinct_episodes_per_batch: float | None = None
    cache: Mapping[str, Any] | None = None
    batch_call_s: float | None = None
    trace: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return asdict(self)


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
) -> Measurement:
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

    Raises:
        AutoloaderError: whatever the loader raises; ``UsageError`` for impossible counts.
    """
    if warmup < 0 or batches < 1 or step_time_s < 0:
        raise UsageError(
            f"warmup={warmup}, batches={batches}, step_time={step_time_s} s cannot be measured",
            remedy="warmup is 0 or more, batches at least 1, step time 0 or more",
        )
    with PeakSampler(HeadroomProbe()) as memory:
        began_s = now_s()
        loader = open_loader()
        try:
            consumer = _Consumer(loader, now_s, sleep, step_time_s)
            first_s = consumer.first() - began_s
            consumer.warm_up(warmup - 1)
            if settle:
                consumer.settle()
            recorder, before = TraceRecorder(), loader.statistics().as_dict()["datasets"]
            try:
                recorder.begin()
                consumer.measure(batches, progress)
                trace = recorder.end(consumer.samples)
            finally:
                recorder.stop()
            return _summary(consumer, loader, first_s, memory, trace, before)
        finally:
            loader.close()


class _Consumer:
    """The consumer: asks for batches, steps, and keeps the record."""

    def __init__(
        self,
        loader: AutoLoader,
        now_s: Callable[[], float],
        sleep: Callable[[float], None],
        step_time_s: float,
    ) -> None:
        self._batches = _without_end(loader)
        self._names = len(loader.dataset_names)
        self._now_s = now_s
        self._sleep = sleep
        self._step_time_s = step_time_s
        self.latencies_s: list[float] = []
        self.samples = 0
        self.episodes = 0
        self.with_episodes = 0
        self.per_dataset = np.zeros(self._names, np.int64)
        self.measured_s = 0.0

    def first(self) -> float:
        """Take the first batch; the moment it was there."""
        next(self._batches)
        arrived_s = self._now_s()
        self._step()
        return arrived_s

    def warm_up(self, count: int) -> None:
        for _ in range(count):
            next(self._batches)
            self._step()

    def settle(self) -> None:
        """Take batches until two windows in a row pass equally fast, or patience ends."""
        before_s = self._window_s()
        for _ in range(MOST_WINDOWS - 1):
            took_s = self._window_s()
            if abs(took_s - before_s) <= SETTLED_RATIO * max(took_s, before_s):
                return
            before_s = took_s

    def _window_s(self) -> float:
        began_s = self._now_s()
        self.warm_up(WINDOW_BATCHES)
        return self._now_s() - began_s

    def measure(self, count: int, progress: Callable[[TrialProgress], None] | None) -> None:
        began_s = self._now_s()
        cpu_began_s = _cpu_s()
        for number in range(1, count + 1):
            asked_s = self._now_s()
            batch = next(self._batches)
            self.latencies_s.append(self._now_s() - asked_s)
            self._count(batch)
            del batch  # its slot goes back to the ring before the next is asked for
            self._step()
            self.measured_s = self._now_s() - began_s
            if progress is not None and (number % REPORT_BATCHES == 0 or number == count):
                cost_s = (_cpu_s() - cpu_began_s) / self.samples if self.samples else None
                progress(TrialProgress(number, self.samples / max(self.measured_s, 1e-9), cost_s))

    def _count(self, batch: Mapping[str, Any]) -> None:
        self.samples += int(np.shape(batch["action"])[0])
        if "dataset_index" in batch:
            index = np.asarray(batch["dataset_index"])
            self.per_dataset += np.bincount(index, minlength=self._names)
        if "provenance" in batch:
            dataset, _, shard, record, _ = np.asarray(batch["provenance"]).T.tolist()
            self.episodes += len(set(zip(dataset, shard, record, strict=True)))
            self.with_episodes += 1

    def _step(self) -> None:
        if self._step_time_s > 0:
            self._sleep(self._step_time_s)


def _without_end(loader: AutoLoader) -> Iterator[Mapping[str, Any]]:
    """Batches of one epoch after the other; an epoch without one is an error, not a hang."""
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
            del batch
        if empty:
            raise SpecError(
                "batch.size: an epoch of this mixture has fewer samples than a batch takes, and "
                "batch.drop_last leaves them out",
                remedy="lower batch.size, set batch.drop_last: false, or make mixing.epoch longer",
            )


def _summary(
    consumer: _Consumer,
    loader: AutoLoader,
    first_s: float,
    memory: PeakSampler,
    trace: Trace,
    before: Mapping[str, Mapping[str, Any]],
) -> Measurement:
    memory.sample()
    statistics = loader.statistics().as_dict()
    elapsed_s = max(consumer.measured_s, 1e-9)
    p50, p90, p99 = np.quantile(consumer.latencies_s, (0.5, 0.9, 0.99))
    names, cache = list(loader.dataset_names), statistics.get("cache")
    shared = max(0, cache["held_bytes"] - cache["private_bytes"]) if cache else 0
    return Measurement(
        samples_per_s=consumer.samples / elapsed_s,
        batches_per_s=len(consumer.latencies_s) / elapsed_s,
        batch_latency_s={"p50": float(p50), "p90": float(p90), "p99": float(p99)},
        time_to_first_batch_s=first_s,
        peak_rss_bytes=memory.peak_rss_bytes + shared,
        min_headroom_bytes=memory.min_headroom_bytes,
        wait_ratio=min(1.0, sum(consumer.latencies_s) / elapsed_s),
        mixture=_mixture(consumer, loader, names),
        knobs=loader.knobs.flat(),
        samples=consumer.samples,
        datasets=len(names),
        decodes_per_sample=statistics.get("decodes_per_sample"),
        distinct_episodes_per_batch=(
            consumer.episodes / consumer.with_episodes if consumer.with_episodes else None
        ),
        cache=cache,
        batch_call_s=statistics.get("batch_call_s"),
        trace=trace.with_datasets(_decoded(before, statistics["datasets"])).as_dict(),
    )


def _decoded(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[float, int]]:
    """Thread seconds and samples of decoding, by dataset, between two statistics."""
    return {
        name: tuple(own.get(key, 0) - before[name].get(key, 0) for key in ("decode_s", "decoded"))
        for name, own in after.items()
    }


def _mixture(
    consumer: _Consumer, loader: AutoLoader, names: list[str]
) -> dict[str, dict[str, float]]:
    """Weight and share per dataset; shares from the loader where batches do not say (metadata)."""
    told = loader.statistics().as_dict()["datasets"]
    weights = {name: float(told[name]["weight"]) for name in names}
    whole = sum(weights.values()) or 1.0
    known = int(consumer.per_dataset.sum())
    return {
        name: {
            "weight": weights[name] / whole,
            "share": float(consumer.per_dataset[place]) / known
            if known
            else float(told[name]["share"]),
        }
        for place, name in enumerate(names)
    }


def _cpu_s() -> float:
    """Processor seconds of this process and its living children."""
    own_s = time.process_time()
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        own_s += times.user + times.system
    return own_s
