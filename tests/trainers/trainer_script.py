"""Hugging Face's ``Trainer`` on a loader: prints, as JSON, what each run of it was given.

    python trainer_script.py SPEC FOLDER:STOP...

Each trains two epochs, saving every third step into ``FOLDER``, and ends behind step ``STOP`` (0:
at the end). Where the folder has a checkpoint, it goes on from there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from autoloader import AutoLoader, Batch
from tests.in_forks import one_by_one

EPOCHS = 2


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


class SavesLoader(TrainerCallback):
    """Writes the loader's place beside every checkpoint, and ends behind a step."""

    def __init__(self, loader: AutoLoader, stop: int) -> None:
        self.loader, self.stop = loader, stop

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        (folder / "loader.json").write_text(json.dumps(self.loader.state_dict()))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= state.global_step == self.stop


def main(spec: str, folder: str, stop: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Policy()
    arguments = TrainingArguments(
        folder, num_train_epochs=EPOCHS, save_steps=3, logging_steps=1, report_to=[], use_cpu=True,
        ignore_data_skip=True, remove_unused_columns=False, disable_tqdm=True, seed=0,
        learning_rate=0.01,
        per_device_train_batch_size=4,
    )  # fmt: skip
    seen: list[Any] = []
    with AutoLoader(spec, ram_floor="64MiB", isolation="thread") as loader:
        last = get_last_checkpoint(folder) if Path(folder).is_dir() else None
        if last is not None:
            loader.load_state_dict(json.loads(Path(last, "loader.json").read_text()))
        trainer = OnLoader(
            loader, seen, model=model, args=arguments, callbacks=[SavesLoader(loader, int(stop))]
        )
        trainer.train(resume_from_checkpoint=last)
        return {
            "length": len(loader),
            "steps": trainer.state.global_step,
            "epochs": trainer.state.epoch,
            "seen": seen,
            "losses": [one["loss"] for one in trainer.state.log_history if "loss" in one],
            "weights": sum(float(one.detach().double().sum()) for one in model.parameters()),
        }


if __name__ == "__main__":
    _, spec, *runs = sys.argv
    torch.optim.AdamW([torch.zeros(1)])  # what it imports is imported once as well
    found = one_by_one(main, [(spec, *run.rsplit(":", 1)) for run in runs])
    sys.stdout.write("\n" + json.dumps(found))
