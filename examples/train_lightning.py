"""Behaviour cloning with Lightning, by one process or by several.

python train_lightning.py data/mix.yaml --steps 1000    # Ctrl-C saves; the same command goes on
python train_lightning.py data/mix.yaml --devices 2     # two GPUs; without any, two processes
"""

import argparse
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from policy import Policy
from ranks import Stop

from autoloader import Batch
from autoloader.lightning import AutoLoaderDataModule, LoaderMonitor


class Cloning(LightningModule):
    def configure_model(self) -> None:
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        torch.manual_seed(0)
        self.policy = Policy(data.train_dataloader().loader)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())

    def training_step(self, batch: Batch, number: int) -> torch.Tensor:
        error: torch.Tensor = self.policy(batch)
        self.log("train/error", error, prog_bar=True)
        return error

    def validation_step(self, batch: Batch, number: int) -> None:
        error, rows = self.policy(batch), len(batch["language"])
        self.log("val/error", error, prog_bar=True, sync_dist=True, batch_size=rows)

    def on_train_start(self) -> None:
        self.stop = Stop()  # in the place of Lightning's own handlers, which save nothing

    def on_train_batch_end(self, *_: object) -> None:
        self.trainer.should_stop = self.stop.asked()  # validates once more
        if self.trainer.should_stop or self.global_step == self.trainer.max_steps:
            self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/last.ckpt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("spec", help='has a camera "primary", a state and a split "val"')
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=200, help="steps between validations")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("policy"), help="of checkpoint and log")
    given = parser.parse_args()
    trainer = Trainer(
        max_steps=given.steps, val_check_interval=given.every, check_val_every_n_epoch=None,
        devices=given.devices, default_root_dir=given.folder, callbacks=[LoaderMonitor()],
    )  # fmt: skip
    last = given.folder / "last.ckpt"
    data = AutoLoaderDataModule(given.spec)
    trainer.fit(Cloning(), datamodule=data, ckpt_path=last if last.exists() else None)
