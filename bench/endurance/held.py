"""What one loader holds, measured in a process of its own, as a trainer would have it.

``python -m bench.endurance.held JOB`` with a JSON object: ``spec``, ``output``, ``knobs``,
``batches``, ``soak_s`` (0: not by time). The last line on stdout is the result.

Theory of operation. What is held is the proportional set size of this process and its children
without shared memory (the ring), less what this process held before it made a loader. With
``soak_s`` batches are taken until the time is over, and what is held is read every second.

Not here: what is wanted of it (``bench.endurance.memory``).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from bench.control.trainer import endless
from bench.processes import resident_bytes, tree_pss_bytes

READ_EVERY, SOAK_EVERY_S = 20, 1.0


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """The result.

    Returns:
        ``resident_bytes``: resident memory that the library and a loader add to this process,
        the ring's pages left out. ``peak_bytes``: most that loader and children held.
        ``first_batch_s``, ``close_s``: from ``AutoLoader()`` to the first batch, and in
        ``close()``. ``tensorflow``: whether this process has imported it. ``series``: (seconds,
        bytes).
    """
    if job["output"] == "torch":
        import torch  # noqa: F401 what a trainer has imported anyway

    resident = resident_bytes(os.getpid())
    from autoloader import AutoLoader

    before = tree_pss_bytes(os.getpid(), shared_memory=False)
    began_s = time.monotonic()
    loader = AutoLoader(
        job["spec"], output=job["output"], profile="local_dev", knobs=job["knobs"] or None
    )
    first_s, next_s = 0.0, 0.0
    series: list[tuple[float, int]] = []
    for taken, _batch in enumerate(endless(loader), 1):
        now_s = time.monotonic() - began_s
        first_s = first_s or now_s
        if now_s >= next_s if job["soak_s"] else taken % READ_EVERY == 0:
            held = tree_pss_bytes(os.getpid(), shared_memory=False) - before
            next_s = now_s + SOAK_EVERY_S
            series.append((round(now_s, 2), held))
        if now_s >= job["soak_s"] if job["soak_s"] else taken >= job["batches"]:
            break
    added = resident_bytes(os.getpid()) - resident
    closing_s = time.monotonic()
    loader.close()
    return {
        "resident_bytes": added,
        "peak_bytes": max(0, *(held for _, held in series)),
        "first_batch_s": first_s,
        "close_s": time.monotonic() - closing_s,
        "tensorflow": "tensorflow" in sys.modules,
        "series": series,
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
