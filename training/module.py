"""Stage 2 as a Lightning module: losses, metrics and the optimiser.

Theory of operation. The frozen quantiser turns the frames at t and at the last offset into a
target, and the policy learns the flow that leads from noise to it, given the frame at t and the
instruction alone. Two lines to hold the loss against are logged beside it, for the same draws:
``loss_of_mean``, of who always answers the mean velocity, and ``loss_blind``, the least of a linear
answer to x_t and t (``flow.blind_loss``). Both are met without looking at anything; whether the
policy looks is seen at validation, from ``loss_swapped``: the loss when each sample is given its
neighbour's frame and instruction. Validation samples latents by Euler's rule too, and tells their
squared error by dataset, beside that of the mean latent. (One sample of what is uncertain errs more
than its mean: without any knowledge 2 where the mean errs 1.)

Invariants:
    1. Draws are keyed by seed, step and rank, so a resumed run has the uninterrupted run's losses.
    2. The checkpoint holds the quantiser too: a resumed run has the same targets.
    3. Samples without both frames (padding, no such camera) weigh nothing; the others all weigh the
       same, on whichever rank they are.

Not here: the trainer around it (``run``), pictures (``pictures``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from training import flow
from training.backbones import build_backbone
from training.images import FramePair, frame_pair
from training.policy import Policy
from training.quantiser import Quantiser, QuantiserConfig


@dataclass(frozen=True, slots=True)
class Stage2Config:
    """What a policy is and how it learns; kept in the checkpoint.

    Attributes:
        camera: whose frames are used.
        later: number of the later frame in a sample (behind the offsets' frames a goal may follow).
        backbone: ``tiny``, or a PaliGemma checkpoint.
        quantiser: sizes of the quantiser.
        action_shape: (rows, width) of the batch's ``action`` for an action head; ``None``: no head.
        action_weight: of the action head's loss beside the latent's.
        learning_rate: after the warm-up.
        warmup_steps: steps over which the learning rate rises.
        weight_decay: of matrices and filters.
        euler_steps: from noise to sample, at validation.
        seed: of weights and draws.
        image_size, batch_size: over the spec's, where given.
    """

    camera: str
    later: int = 1
    backbone: str = "tiny"
    quantiser: QuantiserConfig = field(default_factory=QuantiserConfig)
    action_shape: tuple[int, int] | None = None
    action_weight: float = 1.0
    learning_rate: float = 5e-4
    warmup_steps: int = 30
    weight_decay: float = 0.01
    euler_steps: int = 10
    seed: int = 0
    image_size: int | None = None
    batch_size: int | None = None

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Stage2Config:
        """From what ``dataclasses.asdict`` gave."""
        shape = plain["action_shape"]
        return cls(
            **{
                **plain,
                "quantiser": QuantiserConfig(**plain["quantiser"]),
                "action_shape": None if shape is None else (int(shape[0]), int(shape[1])),
            }
        )


@dataclass(frozen=True, slots=True)
class Shown:
    """What a validation shows of its first batch; rows are samples."""

    pair: FramePair
    target: Tensor
    predicted: Tensor
    language: list[str]
    datasets: list[str]


class Stage2Module(LightningModule):
    """See the module.

    Args:
        config: sizes and settings.
        quantiser: gives the targets; frozen here.

    Attributes:
        shown: the last validation's first batch.
        hurry: while true, validation batches are let through without being looked at.
    """

    def __init__(self, config: Stage2Config, quantiser: Quantiser) -> None:
        super().__init__()
        self.config = config
        self.save_hyperparameters({"stage2": asdict(config)})
        torch.manual_seed(flow.keyed_seed(config.seed, "weights"))
        shape = config.action_shape
        actions = 0 if shape is None else shape[0] * shape[1]
        self.policy = Policy(build_backbone(config.backbone), quantiser.config.latent_dim, actions)
        self.quantiser = quantiser.frozen()
        self.hurry = False
        self.shown: Shown | None = None
        self._sums: Tensor | None = None

    def train(self, mode: bool = True) -> Stage2Module:
        """As every module does; the quantiser stays as it is."""
        super().train(mode)
        self.quantiser.eval()
        return self

    def _draw(self, rows: int, width: int, *key: int | str) -> flow.Draw:
        return flow.draw(rows, width, self.device, self.config.seed, *key, self.global_rank)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        del batch_idx
        step = self.global_step
        # For backbones that draw by themselves (dropout).
        torch.manual_seed(flow.keyed_seed(self.config.seed, "backbone", step, self.global_rank))
        pair = frame_pair(batch, self.config.camera, self.config.later)
        target = self.quantiser.targets(pair.now, pair.later)
        feature = self._feature(pair, batch["language"])
        drawn = self._draw(*target.shape, "train", step)
        lines = self._lines(feature, target, drawn, pair.weight)
        loss = lines["loss"]
        if self.policy.action_head is not None:
            action_loss = self._action_loss(feature, batch, step)
            lines["action_loss"] = action_loss
            loss = loss + self.config.action_weight * action_loss
        self.log_dict(
            {f"train/{name}": value.detach() for name, value in lines.items()},
            batch_size=len(target),
            sync_dist=True,
        )
        return loss

    def _feature(self, pair: FramePair, language: Sequence[str]) -> Tensor:
        tokens = self.policy.tokens(language, self.device)
        return torch.as_tensor(self.policy.backbone(pair.now, tokens))

    def _lines(
        self, feature: Tensor, target: Tensor, drawn: flow.Draw, weight: Tensor
    ) -> dict[str, Tensor]:
        """The loss, and the two lines to hold it against, over the same draws."""
        answer = self.policy.latent_head(flow.on_path(target, drawn), drawn.t, feature)
        error = (answer.float() - flow.velocity(target, drawn.noise)).square().mean(1)
        # Targets are standardised: mean 0, variance 1.
        mean = torch.zeros_like(target[0])
        return {
            "loss": self._mean(error, weight),
            "loss_of_mean": self._mean(flow.mean_loss(target, drawn, mean), weight),
            "loss_blind": self._mean(flow.blind_loss(drawn, self.quantiser.variance), weight),
        }

    def _action_loss(self, feature: Tensor, batch: dict[str, Any], step: int) -> Tensor:
        """The action head's flow-matching loss over the numbers that are there."""
        assert self.policy.action_head is not None
        action, mask = batch["action"].flatten(1), batch["action_mask"].flatten(1)
        drawn = self._draw(*action.shape, "action", step)
        answer = self.policy.action_head(flow.on_path(action, drawn), drawn.t, feature)
        error = (answer.float() - flow.velocity(action, drawn.noise)).square()
        return self._mean(error, mask)

    def _mean(self, values: Tensor, weight: Tensor) -> Tensor:
        """This rank's part of a weighted mean: the mean of all parts is that of all ranks' values.

        So gradients, which DDP averages, are those of one process. 0 where nothing weighs.
        """
        whole = self.trainer.strategy.reduce(weight.sum().float(), reduce_op="mean")
        return (values * weight).sum() / torch.as_tensor(whole).clamp_min(1e-6)

    def on_validation_epoch_start(self) -> None:
        # Rows: datasets. Columns: samples, weight, error, error of the mean, loss, loss swapped.
        self._sums = torch.zeros(len(self._names()), 6, device=self.device)
        self.shown = None

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        if self.hurry:
            return
        assert self._sums is not None
        pair = frame_pair(batch, self.config.camera, self.config.later)
        target = self.quantiser.targets(pair.now, pair.later)
        feature = self._feature(pair, batch["language"])
        drawn = self._draw(*target.shape, "val", batch_idx)
        predicted = self.policy.sample(feature, drawn.noise, self.config.euler_steps).float()
        x, sought = flow.on_path(target, drawn), flow.velocity(target, drawn.noise)
        loss, swapped = (
            (self.policy.latent_head(x, drawn.t, seen).float() - sought).square().mean(1)
            for seen in (feature, feature.roll(1, 0))
        )
        weight = pair.weight
        columns = (
            torch.ones_like(weight),
            weight,
            weight * (predicted - target).square().mean(1),
            weight * target.square().mean(1),
            weight * loss,
            weight * swapped,
        )
        rows = batch.get("dataset_index", torch.zeros(len(target), dtype=torch.int64))
        self._sums.index_add_(0, rows.to(self.device), torch.stack(columns, 1))
        if self.shown is None:
            names = self._names()
            datasets = [names[row] for row in rows[:8].tolist()]
            few = FramePair(pair.now[:8], pair.later[:8], weight[:8])
            self.shown = Shown(
                few, target[:8], predicted[:8], list(batch["language"][:8]), datasets
            )

    def on_validation_epoch_end(self) -> None:
        assert self._sums is not None
        sums = self.trainer.strategy.reduce(self._sums, reduce_op="sum")
        assert isinstance(sums, Tensor)
        if not self.hurry:
            self.log_dict(_validation_figures(sums.cpu(), self._names()))

    def _names(self) -> Sequence[str]:
        """Names that a validation batch's ``dataset_index`` counts."""
        loader = getattr(getattr(self.trainer, "datamodule", None), "validation_loader", None)
        return ("all",) if loader is None else tuple(loader.dataset_names)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        learned = [p for p in self.policy.parameters() if p.requires_grad]
        groups = [
            {
                "params": [p for p in learned if p.ndim > 1],
                "weight_decay": self.config.weight_decay,
            },
            {"params": [p for p in learned if p.ndim <= 1], "weight_decay": 0.0},
        ]
        optimiser = torch.optim.AdamW(groups, lr=self.config.learning_rate, betas=(0.9, 0.95))
        warmup = max(1, self.config.warmup_steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: min(1.0, (step + 1) / warmup)
        )
        return {
            "optimizer": optimiser,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def _validation_figures(sums: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Figures of a validation from its sums by dataset; a dataset without samples has none."""
    samples, weight, error, of_mean, loss, swapped = sums.double().unbind(1)
    total = float(weight.sum())
    if not total:
        return {}
    figures = {
        "val/latent_mse": float(error.sum()) / total,
        "val/latent_mse_of_mean": float(of_mean.sum()) / total,
        "val/loss": float(loss.sum()) / total,
        "val/loss_swapped": float(swapped.sum()) / total,
    }
    for row, name in enumerate(names):
        figures[f"val/share/{name}"] = float(samples[row] / samples.sum())
        if weight[row]:
            figures[f"val/latent_mse/{name}"] = float(error[row] / weight[row])
    return figures


def restored_module(checkpoint: dict[str, Any]) -> Stage2Module:
    """A module that ``checkpoint`` fits, its weights not yet loaded.

    Raises:
        KeyError: the checkpoint is another trainer's.
    """
    config = Stage2Config.from_plain(checkpoint["hyper_parameters"]["stage2"])
    return Stage2Module(config, Quantiser(config.quantiser))
