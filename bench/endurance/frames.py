"""The frame cache under hard conditions: killed decode processes, validations, half the memory.

The mixture is the demo one with a quarter of its episodes, all of whose frames are 1.5 GB.

- Batches with frames held, of 1 to 3 decode processes (no more than there are processors) that are
  killed and told other sizes at random, are those of a loader that holds nothing, bit for bit.
- A validation set is shown twice; the second time its frames are held.
- In a memory cgroup with room for half of the frames above the floor, ``autoloader plan`` foretells
  what will be hit, then a trainer takes passes as fast as they come, until what may be held has
  settled. It needs root.

Not here: faults one by one (``tests/cache``), rates (``bench --only held``).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from autoloader import AutoLoader, PipelineSpec
from autoloader.host.units import MIB
from autoloader.lightning import AutoLoaderDataModule
from bench.checks import Check, all_of, reported
from bench.child import ChildFailedError, answer
from bench.control.group import MemoryGroup, NoGroupError, join
from bench.data import ensure_data
from bench.endurance.passes import HELD, Circumstances

BATCHES, KILLS = 240, 6
SIZES = ("0", "60MB", "200MB", "800MB", "2GB")
FLOOR_BYTES = 256 * MIB
PROCESSES_BYTES = 1200 * MIB
"""Of the trainer, the loader and its queues in the cgroup."""
SETTLED_PASSES, MOST_PASSES = 3, 12
"""Hits are steady once so many passes had the same size; it is given up after so many."""


def frames(_: Circumstances) -> list[Check]:
    """All three."""
    return [*_killed(), _validated(), *_halved()]


def _spec() -> PipelineSpec:
    spec = PipelineSpec.from_yaml(ensure_data("demo_small"))
    mixing = spec.mixing.model_copy(update={"epoch": "forever"})
    return spec.model_copy(update={"mixing": mixing, "reader": "indexed"})


def _killed() -> list[Check]:
    calm = list(_sums(1, "0", disturbed=False))
    found = []
    for processes in range(1, 1 + min(3, len(os.sched_getaffinity(0)))):
        came = list(_sums(processes, SIZES[-1], disturbed=True))
        same = sum(a == b for a, b in zip(calm, came, strict=True))
        name = f"{processes} decode processes, {KILLS} kills, {len(SIZES)} sizes at random"
        found.append(all_of(f"{name}: the same batches", same, len(calm)))
    return found


def _sums(processes: int, size: str, *, disturbed: bool) -> Iterator[str]:
    """A checksum of everything in each batch."""
    drawn = random.Random(processes)
    knobs = {"reader": "indexed", "decode_processes": processes, "cache_bytes": size}
    with AutoLoader(_spec(), **HELD, ram_floor=FLOOR_BYTES, knobs=knobs) as loader:
        for number, batch in zip(range(BATCHES), loader, strict=False):
            sums = hashlib.blake2b(digest_size=8)
            for one in _arrays(batch):
                sums.update(one)
            yield sums.hexdigest()
            if disturbed and number % (BATCHES // KILLS) == BATCHES // KILLS - 1:
                pids = loader.statistics().worker_pids
                os.kill(drawn.choice(pids[1:] or pids), signal.SIGKILL)
            elif disturbed and drawn.random() < 0.2:
                loader.retune(cache_bytes=drawn.choice(SIZES))


def _arrays(batch: Any) -> Iterator[bytes]:
    for name in sorted(batch):
        value = batch[name]
        if isinstance(value, dict):
            yield from _arrays(value)
        else:
            yield repr(value).encode() if isinstance(value, list) else value.tobytes()


def _validated() -> Check:
    """Each validation with its loader warm: what begins anew is the same for both."""
    module = AutoLoaderDataModule(
        ensure_data("demo_small"),
        profile="local_dev",
        knobs={"reader": "indexed", "cache_bytes": "2GB"},
        ram_floor=FLOOR_BYTES,
        controller=False,
    )
    took = []
    with closing(module):
        validation = module.val_dataloader()
        assert not isinstance(validation, list)
        for _ in range(3):
            began = time.perf_counter()
            samples = sum(len(batch["dataset_index"]) for batch in validation)
            took.append(time.perf_counter() - began)
    first, *later = took
    return Check(
        f"validation of {samples} samples, the second and third against the first",
        ", ".join(f"{first / one:.1f} x" for one in later) + f" (first {first:.2f} s)",
        ">= 3 x",
        min(first / one for one in later) >= 3,
    )


def _halved() -> list[Check]:
    limit = FLOOR_BYTES + PROCESSES_BYTES + 1500 * MIB // 2
    try:
        with MemoryGroup(limit) as group:
            told = answer("bench.endurance.frames", group.run, longest_s=3600)
            kills = group.oom_kills
    except (NoGroupError, PermissionError) as error:
        return [reported("half the memory", f"left out: {error}")]
    except ChildFailedError as error:
        return [Check("half the memory", str(error)[-300:], "it runs", met=False)]
    points = 100 * (told["measured"] - told["foretold"])
    return [
        Check(f"a cgroup of {limit // MIB} MiB: killed for memory", str(kills), "0", kills == 0),
        Check(
            f"there: hits with {told['cache_bytes'] // MIB} MiB held, foretold and measured",
            f"{told['foretold']:.1%}, {told['measured']:.1%}",
            "within 2 points",
            abs(points) <= 2,
        ),
    ]


def in_group(group: str) -> None:
    """Take passes in a cgroup under control; then what was hit in the last one, and foretold."""
    join(group)
    path = ensure_data("demo_small")
    with AutoLoader(_spec(), ram_floor=FLOOR_BYTES, output="numpy") as loader:
        samples = sum(one.samples for one in loader.plan.counts.values())
        shown, seen = 0, [loader.statistics().cache]
        for batch in loader:
            shown += len(batch["dataset_index"])
            if shown >= len(seen) * samples:
                seen.append(loader.statistics().cache)
                settled = len({one.budget_bytes for one in seen[-SETTLED_PASSES:]}) == 1
                if len(seen) > (SETTLED_PASSES if settled else MOST_PASSES):
                    break
    before, last = seen[-2:]
    hits, misses = last.hits - before.hits, last.misses - before.misses
    knobs = ["--set", f"knobs.cache_bytes={last.budget_bytes}", "knobs.reader=indexed"]
    command = ["plan", "--spec", str(path), "--ram-floor", str(FLOOR_BYTES), "--json", *knobs]
    plan = subprocess.run(
        [sys.executable, "-m", "autoloader", *command], capture_output=True, text=True, check=True
    )
    forecasts = json.loads(plan.stdout)["cache"]["forecasts"]
    (foretold,) = (one["hit_ratio"] for one in forecasts if one["memory"] == "as set")
    found = {
        "cache_bytes": last.budget_bytes,
        "foretold": foretold,
        "measured": hits / (hits + misses),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    in_group(sys.argv[1])
