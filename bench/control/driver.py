"""The trainer of a scenario: takes batches by the front door, and notes when and which.

``python -m bench.control.driver JOB``. It joins the scenario's cgroup before it imports anything
large, says ``{"first": seconds}`` on stdout with the first batch, obeys what comes on stdin
(``trainer.Orders``), and writes what it saw to a file: when each batch was asked for and given, and
whether the samples were the right ones.

Not here: opening, pace and validation (``bench.control.trainer``); disturbances and what is made of
the result (``bench.control.runner``, ``judge``); turns over fixed knobs (``bench.control.turns``).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.control import turns
from bench.control.group import join
from bench.control.trainer import Orders, endless, open_loader, validate

_COUNTS = ("interleave", "parse", "decode", "batch")
AUTOTUNED = {
    **{f"{name}_calls": -1 for name in _COUNTS},
    "cycle_length": 4,
    "stream_prefetch": -1,
    "prefetch": -1,
    "autotune": 1,
}
"""Settings of a rival: all that can be left to AUTOTUNE is."""

_NEW_MOUNT_NAMESPACE = 0x00020000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000


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
            (0: never), ``validate_batches``, ``rival`` (tf.data instead), and for turns ``turns``.
        say: called with what the runner is to hear at once.
    """
    orders = Orders(job["pace_s"])
    if job.get("rival"):
        return rival(job, orders, say)
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


def rival(job: Mapping[str, Any], orders: Orders, say: Any) -> dict[str, Any]:
    """tf.data in the loader's place, its ``ram_budget`` set; AUTOTUNE sees to the rest.

    It has no floor to keep: what it does with its budget is what is shown.
    """
    from bench.peers import open_contender

    settings = {**AUTOTUNED, "ram_budget_bytes": job["budget_bytes"]}
    times = []
    for batch in open_contender("plain_tfdata", Path(job["spec"]), settings):
        times.append((time.monotonic(), len(batch["dataset_index"])))
        if len(times) == 1:
            say({"first": times[0][0]})
        orders.compute(times[-1][0])
        if orders.stopped.is_set():
            break
    return {"times": times}


def cover(binds: Sequence[Sequence[str]]) -> None:
    """Mount each first file over the second, in a mount namespace of this process's own.

    Raises:
        OSError: that needs root.
    """
    if not binds:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.unshare(_NEW_MOUNT_NAMESPACE), "a mount namespace")
    _checked(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "/ made private")
    for source, target in binds:
        _checked(libc.mount(source.encode(), target.encode(), None, _BIND, None), target)


def _checked(answer: int, what: str) -> None:
    if answer != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


if __name__ == "__main__":
    main()
