"""Metrics of a loader, each declared once: its field, its meaning, and what to do about its value.

A metric is the path of its field in ``Snapshot``: ``decode.ring.slots`` is ``ring_slots``. The same
names stand in the Prometheus text (after ``autoloader_``), in Lightning's loggers (after
``loader/``), in ``AutoLoader.metrics`` and in docs/reference/metrics.md, which is made from here.

Not here: where metrics go (``exporter``, ``integrations.lightning.monitor``), measuring
(``process.control.moments``, ``delivery``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from autoloader.telemetry.statistics import Snapshot, Statistics

Number = float | int | None
Values = Number | Mapping[str, Number]
"""One number, or one for each label value. ``None`` is not measured, and is left out."""

_LABELS = {"datasets": "dataset", "stages": "stage", "knobs": "knob", "limited_by": "limit"}
"""First part of a path → label that tells its values apart."""
_UNITS = {
    "_per_s": "samples/s",
    "_bytes": "bytes",
    "_ratio": "of 1",
    "_percent": "%",
    "_s": "s",
    "": "times",
}
"""Ending of a name → its unit."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        path: path of its field in ``Snapshot``, such as "consumer.wait_ratio".
        meaning: meaning of the value.
        advice: what to do about the value.
        name: name in every place, without prefixes; "" makes it from the path.
        unit: unit of the value; "" makes it from the ending of the name.
        counter: whether the value only grows; it begins again when the child is started again.
        worst: of several ranks, the one to look at: the "highest" or the "lowest"; "": the metric
            says nothing of a rank.
    """

    path: str
    meaning: str
    advice: str
    name: str = ""
    unit: str = ""
    counter: bool = False
    worst: Literal["", "highest", "lowest"] = ""

    def __post_init__(self) -> None:
        part, _, field = self.path.rpartition(".")
        part = "" if part in ("consumer", "memory", "control") else _LABELS.get(part, part)
        derived = f"{part}_{field}" if part else "knob" if field == "knobs" else field
        name = self.name or derived
        unit = self.unit or next(unit for end, unit in _UNITS.items() if name.endswith(end))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "unit", unit)

    @property
    def label(self) -> str:
        """Label that tells its values apart: "dataset", "stage", "knob", "limit"; "": one value."""
        return _LABELS.get(self.path.partition(".")[0], "")

    @property
    def exported_name(self) -> str:
        """Name in Prometheus text."""
        return f"autoloader_{self.name}" + ("_total" if self.counter else "")

    @property
    def told(self) -> bool:
        """Whether ``AutoLoader.statistics`` has it; else only the loader's child knows it."""
        return hasattr(Statistics, _flat_path(self.path)[0])

    def read(self, one: Snapshot | Statistics) -> Values:
        """Its value in a moment of a run, or in what a loader tells."""
        *places, field = (
            self.path.split(".") if isinstance(one, Snapshot) else _flat_path(self.path)
        )
        whole: Any = one
        for place in places:
            whole = getattr(whole, place)
        if isinstance(whole, Mapping):
            return {name: getattr(part, field) for name, part in whole.items()}
        if isinstance(whole, tuple):
            return {part.name: getattr(part, field) for part in whole}
        value = None if whole is None else getattr(whole, field)
        if isinstance(value, Mapping):
            return {name: one for name, one in value.items() if type(one) in (int, float)}
        return {value or "unknown": 1} if isinstance(value, str) else value


def _flat_path(path: str) -> list[str]:
    """The way to a field in ``Statistics``, which has no parts for consumer and memory."""
    return path.removeprefix("consumer.").removeprefix("memory.").split(".")


METRICS: tuple[Metric, ...] = (
    Metric(
        "consumer.wait_ratio",
        "share of its time that training waits for data, over the last seconds",
        "above 0.01 training waits: `limited_by` says for what",
        worst="highest",
    ),
    Metric(
        "consumer.samples_per_s",
        "samples that training takes in a second, of this rank",
        "compare it with `bound_per_s`, and with a run with `replay_one_batch`",
        worst="lowest",
    ),
    Metric(
        "bound_per_s",
        "what the loader's slowest stage could give",
        "near `samples_per_s` the loader is the bottleneck; the stage with the least "
        "`stage_bound_per_s` is the one to widen",
    ),
    Metric(
        "limited_by",
        "what a faster run would need first, as the label: training, gpu, memory, or a stage",
        "training, gpu: the loader is fast enough; memory: see `headroom_bytes`; a stage: give it "
        "processors or a faster disk",
        unit="1",
    ),
    Metric(
        "consumer.batches",
        "batches that training has taken",
        "where it stands still and `waiting_s` grows, the loader hangs: look at its log",
        unit="batches",
        counter=True,
    ),
    Metric(
        "consumer.waiting_s",
        "for how long training has waited for the batch that it wants now; 0: it does not wait",
        "above 60: look at `dataset_stalls` and at the storage",
    ),
    Metric(
        "consumer.step_s",
        "training's time from one batch to the next",
        "of several ranks, the slowest holds up all",
    ),
    Metric(
        "memory.headroom_bytes",
        "memory that the machine, or the cgroup that binds, can still give",
        "below `ram_floor_bytes` the loader shrinks; where that lasts, find who takes the memory",
        worst="lowest",
    ),
    Metric(
        "memory.floor_bytes",
        "memory that must stay free",
        "alert on headroom below it for more than a minute",
        name="ram_floor_bytes",
    ),
    Metric(
        "memory.loader_bytes",
        "memory that the loader's processes hold, without the ring; ranks that share a child each "
        "say what it holds for all",
        "where it grows without end while knobs stand still, report it",
    ),
    Metric(
        "memory.pressure_percent",
        "PSI `memory some avg10`: share of time that processes stood still for memory",
        "above 10 the machine is short of memory, whatever is free",
    ),
    Metric(
        "gpu_busy_ratio",
        "load of the trainer's GPU",
        "low with a high `wait_ratio`: the loader costs you GPU time; low without: the step does",
    ),
    Metric(
        "idle_cpus",
        "processors that nobody used",
        "near 0 with a high `wait_ratio`: more processors, or less to decode, is what helps",
        unit="processors",
    ),
    Metric(
        "ring.slots",
        "batches that the ring can hold",
        "the controller moves it; few on purpose where memory is short",
        unit="batches",
    ),
    Metric("ring.filled", "batches that are ready", "0 for long: training waits", unit="batches"),
    Metric(
        "ring.occupancy_ratio",
        "ready batches / slots",
        "near 1 training is the bottleneck, near 0 the loader",
        worst="lowest",
    ),
    Metric(
        "ring.allocated_bytes",
        "memory that the ring holds",
        "it is `ring_slots` × a batch, and what training keeps of batches",
        name="ring_bytes",
    ),
    Metric(
        "cache.hit_ratio",
        "frames shown from the cache, of all frames",
        "low with memory to spare: raise `cache_bytes`, or leave it to the controller (`auto`)",
    ),
    Metric(
        "cache.held_bytes",
        "decoded frames that are held",
        "surplus: it goes first when memory is short",
    ),
    Metric("cache.budget_bytes", "what the cache may hold", "see the knob `cache_bytes`"),
    Metric(
        "cache.hits",
        "frames shown from the cache",
        "see `cache_hit_ratio`",
        unit="frames",
        counter=True,
    ),
    Metric(
        "cache.misses",
        "frames that were decoded instead",
        "see `cache_hit_ratio`",
        unit="frames",
        counter=True,
    ),
    Metric(
        "restarts",
        "times the loader's child was started again",
        "any: its log and `autoloader doctor` say why (mostly the kernel, for memory)",
        counter=True,
    ),
    Metric(
        "control.decisions",
        "decisions of the controller, about one a second",
        "where it stands still the controller does: look for its fault in the log",
        counter=True,
    ),
    Metric(
        "control.changes",
        "changes of knobs by the controller's policy",
        "many without end: `autoloader report` shows what it goes back and forth between",
        counter=True,
    ),
    Metric(
        "control.taken_back",
        "changes that did not pay and were taken back",
        "a few are how it learns",
        counter=True,
    ),
    Metric(
        "control.refused",
        "changes for which there was no room any more",
        "many: memory is what limits; see `headroom_bytes`",
        counter=True,
    ),
    Metric(
        "control.drops",
        "rounds in which the reflex dropped buffers",
        "any: the RAM floor was crossed, by this loader or by a neighbour",
        counter=True,
    ),
    Metric("stages.bound_per_s", "what a stage could give", "the least is what limits the loader"),
    Metric(
        "stages.service_s",
        "work of one worker of a stage for one sample",
        "for decode: smaller images; for read: nearer data",
    ),
    Metric(
        "stages.busy_ratio",
        "share of its workers' time that a stage works",
        "near 1 it needs more workers, and processors for them",
    ),
    Metric(
        "datasets.share",
        "share of a dataset in the samples so far",
        "far from `dataset_weight` for long: its stream is too slow, see `dataset_queue`",
        unit="of 1",
    ),
    Metric("datasets.weight", "share that a dataset should have", "set by the spec", unit="of 1"),
    Metric(
        "datasets.queue",
        "samples of a dataset that wait to be decoded",
        "at 0 for long its stream is too slow: raise `cycle_length` or `stream_prefetch` for it",
        unit="samples",
    ),
    Metric(
        "datasets.stalls",
        "times that the mixture waited 5 s for a dataset",
        "any: look at its storage",
        counter=True,
    ),
    Metric(
        "datasets.quarantined",
        "bad records of a dataset that were left out",
        "`loader.quarantined()` and `autoloader report` name them",
        unit="records",
        counter=True,
    ),
    Metric(
        "datasets.interruptions",
        "times that a dataset's remote files broke off and were opened again",
        "many: look at the network",
        counter=True,
    ),
    Metric(
        "knobs",
        "a knob's value in force, of those that are numbers",
        "see docs/reference/knobs.md",
        unit="as the knob's",
    ),
)
"""All of them, the ones to look at first first."""


def labelled(values: Values) -> Iterator[tuple[str, float]]:
    """(label's value, number) of those that were measured; the label's value is "" for one."""
    every = values.items() if isinstance(values, Mapping) else [("", values)]
    for name, value in every:
        if value is not None:
            yield name, value


def flat(statistics: Statistics) -> dict[str, float]:
    """What a loader tells, by flat names: ``wait_ratio``, ``dataset_share/bridge``."""
    return {
        f"{metric.name}/{name}" if metric.label else metric.name: value
        for metric in METRICS
        if metric.told
        for name, value in labelled(metric.read(statistics))
    }


COMPARED = tuple(metric for metric in METRICS if metric.worst)
"""What is told of several ranks together."""


def compared(moment: Snapshot) -> dict[str, float]:
    """What of a rank's moment is compared with other ranks, by name."""
    return {metric.name: value for metric in COMPARED for _, value in labelled(metric.read(moment))}


def over_ranks(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Worst and mean over several ranks: ``wait_ratio/worst``, ``wait_ratio/mean``.

    Args:
        ranks: what each tells, by name; of one alone there is nothing to compare.
    """
    if len(ranks) < 2:
        return {}
    found: dict[str, float] = {}
    for metric in COMPARED:
        every = [one[metric.name] for one in ranks if metric.name in one]
        if every:
            found[f"{metric.name}/worst"] = (max if metric.worst == "highest" else min)(every)
            found[f"{metric.name}/mean"] = fmean(every)
    return found
