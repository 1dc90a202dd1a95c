"""Behaviour cloning in plain torch, by one process or by several.

python train_bc.py data/mix.yaml --steps 1000    # Ctrl-C saves; the same command goes on exactly
torchrun --nproc-per-node 2 train_bc.py data/mix.yaml
"""

import argparse
import os
from itertools import chain, repeat
from pathlib import Path

import torch
from policy import Policy
from ranks import Stop, validated
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from autoloader import AutoLoader, validation_loaders

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("spec", help='has a camera "primary", a state and a split "val"')
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=200, help="steps between validations")
    parser.add_argument("--device", default="cpu", help="cuda: a GPU for each rank")
    parser.add_argument("--helpers", help="ray: other hosts decode too")
    parser.add_argument("--checkpoint", type=Path, default=Path("policy.pt"))
    given, stop = parser.parse_args(), Stop()
    if given.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if "RANK" in os.environ:  # torchrun, or srun (docs/tutorials/slurm.md)
        distributed.init_process_group()
    held = validation_loaders(given.spec)["val"]
    with held, AutoLoader(given.spec, helpers=given.helpers) as loader:  # they know their ranks
        torch.manual_seed(0)
        policy = Policy(loader).to(given.device)
        model = DistributedDataParallel(policy) if loader.world_size > 1 else policy
        adam = torch.optim.AdamW(policy.parameters())
        if given.checkpoint.exists():
            saved = torch.load(given.checkpoint, weights_only=True, map_location=given.device)
            policy.load_state_dict(saved["policy"])
            adam.load_state_dict(saved["adam"])
            loader.load_state_dict(saved["loader"])  # exactly behind the last batch
        batches = chain.from_iterable(repeat(loader))  # epoch after epoch
        while loader.batches < given.steps and not stop.asked():
            loss = model(next(batches))
            adam.zero_grad()
            loss.backward()
            adam.step()
            if (step := loader.batches) % given.every == 0:
                error = validated(policy, held)
                if loader.rank == 0:
                    print(f"step {step}: training {loss:.4f}, validation {error:.4f}", flush=True)
        if loader.rank == 0:  # any rank's place is that of all, where data is local
            state = {"policy": policy.state_dict(), "normalization": policy.normalization}
            state |= {"adam": adam.state_dict(), "loader": loader.state_dict()}
            torch.save(state, given.checkpoint)
    if distributed.is_initialized():  # gloo's threads must end before the interpreter does
        distributed.destroy_process_group()
