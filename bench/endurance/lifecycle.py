"""Opening and closing a hundred times, the size of a state, and pages that a smaller ring returns.

Not here: memory over time (``bench.endurance.memory``).
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import time
from pathlib import Path

from autoloader import AutoLoader
from autoloader.cli.demo import ensure_demo
from bench.endurance.claims import HELD, Circumstances, Claim
from bench.endurance.passes import passes_mixture

TIMES = 100


def open_and_close(given: Circumstances) -> list[Claim]:
    spec, times, resident, descriptors = passes_mixture(0.02), [], [], 0
    for number in range(TIMES):
        with AutoLoader(spec, output="numpy", profile="local_dev", knobs=given.start) as loader:
            left = 20
            while left:
                for _ in loader:
                    left -= 1
                    if not left:
                        break
            started = time.perf_counter()
            loader.close()
            times.append(time.perf_counter() - started)
        gc.collect()
        if number in (9, TIMES - 1):
            resident.append(_resident_bytes())
            descriptors = len(list(Path("/proc/self/fd").iterdir()))
    children = subprocess.run(
        ["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False
    ).stdout.split()
    return [
        Claim(
            f"{TIMES} × open, 20 batches, close: longest close",
            f"{max(times):.2f} s",
            "≤ 2 s",
            max(times) <= 2,
        ),
        Claim(
            "children left, descriptors open",
            f"{max(0, len(children) - 1)}, {descriptors}",
            "0 children",
            len(children) <= 1,
        ),
        Claim(
            f"resident memory from the 10th to the {TIMES}th",
            f"{(resident[1] - resident[0]) / 2**20:+.1f} MiB",
            "flat (≤ 5 MiB)",
            resident[1] - resident[0] <= 5 * 2**20,
        ),
    ]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def state_size(_: Circumstances) -> list[Claim]:
    with AutoLoader(ensure_demo(), output="numpy", profile="local_dev") as loader:
        for number, _batch in enumerate(loader):
            if number == 200:
                break
        size = len(json.dumps(loader.state_dict()))
    return [Claim("state of 29 datasets", f"{size} bytes", "≤ 64 kB", size <= 64_000)]


def ring(_: Circumstances) -> list[Claim]:
    with AutoLoader(ensure_demo(), **HELD, knobs={"ring_slots": 16}) as loader:
        batches = iter(loader)
        for _batch in range(60):
            next(batches)
        time.sleep(1.0)
        full = loader.statistics().ring.allocated_bytes
        loader.retune(ring_slots=2)
        for _batch in range(20):
            next(batches)
        less = loader.statistics().ring.allocated_bytes
        slot = loader.plan.mixture.layout.slot_bytes
    back = (full - less) / slot
    return [
        Claim(
            "ring 16 → 2 slots: pages back at the kernel", f"{back:.1f} slots", "14", back >= 13.9
        )
    ]
