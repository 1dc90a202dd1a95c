"""``python -m bench.tuner ROW``: runs a row and prints it as JSON; exit code 1 where it fails.

Rows, with what each takes on two quiet processors with ``--budget 5m``:

    random   the winner beside the best of 16 random legal sets; the floor at 20 Hz   (20 min)
    bound    the predicted bound beside the best measured, on six mixtures            (40 min)
    worst    from the slowest shipped profile                                         (10 min)
    seeds    two studies with different seeds, their winners in turn                  (15 min)
    step     --step-time 20, 80 and 320 ms                                            (20 min)
    small    a memory cgroup in which half of the sets would cross the floor; root    (8 min)
    sets     how each of the random legal sets ends; a part of small                  (3 min)
    kills    trials killed and stopped, the tuner killed, the study resumed           (10 min)
    shared   three tuners on one PostgreSQL study, one killed; one profile            (10 min)

Not here: what a row does (``bench.tuner.rows``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoloader.demo.build import ensure_demo
from autoloader.units import parse_bytes, parse_seconds
from bench.tuner import rows
from bench.tuner.shared import shared_study
from bench.tuner.studies import Row, busy_now, scratch

MIXTURES = ("demo", "large", "png", "tiny", "cached", "even_1", "slow")


def main() -> int:
    arguments = _arguments()
    print(f"bench.tuner: {busy_now()}, {os.cpu_count()} cpus", file=sys.stderr)
    with scratch() as folder:
        row = Row(
            spec=(arguments.spec or ensure_demo()).absolute(),
            budget_s=parse_seconds(arguments.budget, name="--budget"),
            batches=arguments.batches,
            floor_bytes=parse_bytes(arguments.ram_floor, name="--ram-floor"),
            folder=Path(folder),
        )
        run: dict[str, Callable[[], dict[str, Any]]] = {
            "random": lambda: rows.against_random(row, arguments.sets),
            "bound": lambda: rows.predicted(row, arguments.mixtures),
            "worst": lambda: rows.from_worst(row),
            "seeds": lambda: rows.two_seeds(row),
            "step": lambda: rows.steps(row, tuple(arguments.steps_ms)),
            "small": lambda: rows.small_group(
                row, parse_bytes(arguments.limit, name="--limit"), arguments.sets
            ),
            "sets": lambda: rows.sets(row, arguments.sets),
            "kills": lambda: rows.kills(row),
            "shared": lambda: shared_study(row),
        }
        found = {"row": arguments.row, "machine": busy_now(), **run[arguments.row]()}
    print(json.dumps(found, indent=1))
    return 0 if found["kept"] else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.tuner", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = ("random", "bound", "worst", "seeds", "step", "small", "sets", "kills", "shared")
    parser.add_argument("row", choices=names)
    parser.add_argument("--spec", type=Path, help="the mixture; default: the demo mixture")
    parser.add_argument("--budget", default="5m", help="of each study")
    parser.add_argument("--batches", type=int, default=160, help="of each measurement")
    parser.add_argument("--ram-floor", default="2GB")
    parser.add_argument("--sets", type=int, default=rows.RANDOM_SETS, help="random sets")
    parser.add_argument("--mixtures", nargs="+", choices=MIXTURES, default=MIXTURES)
    parser.add_argument("--steps-ms", nargs="+", type=int, default=rows.STEPS_MS)
    parser.add_argument("--limit", default="2.75GB", help="of the memory cgroup of `small`")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
