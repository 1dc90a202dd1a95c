"""``autoloader measure``: loader-only measurement of a spec.

Not here: how it is measured (``tune.measurement``).
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from autoloader.cli import options
from autoloader.cli.output import emit_document, emit_json, note
from autoloader.host.units import parse_seconds

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
        knobs = options.parse_sets(sets)
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
            ram_floor=ram_floor,
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
            found = measurement.as_dict()
            latency = found.pop("batch_latency_s").values()
            shown = {
                "batch latency p50 / p90 / p99": " / ".join(
                    f"{one * 1e3:.1f} ms" for one in latency
                )
            }
            emit_document({name: one for name, one in (found | shown).items() if name != "trace"})
            if warmup < ENOUGH_WARMUP or batches < ENOUGH_BATCHES:
                note(
                    f"{warmup} + {batches} batches say little; figures need a warm-up of "
                    f"{ENOUGH_WARMUP} and {ENOUGH_BATCHES} batches"
                )
    finally:
        if link is not None:
            link.close()
