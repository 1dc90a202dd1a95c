"""Keeps the figures of a run, says them on the way, and saves each validation's picture.

Not here: what they are (``module``), what Lightning's loggers get (``autoloader.lightning``).
"""

from __future__ import annotations

import collections
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from autoloader.lightning import AutoLoaderDataModule
from training.module import Stage2Module
from training.pictures import sheet

_FIRST, _LAST = 10, 30
_LINES = ("loss", "loss_of_mean", "loss_blind")


@dataclass
class Figures:
    """What a run came to.

    Attributes:
        steps: of the optimiser, those before a resume included.
        start: the lines' means over the first 10 steps.
        end: the lines' means over the last 30.
        validation: the last validation's figures.
        wait_ratio: share of the run that it waited for data.
        samples_per_s: as the loader counts.
        loader_bytes: what the loader held, at the first step, at validations and at the end.
        headroom_bytes: the least that was left at those times.
    """

    steps: int = 0
    start: dict[str, float] = field(default_factory=dict)
    end: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    wait_ratio: float | None = None
    samples_per_s: float | None = None
    loader_bytes: list[int] = field(default_factory=list)
    headroom_bytes: int | None = None


class Recorder(Callback):
    """Fills ``figures``; see the module.

    Args:
        pictures: folder for the validations' sheets.
        every: steps between lines on stderr; 0 says nothing.
    """

    def __init__(self, pictures: Path, *, every: int) -> None:
        self.figures = Figures()
        self._pictures = pictures
        self._every = every
        self._first: list[torch.Tensor] = []
        self._last: collections.deque[torch.Tensor] = collections.deque(maxlen=_LAST)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        logged = trainer.callback_metrics
        lines = torch.stack([logged[f"train/{name}"].detach() for name in _LINES])
        if len(self._first) < _FIRST:
            self._first.append(lines)
        self._last.append(lines)
        step = trainer.global_step
        self.figures.steps = step
        if len(self._first) == 1 and len(self._last) == 1:
            self._look_at_loader(trainer)
        if self._every and step % self._every == 0 and trainer.is_global_zero:
            loss, of_mean, blind = lines.tolist()
            print(
                f"Stage 2, step {step}: loss {loss:.3f} "
                f"(of the mean {of_mean:.3f}, blind {blind:.3f})",
                file=sys.stderr,
                flush=True,
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look_at_loader(trainer)
        figures = {
            key.removeprefix("val/"): float(value)
            for key, value in trainer.callback_metrics.items()
            if key.startswith("val/")
        }
        assert isinstance(pl_module, Stage2Module)
        if not figures or pl_module.hurry or not trainer.is_global_zero:
            return
        self.figures.validation = figures
        if pl_module.shown is not None:
            self._pictures.mkdir(parents=True, exist_ok=True)
            page = sheet(pl_module.shown, pl_module.quantiser)
            page.save(self._pictures / f"validation-{trainer.global_step:06d}.png")
        if self._every:
            print(
                f"Stage 2, validation at step {trainer.global_step}: latent error "
                f"{figures['latent_mse']:.3f} (of the mean {figures['latent_mse_of_mean']:.3f})",
                file=sys.stderr,
                flush=True,
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look_at_loader(trainer)
        self._add_up()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._add_up()

    def _look_at_loader(self, trainer: Trainer) -> None:
        module = getattr(trainer, "datamodule", None)
        if not isinstance(module, AutoLoaderDataModule) or module.loader is None:
            return
        seen = module.loader.statistics()
        self.figures.wait_ratio = seen.wait_ratio
        self.figures.samples_per_s = seen.samples_per_s
        if seen.loader_bytes is not None:
            self.figures.loader_bytes.append(seen.loader_bytes)
        readings = (self.figures.headroom_bytes, seen.headroom_bytes)
        self.figures.headroom_bytes = min((n for n in readings if n is not None), default=None)

    def _add_up(self) -> None:
        for name, kept in (("start", self._first), ("end", list(self._last))):
            if kept:
                means = torch.stack(kept).mean(0).tolist()
                setattr(self.figures, name, dict(zip(_LINES, means, strict=True)))
