"""Accelerate on a loader: prints, as JSON, what each run of it was given.

    python accelerate_script.py SPEC FOLDER:STOP...

Each trains an epoch; ends behind step ``STOP`` and saves into ``FOLDER`` (0: at the end). Where
there is a state, it goes on from there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from autoloader import AutoLoader
from tests.in_forks import one_by_one


def main(spec: str, folder: str, stop: str) -> dict[str, Any]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(3, 2)
    model, adam = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    seen, losses = [], []
    with AutoLoader(spec, ram_floor="64MiB", isolation="thread") as loader:
        accelerator.register_for_checkpointing(loader)
        if Path(folder).is_dir():
            accelerator.load_state(folder)
        for batch in loader:
            seen.append(batch["provenance"].tolist())
            loss = (model(batch["state"][:, 0]) - batch["action"][:, 0]).pow(2).mean()
            accelerator.backward(loss)
            adam.step()
            adam.zero_grad()
            losses.append(float(loss.detach()))
            if len(seen) == int(stop):
                accelerator.save_state(folder)
                break
        return {"length": len(loader), "rank": loader.rank, "seen": seen, "losses": losses}


if __name__ == "__main__":
    _, spec, *runs = sys.argv
    torch.optim.AdamW([torch.zeros(1)])  # what it imports is imported once as well
    found = one_by_one(main, [(spec, *run.rsplit(":", 1)) for run in runs])
    sys.stdout.write("\n" + json.dumps(found))
