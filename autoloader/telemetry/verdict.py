"""Sentences about a snapshot: the limit of the run, and the cost of the loader.

Not here: the snapshot (``telemetry.statistics``), where the sentences are shown (``cli.top``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoloader.errors import printable
from autoloader.host.units import format_bytes, format_seconds
from autoloader.telemetry.statistics import StageMoment, Statistics

LITTLE_RATIO = 0.01
"""Waiting for less of the time than this is not worth a knob (the controller's own measure)."""
MOSTLY_RATIO = 0.1
"""Waiting for less of the time than this, training sets the pace for the most part."""
_IDLE_CPUS = 0.15
_STUCK_S = 5.0
_STILL_S = 2.0
_SILENT_S = 3.5
"""A loader says something every second, on a busy machine every other."""


def cost_words(moment: Statistics) -> str:
    """Cost of the loader: "the loader costs you 25.0 % of the time, …"."""
    waits = moment.wait_ratio
    if waits is None and (silent_s := moment.silent_s or 0.0) >= _STILL_S:
        took = format_seconds(silent_s)
        return f"training has taken no batch for {took}: what the loader costs is not measured"
    if waits is None:
        return "what the loader costs is not known yet"
    if waits >= 0.999:
        return "the loader costs you nearly all of the time: training only waits"
    words = f"the loader costs you {waits:.1%} of the time".replace("%", " %")
    if waits < LITTLE_RATIO:
        return words
    return f"{words}; with a perfect one: {1 / (1 - waits):.2f}× as fast"


def limit_words(moment: Statistics) -> str:
    """Limit of the run, with its evidence."""
    if moment.phase == "opening":
        return moment.doing or "opening its files"
    if moment.waiting_s >= _STUCK_S:
        doing = f": {moment.doing}" if moment.doing else ""
        return f"training has waited {format_seconds(moment.waiting_s)} for a batch{doing}"
    if moment.phase == "filling":
        return moment.doing or "no batch has been taken yet"
    if moment.phase == "parked":
        return "paused: training takes no batches of this loader"
    limit = moment.limited_by
    if limit == "training":
        words = "training limits this run: it does not wait for data"
        return f"{words}; memory is short" if (moment.above_floor_bytes or 0) < 0 else words
    if limit == "gpu":
        return "the GPU limits this run: training does not wait for data"
    if limit == "memory":
        return _short_of_memory(moment)
    for stage in moment.stages:
        if stage.name == limit:
            return _slow(stage, moment)
    return "what limits this run is not known yet"


def limit_name(moment: Statistics) -> str:
    """Limit of the run in a word, as the run report counts it: training, where it waits little."""
    little = moment.wait_ratio is not None and moment.wait_ratio < MOSTLY_RATIO
    return "training" if little and moment.limited_by not in ("", "gpu") else moment.limited_by


def wait_words(moment: Statistics | None, now_s: float) -> str:
    """Reason of a wait for a batch; "" if it is not known.

    Args:
        moment: latest snapshot of the loader; ``None`` before the first.
        now_s: present Unix time, in seconds.
    """
    if moment is None:
        return "the loader's process starts"
    if (silent_s := now_s - moment.at_s) > _SILENT_S:
        return f"its process (pid {moment.worker_pid}) has said nothing for {silent_s:.0f} s"
    if moment.phase == "opening":
        return moment.doing or "opening files and indexes"
    if moment.limited_by == "memory":
        return _short_of_memory(moment)
    return moment.doing


def changes_words(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Changes of knobs (flat knob → [before, after]): "ring_slots 16→4, cache_bytes 2.00 GiB→0"."""
    if not changes:
        return "nothing is left to shrink"
    return ", ".join(
        f"{printable(knob)} {value_words(knob, before)}→{value_words(knob, after)}"
        for knob, (before, after) in changes.items()
    )


def value_words(knob: str, value: Any) -> str:
    """The value of a flat knob."""
    if knob.endswith("_bytes") and value and isinstance(value, int):
        return format_bytes(value)
    return str(value)


def _short_of_memory(moment: Statistics) -> str:
    """Words that memory limits a run that waits, or is short where that is not known yet."""
    above = moment.above_floor_bytes
    waits = moment.wait_ratio
    limits = "memory is short" if waits is None else _limits("memory", moment)
    if above is None:
        return limits
    # In full it is the longest sentence of all, and a line has 80 characters.
    headroom = "" if waits is not None and waits < MOSTLY_RATIO else "headroom is "
    if above < 0:
        return f"{limits}: {headroom}{format_bytes(-above)} below the floor"
    return f"{limits}: {headroom}only {format_bytes(above)} above the floor"


def _limits(what: str, moment: Statistics) -> str:
    """Words that ``what`` limits the run, or limits it a little where training waits little."""
    if (moment.wait_ratio or 0.0) >= MOSTLY_RATIO:
        return f"{what} limits this run"
    return f"mostly training limits this run, a little {what}"


def _slow(stage: StageMoment, moment: Statistics) -> str:
    """Words that a stage is slow, with its workers."""
    what = f"reading {stage.dataset}" if stage.dataset else stage.stage
    idle_cpus = moment.idle_cpus
    workers = f"{stage.workers} worker{'s' * (stage.workers != 1)}"
    busy = "" if stage.busy_ratio is None else f", {stage.busy_ratio:.0%} busy".replace("%", " %")
    idle = ""
    if idle_cpus is not None:
        idle = f"; {idle_cpus:.1f} processors idle"
        if idle_cpus < _IDLE_CPUS:
            idle = "; no processor is idle"
    if (moment.wait_ratio or 0.0) < MOSTLY_RATIO:
        return f"{_limits(what, moment)}{idle}"
    return f"{_limits(what, moment)}: {workers}{busy}{idle}"
