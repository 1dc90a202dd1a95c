"""One step of the Stage-2 trainer; prints its figures and the sum of its gradients.

Run as a script with the number of ranks, of which only the first has pairs of frames and actions.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader, IterableDataset

from training.module import Stage2Config, Stage2Module
from training.quantiser import Quantiser, QuantiserConfig


class Samples(IterableDataset[Any]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        frames = torch.arange(4 * 2 * 32 * 32 * 3).reshape(4, 2, 32, 32, 3) % 251
        own = torch.full((4, 2), rank_zero_only.rank == 0)
        yield {
            "images": {"primary": frames.byte()}, "frame_mask": {"primary": own},
            "language": ["pick"] * 4, "action": torch.linspace(-1, 1, 24).reshape(4, 2, 3),
            "action_mask": own[..., None].expand(4, 2, 3),
        }  # fmt: skip


class Told(Callback):
    def on_before_optimizer_step(self, trainer: Trainer, module: LightningModule, _: Any) -> None:
        found = [one.grad for one in module.parameters() if one.grad is not None]
        told = {name: float(one) for name, one in trainer.callback_metrics.items()}
        told["gradients"] = sum(float(one.double().sum()) for one in found)
        if trainer.is_global_zero:
            sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(
        max_steps=1, accelerator="cpu", devices=int(sys.argv[1]), logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Told()],
    ).fit(
        Stage2Module(Stage2Config("primary", action_shape=(2, 3)), Quantiser(QuantiserConfig())),
        DataLoader(Samples(), batch_size=None),
    )  # fmt: skip
