"""Looks at memory twenty times a second, from a process of its own; one JSON line a sample.

``python -m bench.control.sampler JOB`` with ``{"group", "trainer", "neighbour", "out"}``; ends when
its stdin does. Each line: ``at`` (monotonic s), ``room`` (headroom, bytes), ``loader`` (anonymous
memory of the loader's child and its children), ``ring``, ``frames`` (of the frame cache),
``trainer``, ``neighbour``, ``pid`` (of the child), and once a second ``cpu``: seconds spent so far
by the controller's threads.

Not here: how memory is read (``bench.control.memory``).
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from bench.control.memory import (
    FRAMES_FILE,
    RING_FILE,
    anonymous_bytes,
    blocks_bytes,
    headroom_bytes,
    memory_files,
    present_bytes,
    sparse_mapping,
    threads_cpu_s,
)
from bench.processes import tree

PERIOD_S = 0.05
LOOK_S = 0.5
"""Between two looks at which processes there are."""
CONTROL_THREADS = ("loader-control", "loader-reflex")


def main() -> None:
    job = json.loads(sys.argv[1])
    trainer, neighbour = int(job["trainer"]), int(job["neighbour"])
    children: list[int] = []
    rings: list[str] = []
    slabs: list[str] = []
    own = (0, 0)
    looked_s = spent_s = float("-inf")
    due = time.monotonic()
    with Path(job["out"]).open("w", buffering=1) as out:
        while not _ended(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            due = max(now, due + PERIOD_S)
            if now - looked_s >= LOOK_S:
                looked_s = now
                children = [pid for pid in tree(trainer) if pid != trainer]
                rings = memory_files(trainer, RING_FILE)
                slabs = [one for pid in children[:1] for one in memory_files(pid, FRAMES_FILE)]
                own = sparse_mapping(children[0]) if children else (0, 0)
            private = present_bytes(children[0], *own) if children and own[1] else 0
            line: dict[str, Any] = {
                "at": round(now, 4),
                "room": headroom_bytes(job["group"]),
                "loader": max(0, sum(map(anonymous_bytes, children)) - private),
                "ring": sum(map(blocks_bytes, rings)),
                "frames": sum(map(blocks_bytes, slabs)) + private,
                "trainer": anonymous_bytes(trainer),
                "neighbour": anonymous_bytes(neighbour) if neighbour else 0,
                "pid": children[0] if children else 0,
            }
            if children and now - spent_s >= 1.0:
                spent_s = now
                line["cpu"] = threads_cpu_s(children[0], CONTROL_THREADS)
            out.write(json.dumps(line) + "\n")


def _ended(wait_s: float) -> bool:
    """Whether stdin came to its end within so long."""
    readable, _, _ = select.select([0], [], [], wait_s)
    return bool(readable) and not os.read(0, 4096)


if __name__ == "__main__":
    main()
