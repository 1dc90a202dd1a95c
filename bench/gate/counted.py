"""Counts what a loader does for its batches, in a process of its own; one JSON line.

``python -m bench.gate.counted JOB`` with a JSON object: ``spec`` (a ``mix.yaml``), ``mixing``
(changes to that section), ``knobs``. The last line on stdout is the result.

Theory of operation. No figure is a time. The consumer takes ``WARMUP`` batches (every slot of the
ring has been used by then), then ``BATCHES`` whose doings are counted in both processes: bytes and
read calls (``/proc/PID/io``), threads, memory held. What is read is taken when all is read that may
be read ahead. Memory is compared at its highest in the first and in the last quarter, so that where
in a planned run a reading falls matters little: at most a run is held or not, whose frames,
compressed, are 1.4 MB; a frame kept of each batch is 10 MB.

Copies are told by what memory a batch touches (``bench.gate.settling``), with pictures as the spec
has them and with sides ``LARGER`` times as long: the difference, by the difference of their bytes.
Nothing else that a batch touches depends on how large its pictures are, and by chance it is a fifth
of them at most: 6 MB of 32, a run of samples that is read, with a look at the machine.

Not here: what the counts are held against (``bench.gate.baseline``), running this
(``bench.gate.turns``).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autoloader import AutoLoader, PipelineSpec
from bench.control.trainer import endless
from bench.gate.settling import calm, touched_per_batch
from bench.processes import Reads, in_memfd, own_bytes, reads_by_thread, thread_count

_PR_SET_THP_DISABLE = 41
LARGER = 6
WARMUP = 128
BATCHES = 512
LOOKS = 64
WATCHING_BYTES = 1024
"""Threads that read less than this at a time read no data."""
WATCHING_THREADS = ("loader-watch",)
"""Those that watch the machine: however long the files are in which the kernel tells of it."""

Counters = Mapping[int, Reads]
"""Thread → what it has read."""

ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
"""What a counted process and its children are started with: memory and threads as on any host."""


def main() -> None:
    job = json.loads(sys.argv[1])
    # Pages are counted, and 2 MB of them are not to be one; children inherit it.
    ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    found = count(Path(job["spec"]), job["mixing"], job["knobs"])
    print(json.dumps(found))


def count(spec: Path, mixing: Mapping[str, Any], knobs: Mapping[str, Any]) -> dict[str, float]:
    """What the loader of ``spec`` does for a sample and for a batch."""
    with _loader(spec, mixing, knobs) as loader:
        found = _counts(loader)
        touched, pictures = _touched(loader)
    with _loader(spec, mixing, knobs, larger=LARGER) as loader:
        touched_larger, pictures_larger = _touched(loader)
    copies = (touched_larger - touched) / (pictures_larger - pictures)
    return {**found, "copies_per_batch": copies}


def _loader(
    spec: Path, mixing: Mapping[str, Any], knobs: Mapping[str, Any], larger: int = 1
) -> AutoLoader:
    plain = PipelineSpec.from_yaml(spec).model_dump(mode="json")
    plain["mixing"] = {**plain["mixing"], **mixing}
    for camera in plain["cameras"].values():
        camera["size"] = [larger * side for side in camera["size"]]
    return AutoLoader(
        PipelineSpec.from_mapping(plain),
        profile="local_dev",
        knobs=knobs,
        controller=False,
        output="numpy",
    )


def _touched(loader: AutoLoader) -> tuple[float, int]:
    """(bytes touched for a batch, bytes of its pictures)."""
    batches = endless(loader)
    for _ in range(2 * loader.knobs.ring_slots):
        shown = next(batches)["images"].values()
    pictures = sum(one.nbytes for one in shown)
    del shown
    everybody = (os.getpid(), *loader.statistics().worker_pids)
    return touched_per_batch(batches, everybody), pictures


def _counts(loader: AutoLoader) -> dict[str, float]:
    batches = endless(loader)
    for _ in range(WARMUP):
        next(batches)
    children = loader.statistics().worker_pids
    everybody = (os.getpid(), *children)
    began = _settled(children)
    held: list[int] = []
    samples = outside = 0
    for number in range(BATCHES):
        batch = next(batches)
        samples += len(batch["action"])
        look = number % (BATCHES // LOOKS) == 0
        if look:
            outside += _bytes_outside_the_ring(batch)
        del batch
        if look:
            held.append(sum(map(own_bytes, everybody)))
    read = _data(began, _settled(children))
    statistics = loader.statistics()
    quarter = LOOKS // 4
    first, last = max(held[:quarter]), max(held[-quarter:])
    return {
        "decodes_per_sample": statistics.decodes_per_sample or 0.0,
        "bytes_read_per_sample": sum(one.size for one in read) / samples,
        "read_calls_per_sample": sum(one.calls for one in read) / samples,
        "batch_bytes_copied": outside / LOOKS,
        "threads": float(sum(map(thread_count, children))),
        "held_bytes": float(max(held)),
        "growth_bytes_per_batch": (last - first) / (0.75 * BATCHES),
        "restarts": float(statistics.restarts),
    }


def _settled(pids: Sequence[int]) -> Counters:
    """What threads have read once all is read that may be read ahead."""
    return calm(lambda: _reads(pids), lambda before, now: not _data(before, now), pids)


def _reads(pids: Sequence[int]) -> Counters:
    found: dict[int, Reads] = {}
    for pid in pids:
        found |= reads_by_thread(pid, leave_out=WATCHING_THREADS)
    return found


def _data(before: Counters, after: Counters) -> list[Reads]:
    """What threads that read data have read meanwhile."""
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
