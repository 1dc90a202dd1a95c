"""A GPU host: copies beside the step, waits of a training loop, and decoding by threads.

    .venv/bin/python -m bench.gpu mix.yaml --json OUT.json    # four minutes; needs a CUDA device
                     [--reader stream] [--only decoding loop] [--widths 16x4 16x8]

``copies``: one batch is repeated, so nothing is decoded. A step of matrix products runs with the
batch on the device already (``alone``), copied by ``AutoLoader.transfer`` from its pinned slot
(``transfer``), and by ``tensor.to`` (``to``). ``hidden`` is the share of the copy's time that the
step does not feel.

``decoding``: samples a second and processor time a sample with fixed knobs, nobody computing.

``climb``: how the controller comes from two threads to the host's pace.

``loop``: steps of several lengths with the controller on. ``share_of_ideal`` is the rate over that
of the same loop whose first batch is repeated. ``gpu_busy`` is what the loader's probe reads. A
step ends with the device, as ``loss.item()`` makes it; ``free`` ones run ahead of it.

Not here: other loaders (``bench.peers``), a real policy (``training.stage2``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from autoloader import AutoLoader, PipelineSpec
from autoloader.host.gpu import gpu_names
from autoloader.process.transfer import mapped
from bench.control.trainer import endless
from bench.host import fingerprint
from bench.processes import tree_cpu_s, tree_pss_bytes

BATCH = 256
PARTS = ("copies", "decoding", "climb", "loop")
WIDTHS = ("1x1", "2x1", "4x1", "8x1", "12x1", "16x1", "16x2", "16x4", "16x8", "16x16")
"""Decode threads and processes."""
Row = dict[str, Any]


class Step:
    """Matrix products on the device, as many as take about ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self._count = 1
        self._count = max(1, round(seconds / _timed(self, 20)))

    def __call__(self) -> None:
        for _ in range(self._count):
            torch.mm(self._matrix, self._matrix)


def _timed(work: Callable[[], Any], times: int) -> float:
    """Seconds of one call, the device's work included; the first calls are left out."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def copies(spec: PipelineSpec) -> list[Row]:
    """Seconds of a step by way of copying, five rounds in turn; medians."""
    step = Step(0.03)
    with _loader(spec, replay_one_batch=True) as loader:
        batches = endless(loader)
        move = loader.transfer("cuda:0")
        nbytes = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal nbytes
            nbytes += tensor.nbytes
            return tensor

        mapped(next(batches), count)

        def to(batch: Any) -> Any:
            return mapped(batch, lambda tensor: tensor.to("cuda:0"))

        def then(copy: Callable[[Any], Any], work: Callable[[], None]) -> Callable[[], None]:
            def both() -> None:
                copy(next(batches))
                work()

            return both

        ways: dict[str, Callable[[], Any]] = {
            "alone": step,
            "transfer": then(move, step),
            "to": then(to, step),
            "only transfer": then(move, torch.cuda.synchronize),
            "only to": then(to, torch.cuda.synchronize),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(5):
            for name, work in ways.items():
                taken[name].append(_timed(work, 40))
        pinned = len(move.pinned)
    seconds = {name: statistics.median(times) for name, times in taken.items()}
    return [
        {
            "way": name,
            "step_ms": 1e3 * seconds[name],
            "copy_ms": 1e3 * seconds[f"only {name}"],
            "gb_per_s": nbytes / seconds[f"only {name}"] / 1e9,
            "hidden": 1 - (seconds[name] - seconds["alone"]) / seconds[f"only {name}"],
            "alone_ms": 1e3 * seconds["alone"],
            "batch_mb": nbytes / 1e6,
            "pinned_slots": pinned,
        }
        for name in ("transfer", "to")
    ]


def decoding(
    spec: PipelineSpec, seconds: float, widths: list[str], reader: dict[str, Any]
) -> Iterator[Row]:
    """A row for each of ``widths``, such as ``16x4``: threads and processes."""
    for threads, processes in (map(int, width.split("x")) for width in widths):
        if threads > (os.cpu_count() or 1):
            continue
        fixed = {"decode_threads": threads, "decode_processes": processes, "ring_slots": 16}
        with _loader(spec, knobs=fixed | {"cache_bytes": 0} | reader, controller=False) as loader:
            batches = endless(loader)
            for _ in range(20):
                next(batches)
            count, spent = 0, tree_cpu_s(os.getpid())
            began = time.perf_counter()
            while (now := time.perf_counter()) - began < seconds:
                count += len(next(batches)["action"])
            spent = tree_cpu_s(os.getpid()) - spent
            yield {
                "threads": threads,
                "processes": processes,
                "samples_per_s": count / (now - began),
                "cpu_ms_a_sample": 1e3 * spent / count,
                "cpus_busy": spent / (now - began),
                "loader_mb": (loader.statistics().loader_bytes or 0) / 1e6,
            }


def loop(
    spec: PipelineSpec, steps_s: list[float], seconds: float, reader: dict[str, Any]
) -> Iterator[Row]:
    """A row for each length of a step, the controller on; the last once more, not synchronized."""
    for wanted, free in [*((one, False) for one in steps_s), (steps_s[-1], True)]:
        step, rates = Step(wanted), []
        for ideal in (True, False):
            with _loader(spec, replay_one_batch=ideal, knobs=reader) as loader:
                move, batches = loader.transfer("cuda:0"), endless(loader)
                moved = map(move, batches)
                _trained(moved, step, seconds / (10 if ideal else 2), free)
                rates.append(_trained(moved, step, seconds / 2, free))
                seen = loader.statistics()
                pss = tree_pss_bytes(os.getpid())
        yield {
            "step_ms": 1e3 * wanted,
            "free": free,
            "ideal_samples_per_s": rates[0],
            "samples_per_s": rates[1],
            "share_of_ideal": rates[1] / rates[0],
            "wait_ratio": seen.wait_ratio,
            "p99_ms": 1e3 * (seen.batch_latency_s or {}).get("p99", 0.0),
            "cache_hits": seen.cache.hit_ratio,
            "gpu_busy": seen.gpu_busy_ratio,
            "limited_by": seen.limited_by,
            "ring_slots": seen.knobs.get("ring_slots"),
            "decode_threads": seen.knobs.get("decode_threads"),
            "decode_processes": seen.knobs.get("decode_processes"),
            "pss_mb": pss / 1e6,
        }


def climb(spec: PipelineSpec, seconds: float, reader: dict[str, Any]) -> Iterator[Row]:
    """The controller's way up from two threads of one process, nobody computing."""
    with _loader(spec, knobs={"decode_threads": 2, "decode_processes": 1} | reader) as loader:
        batches, began = endless(loader), time.perf_counter()
        looked, count, held = began, 0, None
        while (now := time.perf_counter()) - began < seconds:
            count += len(next(batches)["action"])
            if now - looked < 1.0:
                continue
            seen = loader.statistics()
            knobs = {
                name: seen.knobs.get(name)
                for name in ("decode_threads", "decode_processes", "ring_slots", "io_threads")
            }
            if knobs != held or now - began > seconds - 1.5:
                yield {"at_s": now - began, "samples_per_s": count / (now - looked), **knobs}
            looked, count, held = now, 0, knobs


def _trained(batches: Iterator[Any], step: Step, seconds: float, free: bool) -> float:
    """Samples a second of some seconds' steps."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        count += len(next(batches)["action"])
        step()
        if not free:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return count / (time.perf_counter() - began)


def _loader(spec: PipelineSpec, **more: Any) -> AutoLoader:
    return AutoLoader(spec, ram_floor="4GiB", batch_size=BATCH, **more)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu")
    parser.add_argument("spec", type=Path)
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--seconds", type=float, default=5.0, help="of one row of decoding")
    parser.add_argument("--loop-seconds", type=float, default=20.0, help="of one row of loop")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--reader", choices=("indexed", "stream"), default="indexed")
    parser.add_argument("--widths", nargs="+", default=list(WIDTHS), help="of decoding: 16x4 ...")
    parser.add_argument("--climb-seconds", type=float, default=60.0, help="of climb")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench.gpu: this host has no CUDA device", file=sys.stderr)
        return 2
    spec = PipelineSpec.from_yaml(arguments.spec)
    found: dict[str, Any] = {"gpus": gpu_names(), "host": fingerprint()}

    def keep(part: str, rows: Callable[[], Iterable[Row]]) -> None:
        if part in arguments.only:
            found[part] = list(rows())
            _show(part, found[part])

    keep("copies", lambda: copies(spec))
    reader = {"reader": arguments.reader}
    keep("decoding", lambda: decoding(spec, arguments.seconds, arguments.widths, reader))
    keep("climb", lambda: climb(spec, arguments.climb_seconds, reader))
    best = max((row["samples_per_s"] for row in found.get("decoding", ())), default=1000.0)
    lengths = [times * BATCH / best for times in (0.5, 1.1, 2.0)]
    keep("loop", lambda: loop(spec, lengths, arguments.loop_seconds, reader))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    return 0


def _show(title: str, rows: list[Row]) -> None:
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=200).print(table)


if __name__ == "__main__":
    sys.exit(main())
