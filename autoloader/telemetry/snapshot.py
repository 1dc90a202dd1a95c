"""One moment of a run: what a loader does, how fast, why, and what limits it.

The process that runs a pipeline (the loader's child) takes a snapshot about once a second.
``autoloader top`` shows it, the record of a run keeps it, metrics export it: so a name means the
same everywhere.

Units are in the names: ``_s`` seconds, ``_bytes``, ``_per_s``, ``_ratio`` of 1. What is not
measured is ``None``, never 0. Totals count since ``started_at_s``: they begin again with a child
that was started again, as a Prometheus counter does.

A snapshot crosses processes and versions as JSON: a reader skips what it does not know, and takes
the default of what is not there.

Not here: taking it (``process.control.moments``), where it lies for others (``telemetry.runtime``).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from autoloader.errors import UsageError
from autoloader.telemetry.statistics import (
    CacheStatistics,
    ControllerStatistics,
    DatasetStatistics,
    RingStatistics,
)

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ConsumerMoment:
    """The training loop of one rank.

    Attributes:
        batches: taken in all.
        samples_per_s: that it takes, over the last ten seconds or so.
        wait_ratio: share of its time spent waiting for batches, over the same time; above 0.01
            training waits for data.
        waiting_s: for how long it has waited for the batch that it wants now; 0: it does not wait.
        step_s: its time from one batch to the next.
        silent_s: since it last took or wanted a batch; long where it validates or saves.
    """

    batches: int = 0
    samples_per_s: float | None = None
    wait_ratio: float | None = None
    waiting_s: float = 0.0
    step_s: float | None = None
    silent_s: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryMoment:
    """Memory of the machine, and what of it is the loader's.

    Attributes:
        headroom_bytes: what the machine can still give.
        floor_bytes: what must stay free (``ram_floor``).
        margin_bytes: below floor + margin no new reads are admitted.
        loader_bytes: what the process holds, without the ring; pipelines of one process share it.
        pressure_percent: PSI ``memory some avg10``.
    """

    headroom_bytes: int | None = None
    floor_bytes: int = 0
    margin_bytes: int = 0
    loader_bytes: int | None = None
    pressure_percent: float | None = None


@dataclass(frozen=True, slots=True)
class StageMoment:
    """One stage, or one dataset's part of it.

    Attributes:
        stage: "read" or "decode".
        dataset: whose part; "": of all.
        workers: threads or processes side by side.
        service_s: work of one worker for one sample.
        busy_ratio: share of the workers' time spent on it.
        bound_per_s: samples of the whole mixture that it could do in a second; the least of all
            stages limits the loader.
    """

    stage: str
    dataset: str = ""
    workers: int = 0
    service_s: float | None = None
    busy_ratio: float | None = None
    bound_per_s: float | None = None

    @property
    def name(self) -> str:
        """Stage and dataset, as in ``limited_by``."""
        return f"{self.stage}:{self.dataset}" if self.dataset else self.stage


@dataclass(frozen=True, slots=True)
class Move:
    """One time that knobs moved, or were to move.

    Attributes:
        at_s: when, Unix time.
        by: "policy", "reflex" (memory was short) or "person" (``retune``).
        why: in a few words.
        changes: flat knob → [before, after]; empty where nothing moved.
        verdict: what became of a change of the policy: "paid", "nothing", "lost" (the last two
            were taken back), "refused"; "": not known yet, or not asked.
    """

    at_s: float
    by: str
    why: str
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class LatelyMoment:
    """The last minute, about a second apart, the oldest first.

    Attributes:
        wait_ratios: of the consumer; ``None`` where it was not measured.
        headrooms_bytes: what the machine could give.
    """

    wait_ratios: tuple[float | None, ...] = ()
    headrooms_bytes: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A moment of one pipeline: of one loader (train, validation) of one rank.

    Attributes:
        run: the trainer's process in logs (``telemetry.lines.run_name``).
        pipeline: which loader of the trainer.
        split: which split it reads.
        at_s: when it was taken, Unix time.
        started_at_s: since when its totals count.
        phase: "opening" (files, indexes), "filling" (no batch taken yet), "running", "parked"
            (another loader is in use, or the trainer is silent), "ended".
        doing: what it does now, where that takes long: "waiting for bridge (9/29 are ready)".
        rank, world_size: of the trainer.
        node: the same for all ranks that share this machine and job; the run's name where it is
            alone.
        script: what the trainer runs.
        trainer_pid, worker_pid: of the trainer, and of the process that runs the pipeline.
        restarts: times the child was started again.
        samples: mixed so far, of all datasets.
        bound_per_s: what the slowest stage can do, samples/s; ``None``: not measured.
        limited_by: what a faster run would need first: "training" (it does not wait), "gpu",
            "memory", or a stage's name; "": not known.
        gpu_busy_ratio: load of the trainer's GPU.
        idle_cpus: processors that nobody used.
        state: the controller's; "": there is none.
        why: the last decision's reason.
        consumer, memory, ring, cache, stages, datasets: see there.
        knobs: the values in force, flat.
        control: what the controller has done; ``None``: there is none.
        moves: the last times that knobs moved, the oldest first.
        lately: how waits and headroom went.
    """

    run: str
    pipeline: int
    split: str
    at_s: float
    started_at_s: float
    phase: str
    doing: str = ""
    rank: int = 0
    world_size: int = 1
    node: str = ""
    script: str = ""
    trainer_pid: int = 0
    worker_pid: int = 0
    restarts: int = 0
    samples: int = 0
    bound_per_s: float | None = None
    limited_by: str = ""
    gpu_busy_ratio: float | None = None
    idle_cpus: float | None = None
    state: str = ""
    why: str = ""
    consumer: ConsumerMoment = field(default_factory=ConsumerMoment)
    memory: MemoryMoment = field(default_factory=MemoryMoment)
    ring: RingStatistics = field(default_factory=RingStatistics)
    cache: CacheStatistics | None = None
    stages: tuple[StageMoment, ...] = ()
    datasets: Mapping[str, DatasetStatistics] = field(default_factory=dict)
    knobs: Mapping[str, Any] = field(default_factory=dict)
    control: ControllerStatistics | None = None
    moves: tuple[Move, ...] = ()
    lately: LatelyMoment = field(default_factory=LatelyMoment)

    @property
    def bound_ratio(self) -> float | None:
        """Samples/s of the training loop, as a share of what the loader could do."""
        rate, bound = self.consumer.samples_per_s, self.bound_per_s
        return rate / bound if rate is not None and bound else None

    @property
    def above_floor_bytes(self) -> int | None:
        """Headroom above the RAM floor; negative below it."""
        memory = self.memory
        return None if memory.headroom_bytes is None else memory.headroom_bytes - memory.floor_bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; what is not finite is ``None``."""
        found: dict[str, Any] = json.loads(self.to_json())
        return found

    def to_json(self) -> str:
        """One line."""
        return encoded({"schema_version": SCHEMA_VERSION, **_fields(self)})

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Snapshot:
        """From ``as_dict``, of this version or another one.

        Raises:
            UsageError: it is no snapshot.
        """
        return _read(_reader().validate_python, plain)

    @classmethod
    def from_json(cls, text: str | bytes) -> Snapshot:
        """From ``to_json``; raises as ``from_dict`` does."""
        return _read(_reader().validate_json, text)


@functools.cache
def _reader() -> TypeAdapter[Snapshot]:
    """Made when a snapshot is read, not with the import."""
    return TypeAdapter(Snapshot)


def _read(read: Callable[[Any], Snapshot], found: Any) -> Snapshot:
    try:
        return read(found)
    except ValueError as error:
        raise UsageError(
            f"not a snapshot of a run: {error}", remedy="read what a loader of this library wrote"
        ) from error


def encoded(values: Mapping[str, Any]) -> str:
    """One line of JSON of some fields of snapshots; what is not finite is ``None``."""
    try:  # the encoder itself asks for the dataclasses only; a walk over all values is dear
        return json.dumps(values, default=_fields, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(values), allow_nan=False)


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _finite(value: Any) -> Any:
    """Plain values; ``None`` for a number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple | list):
        return [_finite(one) for one in value]
    if isinstance(value, Mapping) or hasattr(value, "__dataclass_fields__"):
        return {name: _finite(one) for name, one in _fields(value).items()}
    return value
