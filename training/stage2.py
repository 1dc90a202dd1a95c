"""``python -m training.stage2``: trains a Stage-2 policy on a mixture.

Result on stdout, progress on stderr. Exit codes: those of ``autoloader`` (0 ok, 2 bad arguments,
spec or checkpoint, 3 the RAM floor cannot be met, 4 a data source failed, 70 internal error), and
130 or 143 where Ctrl-C or SIGTERM stopped it, with its checkpoint written.

Not here: the run (``training.run``).
"""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoloader.cli.app import Command, run_command
from autoloader.cli.output import answered, emit, progress_bar
from autoloader.errors import UsageError
from autoloader.host.units import format_bytes, parse_floor

if TYPE_CHECKING:
    from training.record import Figures

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Precision(str, Enum):
    """What the policy computes in."""

    auto = "auto"
    full = "32-true"
    bf16 = "bf16-mixed"


class Isolation(str, Enum):
    """Where the loader runs."""

    process = "process"
    thread = "thread"


@app.command(cls=Command)
def stage2(
    spec: Annotated[
        Path | None, typer.Option(help="The mixture's spec file; default: the demo mixture.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", "--host-profile", help="Host profile: a name or a path."),
    ] = None,
    ram_floor: Annotated[
        str | None, typer.Option(help='Memory that must stay free, such as "5GB".')
    ] = None,
    max_steps: Annotated[
        int, typer.Option(help="Optimiser steps, those before a resume included; -1: no end.")
    ] = 300,
    output: Annotated[Path, typer.Option(help="Folder for checkpoints, logs and pictures.")] = Path(
        "runs/stage2"
    ),
    resume: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to go on from; it brings model, sizes and seed."),
    ] = None,
    laq_checkpoint: Annotated[
        Path | None, typer.Option(help="Latent-action quantiser; default: a short Stage-1 run.")
    ] = None,
    laq_steps: Annotated[int, typer.Option(min=1, help="Steps of the Stage-1 run.")] = 150,
    camera: Annotated[
        str | None, typer.Option(help="Camera whose frames are used; default: the spec's first.")
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="tiny, or a PaliGemma checkpoint's name or folder.")
    ] = "tiny",
    action_head: Annotated[
        bool, typer.Option("--action-head", help="Learn the real actions too.")
    ] = False,
    image_size: Annotated[
        int | None, typer.Option(min=8, help="Side of the pictures, over the spec's cameras.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples per batch and rank, over the spec's.")
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="After 30 steps of warm-up.")] = 5e-4,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of weights and draws; default: the spec's.")
    ] = None,
    precision: Annotated[
        Precision, typer.Option(help="auto: bf16 where the GPU computes in it.")
    ] = Precision.auto,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, gpu: as for Lightning.")] = "auto",
    devices: Annotated[int, typer.Option(min=1, help="Ranks on this node.")] = 1,
    val_every: Annotated[
        int, typer.Option(min=0, help="Steps between validations; 0: none.")
    ] = 100,
    val_batches: Annotated[
        int | None, typer.Option(min=1, help="Batches of each; default: the spec's samples.")
    ] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 100,
    log_every: Annotated[
        int, typer.Option(min=0, help="Steps between lines of progress and log; 0 says nothing.")
    ] = 10,
    isolation: Annotated[
        Isolation, typer.Option(help="thread runs the loader in this process, for debugging.")
    ] = Isolation.process,
    ideal_loader: Annotated[
        bool,
        typer.Option(
            "--ideal-loader",
            help="Repeat the first batch: how fast the trainer is alone. It learns nothing.",
        ),
    ] = False,
) -> None:
    """Train a Stage-2 policy: latent actions from a frame and an instruction, by flow matching."""
    if ram_floor is not None:
        parse_floor(ram_floor, name="--ram-floor")
    for path, flag in ((resume, "--resume"), (laq_checkpoint, "--laq-checkpoint")):
        if path is not None and not path.is_file():
            raise UsageError(f"{flag}: there is no file {path}", remedy="give a file's path")
    from autoloader.cli.demo import demo_spec
    from autoloader.spec import PipelineSpec
    from training.run import LAST, Options, is_first_rank, run
    from training.stopping import StopSignals

    # Lightning's remarks on what hardware it found; importing it sets a level of its own.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    options = Options(
        spec=PipelineSpec.from_yaml(demo_spec() if spec is None else spec),
        output=output,
        profile=profile,
        ram_floor=ram_floor,
        isolation=isolation.value,
        max_steps=max_steps,
        resume=resume,
        laq_checkpoint=laq_checkpoint,
        laq_steps=laq_steps,
        camera=camera,
        backbone=backbone,
        action_head=action_head,
        image_size=image_size,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
        precision=precision.value,
        accelerator=accelerator,
        devices=devices,
        val_every=val_every,
        val_batches=val_batches,
        save_every=save_every,
        log_every=log_every,
        ideal_loader=ideal_loader,
    )
    signals = StopSignals()
    with signals.handled():
        figures = run(options, signals, progress=progress_bar)
    document = {
        **asdict(figures), "output": output, "stopped": signals.requested is not None,
    }  # fmt: skip
    if is_first_rank() and not answered(document):
        _show(figures, output / LAST)
    if signals.requested is not None:
        raise typer.Exit(signals.exit_code)


def _show(figures: Figures, checkpoint: Path) -> None:
    emit(f"steps         {figures.steps}")
    if figures.end:
        start, end = figures.start, figures.end
        emit(f"loss          {start['loss']:.3f} → {end['loss']:.3f}")
        emit(f"  of the mean {end['loss_of_mean']:.3f}")
        emit(f"  blind       {end['loss_blind']:.3f}")
    if figures.validation:
        seen = figures.validation
        emit(f"at validation {seen['loss']:.3f} (another's frame: {seen['loss_swapped']:.3f})")
        emit(f"latent error  {seen['latent_mse']:.3f} (mean: {seen['latent_mse_of_mean']:.3f})")
    if figures.samples_per_s is not None:
        emit(f"samples/s     {figures.samples_per_s:.1f}")
    if figures.wait_ratio is not None:
        emit(f"wait ratio    {100 * figures.wait_ratio:.2f} %")
    if figures.loader_bytes:
        emit(f"loader holds  {' → '.join(map(format_bytes, figures.loader_bytes))}")
    emit(f"checkpoint    {checkpoint}")


if __name__ == "__main__":
    sys.exit(run_command(app, sys.argv[1:], "python -m training.stage2"))
