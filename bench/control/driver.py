"""The trainer of a scenario: opens a loader by the front door and takes batches at a given pace.

``python -m bench.control.driver JOB``. It joins the scenario's cgroup before it imports anything
large, says ``{"first": seconds}`` on stdout with the first batch, obeys ``pace``, ``go`` and
``stop`` on stdin (one JSON line each), and writes what it saw to a file: when each batch was asked
for and given, and whether the samples were the right ones.

Not here: disturbances and what is made of the result (``bench.control.runner``, ``judge``); turns
over fixed knobs (``bench.control.turns``).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.control.group import join
from bench.control.mounts import cover


class Orders:
    """What was said on stdin so far; read by a thread of its own."""

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


class Taken:
    """What came: times of each batch, and the place of each sample."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float, int]] = []
        self._places: list[Any] = []

    def note(self, asked_s: float, got_s: float, batch: Mapping[str, Any]) -> None:
        """One batch: monotonic seconds of asking and having."""
        rows = batch["provenance"].copy()
        self.times.append((round(asked_s, 5), round(got_s, 5), len(rows)))
        self._places.append(rows)

    def exactness(self, sizes: Mapping[int, int]) -> dict[str, int]:
        """How many samples came twice, and how many passes that are over lack some.

        Args:
            sizes: samples of a pass, by dataset.
        """
        import numpy as np

        if not self._places:
            return {"samples": 0, "twice": 0, "passes": 0, "incomplete": 0}
        rows = np.concatenate(self._places)
        unique = np.unique(rows, axis=0)
        passes, counts = np.unique(unique[:, :2], axis=0, return_counts=True)
        last = {int(dataset): int(number) for dataset, number in passes.tolist()}
        over = [
            (int(dataset), int(count))
            for (dataset, number), count in zip(passes.tolist(), counts.tolist(), strict=True)
            if number < last[int(dataset)]
        ]
        return {
            "samples": len(rows),
            "twice": len(rows) - len(unique),
            "passes": len(over),
            "incomplete": sum(count != sizes[dataset] for dataset, count in over),
        }


def main() -> None:
    job = json.loads(sys.argv[1])
    join(job["group"])
    cover(job["binds"])
    with os.fdopen(os.dup(1), "w", buffering=1) as told:
        os.dup2(2, 1)
        found = run(job, lambda what: told.write(json.dumps(what) + "\n"))
    Path(job["out"]).write_text(json.dumps(found))
    sys.stderr.flush()
    os._exit(0)


def run(job: Mapping[str, Any], say: Any) -> dict[str, Any]:
    """Open the loader and take batches until told to stop.

    Args:
        job: ``spec``, ``reader``, ``ram_floor_bytes``, ``knobs``, ``pace_s``, ``validate_every``
            (0: never), ``validate_batches``, and for turns ``turns``.
        say: called with what the runner is to hear at once.
    """
    from bench.control import turns

    orders = Orders(job["pace_s"])
    if job.get("turns"):
        return turns.run(job, orders, say)
    with open_loader(job, controller=True) as loader:
        taken = consume(job, loader, orders, say)
        sizes = {
            number: loader.plan.counts[name].samples
            for number, name in enumerate(loader.dataset_names)
        }
        return {
            "times": taken.times,
            "exact": taken.exactness(sizes),
            "knobs": loader.knobs.flat(),
            "restarts": loader.statistics().restarts,
        }


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


def consume(job: Mapping[str, Any], loader: Any, orders: Orders, say: Any) -> Taken:
    """Take batches until stopped."""
    taken, stream = Taken(), endless(loader)
    every = job.get("validate_every", 0)
    aside = open_loader(job, controller=True, split="val") if every else None
    try:
        while not orders.stopped.is_set():
            asked_s = time.monotonic()
            batch = next(stream)
            got_s = time.monotonic()
            taken.note(asked_s, got_s, batch)
            del batch
            if len(taken.times) == 1:
                say({"first": got_s})
            orders.compute(got_s)
            if aside is not None and len(taken.times) % every == 0:
                validate(aside, job["validate_batches"], orders)
    finally:
        if aside is not None:
            aside.close()
    return taken


def validate(loader: Any, batches: int, orders: Orders) -> None:
    """Some batches of the other split, at the same pace."""
    stream = endless(loader)
    for _ in range(batches):
        if orders.stopped.is_set():
            return
        next(stream)
        orders.compute(time.monotonic())


if __name__ == "__main__":
    main()
