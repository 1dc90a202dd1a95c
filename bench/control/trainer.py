"""What a trainer of a scenario does: opens a loader, takes batches at a pace, obeys, validates.

Imports nothing large: who drives it joins a cgroup first.

Not here: what is noted of it (``bench.control.driver``), fixed knobs in turn (``turns``).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any


class Orders:
    """What was said on stdin so far: ``pace``, ``go`` and ``stop``, one JSON line each."""

    def __init__(self, pace_s: float) -> None:
        self.pace_s = pace_s
        self.stopped = threading.Event()
        self.going = threading.Event()
        self._changed = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if "pace" in order:
                self.pace_s = float(order["pace"])
            if "go" in order:
                self.going.set()
            if "stop" in order:
                break
            self._changed.set()
        self.stopped.set()
        self.going.set()
        self._changed.set()

    def compute(self, since_s: float) -> None:
        """Be busy with a batch: until ``pace_s`` after ``since_s``, whatever it becomes."""
        while not self.stopped.is_set():
            left = since_s + self.pace_s - time.monotonic()
            if left <= 0:
                return
            self._changed.clear()
            self._changed.wait(left)


def open_loader(job: Mapping[str, Any], *, controller: bool, split: str = "train") -> Any:
    """A loader as the job wants it."""
    from autoloader import AutoLoader, PipelineSpec

    plain = PipelineSpec.from_yaml(job["spec"]).model_dump(mode="json")
    plain["reader"] = job["reader"]
    return AutoLoader(
        PipelineSpec.from_mapping(plain),
        profile="local_dev",
        ram_floor=job["ram_floor_bytes"],
        knobs=job["knobs"],
        controller=controller,
        split=split,
        output="numpy",
    )


def endless(loader: Any) -> Iterator[Any]:
    """Batches over all epochs."""
    while True:
        yield from loader


def validate(loader: Any, batches: int, orders: Orders) -> None:
    """Some batches of the other split, at the same pace."""
    stream = endless(loader)
    for _ in range(batches):
        if orders.stopped.is_set():
            return
        next(stream)
        orders.compute(time.monotonic())
