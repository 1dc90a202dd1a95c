"""Behaviour cloning with Accelerate, by one process or by several.

python train_accelerate.py data/mix.yaml --steps 1000    # Ctrl-C saves; the same command goes on
torchrun --nproc-per-node 2 train_accelerate.py data/mix.yaml
"""

import argparse
from itertools import chain, repeat
from pathlib import Path

import torch
from accelerate import Accelerator
from policy import Policy
from ranks import Stop, validated

from autoloader import AutoLoader, validation_loaders

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("spec", help='has a camera "primary", a state and a split "val"')
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=200, help="steps between validations")
    parser.add_argument("--log-with", help="tensorboard, wandb or another tracker of Accelerate")
    parser.add_argument("--folder", type=Path, default=Path("policy"), help="of state and logs")
    given, stop = parser.parse_args(), Stop()
    # It finds out the ranks, so it comes before the loader.
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), log_with=given.log_with, project_dir=given.folder
    )
    accelerator.init_trackers("train")
    with validation_loaders(given.spec)["val"] as held, AutoLoader(given.spec) as loader:
        torch.manual_seed(0)
        policy = Policy(loader)
        model, adam = accelerator.prepare(policy, torch.optim.AdamW(policy.parameters()))
        accelerator.register_for_checkpointing(loader)  # its place is saved with the rest
        if (given.folder / "state").exists():
            accelerator.load_state(given.folder / "state")
        batches = chain.from_iterable(repeat(loader))  # epoch after epoch; each rank has its own
        while loader.batches < given.steps and not stop.asked():
            loss = model(next(batches))
            accelerator.backward(loss)
            adam.step()
            adam.zero_grad()
            step = loader.batches
            if step % given.every == 0:
                error = validated(policy, held)
                accelerator.print(f"step {step}: training {loss:.4f}, validation {error:.4f}")
                found = {f"loader/{name}": value for name, value in loader.metrics().items()}
                accelerator.log({"train/error": loss.item(), "val/error": error, **found}, step)
        accelerator.save_state(given.folder / "state")
    accelerator.end_training()
