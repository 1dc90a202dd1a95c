"""Behaviour cloning in plain torch: chunks of normalised actions from a frame and the state.

    python train_bc.py mix.yaml --steps 1000     # Ctrl-C saves; the same command goes on exactly
    torchrun --nproc-per-node 2 train_bc.py mix.yaml
The spec has a camera "primary", a state, a split "val", and says how both are normalised.
"""

import argparse
import itertools
import json
import os
import signal
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from autoloader import AutoLoader, Batch, validation_loaders


class Policy(nn.Module):  # predicts [B, horizon, A] actions; gives the mean error of those there
    def __init__(self, state: int, action: int) -> None:
        super().__init__()
        self.eye = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.GELU(), nn.Conv2d(16, 32, 4, 4))
        self.head = nn.Sequential(nn.Linear(32 + state, 128), nn.GELU(), nn.Linear(128, action))

    def forward(self, batch: Batch) -> Tensor:
        frames = batch["images"]["primary"][:, -1].permute(0, 3, 1, 2) / 255
        seen = torch.cat([self.eye(frames).mean(dim=(2, 3)), batch["state"][:, -1]], dim=1)
        error: Tensor = self.head(seen).view_as(batch["action"]) - batch["action"]
        return error[batch["action_mask"]].abs().mean()


def main() -> None:
    (parser := argparse.ArgumentParser()).add_argument("spec")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=200, help="steps between validations")
    parser.add_argument("--helpers", help="ray: other hosts decode too")
    parser.add_argument("--checkpoint", type=Path, default=Path("policy.pt"))
    given, step, (told, stop) = parser.parse_args(), 0, torch.zeros(2, 1)
    if several := "RANK" in os.environ:  # torchrun, or srun (docs/tutorials/slurm.md)
        distributed.init_process_group("gloo")
    add_up = distributed.all_reduce if several else torch.Tensor.clone
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda *_: told.fill_(1))
    (held,) = validation_loaders(given.spec).values()
    with held, AutoLoader(given.spec, helpers=given.helpers) as loader:  # they know their ranks
        layout = loader.plan.mixture.layout
        torch.manual_seed(0)
        policy = Policy(layout.state_width, layout.action_rows * layout.action_width)
        model = nn.parallel.DistributedDataParallel(policy) if several else policy
        adam = torch.optim.AdamW(policy.parameters())
        if given.checkpoint.exists():
            saved = torch.load(given.checkpoint, weights_only=True)
            for part, own in ((policy, "policy"), (adam, "adam"), (loader, "loader")):
                part.load_state_dict(saved[own])  # the loader's: exactly behind the last batch
            step = saved["step"]
        batches = itertools.chain.from_iterable(itertools.repeat(loader))  # epoch after epoch
        while step < given.steps and not stop:
            loss = model(next(batches))
            adam.zero_grad()
            loss.backward()
            adam.step()
            step += 1
            stop.copy_(told)
            add_up(stop)  # if one rank is told to stop, all do, after the same step
            if step % given.every == 0:
                sums = torch.tensor([[0.0, 0], *([policy(part).item(), 1] for part in held)]).sum(0)
                add_up(sums)  # each rank has its part of the validation
                if loader.rank == 0:
                    error = sums[0] / sums[1]
                    print(f"step {step}: training {loss:.4f}, validation {error:.4f}", flush=True)
        if loader.rank == 0:  # any rank's place is that of all, where data is local
            state = {"policy": policy.state_dict(), "adam": adam.state_dict(), "step": step}
            scales = json.dumps(loader.normalization, default=lambda array: array.tolist())
            state |= {"loader": loader.state_dict(), "normalization": scales}
            torch.save(state, given.checkpoint)
    if several:  # a thread of gloo's with a tensor in hand aborts an interpreter that ends
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
