"""Counted by the kernel: what reading by index asks of it, with many datasets and with one.

Not here: the same counts held against a baseline (``bench.gate``).
"""

from __future__ import annotations

import psutil

from autoloader import AutoLoader
from bench.control.trainer import endless
from bench.data import ensure_data
from bench.endurance.claims import HELD, Circumstances, Claim

BATCHES = 400


def work(_: Circumstances) -> list[Claim]:
    one, many = (_asked(name) for name in ("even_1", "even_29"))
    units = (("decodes", ""), ("read calls", ""), ("bytes read", " bytes"))
    return [
        Claim(
            f"{what} per sample, 29 datasets / one of the same files",
            f"{of_many:.3f} / {of_one:.3f}{unit}",
            "equal to 3 %",
            abs(of_many - of_one) <= 0.03 * of_one,
        )
        for (what, unit), of_one, of_many in zip(units, one, many, strict=True)
    ]


def _asked(name: str) -> tuple[float, float, float]:
    """(decodes, read calls, bytes read) per sample."""
    with AutoLoader(ensure_data(name), **HELD, knobs={"reader": "indexed"}) as loader:
        batches = endless(loader)
        for _ in range(20):
            next(batches)
        child = psutil.Process(loader.statistics().worker_pids[0])
        before = child.io_counters()
        samples = 0
        for _ in range(BATCHES):
            samples += len(next(batches)["dataset_index"])
        after = child.io_counters()
        decodes = loader.statistics().decodes_per_sample or 0.0
    calls = (after.read_count - before.read_count) / samples
    return decodes, calls, (after.read_chars - before.read_chars) / samples
