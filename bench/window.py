"""One contender's turn, in a process of its own: first batch, warm-up, window; one JSON line.

``python -m bench.window JOB`` with a JSON object; see ``Job``. The last line on stdout is the
result; everything else the contender prints goes to stderr.

Theory of operation. The consumer takes batches as fast as they come and does nothing with them.
The warm-up ends after ``warmup_batches`` and, except where a dataset does not turn up within
``MOST_WARMUP``, when a sample of every dataset was seen: all streams are open. The window is
``window_s`` long and ends with a batch. Time to the first batch counts from the moment at which the
runner started this process, imports included; ``opened_batch_s`` from the call that opens it;
``close_s`` is what closing it took.

Where batches say which episode and step each sample is of, the window's samples are held against
their order in storage (``bench.shuffle``). A limit that has no frames (reading alone) gives none.

Not here: who runs when (``bench.runner``).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.shuffle import shuffle_quality

MOST_WARMUP = 80


def main() -> None:
    job = json.loads(sys.argv[1])
    with os.fdopen(os.dup(1), "w") as results:
        os.dup2(2, 1)
        found = run(job)
        results.write(json.dumps(found) + "\n")
    # What is left of a framework's threads would only delay the next turn.
    sys.stderr.flush()
    os._exit(0)


def run(job: Mapping[str, Any]) -> dict[str, Any]:
    """One turn.

    Args:
        job: ``kind``, ``spec``, ``settings``, ``warmup_batches``, ``window_s``, ``count_samples``
            (with it nothing is timed: the datasets of so many samples from the first on),
            ``cpus`` (how many processors it may use; ``None``: all), ``started_s`` (the
            runner's monotonic clock).
    """
    if job.get("cpus"):
        # Children inherit it; so does whoever asks how many processors there are.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["cpus"]])
    from bench.peers import LIMITS, contender_class, open_contender

    contender_class(job["kind"])  # its imports are not what opening costs
    opening_s = time.monotonic()
    contender = open_contender(job["kind"], Path(job["spec"]), job["settings"])
    batches = iter(contender)
    try:
        if job.get("count_samples"):
            found = _count(contender, batches, job["count_samples"])
        else:
            found = _measure(contender.datasets, batches, {**job, "opening_s": opening_s})
        decodes = getattr(contender, "decodes_per_sample", None)
    except BaseException:
        contender.close()
        raise
    closing_s = time.monotonic()
    contender.close()
    if job["kind"] not in LIMITS:
        found["close_s"] = time.monotonic() - closing_s
    return found if decodes is None else {**found, "decodes_per_sample": decodes}


def _measure(
    datasets: int, batches: Iterator[Mapping[str, Any]], job: Mapping[str, Any]
) -> dict[str, Any]:
    from bench.host import load
    from bench.processes import tree_cpu_s

    batch = next(batches)
    first_s = time.monotonic() - job["started_s"]
    opened_s = time.monotonic() - job["opening_s"]
    shape = list(batch["images"].shape) if "images" in batch else None
    seen: set[int] = set()
    taken = 0
    while True:
        seen.update(batch["dataset_index"].tolist())
        taken += 1
        opened = len(seen) == datasets or taken >= MOST_WARMUP
        if taken >= job["warmup_batches"] and opened:
            break
        del batch
        batch = next(batches)
    del batch
    all_before, cpu_s = load(), tree_cpu_s(os.getpid())
    began = last = time.perf_counter()
    arrivals: list[float] = []
    places: list[NDArray[np.int64]] = []
    samples = 0
    while last < began + job["window_s"]:
        batch = next(batches)
        last = time.perf_counter()
        arrivals.append(last - began)
        samples += len(batch["dataset_index"])
        if "episode_index" in batch:
            where = (batch["dataset_index"], batch["episode_index"], batch["step"])
            places.append(np.stack(where, axis=1).astype(np.int64))
        del batch
    used_s = tree_cpu_s(os.getpid()) - cpu_s
    others_s = load()["busy_cpu_s"] - all_before["busy_cpu_s"] - used_s
    return {
        "first_batch_s": first_s,
        "opened_batch_s": opened_s,
        "samples_per_s": samples / (last - began),
        "cpu_ms_per_sample": 1e3 * used_s / samples,
        "cpus_used": used_s / (last - began),
        "others_cpus": max(0.0, others_s / (last - began)),
        "window_s": last - began,
        "samples": samples,
        "warmup_batches": taken,
        "datasets_seen": len(seen),
        **({} if shape is None else {"frames_shape": shape}),
        **shuffle_quality(places),
        "arrivals_s": [round(at, 5) for at in arrivals],
    }


def _count(contender: Any, batches: Iterator[Mapping[str, Any]], wanted: int) -> dict[str, Any]:
    order: list[int] = []
    while len(order) < wanted:
        order += next(batches)["dataset_index"].tolist()
    return {"order": order[:wanted], "shares": list(contender.shares), "others_cpus": 0.0}


if __name__ == "__main__":
    main()
