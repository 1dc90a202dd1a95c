"""What a loader measures, each declared once: name, unit, meaning, and what to do about its value.

The same names stand in the Prometheus text (below ``autoloader_``), in Lightning's loggers (below
``loader/``), in ``AutoLoader.metrics`` and in docs/reference/metrics.md, which is made from here.

Not here: where they go (``exporter``, ``lightning.monitor``), measuring (``actuation.moments``,
``delivery``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from autoloader.telemetry.snapshot import Snapshot, StageMoment
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
        seen: reads it from a moment of a run.
        told: reads it from ``AutoLoader.statistics``; ``None``: only the loader's child knows it.
        kind: "counter" where it only grows; it begins again with a child that was started again.
        label: what its values are told apart by: "dataset", "stage" or "knob"; "": there is one.
        worst: of several ranks, the one to look at: the "highest" or the "lowest"; "": it says
            nothing of a rank.
    """

    name: str
    unit: str
    meaning: str
    advice: str
    seen: Callable[[Snapshot], Values]
    told: Callable[[Statistics], Values] | None = None
    kind: Literal["gauge", "counter"] = "gauge"
    label: str = ""
    worst: Literal["", "highest", "lowest"] = ""

    @property
    def exported_name(self) -> str:
        """In Prometheus text."""
        return f"autoloader_{self.name}" + ("_total" if self.kind == "counter" else "")


def _of_datasets(field: str) -> dict[str, Any]:
    def seen(moment: Snapshot) -> Values:
        return {name: getattr(one, field) for name, one in moment.datasets.items()}

    def told(statistics: Statistics) -> Values:
        return {name: getattr(one, field) for name, one in statistics.datasets.items()}

    return {"seen": seen, "told": told, "label": "dataset"}


def _of_stages(read: Callable[[StageMoment], Number]) -> dict[str, Any]:
    return {
        "seen": lambda moment: {one.name: read(one) for one in moment.stages},
        "label": "stage",
    }


def _of_controller(field: str) -> dict[str, Any]:
    def read(one: Snapshot | Statistics) -> Values:
        control = one.control if isinstance(one, Snapshot) else one.controller
        return None if control is None else int(getattr(control, field))

    return {"seen": read, "told": read, "kind": "counter"}


def _of_cache(field: str) -> dict[str, Any]:
    def read(one: Snapshot | Statistics) -> Values:
        found: Number = None if one.cache is None else getattr(one.cache, field)
        return found

    return {"seen": read, "told": read}


def _numbers(knobs: Mapping[str, Any]) -> Mapping[str, Number]:
    return {
        knob: value
        for knob, value in knobs.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


METRICS: tuple[Metric, ...] = (
    Metric(
        "wait_ratio",
        "of 1",
        "share of its time that training waits for data, over the last seconds",
        "above 0.01 training waits: `limited_by` says for what",
        lambda moment: moment.consumer.wait_ratio,
        lambda told: told.wait_ratio,
        worst="highest",
    ),
    Metric(
        "samples_per_s",
        "samples/s",
        "samples that training takes in a second, of this rank",
        "compare it with `bound_per_s`, and with a run with `replay_one_batch`",
        lambda moment: moment.consumer.samples_per_s,
        lambda told: told.samples_per_s,
        worst="lowest",
    ),
    Metric(
        "bound_per_s",
        "samples/s",
        "what the loader's slowest stage could give",
        "near `samples_per_s` the loader is the bottleneck; the stage with the least "
        "`stage_bound_per_s` is the one to widen",
        lambda moment: moment.bound_per_s,
    ),
    Metric(
        "limited_by",
        "1",
        "what a faster run would need first, as the label: training, gpu, memory, or a stage",
        "training, gpu: the loader is fast enough; memory: see `headroom_bytes`; a stage: give it "
        "processors or a faster disk",
        lambda moment: {moment.limited_by or "unknown": 1},
        label="limit",
    ),
    Metric(
        "batches",
        "batches",
        "batches that training has taken",
        "where it stands still and `waiting_s` grows, the loader hangs: look at its log",
        lambda moment: moment.consumer.batches,
        lambda told: told.batches,
        kind="counter",
    ),
    Metric(
        "waiting_s",
        "s",
        "for how long training has waited for the batch that it wants now; 0: it does not wait",
        "above 60: look at `dataset_stalls` and at the storage",
        lambda moment: moment.consumer.waiting_s,
    ),
    Metric(
        "step_s",
        "s",
        "training's time from one batch to the next",
        "of several ranks, the slowest holds up all",
        lambda moment: moment.consumer.step_s,
    ),
    Metric(
        "headroom_bytes",
        "bytes",
        "memory that the machine, or the cgroup that binds, can still give",
        "below `ram_floor_bytes` the loader shrinks; where that lasts, find who takes the memory",
        lambda moment: moment.memory.headroom_bytes,
        lambda told: told.headroom_bytes,
        worst="lowest",
    ),
    Metric(
        "ram_floor_bytes",
        "bytes",
        "memory that must stay free",
        "alert on headroom below it for more than a minute",
        lambda moment: moment.memory.floor_bytes,
    ),
    Metric(
        "loader_bytes",
        "bytes",
        "memory that the loader's processes hold, without the ring; ranks that share a child each "
        "say what it holds for all",
        "where it grows without end while knobs stand still, report it",
        lambda moment: moment.memory.loader_bytes,
        lambda told: told.loader_bytes,
    ),
    Metric(
        "pressure_percent",
        "%",
        "PSI `memory some avg10`: share of time that processes stood still for memory",
        "above 10 the machine is short of memory, whatever is free",
        lambda moment: moment.memory.pressure_percent,
    ),
    Metric(
        "gpu_busy_ratio",
        "of 1",
        "load of the trainer's GPU",
        "low with a high `wait_ratio`: the loader costs you GPU time; low without: the step does",
        lambda moment: moment.gpu_busy_ratio,
    ),
    Metric(
        "idle_cpus",
        "processors",
        "processors that nobody used",
        "near 0 with a high `wait_ratio`: more processors, or less to decode, is what helps",
        lambda moment: moment.idle_cpus,
    ),
    Metric(
        "ring_slots",
        "batches",
        "batches that the ring can hold",
        "the controller moves it; few on purpose where memory is short",
        lambda moment: moment.ring.slots,
        lambda told: told.ring.slots,
    ),
    Metric(
        "ring_filled",
        "batches",
        "batches that are ready",
        "0 for long: training waits",
        lambda moment: moment.ring.filled,
        lambda told: told.ring.filled,
    ),
    Metric(
        "ring_occupancy_ratio",
        "of 1",
        "ready batches / slots",
        "near 1 training is the bottleneck, near 0 the loader",
        lambda moment: moment.ring.occupancy_ratio,
        lambda told: told.ring.occupancy_ratio,
        worst="lowest",
    ),
    Metric(
        "ring_bytes",
        "bytes",
        "memory that the ring holds",
        "it is `ring_slots` × a batch, and what training keeps of batches",
        lambda moment: moment.ring.allocated_bytes,
        lambda told: told.ring.allocated_bytes,
    ),
    Metric(
        "cache_hit_ratio",
        "of 1",
        "frames shown from the cache, of all frames",
        "low with memory to spare: raise `cache_bytes`, or leave it to the controller (`auto`)",
        **_of_cache("hit_ratio"),
    ),
    Metric(
        "cache_held_bytes",
        "bytes",
        "decoded frames that are held",
        "surplus: it goes first when memory is short",
        **_of_cache("held_bytes"),
    ),
    Metric(
        "cache_budget_bytes",
        "bytes",
        "what the cache may hold",
        "see the knob `cache_bytes`",
        **_of_cache("budget_bytes"),
    ),
    Metric(
        "cache_hits",
        "frames",
        "frames shown from the cache",
        "see `cache_hit_ratio`",
        kind="counter",
        **_of_cache("hits"),
    ),
    Metric(
        "cache_misses",
        "frames",
        "frames that were decoded instead",
        "see `cache_hit_ratio`",
        kind="counter",
        **_of_cache("misses"),
    ),
    Metric(
        "restarts",
        "times",
        "times the loader's child was started again",
        "any: its log and `autoloader doctor` say why (mostly the kernel, for memory)",
        lambda moment: moment.restarts,
        lambda told: told.restarts,
        kind="counter",
    ),
    Metric(
        "decisions",
        "times",
        "decisions of the controller, about one a second",
        "where it stands still the controller does: look for its fault in the log",
        **_of_controller("decisions"),
    ),
    Metric(
        "changes",
        "times",
        "changes of knobs by the controller's policy",
        "many without end: `autoloader report` shows what it goes back and forth between",
        **_of_controller("changes"),
    ),
    Metric(
        "taken_back",
        "times",
        "changes that did not pay and were taken back",
        "a few are how it learns",
        **_of_controller("taken_back"),
    ),
    Metric(
        "refused",
        "times",
        "changes for which there was no room any more",
        "many: memory is what limits; see `headroom_bytes`",
        **_of_controller("refused"),
    ),
    Metric(
        "drops",
        "times",
        "rounds in which the reflex dropped buffers",
        "any: the RAM floor was crossed, by this loader or by a neighbour",
        **_of_controller("drops"),
    ),
    Metric(
        "stage_bound_per_s",
        "samples/s",
        "what a stage could give",
        "the least is what limits the loader",
        **_of_stages(lambda stage: stage.bound_per_s),
    ),
    Metric(
        "stage_service_s",
        "s",
        "work of one worker of a stage for one sample",
        "for decode: smaller images; for read: nearer data",
        **_of_stages(lambda stage: stage.service_s),
    ),
    Metric(
        "stage_busy_ratio",
        "of 1",
        "share of its workers' time that a stage works",
        "near 1 it needs more workers, and processors for them",
        **_of_stages(lambda stage: stage.busy_ratio),
    ),
    Metric(
        "dataset_share",
        "of 1",
        "share of a dataset in the samples so far",
        "far from `dataset_weight` for long: its stream is too slow, see `dataset_queue`",
        **_of_datasets("share"),
    ),
    Metric(
        "dataset_weight",
        "of 1",
        "share that a dataset should have",
        "set by the spec",
        **_of_datasets("weight"),
    ),
    Metric(
        "dataset_queue",
        "samples",
        "samples of a dataset that wait to be decoded",
        "at 0 for long its stream is too slow: raise `cycle_length` or `stream_prefetch` for it",
        **_of_datasets("queue"),
    ),
    Metric(
        "dataset_stalls",
        "times",
        "times that the mixture waited 5 s for a dataset",
        "any: look at its storage",
        kind="counter",
        **_of_datasets("stalls"),
    ),
    Metric(
        "dataset_quarantined",
        "records",
        "bad records of a dataset that were left out",
        "`loader.quarantined()` and `autoloader report` name them",
        kind="counter",
        **_of_datasets("quarantined"),
    ),
    Metric(
        "dataset_interruptions",
        "times",
        "times that a dataset's remote files broke off and were opened again",
        "many: look at the network",
        kind="counter",
        **_of_datasets("interruptions"),
    ),
    Metric(
        "knob",
        "as the knob's",
        "a knob's value in force, of those that are numbers",
        "see docs/reference/knobs.md",
        lambda moment: _numbers(moment.knobs),
        lambda told: _numbers(told.knobs),
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
        if metric.told is not None
        for name, value in labelled(metric.told(statistics))
    }


COMPARED = tuple(metric for metric in METRICS if metric.worst)
"""What is told of several ranks together."""


def compared(moment: Snapshot) -> dict[str, float]:
    """What of a rank's moment is compared with other ranks, by name."""
    return {metric.name: value for metric in COMPARED for _, value in labelled(metric.seen(moment))}


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
