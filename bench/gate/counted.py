"""Counts what a loader does for its batches, in a process of its own; one JSON line.

``python -m bench.gate.counted JOB`` with a JSON object: ``spec`` (a ``mix.yaml``), ``mixing``
(changes to that section), ``knobs``. The last line on stdout is the result.

Theory of operation. No figure is a time. The consumer takes ``WARMUP`` batches (every slot of the
ring has been used by then), then ``BATCHES`` whose doings are counted in both processes: bytes and
read calls (``/proc/PID/io``), pages the kernel had to give (page faults), threads, memory held. The
parent has set malloc so (``ENVIRONMENT``) that a block of the size of a batch is mapped and
unmapped for itself, and nothing else comes and goes: a copy of a batch is its pages in faults. What
is read is taken when all is read that may be read ahead. Memory is compared at its highest in the
first and in the second half, so that where in a planned run a reading falls does not matter.

Not here: what the counts are held against (``bench.gate.baseline``), running this
(``bench.gate.turns``).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoloader import AutoLoader, PipelineSpec
from bench.processes import (
    Reads,
    in_memfd,
    own_bytes,
    page_faults,
    reads_by_thread,
    thread_count,
)

WARMUP = 128
BATCHES = 512
LOOKS = 64
CALM_LOOKS = 5
WATCHING_BYTES = 1024
"""Threads that watch the machine read less than this at a time; those that read data, more."""

Counters = Mapping[int, Reads]
"""Thread → what it has read."""
"""How often memory is read, and where a batch lies."""

ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "NUMPY_MADVISE_HUGEPAGE": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
"""What a counted process and its children are started with."""


def main() -> None:
    job = json.loads(sys.argv[1])
    found = count(Path(job["spec"]), job["mixing"], job["knobs"])
    print(json.dumps(found))


def count(spec: Path, mixing: Mapping[str, Any], knobs: Mapping[str, Any]) -> dict[str, float]:
    """What the loader of ``spec`` does for a sample and for a batch."""
    declared = PipelineSpec.from_yaml(spec)
    plain = declared.model_dump(mode="json")
    plain["mixing"] = {**plain["mixing"], **mixing}
    with AutoLoader(
        PipelineSpec.from_mapping(plain),
        profile="local_dev",
        knobs=knobs,
        controller=False,
        output="numpy",
    ) as loader:
        batches = _endless(loader)
        for _ in range(WARMUP):
            next(batches)
        trainer, children = os.getpid(), loader.statistics().worker_pids
        everybody = (trainer, *children)
        began = _settled(children)
        faults = [page_faults(pid) for pid in everybody]
        held: list[list[int]] = [[], []]
        samples = outside = 0
        for number in range(BATCHES):
            batch = next(batches)
            samples += len(batch["action"])
            look = number % (BATCHES // LOOKS) == 0
            if look:
                outside += _bytes_outside_the_ring(batch)
            del batch
            if look:
                held[2 * number // BATCHES].append(sum(map(own_bytes, everybody)))
        fresh = sum(page_faults(pid) for pid in everybody) - sum(faults)
        read = _data(began, _settled(children))
        statistics = loader.statistics()
        first, second = map(max, held)
        return {
            "decodes_per_sample": statistics.decodes_per_sample or 0.0,
            "bytes_read_per_sample": sum(one.size for one in read) / samples,
            "read_calls_per_sample": sum(one.calls for one in read) / samples,
            "batch_bytes_copied": outside / LOOKS,
            "fresh_pages_per_batch": fresh / BATCHES,
            "threads": float(sum(map(thread_count, children))),
            "held_bytes": float(second),
            "growth_bytes_per_batch": (second - first) / (BATCHES / 2),
            "restarts": float(statistics.restarts),
        }


def _endless(loader: AutoLoader) -> Iterator[dict[str, Any]]:
    while True:
        yield from loader


def _settled(pids: Sequence[int]) -> Counters:
    """What threads have read once all is read that may be read ahead."""
    calm, before = 0, _reads(pids)
    while calm < CALM_LOOKS:
        time.sleep(0.02)
        now = _reads(pids)
        calm = calm + 1 if not _data(before, now) else 0
        before = now
    return before


def _reads(pids: Sequence[int]) -> Counters:
    return {key: reads for pid in pids for key, reads in reads_by_thread(pid).items()}


def _data(before: Counters, after: Counters) -> list[Reads]:
    """What threads that read data have read meanwhile; the watching ones take a line at a time."""
    none = Reads(0, 0)
    grown = [
        Reads(now.size - then.size, now.calls - then.calls)
        for key, now in after.items()
        for then in [before.get(key, none)]
    ]
    return [one for one in grown if one.size > WATCHING_BYTES * one.calls]


def _bytes_outside_the_ring(batch: Mapping[str, Any]) -> int:
    """Bytes of a batch's arrays that are not the ring's own memory: copies."""
    arrays = [*batch["images"].values(), *batch["frame_mask"].values()]
    arrays += [one for one in batch.values() if hasattr(one, "ctypes")]
    return sum(one.nbytes for one in arrays if not in_memfd(one.ctypes.data))


if __name__ == "__main__":
    main()
