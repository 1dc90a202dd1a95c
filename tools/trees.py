"""Compares two checkouts in turn: processor time, rate, first batch and memory of whole loaders.

    python tools/trees.py OTHER --spec mix.yaml [--set knob=value ...] [--pairs 10] [--batches 200]

OTHER is the other checkout, with a ``.venv`` of its own. Each turn is a fresh process of one
checkout, A B B A …; the first pair is thrown away, as its caches fill. Each checkout has a cache
folder of its own, as indexes of two versions would replace each other at every start, and its
bytecode is made before: compiling would be most of a start. A ratio is this
checkout to OTHER, its interval that of ``bench.paired``. Only public names are used; memory is the
proportional set size of all processes.

Not here: other loaders (``bench.runner``), limits (``bench.gate``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.paired import estimate

HERE = Path(__file__).parents[1]
MEASURES = ("cpu_s_per_sample", "s_per_sample", "first_batch_s", "peak_bytes")

_TURN = """
import contextlib, json, os, sys, time
import psutil
from autoloader import AutoLoader, PipelineSpec
spec, knobs, warmup, batches = json.loads(sys.argv[1])
me = psutil.Process()
def seconds():
    found = 0.0
    for one in [me, *me.children(recursive=True)]:
        try:
            times = one.cpu_times()
        except psutil.Error:
            continue
        found += times.user + times.system
    return found
def held():
    found = 0
    for one in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            found += one.memory_full_info().pss
    return found
began = time.perf_counter()
with AutoLoader(PipelineSpec.from_yaml(spec), ram_floor="500MB", knobs=knobs, controller=False,
                output="numpy") as loader:
    def endless():
        while True:
            yield from loader
    stream = endless()
    next(stream)
    first = time.perf_counter() - began
    for _ in range(warmup):
        next(stream)
    cpu, wall, samples, peak = seconds(), time.perf_counter(), 0, 0
    for number in range(batches):
        samples += len(next(stream)["dataset_index"])
        if number % 50 == 0:
            peak = max(peak, held())
    cpu, wall = seconds() - cpu, time.perf_counter() - wall
print(json.dumps({"cpu_s_per_sample": cpu / samples, "s_per_sample": wall / samples,
                  "first_batch_s": first, "peak_bytes": peak}))
"""


def turn(tree: Path, arguments: str, caches: str) -> dict[str, float]:
    """One process of one checkout, whose caches lie in a folder below ``caches``."""
    done = subprocess.run(
        [tree / ".venv/bin/python", "-c", _TURN, arguments],
        cwd=tree,
        env=os.environ
        | {"AUTOLOADER_CACHE_DIR": f"{caches}/{'this' if tree == HERE else 'other'}"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/trees.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("other", type=Path)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--batches", type=int, default=200)
    chosen = parser.parse_args()
    knobs = dict(one.split("=", 1) for one in chosen.set)
    asked = [str(chosen.spec.absolute()), knobs, chosen.warmup, chosen.batches]
    trees = [HERE, chosen.other.absolute()]
    ratios: dict[str, list[float]] = {name: [] for name in MEASURES}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for tree in trees:
        subprocess.run([tree / ".venv/bin/python", "-m", "compileall", "-q", tree / "autoloader"])
    with tempfile.TemporaryDirectory() as caches:
        for number in range(chosen.pairs + 1):
            order = trees if number % 2 else trees[::-1]
            found = {tree: turn(tree, json.dumps(asked), caches) for tree in order}
            if number:
                for name in MEASURES:
                    ratios[name].append(found[HERE][name] / found[trees[1]][name])
    for name in MEASURES:
        sys.stdout.write(f"{name}: {estimate(ratios[name])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
