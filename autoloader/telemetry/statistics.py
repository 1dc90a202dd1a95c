"""Statistics of a loader: immutable, each with its unit and what to do about its value.

``Statistics`` is the one model of a figure on its way. The running pipeline counts. About once a
second the loader's child adds readings of the machine and of the controller. ``autoloader top``
shows these moments, the record of a run keeps them, metrics export them. ``AutoLoader.statistics``
asks for one of now, and adds the counts of the trainer's process.

Units are in the names: ``_s`` seconds, ``_bytes``, ``_per_s``, ``_ratio`` of 1. ``None`` means not
measured, and never stands for 0. Totals of the child count since ``started_at_s``: they begin
again with a child that was started again, as a Prometheus counter does.

A field says by ``figure`` what the rest of the package does with it: how the counts of several
builders become one, whether it is a metric, and whether tables of datasets have a column for it.
Such a field and the line that counts it are all that a new figure needs.

They cross processes and versions as JSON: a reader skips fields that it does not know, and takes
the default of a field that is missing.

Not here: collecting them (``pipeline.pipeline``, ``process.observer``, ``process.delivery``),
except ``ConsumerMeter``, which times the batches that training takes; files of them
(``telemetry.run_record``).
"""

from __future__ import annotations

import functools
import json
import operator
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from autoloader.errors import UsageError
from autoloader.host.frozen import frozen
from autoloader.host.units import format_bytes

SCHEMA_VERSION = 2
_WINDOW_BATCHES = 256
"""Batches over which waits and rates are measured."""


@frozen
class Figure:
    """Uses of one field of statistics.

    Attributes:
        metric: whether it is a metric (``telemetry.metrics``).
        name: name of the metric, without prefixes; "" makes it from the field's.
        unit: unit of the value; "" makes it from the ending of the name ("times" if it has none).
        counter: whether the value only grows; it begins again when the child is started again.
        worst: of several ranks, the one to look at: the "highest" or the "lowest"; "": the metric
            says nothing of a rank.
        merge: makes one value of those of two builders; ``None``: builders do not count it.
        column: title of a counter's own column in tables of datasets; "": there is none.
    """

    metric: bool = True
    name: str = ""
    unit: str = ""
    counter: bool = False
    worst: Literal["", "highest", "lowest"] = ""
    merge: Callable[[Any, Any], Any] | None = None
    column: str = ""


def figure(default: Any = None, **uses: Any) -> Any:
    """A field with a default and the uses of ``Figure``."""
    return field(default=default, metadata={"figure": Figure(**uses)})


def _counted(default: Any = 0, merge: Callable[[Any, Any], Any] = operator.add) -> Any:
    """A field that builders count, and that is no metric."""
    return figure(default, metric=False, merge=merge)


Counts: TypeAlias = dict[str, Any]
"""Counts of a builder, as plain values: fields of ``Statistics`` that have a ``merge``, by name."""


def _joined(one: Counts, other: Counts, merge: Callable[[str, Any, Any], Any]) -> Counts:
    """Values of both; ``merge`` makes one value of two by the same name."""
    both = {name: merge(name, one[name], other[name]) for name in one.keys() & other.keys()}
    return {**one, **other, **both}


def _summed(one: Counts, other: Counts) -> Counts:
    """Sums (seconds, samples) of each stage."""
    return _joined(one, other, lambda _, a, b: (a[0] + b[0], a[1] + b[1]))


def merged(one: Counts, other: Counts, owner: type | None = None) -> Counts:
    """Counts of two builders together; ``owner``: class of the fields, default ``Statistics``."""
    uses = figures(owner or Statistics)
    return _joined(one, other, lambda name, a, b: cast("Any", uses[name]).merge(a, b))


def _each_merged(one: Counts, other: Counts) -> Counts:
    """Counts of each dataset."""
    return _joined(one, other, lambda _, a, b: merged(a, b, DatasetStatistics))


def over(counts: Counts) -> Counts:
    """Counts of a builder that has ended: no sample waits in it any more."""
    none = {"queue": 0, "queue_bytes": 0, "awaits": ""}
    datasets = counts.get("datasets", {})
    return counts | {"datasets": {name: own | none for name, own in datasets.items()}}


@functools.cache
def figures(owner: type) -> dict[str, Figure]:
    """Declared uses of the fields of a class of statistics, by name."""
    fields = owner.__dataclass_fields__.items()  # type: ignore[attr-defined]
    return {name: one.metadata["figure"] for name, one in fields if "figure" in one.metadata}


@frozen
class DatasetStatistics:
    """One dataset.

    Attributes:
        weight: share that a dataset should have, of 1. The spec sets it.
        share: share of a dataset in the samples so far, of 1; ``None`` before any. Far from
            ``dataset_weight`` for long: its stream is too slow, see ``dataset_queue``.
        samples: number of its samples so far: delivered by the loader, or mixed in its child.
        queue: samples of a dataset that wait to be decoded. At 0 for long its stream is too slow:
            raise ``cycle_length`` or ``stream_prefetch`` for it.
        stalls: times that the mixture waited 5 s for a dataset. Any: look at its storage.
        quarantined: bad records of a dataset that were left out. ``loader.quarantined()`` and
            ``autoloader report`` name them.
        generations: times its stream was opened since the pipeline began: one, and one more with
            each change of a stream knob.
        interruptions: times that a dataset's remote files broke off and were opened again. Many:
            look at the network.
        decode_s: seconds of all work on its samples' pixels, since the pipeline began.
        decoded: number of these samples. A dataset that is dear among others: store smaller frames.
        non_finite: number of its samples whose action or state held NaN or an infinite value, since
            the loader was made; ``None``: the loader's child does not know. Any: look at its
            records, and set ``errors.non_finite``.
        queue_bytes: encoded bytes of the samples that wait.
        frames: frames decoded for the decoded samples; a frame that several samples share counts
            once.
        read_s: seconds that its reader waited for the source.
        episodes: number of episodes read.
        awaits: wait of its reader, where no sample is there: "opening shard 3/1024".
    """

    weight: float = figure(0.0, unit="of 1")
    share: float | None = figure(unit="of 1")
    samples: int = _counted()
    queue: int = figure(0, unit="samples", merge=operator.add)
    stalls: int = figure(0, counter=True, merge=operator.add, column="stalls")
    quarantined: int = figure(0, unit="records", counter=True, column="bad records")
    generations: int = _counted(merge=max)
    interruptions: int = figure(0, counter=True, merge=operator.add)
    decode_s: float = _counted(0.0)
    decoded: int = _counted()
    non_finite: int | None = None
    queue_bytes: int = _counted()
    frames: int = _counted()
    read_s: float = _counted(0.0)
    episodes: int = _counted()
    awaits: str = _counted("", merge=lambda one, other: one or other)


FAULTS = {name: one for name, one in figures(DatasetStatistics).items() if one.counter}
"""Counters of a dataset: where one is above 0, something is wrong with the dataset."""


@frozen
class RingStatistics:
    """The batch ring.

    Attributes:
        slots: batches that the ring can hold. The controller moves it; few on purpose where memory
            is short.
        filled: batches that are ready. At 0 for long, training waits.
        allocated_bytes: memory that the ring holds. It is ``ring_slots`` × a batch, and what
            training keeps of batches.
        copies: batches handed out as copies because the consumer keeps too many; ``None``: the
            loader's child does not know.
        out: slots that are not free.
    """

    slots: int = figure(0, unit="batches")
    filled: int = figure(0, unit="batches")
    allocated_bytes: int = figure(0, name="ring_bytes")
    copies: int | None = None
    out: int = 0

    @property
    def occupancy_ratio(self) -> float:
        """Ready batches / slots. Near 1 training is the bottleneck, near 0 the loader."""
        return self.filled / self.slots if self.slots else 0.0


@frozen
class CacheStatistics:
    """Frame cache: decoded frames in memory (indexed reader), of all ranks that share a child.

    Attributes:
        budget_bytes: bytes that the cache may hold. See the knob ``cache_bytes``.
        held_bytes: bytes of decoded frames that are held, or are about to be. Surplus: they go
            first when memory is short.
        slots: number of frames that it holds.
        hits: frames that came from the cache. See ``cache_hit_ratio``.
        misses: frames that were decoded instead. See ``cache_hit_ratio``.
        threshold: highest cost of a frame that it holds: positions until the next use × bytes ÷
            seconds that a hit saves; ``None`` while it holds every frame with a next use.
        from_disk: number of frames of this loader that were read from a disk, already decoded (the
            profile's ``cache``); they are among the misses.
        allocated_bytes: bytes that the kernel holds for it, without slots that are still empty.
    """

    budget_bytes: int = figure(0)
    held_bytes: int = figure(0)
    slots: int = 0
    hits: int = figure(0, unit="frames", counter=True)
    misses: int = figure(0, unit="frames", counter=True)
    threshold: float | None = None
    from_disk: int = _counted()
    allocated_bytes: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Frames from the cache, of all frames; ``None`` before any.

        Low with memory to spare: raise ``cache_bytes``, or leave it to the controller (``auto``).
        """
        shown = self.hits + self.misses
        return self.hits / shown if shown else None


@frozen
class HelperStatistics:
    """Builders on other hosts (``helpers``), since this loader last began in its child.

    Attributes:
        present: helpers that work now; those that are on their way do not count.
        possible: number of helpers for which the cluster has processors; 0: not known.
        batches: number of batches that helpers have filled.
        compared, different: batches that were filled here as well, and that differed. Any: a host
            reads other data or runs other code; the log names it.
        late: batches that were filled here because an answer did not come in time. Many: the link
            or a host is overloaded; use fewer ``helper_slots``.
        again: these, and those whose helper was lost.
    """

    present: int = 0
    possible: int = 0
    batches: int = 0
    compared: int = 0
    different: int = 0
    late: int = 0
    again: int = 0


@frozen
class ControllerStatistics:
    """Actions of the controller since this loader last began in its child.

    Attributes:
        decisions: decisions of the controller, about one a second. Where it stands still the
            controller does: look for its fault in the log.
        changes: changes of knobs by the controller's policy. Many without end: ``autoloader
            report`` shows what it goes back and forth between.
        taken_back: changes that did not pay and were taken back. A few are how it learns.
        refused: changes for which there was no room any more. Many: memory is what limits; see
            ``headroom_bytes``.
        drops: rounds in which the reflex dropped buffers. Any: the RAM floor was crossed, by this
            loader or by a neighbour.
        shrinks: times that knobs were made smaller because memory was short, by the reflex or the
            policy; each is told in the log. Many: lower the floor, or what else takes memory.
    """

    decisions: int = figure(0, counter=True)
    changes: int = figure(0, counter=True)
    taken_back: int = figure(0, counter=True)
    refused: int = figure(0, counter=True)
    drops: int = figure(0, counter=True)
    shrinks: int = 0


def _figure(value: float | None, form: str) -> str:
    return "not measured" if value is None else form.format(value)


def _bytes(count: int | None) -> str:
    return "not measured" if count is None else format_bytes(count)


@frozen
class StageMoment:
    """One stage, or one dataset's part of it.

    Attributes:
        stage: name of the stage, such as "decode".
        dataset: name of the dataset whose part it is; "": part of all.
        workers: number of threads or processes side by side.
        service_s: work of one worker of a stage for one sample. Smaller images make decoding
            cheaper, nearer data reading.
        busy_ratio: share of its workers' time that a stage works. Near 1 it needs more workers, and
            processors for them.
        bound_per_s: samples of the whole mixture that a stage could do in a second. The least is
            what limits the loader.
        share: share of the mixture's samples that pass through here.
    """

    stage: str
    dataset: str = ""
    workers: int = 0
    service_s: float | None = figure()
    busy_ratio: float | None = figure()
    bound_per_s: float | None = figure()
    share: float = 1.0

    @property
    def name(self) -> str:
        """Stage and dataset, as in ``limited_by``."""
        return f"{self.stage}:{self.dataset}" if self.dataset else self.stage


@frozen
class Move:
    """One time that knobs moved, or were to move.

    Attributes:
        at_s: Unix time at which they moved.
        by: "policy", "reflex" (memory was short) or "person" (``retune``).
        why: reason in a few words.
        changes: flat knob → [before, after]; empty where nothing moved.
        verdict: outcome of a change of the policy: "paid", "nothing", "lost" (the last two
            were taken back), "refused"; "": not known yet, or not asked.
    """

    at_s: float
    by: str
    why: str
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Statistics:
    """A moment of one loader (train, validation) of one rank.

    The rank's trainer counts ``samples``, ``batches``, rates, waits and ``loader_bytes`` itself,
    for ``AutoLoader.statistics``. In a record and in ``autoloader top`` they are the child's.

    Attributes:
        run: the trainer's process in logs (``telemetry.lines.run_name``).
        pipeline: number of the loader among those of the trainer.
        split: name of the split that it reads.
        at_s: Unix time of the readings; 0 before the first.
        started_at_s: since when its totals count.
        phase: "opening" (files, indexes), "filling" (no batch taken yet), "running", "parked"
            (another loader is in use, or the trainer is silent), "ended".
        doing: present work, if it takes long: "waiting for bridge (9/29 are ready)".
        rank, world_size: rank of the trainer, and number of trainers.
        node: the same for all ranks that share this machine and job; the run's name where it is
            alone.
        script: name of the trainer's script.
        trainer_pid: process id of the trainer.
        worker_pid: id of the process that runs the pipeline; 0: there is none.
        processes: ids of the pipeline's further processes.
        samples: number of samples delivered since the loader was made; of the child, mixed so far.
        batches: batches that training has taken. Where it stands still and ``waiting_s`` grows, the
            loader hangs: look at its log.
        samples_per_s: samples that training takes in a second, of this rank, over the last ten
            seconds or so (``AutoLoader.statistics``: over the last 256 batches). Compare it with
            ``bound_per_s``, and with a run with ``replay_one_batch``.
        wait_ratio: share of its time that training waits for data, over the last seconds. Above
            0.01 training waits: ``limited_by`` says for what.
        batch_latency_s: p50, p90, p99 of the time from asking for a batch to having it; ``None``:
            only the trainer's process knows.
        waiting_s: for how long training has waited for the batch that it wants now; 0: it does not
            wait. Above 60: look at ``dataset_stalls`` and at the storage.
        step_s: training's time from one batch to the next. Of several ranks, the slowest holds up
            all.
        silent_s: seconds since training last took or wanted a batch; many while it validates or
            saves.
        bound_per_s: samples a second that the loader's slowest stage could give, or that training
            took if that is more. Near ``samples_per_s`` the loader is the bottleneck; the stage
            with the least ``stage_bound_per_s`` is the one to widen.
        limited_by: what a faster run would need first: training, gpu, memory, or a stage; "": not
            known. Training, gpu: the loader is fast enough; memory: see ``headroom_bytes``; a
            stage: give it processors or a faster disk.
        stages: stages of the pipeline.
        headroom_bytes: memory that the machine, or the cgroup that binds, can still give. Below
            ``ram_floor_bytes`` the loader shrinks; where that lasts, find who takes the memory.
        floor_bytes: memory that must stay free (``ram_floor``). Alert on headroom below it for more
            than a minute.
        margin_bytes: bytes above the floor below which no new reads are admitted.
        loader_bytes: memory that the loader's processes hold, without the ring; ranks that share a
            child each say what it holds for all. Where it grows without end while knobs stand
            still, report it.
        pressure_percent: PSI ``memory some avg10``: share of time that processes stood still for
            memory. Above 10 the machine is short of memory, whatever is free.
        gpu_busy_ratio: load of the trainer's GPU. Low with a high ``wait_ratio``: the loader costs
            you GPU time; low without: the step does.
        idle_cpus: processors that nobody used. Near 0 with a high ``wait_ratio``: more processors,
            or less to decode, is what helps.
        ring: state of the batch ring.
        cache: decoded frames held in memory.
        helpers: builders on other hosts; ``None`` where there are none (``helper_slots`` is 0, and
            none has helped).
        datasets: statistics of each dataset, by name.
        knobs: a knob's value in force. See docs/reference/knobs.md.
        state: state of the controller; ``None`` without one.
        why: reason of the controller's last decision.
        controller: actions of the controller; ``None`` without one.
        moves: the last times that knobs moved, the oldest first.
        most_headroom_bytes: most that ``headroom_bytes`` was in the last minute.
        restarts: times the loader's child was started again. Any: its log and ``autoloader doctor``
            say why (mostly the kernel, for memory).
        repeats: batches that were handed out again (``replay_one_batch``).
        starts: times the pipeline began: one, and one more each time it was sent elsewhere
            (``load_state_dict``, a validation that begins anew); parking adds none.
        run_bytes: bytes of the memory that the last planned run was read into; 0: there is none.
        read_bytes: bytes read for planned runs.
        reading_s: seconds that reading these bytes took.
        work: stage that makes pixels → (seconds of its threads, samples done), of samples whose
            frames were cached too.
        call_s: seconds that the spec's ``batch.call`` took so far.
        calls: number of batches that it was called for.
    """

    run: str = ""
    pipeline: int = 0
    split: str = ""
    at_s: float = 0.0
    started_at_s: float = 0.0
    phase: str = "opening"
    doing: str = ""
    rank: int = 0
    world_size: int = 1
    node: str = ""
    script: str = ""
    trainer_pid: int = 0
    worker_pid: int = 0
    processes: tuple[int, ...] = ()
    samples: int = 0
    wait_ratio: float | None = figure(worst="highest")
    samples_per_s: float | None = figure(worst="lowest")
    bound_per_s: float | None = figure()
    limited_by: str = figure("", unit="1")
    batches: int = figure(0, unit="batches", counter=True)
    batch_latency_s: Mapping[str, float] | None = None
    waiting_s: float = figure(0.0)
    step_s: float | None = figure()
    silent_s: float | None = None
    headroom_bytes: int | None = figure(worst="lowest")
    floor_bytes: int = figure(0, name="ram_floor_bytes")
    margin_bytes: int = 0
    loader_bytes: int | None = figure()
    pressure_percent: float | None = figure()
    gpu_busy_ratio: float | None = figure()
    idle_cpus: float | None = figure(unit="processors")
    ring: RingStatistics = field(default_factory=RingStatistics)
    cache: CacheStatistics = field(
        default_factory=CacheStatistics,
        metadata={"figure": Figure(merge=lambda one, other: merged(one, other, CacheStatistics))},
    )
    helpers: HelperStatistics | None = None
    restarts: int = figure(0, counter=True)
    controller: ControllerStatistics | None = None
    stages: tuple[StageMoment, ...] = ()
    datasets: Mapping[str, DatasetStatistics] = field(
        default_factory=dict, metadata={"figure": Figure(merge=_each_merged)}
    )
    knobs: Mapping[str, Any] = field(
        default_factory=dict, metadata={"figure": Figure(unit="as the knob's")}
    )
    state: str | None = None
    why: str = ""
    moves: tuple[Move, ...] = ()
    most_headroom_bytes: int | None = None
    repeats: int = 0
    starts: int = 0
    run_bytes: int = _counted(merge=max)
    read_bytes: int = _counted()
    reading_s: float = _counted(0.0)
    work: Mapping[str, tuple[float, int]] = field(
        default_factory=dict, metadata={"figure": Figure(metric=False, merge=_summed)}
    )
    call_s: float = 0.0
    calls: int = 0

    def __repr__(self) -> str:
        """State and rate first, in a few lines; ``as_dict`` has every figure."""
        latency = self.batch_latency_s or {}
        rows = [
            ("state", self.state or "no controller"),
            ("rate", _figure(self.samples_per_s, "{:.0f} samples/s")),
            ("training waits", _figure(self.wait_ratio, "{:.1%} of its time")),
            ("delivered", f"{self.batches} batches, {self.samples} samples"),
            ("wait for a batch", _figure(latency.get("p50"), "{:.3f} s (median)")),
            ("memory held", _bytes(self.loader_bytes)),
            ("memory free", _bytes(self.headroom_bytes)),
            ("frame cache", _figure(self.cache.hit_ratio, "{:.0%} of frames")),
            ("bad records", str(sum(one.quarantined for one in self.datasets.values()))),
            ("restarts", str(self.restarts)),
        ]
        return "\n".join(["Statistics", *(f"  {name:<18}{value}" for name, value in rows)])

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the loader's processes, without the trainer's."""
        own = () if self.worker_pid in (0, self.trainer_pid) else (self.worker_pid,)
        return (*own, *self.processes)

    @property
    def decodes_per_sample(self) -> float | None:
        """Mean number of frames decoded for a sample, all cameras; ``None`` before any.

        ``mixing.chain`` and ``cache_bytes`` lower it.
        """
        _, decoded = self.work.get("decode", (0.0, 0))
        return sum(own.frames for own in self.datasets.values()) / decoded if decoded else None

    @property
    def batch_call_s(self) -> float | None:
        """Mean seconds of the spec's ``batch.call`` for a batch; ``None`` without one.

        The calls pass one after the other. Where they come near the time of a training step, make
        the function cheaper.
        """
        return self.call_s / self.calls if self.calls else None

    @property
    def bound_ratio(self) -> float | None:
        """Samples/s of the training loop, as a share of what the loader could do."""
        rate, bound = self.samples_per_s, self.bound_per_s
        return rate / bound if rate is not None and bound else None

    @property
    def held_bytes(self) -> int | None:
        """Bytes that the loader holds, with its ring."""
        return None if self.loader_bytes is None else self.loader_bytes + self.ring.allocated_bytes

    @property
    def above_floor_bytes(self) -> int | None:
        """Headroom above the RAM floor; negative below it."""
        return None if self.headroom_bytes is None else self.headroom_bytes - self.floor_bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; what is not finite is ``None``."""
        found: dict[str, Any] = json.loads(self.to_json())
        found |= {name: getattr(self, name) for name in ("decodes_per_sample", "batch_call_s")}
        found["worker_pids"] = list(self.worker_pids)
        found["ring"]["occupancy_ratio"] = self.ring.occupancy_ratio
        found["cache"]["hit_ratio"] = self.cache.hit_ratio
        return found

    def to_json(self) -> str:
        """The snapshot as one line of JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return encoded({"schema_version": SCHEMA_VERSION, **fields})

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Statistics:
        """From ``as_dict``, of this version or another one.

        Raises:
            UsageError: the mapping is no moment of a run.
        """
        return _read("validate_python", plain)

    @classmethod
    def from_json(cls, text: str | bytes) -> Statistics:
        """The snapshot that ``to_json`` wrote; raises as ``from_dict`` does."""
        return _read("validate_json", text)


def _read(by: str, found: Any) -> Statistics:
    """A snapshot of values or text, by a method of an adapter; ``UsageError`` where it is none."""
    from pydantic import ValidationError

    from autoloader.spec.block import adapter  # of who reads statistics alone

    remedy = "pass what Statistics.as_dict() or to_json() gave"
    try:
        moment: Statistics = getattr(adapter(Statistics), by)(found)
    except ValidationError as error:
        first = error.errors()[0]
        why = ": ".join(map(str, (*first["loc"], first["msg"])))[:300]
        raise UsageError(f"the line holds no statistics of a run: {why}", remedy=remedy) from error
    if not moment.run:
        raise UsageError("the line has no run, the name of its run", remedy=remedy)
    return moment


def encoded(values: Mapping[str, Any]) -> str:
    """``values`` as one line of JSON; a number that is not finite is ``null``."""
    from pydantic_core import to_json

    return to_json(values, inf_nan_mode="null", fallback=dict).decode()


class ConsumerMeter:
    """Figures of the consumer over its last batches; fed by the loader around every ``next``.

    Attributes:
        batches: number of batches since it was made.
        samples: number of samples since it was made.
    """

    def __init__(self) -> None:
        self._window: deque[tuple[float, float | None, int]] = deque(maxlen=_WINDOW_BATCHES)
        self._last_s: float | None = None
        self.batches = 0
        self.samples = 0

    def note(self, asked_s: float, got_s: float, rows: int) -> None:
        """Count one batch.

        Args:
            asked_s: time of the request for it, on a monotonic clock.
            got_s: time of its arrival, on the same clock.
            rows: number of its samples.
        """
        self.batches += 1
        self.samples += rows
        step_s = None if self._last_s is None else got_s - self._last_s
        self._window.append((got_s - asked_s, step_s, rows))
        self._last_s = got_s

    def pause(self) -> None:
        """Leave out the next step: the consumer does something else (validation)."""
        self._last_s = None

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second over the window; ``None`` before the second batch."""
        steps = self._steps()
        seconds = sum(step_s for _, step_s, _ in steps)
        return sum(rows for *_, rows in steps) / seconds if seconds > 0 else None

    @property
    def wait_ratio(self) -> float | None:
        """Share of the whole time spent waiting, over the window."""
        steps = self._steps()
        seconds = sum(step_s for _, step_s, _ in steps)
        return min(1.0, sum(wait_s for wait_s, *_ in steps) / seconds) if seconds > 0 else None

    def _steps(self) -> list[tuple[float, float, int]]:
        """Wait, time since the batch before, and rows of each batch behind another one."""
        seen = tuple(self._window)  # at once: another thread may note a batch
        return [(wait_s, step_s, rows) for wait_s, step_s, rows in seen if step_s is not None]

    def latency_s(self) -> dict[str, float] | None:
        """p50, p90 and p99 of the waits in the window."""
        if not self._window:
            return None
        import numpy as np  # readers of statistics go without

        waits = [wait_s for wait_s, *_ in tuple(self._window)]
        p50, p90, p99 = np.percentile(waits, [50, 90, 99]).tolist()
        return {"p50": p50, "p90": p90, "p99": p99}
