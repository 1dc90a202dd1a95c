"""Hugging Face's ``Trainer`` on a loader: what two epochs of it were given."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from autoloader import AutoLoader, Batch


class Policy(nn.Module):
    """What a ``Trainer`` wants of a model: names of inputs, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.eye = nn.Conv2d(3, 8, 4, 4)
        self.head = nn.Linear(8, 2)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        found = self.head(nn.functional.gelu(self.eye(pixel_values)).mean(dim=(2, 3)))
        return {"loss": (found - labels).pow(2).mean(), "logits": found}


class OnLoader(Trainer):
    """A ``Trainer`` whose batches are a loader's."""

    def __init__(self, loader: AutoLoader, seen: list[Any], **given: Any) -> None:
        self.loader, self.seen = loader, seen
        super().__init__(**given)

    def get_train_dataloader(self) -> Any:
        return self.loader.as_torch_dataloader(self.inputs)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        self.seen.append(batch["provenance"].tolist())
        frames = batch["images"]["primary"][:, 0].permute(0, 3, 1, 2) / 255
        return {"pixel_values": frames, "labels": batch["action"][:, 0]}


def main(spec: str, folder: str) -> dict[str, Any]:
    torch.manual_seed(0)
    arguments = TrainingArguments(
        folder, num_train_epochs=2, save_strategy="no", logging_steps=1, report_to=[], use_cpu=True,
        remove_unused_columns=False, disable_tqdm=True, seed=0, learning_rate=0.01,
    )  # fmt: skip
    seen: list[Any] = []
    with AutoLoader(spec, ram_floor="64MiB", isolation="thread") as loader:
        trainer = OnLoader(loader, seen, model=Policy(), args=arguments)
        trainer.train()
        return {
            "length": len(loader),
            "steps": trainer.state.global_step,
            "epochs": trainer.state.epoch,
            "seen": seen,
            "losses": [one["loss"] for one in trainer.state.log_history if "loss" in one],
        }
