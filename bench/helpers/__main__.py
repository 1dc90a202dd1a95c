"""Helpers on other hosts, measured on this one: nodes in cgroups, links that are shaped.

    python -m bench.helpers cores    # a trainer of half a core alone, and with a helper of one core
    python -m bench.helpers link     # a helper over a link of 1 Gb/s: what of it is used
    python -m bench.helpers faults   # 0 to 4 helpers that join and die: same batches, longest gap
    python -m bench.helpers full     # somebody else fills the object stores: the same
    python -m bench.helpers strangers  # nodes of other code, library and data: refused, named
    python -m bench.helpers index    # an index of 200 shards by one node and by two
    python -m bench.helpers lan      # the page's two machines of a LAN, in namespaces
    python -m bench.helpers slurm    # the page's SLURM job, by slurmctld and three slurmd in such
    python -m bench.helpers idle     # a trainer that needs none: when they are given back
    python -m bench.helpers cost     # a loader whose helpers are all given back: what that costs

Needs root (cpu cgroups of version 1, namespaces) and Ray; slurm needs SLURM too (``apt-get install
slurmctld slurmd slurm-client munge``). Result on stdout as JSON. Exit code 1 where a promise is not
kept; rates mean something on a quiet machine only.

Not here: the nodes (``bench.helpers.nodes``), the trainer (``bench.helpers.trainer``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time

from bench.helpers import catalogue, faults, rates, recipes, strangers
from bench.host import load

SCENARIOS = {
    "cores": rates.cores,
    "link": rates.link,
    "faults": faults.faults,
    "full": faults.full,
    "strangers": strangers.strangers,
    "index": catalogue.index,
    "lan": recipes.lan,
    "slurm": recipes.slurm,
    "idle": rates.idle,
    "cost": rates.cost,
}


def main() -> int:
    """Run one scenario; see above."""
    parser = argparse.ArgumentParser(prog="bench.helpers")
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=200, help="of index")
    parser.add_argument("--size", type=int, default=256, help="of frames; of cores and link")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave no process, no cgroup behind
    began = load()
    with contextlib.ExitStack() as stack:
        found = SCENARIOS[chosen.scenario](stack, chosen)
    found = {"scenario": chosen.scenario, **found, "load": [began, load()]}
    print(json.dumps(found, indent=2))
    return 0 if found["kept"] else 1


if __name__ == "__main__":
    began_s = time.monotonic()
    status = main()
    print(f"{time.monotonic() - began_s:.0f} s in all", file=sys.stderr)
    sys.exit(status)
