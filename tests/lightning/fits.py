"""A tiny module that notes the samples it is trained on, and Trainers that touch no disk."""

from typing import Any

import torch
from left_behind import KNOBS, places
from lightning.pytorch import LightningModule, Trainer, seed_everything

from autoloader import PipelineSpec
from autoloader.lightning import AutoLoaderDataModule


class Tiny(LightningModule):
    """A linear model from state to action."""

    def __init__(self, *, raises_at: int | None = None) -> None:
        super().__init__()
        seed_everything(7, verbose=False)
        self.layer = torch.nn.Linear(3, 2)
        self.raises_at = raises_at
        self.seen: list[list[tuple[int, ...]]] = []
        self.validated: list[list[tuple[int, ...]]] = []
        self.sanity: list[list[tuple[int, ...]]] = []
        self.losses: list[float] = []
        self.epochs: list[int] = []

    def _loss(self, batch: dict[str, Any]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layer(batch["state"][:, 0]), batch["action"][:, 0])

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        self.seen.append(places(batch))
        self.epochs.append(self.current_epoch)
        if self.raises_at is not None and len(self.seen) == self.raises_at:
            raise RuntimeError("the trainer's own fault")
        loss = self._loss(batch)
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        (self.sanity if self.trainer.sanity_checking else self.validated).append(places(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def data(spec: PipelineSpec, isolation: str = "thread", **own: Any) -> AutoLoaderDataModule:
    own = {"ram_floor": "64MiB", "knobs": KNOBS, **own}
    return AutoLoaderDataModule(spec, isolation=isolation, **own)  # type: ignore[arg-type]


def trainer(**own: Any) -> Trainer:
    quiet = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1,
    }  # fmt: skip
    return Trainer(**{**quiet, **own})


def endless(spec: PipelineSpec) -> PipelineSpec:
    return spec.model_copy(update={"mixing": spec.mixing.model_copy(update={"epoch": "forever"})})
