"""What a loader measures, each declared once: name, unit, meaning, and what to do about its value.

The same names stand in the Prometheus text (below ``autoloader_``), in Lightning's loggers (below
``loader/``), in ``AutoLoader.metrics`` and in docs/reference/metrics.md, which is made from here.

Not here: where they go (``exporter``, ``integrations.lightning.monitor``), measuring
(``process.control.moments``, ``delivery``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from autoloader.telemetry.snapshot import Snapshot
from autoloader.telemetry.statistics import Statistics

Number = float | int | None
Values = Number | Mapping[str, Number]
"""One number, or one for each label value. ``None`` is not measured, and is left out."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: in every place, but for prefixes.
        unit: of the value.
        meaning: what it is.
        advice: what to do about it.
        path: of its field in ``Snapshot``, such as "consumer.wait_ratio".
        kind: "counter" where it only grows; it begins again with a child that was started again.
        label: what its values are told apart by: "dataset", "stage" or "knob"; "": there is one.
        worst: of several ranks, the one to look at: the "highest" or the "lowest"; "": it says
            nothing of a rank.
    """

    name: str
    unit: str
    meaning: str
    advice: str
    path: str
    kind: Literal["gauge", "counter"] = "gauge"
    label: str = ""
    worst: Literal["", "highest", "lowest"] = ""

    @property
    def exported_name(self) -> str:
        """In Prometheus text."""
        return f"autoloader_{self.name}" + ("_total" if self.kind == "counter" else "")

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
        "wait_ratio",
        "of 1",
        "share of its time that training waits for data, over the last seconds",
        "above 0.01 training waits: `limited_by` says for what",
        "consumer.wait_ratio",
        worst="highest",
    ),
    Metric(
        "samples_per_s",
        "samples/s",
        "samples that training takes in a second, of this rank",
        "compare it with `bound_per_s`, and with a run with `replay_one_batch`",
        "consumer.samples_per_s",
        worst="lowest",
    ),
    Metric(
        "bound_per_s",
        "samples/s",
        "what the loader's slowest stage could give",
        "near `samples_per_s` the loader is the bottleneck; the stage with the least "
        "`stage_bound_per_s` is the one to widen",
        "bound_per_s",
    ),
    Metric(
        "limited_by",
        "1",
        "what a faster run would need first, as the label: training, gpu, memory, or a stage",
        "training, gpu: the loader is fast enough; memory: see `headroom_bytes`; a stage: give it "
        "processors or a faster disk",
        "limited_by",
        label="limit",
    ),
    Metric(
        "batches",
        "batches",
        "batches that training has taken",
        "where it stands still and `waiting_s` grows, the loader hangs: look at its log",
        "consumer.batches",
        kind="counter",
    ),
    Metric(
        "waiting_s",
        "s",
        "for how long training has waited for the batch that it wants now; 0: it does not wait",
        "above 60: look at `dataset_stalls` and at the storage",
        "consumer.waiting_s",
    ),
    Metric(
        "step_s",
        "s",
        "training's time from one batch to the next",
        "of several ranks, the slowest holds up all",
        "consumer.step_s",
    ),
    Metric(
        "headroom_bytes",
        "bytes",
        "memory that the machine, or the cgroup that binds, can still give",
        "below `ram_floor_bytes` the loader shrinks; where that lasts, find who takes the memory",
        "memory.headroom_bytes",
        worst="lowest",
    ),
    Metric(
        "ram_floor_bytes",
        "bytes",
        "memory that must stay free",
        "alert on headroom below it for more than a minute",
        "memory.floor_bytes",
    ),
    Metric(
        "loader_bytes",
        "bytes",
        "memory that the loader's processes hold, without the ring; ranks that share a child each "
        "say what it holds for all",
        "where it grows without end while knobs stand still, report it",
        "memory.loader_bytes",
    ),
    Metric(
        "pressure_percent",
        "%",
        "PSI `memory some avg10`: share of time that processes stood still for memory",
        "above 10 the machine is short of memory, whatever is free",
        "memory.pressure_percent",
    ),
    Metric(
        "gpu_busy_ratio",
        "of 1",
        "load of the trainer's GPU",
        "low with a high `wait_ratio`: the loader costs you GPU time; low without: the step does",
        "gpu_busy_ratio",
    ),
    Metric(
        "idle_cpus",
        "processors",
        "processors that nobody used",
        "near 0 with a high `wait_ratio`: more processors, or less to decode, is what helps",
        "idle_cpus",
    ),
    Metric(
        "ring_slots",
        "batches",
        "batches that the ring can hold",
        "the controller moves it; few on purpose where memory is short",
        "ring.slots",
    ),
    Metric(
        "ring_filled",
        "batches",
        "batches that are ready",
        "0 for long: training waits",
        "ring.filled",
    ),
    Metric(
        "ring_occupancy_ratio",
        "of 1",
        "ready batches / slots",
        "near 1 training is the bottleneck, near 0 the loader",
        "ring.occupancy_ratio",
        worst="lowest",
    ),
    Metric(
        "ring_bytes",
        "bytes",
        "memory that the ring holds",
        "it is `ring_slots` × a batch, and what training keeps of batches",
        "ring.allocated_bytes",
    ),
    Metric(
        "cache_hit_ratio",
        "of 1",
        "frames shown from the cache, of all frames",
        "low with memory to spare: raise `cache_bytes`, or leave it to the controller (`auto`)",
        path="cache.hit_ratio",
    ),
    Metric(
        "cache_held_bytes",
        "bytes",
        "decoded frames that are held",
        "surplus: it goes first when memory is short",
        path="cache.held_bytes",
    ),
    Metric(
        "cache_budget_bytes",
        "bytes",
        "what the cache may hold",
        "see the knob `cache_bytes`",
        path="cache.budget_bytes",
    ),
    Metric(
        "cache_hits",
        "frames",
        "frames shown from the cache",
        "see `cache_hit_ratio`",
        kind="counter",
        path="cache.hits",
    ),
    Metric(
        "cache_misses",
        "frames",
        "frames that were decoded instead",
        "see `cache_hit_ratio`",
        kind="counter",
        path="cache.misses",
    ),
    Metric(
        "restarts",
        "times",
        "times the loader's child was started again",
        "any: its log and `autoloader doctor` say why (mostly the kernel, for memory)",
        "restarts",
        kind="counter",
    ),
    Metric(
        "decisions",
        "times",
        "decisions of the controller, about one a second",
        "where it stands still the controller does: look for its fault in the log",
        path="control.decisions",
        kind="counter",
    ),
    Metric(
        "changes",
        "times",
        "changes of knobs by the controller's policy",
        "many without end: `autoloader report` shows what it goes back and forth between",
        path="control.changes",
        kind="counter",
    ),
    Metric(
        "taken_back",
        "times",
        "changes that did not pay and were taken back",
        "a few are how it learns",
        path="control.taken_back",
        kind="counter",
    ),
    Metric(
        "refused",
        "times",
        "changes for which there was no room any more",
        "many: memory is what limits; see `headroom_bytes`",
        path="control.refused",
        kind="counter",
    ),
    Metric(
        "drops",
        "times",
        "rounds in which the reflex dropped buffers",
        "any: the RAM floor was crossed, by this loader or by a neighbour",
        path="control.drops",
        kind="counter",
    ),
    Metric(
        "stage_bound_per_s",
        "samples/s",
        "what a stage could give",
        "the least is what limits the loader",
        path="stages.bound_per_s",
        label="stage",
    ),
    Metric(
        "stage_service_s",
        "s",
        "work of one worker of a stage for one sample",
        "for decode: smaller images; for read: nearer data",
        path="stages.service_s",
        label="stage",
    ),
    Metric(
        "stage_busy_ratio",
        "of 1",
        "share of its workers' time that a stage works",
        "near 1 it needs more workers, and processors for them",
        path="stages.busy_ratio",
        label="stage",
    ),
    Metric(
        "dataset_share",
        "of 1",
        "share of a dataset in the samples so far",
        "far from `dataset_weight` for long: its stream is too slow, see `dataset_queue`",
        path="datasets.share",
        label="dataset",
    ),
    Metric(
        "dataset_weight",
        "of 1",
        "share that a dataset should have",
        "set by the spec",
        path="datasets.weight",
        label="dataset",
    ),
    Metric(
        "dataset_queue",
        "samples",
        "samples of a dataset that wait to be decoded",
        "at 0 for long its stream is too slow: raise `cycle_length` or `stream_prefetch` for it",
        path="datasets.queue",
        label="dataset",
    ),
    Metric(
        "dataset_stalls",
        "times",
        "times that the mixture waited 5 s for a dataset",
        "any: look at its storage",
        kind="counter",
        path="datasets.stalls",
        label="dataset",
    ),
    Metric(
        "dataset_quarantined",
        "records",
        "bad records of a dataset that were left out",
        "`loader.quarantined()` and `autoloader report` name them",
        kind="counter",
        path="datasets.quarantined",
        label="dataset",
    ),
    Metric(
        "dataset_interruptions",
        "times",
        "times that a dataset's remote files broke off and were opened again",
        "many: look at the network",
        kind="counter",
        path="datasets.interruptions",
        label="dataset",
    ),
    Metric(
        "knob",
        "as the knob's",
        "a knob's value in force, of those that are numbers",
        "see docs/reference/knobs.md",
        "knobs",
        label="knob",
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
