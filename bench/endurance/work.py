"""Counted by the kernel: what reading by index asks of it, with many datasets and with one.

Not here: the same counts held against a baseline (``bench.gate``).
"""

from __future__ import annotations

import itertools
from pathlib import Path

from autoloader import AutoLoader
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
        batches = (batch for _ in itertools.count() for batch in loader)
        for _ in range(20):
            next(batches)
        before = _io(loader.statistics().worker_pids[0])
        samples = 0
        for _ in range(BATCHES):
            samples += len(next(batches)["dataset_index"])
        after = _io(loader.statistics().worker_pids[0])
        decodes = loader.statistics().decodes_per_sample or 0.0
    calls, read = ((after[key] - before[key]) / samples for key in ("syscr", "rchar"))
    return decodes, calls, read


def _io(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {key: int(value) for key, _, value in (line.partition(": ") for line in lines)}
