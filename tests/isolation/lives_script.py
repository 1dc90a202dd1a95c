"""Opens a loader again and again, and says what each time has left behind: one JSON line.

Run by ``test_lifetime`` in a process of its own, whose garbage collector is off.
"""

import contextlib
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leftovers import loader_children

from autoloader import AutoLoader, PipelineSpec
from autoloader.process import delivery


def left() -> dict[str, Any]:
    """What this process holds now."""
    maps = Path("/proc/self/smaps").read_text().splitlines()
    ours, shared_kib = 0, 0
    inside = False
    for line in maps:
        if "-" in line.split(" ", 1)[0]:
            inside = "memfd:autoloader" in line
            ours += inside
        elif inside and line.startswith("Rss:"):
            shared_kib += int(line.split()[1])
    return {
        "mappings": ours,
        "shared_kib": shared_kib,
        "descriptors": sorted(descriptors()),
        "threads": len(tasks()),
        "python_threads": threading.active_count(),
        "children": len(loader_children()),
    }


def tasks() -> list[str]:
    """Names that the kernel has for the threads of this process.

    Python has joined a thread before the kernel has done with it: those of the loader get time to
    go, and one that stays is counted.
    """
    deadline_s = time.monotonic() + 10
    while True:
        names = []
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has just ended
                names.append((task / "comm").read_text())
        if time.monotonic() > deadline_s or not any(name.startswith("loader-") for name in names):
            return names


def descriptors() -> Iterator[str]:
    """What is open; not the directory that is read for it."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield str(entry.readlink())


def once(isolation: str, ending: str, batches: int) -> None:
    loader = AutoLoader(spec, isolation=isolation, output="numpy", ram_floor="256MB")
    kept = [batch for _, batch in zip(range(batches), loader, strict=False)]
    if ending == "close":
        loader.close()
        del loader
    else:
        del loader
    assert all(batch["images"]["primary"].any() for batch in kept)


delivery._SHORT_STEP_S = 0.0  # the next batch is made beside
gc.disable()
spec = PipelineSpec.from_mapping(json.loads(Path(sys.argv[1]).read_text()))
isolation, times, batches = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for _ in range(2):  # what is opened once for the process
    once(isolation, "close", batches)
before = left()
for ending in ("close", "del") * times:
    once(isolation, ending, batches)
sys.stdout.write(json.dumps({"before": before, "after": left(), "pid": os.getpid()}) + "\n")
sys.stdout.flush()
os._exit(0)  # what is left is not put in order behind our back
