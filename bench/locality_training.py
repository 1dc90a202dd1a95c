"""What a trainer makes of an order with locality: its validation loss beside that of other orders.

    python -m bench.locality_training [--steps 300] [--seeds 3] [--block 128KiB] [--window 8]

The trainer is the example's behaviour cloning (``examples/train_bc.py``), over the demo mixture; a
seed decides its weights and the order of samples. Each seed trains once in the full shuffle, once
with locality, and once by stream without a shuffle buffer, each dataset in the order of its
records. The loss is that of the same held-out samples.

Result on stdout as JSON. Exit code 1 where the mean loss with locality is further from that of the
full shuffle than twice the standard error of their difference over seeds.

Not here: the shuffle's quality in figures (``bench.locality_shuffle``).
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import statistics
import sys
from typing import Any

import torch

from autoloader import AutoLoader, PipelineSpec, validation_loaders
from bench.data import ensure_data
from bench.host import load

Policy = importlib.import_module("examples.train_bc").Policy
DATA = "demo"


def main() -> int:
    chosen = _arguments()
    began = load()
    plain = PipelineSpec.from_yaml(ensure_data(DATA)).model_dump(mode="json")
    plain |= {
        "normalize": {"action": {"method": "mean_std"}, "state": {"method": "mean_std"}},
        "validation": {"samples": 960},
    }
    near = {"block": chosen.block, "window": chosen.window}
    orders: dict[str, dict[str, Any]] = {
        "full shuffle": {"reader": "indexed", "mixing": {}},
        "locality": {"reader": "indexed", "mixing": {"locality": near}},
        "as stored": {"reader": "stream", "mixing": {}},
    }
    losses: dict[str, list[float]] = {name: [] for name in orders}
    for seed in range(chosen.seeds):
        for name, own in orders.items():
            spec = PipelineSpec.from_mapping({**plain, **own, "seed": seed})
            losses[name].append(_loss(spec, chosen.steps, seed))
            print(f"seed {seed}, {name}: {losses[name][-1]:.4f}", file=sys.stderr)
    full, local = losses["full shuffle"], losses["locality"]
    apart = abs(statistics.fmean(local) - statistics.fmean(full))
    noise = 2 * _standard_error(full, local)
    found = {
        "validation_loss": losses,
        "apart": apart,
        "noise": noise,
        "within_noise": apart <= noise if chosen.seeds > 1 else None,
        "load": {"began": began, "ended": load()},
    }
    print(json.dumps(found, indent=1))
    return int(chosen.seeds > 1 and apart > noise)


def _standard_error(*groups: list[float]) -> float:
    """Of the difference of two means; 0 for single values."""
    if min(map(len, groups)) < 2:
        return 0.0
    return math.sqrt(sum(statistics.variance(own) / len(own) for own in groups))


def _loss(spec: PipelineSpec, steps: int, seed: int) -> float:
    """Mean error over the held-out samples after so many steps."""
    (held,) = validation_loaders(spec.model_copy(update={"reader": "indexed", "seed": 0})).values()
    knobs = {"shuffle_samples": 0} if spec.reader == "stream" else None
    with held, AutoLoader(spec, knobs=knobs) as loader:
        layout = loader.plan.mixture.layout
        torch.manual_seed(seed)
        policy = Policy(layout.state_width, layout.action_rows * layout.action_width)
        adam = torch.optim.AdamW(policy.parameters())
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for batch in itertools.islice(batches, steps):
            adam.zero_grad()
            policy(batch).backward()
            adam.step()
        with torch.no_grad():
            return float(torch.stack([policy(batch) for batch in held]).mean())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.locality_training", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--block", default="128KiB")
    parser.add_argument("--window", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
