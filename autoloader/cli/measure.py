"""``autoloader measure``: loader-only measurement of a spec.

Not here: how it is measured (``tune.measurement``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoloader.cli import options
from autoloader.cli.output import emit, emit_json, emit_table, note
from autoloader.host.units import format_bytes, parse_seconds

if TYPE_CHECKING:
    from autoloader.tune.measurement import Measurement

ENOUGH_WARMUP = 8
ENOUGH_BATCHES = 160


def measure(
    spec: options.SpecFile,
    profile: options.ProfileName = None,
    strict: options.StrictProfile = False,
    sets: options.KnobValues = None,
    warmup: Annotated[int, typer.Option(help="Batches before measuring.")] = ENOUGH_WARMUP,
    batches: Annotated[int, typer.Option(help="Batches measured.")] = ENOUGH_BATCHES,
    step_time: Annotated[
        str, typer.Option(help='A trainer\'s step, such as "120ms": slept after each batch.')
    ] = "0ms",
    controller: Annotated[
        bool, typer.Option("--controller", help="Let the controller move the knobs.")
    ] = False,
    settle: Annotated[
        bool, typer.Option("--settle", help="Go on with the warm-up until the rate holds still.")
    ] = False,
    ram_floor: options.RamFloor = None,
    disk_floor: options.DiskFloor = None,
    split: options.Split = "train",
    _no_transforms: options.NoTransforms = False,
    as_json: options.JsonFlag = False,
    progress_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure the loader alone: rate, latency, memory and mixture; the knobs hold still."""
    from autoloader.tune.trial import ProgressWriter

    link = None if progress_fd is None else ProgressWriter(progress_fd)
    try:
        knobs, floor = options.parse_sets(sets), options.floor_bytes(ram_floor)
        step_time_s = parse_seconds(step_time, name="--step-time")
        if strict:
            options.refuse_clamps(profile)
        from autoloader.loader import AutoLoader
        from autoloader.spec import PipelineSpec
        from autoloader.tune.measurement import measure as measure_loader

        loader = partial(
            AutoLoader,
            PipelineSpec.from_yaml(spec),
            profile=profile,
            knobs=knobs,
            controller=controller,
            split=split,
            ram_floor=floor,
            disk_floor=disk_floor,
            output="numpy",
        )
        measurement = measure_loader(
            loader,
            warmup=warmup,
            batches=batches,
            step_time_s=step_time_s,
            progress=None if link is None else link.send,
            settle=settle,
        )
        if as_json:
            emit_json(measurement.as_dict())
        else:
            _show(measurement)
            if warmup < ENOUGH_WARMUP or batches < ENOUGH_BATCHES:
                note(
                    f"{warmup} + {batches} batches say little; figures need a warm-up of "
                    f"{ENOUGH_WARMUP} and {ENOUGH_BATCHES} batches"
                )
    finally:
        if link is not None:
            link.close()


def _number(value: float | None) -> str:
    return "not counted" if value is None else f"{value:.2f}"


def _cache(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was held of decoded frames, where anything was to be."""
    if found.get("budget_bytes"):
        held, budget = (format_bytes(found[name]) for name in ("held_bytes", "budget_bytes"))
        yield "decoded frames held", f"{found['slots']} in {held} of {budget}"
        if found["hit_ratio"] is not None:
            yield "shown from there", f"{found['hit_ratio']:.1%}"
    if found.get("from_disk"):
        yield "decoded frames read from the disk", str(found["from_disk"])


def _call(seconds: float | None) -> Iterator[tuple[str, str]]:
    """What the user's function over a batch takes, where there is one."""
    if seconds is not None:
        yield "batch.call, for a batch", f"{seconds * 1e3:.2f} ms"


def _show(found: Measurement) -> None:
    latency = " / ".join(f"{s * 1e3:.1f} ms" for s in found.batch_latency_s.values())
    headroom = found.min_headroom_bytes
    emit_table(
        ("", ""),
        (
            ("samples/s", f"{found.samples_per_s:.1f}"),
            ("batches/s", f"{found.batches_per_s:.2f}"),
            ("batch latency p50 / p90 / p99", latency),
            ("time to first batch", f"{found.time_to_first_batch_s:.2f} s"),
            ("wait ratio", f"{found.wait_ratio:.3f}"),
            ("loader's peak", format_bytes(found.peak_rss_bytes)),
            ("least headroom", "not read" if headroom is None else format_bytes(headroom)),
            ("samples", f"{found.samples} from {found.datasets} datasets"),
            ("decodes a sample", _number(found.decodes_per_sample)),
            ("different episodes in a batch", _number(found.distinct_episodes_per_batch)),
            *_cache(found.cache or {}),
            *_call(found.batch_call_s),
        ),
    )
    emit("")
    emit_table(
        ("dataset", "weight", "share"),
        (
            (name, f"{entry['weight']:.4f}", f"{entry['share']:.4f}")
            for name, entry in found.mixture.items()
        ),
    )
    emit("")
    emit_table(("knob", "value"), found.knobs.items())
