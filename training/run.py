"""One Stage-2 run, from options to figures: what is loaded, built, wired and left behind.

    OUTPUT/quantiser.pt              the frozen quantiser, if Stage 1 ran here
    OUTPUT/checkpoints/last.ckpt     model, optimiser, quantiser and the loader's place
    OUTPUT/checkpoints/exception.ckpt   the same, where the run raised
    OUTPUT/logs/version_N/metrics.csv   every figure by step
    OUTPUT/pictures/validation-N.png    samples, and predicted against target

Not here: the command line (``stage2``), losses (``module``).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only

from autoloader.errors import AutoloaderError, UsageError, nearest
from autoloader.lightning import AutoLoaderDataModule, LoaderMonitor
from autoloader.loader import AutoLoader
from autoloader.samples.resolve import resolve
from autoloader.spec import PipelineSpec
from training.module import Stage2Config, Stage2Module, restored_module
from training.quantiser import Quantiser, QuantiserConfig, load_quantiser, save_quantiser
from training.record import Figures, Recorder
from training.stage1 import awaited_quantiser, kept_quantiser, origin_of, train_quantiser
from training.stopping import SaveAndStop, StoppedError, StopSignals

LAST = Path("checkpoints/last.ckpt")
_QUANTISER = "quantiser.pt"
_CLIP = 1.0
logger = logging.getLogger(__name__)

OnStep = Callable[[int, int], None]
Progress = Callable[[str], AbstractContextManager[OnStep]]


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is asked to be.

    Attributes:
        spec: the mixture.
        output: folder that it writes to.
        profile, ram_floor: as for ``AutoLoader``.
        isolation: as for ``AutoLoader``.
        max_steps: of the optimiser, those before a resume included; -1 has no end.
        resume: a checkpoint to go on from; its model, camera and sizes are kept.
        laq_checkpoint: a quantiser instead of a Stage-1 run.
        laq_steps: of the Stage-1 run.
        camera: whose frames; ``None`` takes the spec's first.
        backbone: ``tiny``, or a PaliGemma checkpoint.
        action_head: whether the policy learns real actions too.
        image_size, batch_size: over the spec's.
        learning_rate: after the warm-up.
        seed: of weights and draws; ``None`` takes the spec's.
        precision: ``auto`` takes bf16 where the GPU computes in it.
        accelerator, devices: as for Lightning.
        val_every, val_batches: steps between validations (0: none), batches of each (``None``: as
            the spec says).
        save_every: steps between checkpoints.
        log_every: steps between lines of progress and of the log; 0: none.
        ideal_loader: whether the training's first batch is repeated for ever: what the trainer
            does alone.
    """

    spec: PipelineSpec
    output: Path
    profile: str | None = None
    ram_floor: str | int | None = None
    isolation: str = "process"
    max_steps: int = 300
    resume: Path | None = None
    laq_checkpoint: Path | None = None
    laq_steps: int = 150
    camera: str | None = None
    backbone: str = "tiny"
    action_head: bool = False
    image_size: int | None = None
    batch_size: int | None = None
    learning_rate: float = 5e-4
    seed: int | None = None
    precision: str = "auto"
    accelerator: str = "auto"
    devices: int = 1
    val_every: int = 100
    val_batches: int | None = None
    save_every: int = 100
    log_every: int = 10
    ideal_loader: bool = False


def run(
    options: Options,
    signals: StopSignals,
    *,
    callbacks: tuple[Callback, ...] = (),
    progress: Progress | None = None,
) -> Figures:
    """Trains, and tells what came of it; ``signals.requested`` says whether it was stopped.

    Args:
        options: what the run is asked to be.
        signals: who knows whether to stop.
        callbacks: further ones of the trainer.
        progress: shows steps done and in all, under a name, until its block ends; for Stage 1.
            The steps of Stage 2 have lines of their own (``options.log_every``).

    Raises:
        UsageError: options that make no sense with this spec or checkpoint.
        SpecError, SourceError, ProfileError, BudgetInfeasibleError: as ``AutoLoader`` does.
    """
    module = _restored(options) if options.resume else None
    config = module.config if module is not None else _config(options)
    spec = _sized(options.spec, config)
    options.output.mkdir(parents=True, exist_ok=True)
    if module is None:
        with nullcontext() if progress is None else progress("Stage 1") as on_step:
            quantiser = _quantiser(options, spec, config, on_step)
        module = Stage2Module(config, quantiser)
    data = AutoLoaderDataModule(
        spec,
        profile=options.profile,
        ram_floor=options.ram_floor,
        isolation="thread" if options.isolation == "thread" else "process",
        replay_one_batch=options.ideal_loader,
    )
    recorder = Recorder(options.output / "pictures", every=options.log_every)
    saving = SaveAndStop(signals, options.output / LAST)
    monitor = [LoaderMonitor(progress_bar=False)] if options.log_every else []
    trainer = _trainer(options, spec, (recorder, *monitor, *callbacks, saving))
    with signals.deferred(), warnings.catch_warnings():
        # The quantiser is in eval mode on purpose, a resumed run may go on in its folder, a
        # validation's figures are of all ranks already, and torch renamed what Lightning asks for.
        warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode")
        warnings.filterwarnings("ignore", message=r"It is recommended to use `self.log\('val/")
        warnings.filterwarnings("ignore", message=r"The dirpath has changed")
        warnings.filterwarnings("ignore", message=r"Checkpoint directory .* is not empty")
        warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")
        try:
            trainer.fit(module, datamodule=data, ckpt_path=options.resume, weights_only=True)
        except StoppedError:
            assert signals.requested is not None
        finally:
            data.close()
    return recorder.figures


def is_first_rank() -> bool:
    """Whether this process is the one that speaks for the run."""
    return not getattr(rank_zero_only, "rank", 0)


def _trainer(options: Options, spec: PipelineSpec, callbacks: tuple[Callback, ...]) -> Trainer:
    validates = options.val_every > 0 and any(d.split.get("val") for d in spec.datasets)
    regular = ModelCheckpoint(
        dirpath=options.output / LAST.parent,
        filename=LAST.stem,
        every_n_train_steps=options.save_every,
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )
    val_batches = 1.0 if options.val_batches is None else options.val_batches
    return Trainer(
        max_steps=options.max_steps,
        max_epochs=-1,
        accelerator=options.accelerator,
        devices=options.devices,
        precision=_precision(options),
        gradient_clip_val=_CLIP,
        val_check_interval=options.val_every if validates else None,
        check_val_every_n_epoch=None,
        limit_val_batches=val_batches if validates else 0,
        num_sanity_val_steps=0,
        log_every_n_steps=options.log_every,
        logger=CSVLogger(options.output, name="logs"),
        callbacks=[*callbacks, regular],
        default_root_dir=options.output,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _precision(options: Options) -> Any:
    if options.precision != "auto":
        return options.precision
    fast = options.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    return "bf16-mixed" if fast and torch.cuda.is_bf16_supported() else "32-true"


def _config(options: Options) -> Stage2Config:
    spec = options.spec
    rows = spec.sample.action_rows
    camera = options.camera or next(iter(spec.cameras))
    if camera not in spec.cameras:
        raise UsageError(f"the spec has no camera {camera!r}", remedy=nearest(camera, spec.cameras))
    frames = spec.sample_of(spec.datasets[0].name).window
    if frames < 2:
        raise UsageError(
            "a latent action lies between two frames, and the spec's samples have one",
            remedy="set sample.frame_offsets in the spec, such as [0, 5]",
        )
    return Stage2Config(
        camera=camera,
        later=frames - 1,
        backbone=options.backbone,
        action_shape=(rows, _action_width(spec)) if options.action_head else None,
        learning_rate=options.learning_rate,
        seed=spec.seed if options.seed is None else options.seed,
        image_size=options.image_size,
        batch_size=options.batch_size,
    )


def _action_width(spec: PipelineSpec) -> int:
    """Width of the batch's ``action``."""
    layout = resolve(spec, "train").layout
    if not layout.action_width:
        raise UsageError("no dataset has actions", remedy="leave --action-head out")
    return layout.action_width


def _sized(spec: PipelineSpec, config: Stage2Config) -> PipelineSpec:
    """The spec with the run's own sizes of pictures and batches."""
    # One validation loader is enough: errors are reported by dataset, which batches must tell.
    whole = spec.validation.model_copy(update={"per_dataset": False})
    metadata = "dataset_only" if spec.metadata == "none" else spec.metadata
    changed: dict[str, Any] = {"validation": whole, "metadata": metadata}
    if config.image_size is not None:
        size = (config.image_size, config.image_size)
        changed["cameras"] = {
            name: camera.model_copy(update={"size": size}) for name, camera in spec.cameras.items()
        }
    if config.batch_size is not None:
        changed["batch"] = spec.batch.model_copy(update={"size": config.batch_size})
    return spec.model_copy(update=changed)


def _restored(options: Options) -> Stage2Module:
    assert options.resume is not None
    try:
        found = torch.load(options.resume, map_location="cpu", weights_only=True)
        return restored_module(found)
    except AutoloaderError:
        raise
    except Exception as error:  # torch.load raises whatever a file provokes
        raise UsageError(
            f"{options.resume} cannot be read as a Stage-2 checkpoint: {error}",
            remedy=f"give a checkpoint that a run wrote, such as OUTPUT/{LAST}",
        ) from error


def _quantiser(
    options: Options, spec: PipelineSpec, config: Stage2Config, on_step: OnStep | None
) -> Quantiser:
    """The given quantiser, the one that this folder has already, or that of a Stage-1 run."""
    if options.laq_checkpoint is not None:
        return load_quantiser(options.laq_checkpoint)[0]
    path = options.output / _QUANTISER
    origin = origin_of(spec, config.camera, options.laq_steps, config.seed)
    if (kept := kept_quantiser(path, origin)) is not None:
        return kept
    if not is_first_rank():
        return awaited_quantiser(path, origin)
    cuda = options.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    with AutoLoader(
        spec,
        profile=options.profile,
        ram_floor=options.ram_floor,
        isolation="thread" if options.isolation == "thread" else "process",
        rank=0,
        world_size=1,
    ) as loader:
        quantiser, report = train_quantiser(
            loader,
            QuantiserConfig(),
            camera=config.camera,
            later=config.later,
            steps=options.laq_steps,
            seed=config.seed,
            device=torch.device("cuda" if cuda else "cpu"),
            on_step=on_step,
        )
    logger.info(
        "Stage 1: loss %.3f → %.3f, %.0f %% of the code words used",
        report.first_loss,
        report.last_loss,
        100 * report.codes_used,
    )
    save_quantiser(quantiser, path, origin=origin)
    return quantiser
