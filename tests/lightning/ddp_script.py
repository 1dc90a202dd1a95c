"""A Lightning fit on two ranks; run as a script with a spec's path and a folder to write to.

Lightning's own launcher starts the second rank. Each writes ``rank-N.json``: what it was trained on
and validated with, and which child served it. ``at.ckpt`` is saved in the middle of the epoch.
"""

import json
import sys
from pathlib import Path
from typing import Any

from fits import Tiny, data, trainer
from lightning.pytorch import Callback, Trainer

from autoloader import PipelineSpec

SAVE_AT = 3


class Notes(Callback):
    """Who served this rank, and how many batches it was promised."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        loader = trainer.datamodule.loader  # type: ignore[attr-defined]
        self.told = {
            "length": len(loader),
            "ranks": [loader.rank, loader.world_size],
            "pids": list(loader.statistics().worker_pids),
        }

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == SAVE_AT:
            trainer.save_checkpoint(self.folder / "at.ckpt")


def main(spec: str, folder: Path) -> None:
    notes, model = Notes(folder), Tiny()
    run = trainer(
        strategy="ddp", devices=2, max_epochs=1, num_sanity_val_steps=0, callbacks=[notes]
    )
    run.fit(model, datamodule=data(PipelineSpec.from_yaml(spec), "process"))
    told = {**notes.told, "seen": model.seen, "validated": model.validated}
    (folder / f"rank-{run.global_rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
