"""Slow samples: one picture in twenty, drawn at random, takes twenty times as long as the others.

    .venv/bin/python -m bench.slow                          # readers, threads and decode processes
    .venv/bin/python -m bench.slow --ways wait --batch 8    # on a machine that others load

``slow`` is that mixture; in ``mean`` every picture takes the mean of its times. ``free`` is the
rate of batches that nobody waits for. Then a training loop sleeps 1.1 mean batches a step: ``rate``
is slow over mean, ``wait`` a percentile of its waits in steps.

A picture is slow in one of these ``ways``. ``decode``: a JPEG of many scans. ``wait``: its decoding
sleeps and costs no processor. ``read``: reading it sleeps (needs FUSE).

Not here: the pictures (``tests/slow_pictures.py``), other loaders (``bench.peers``).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import shown_files
from bench.child import answer, environment
from bench.drawn import Drawing, features
from bench.records import example_bytes, write_records
from bench.versions import write_version

SLOW_RATIO, SLOW_TIMES = 0.05, 20
FAST_S = 0.002
"""Seconds of a fast picture, where it sleeps."""
SCANS = {"fast": 25, "slow": 804, "mean": 64}
"""Scans of a picture of 256×256; decoding it takes as long as that of 16 scans and these."""
STEPS, EPISODES, SHARDS = 50, 8, 4
RING = 16
NAMES = {"left": 2, "right": 1}
ROUND = sum(NAMES.values()) * STEPS * EPISODES * SHARDS
"""Samples in which each dataset has whole passes, as many as its weight says."""
SHOWN = ("decode_threads", "decode_processes", "ring_slots", "io_threads", "read_ahead")
_MARK = b"slow"
_APART_BYTES = 40_000
"""Bytes of a picture whose reading sleeps: no two are read together."""
_SLEEPING = """
import struct, time
import simplejpeg

_decode = simplejpeg.decode_jpeg


def decode_jpeg(data, *given, **named):
    began = time.monotonic()
    found = _decode(data, *given, **named)
    if bytes(data[-8:-4]) == b"slow":
        (due_s,) = struct.unpack("<f", data[-4:])
        time.sleep(max(0.0, began + due_s - time.monotonic()))
    return found


simplejpeg.decode_jpeg = decode_jpeg
"""


def write(place: Path, kind: str, way: str) -> None:
    """A mixture of two datasets; ``kind`` is slow or mean."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    slow_jpeg = importlib.import_module("slow_pictures").slow_jpeg

    side = 256 if way == "decode" else 32
    drawing = Drawing({}, SHARDS, EPISODES, STEPS, side, side)
    mean = 1 + SLOW_RATIO * (SLOW_TIMES - 1)
    times = {"fast": 1.0, "slow": float(SLOW_TIMES), "mean": mean}
    pictures = {
        name: slow_jpeg(side, side, SCANS[name])
        if way == "decode"
        else slow_jpeg(side, side, 1)
        + bytes(_APART_BYTES if way == "read" else 0)
        + _MARK
        + struct.pack("<f", FAST_S * times[name])
        for name in times
    }
    declared = json.dumps(features(drawing))
    for seed, name in enumerate(NAMES):
        drawn = np.random.default_rng(seed)
        count = SHARDS * EPISODES * STEPS
        slow = iter(drawn.permutation(count) < SLOW_RATIO * count)
        for path in write_version(place, name, declared, [EPISODES] * SHARDS):
            write_records(path, (_episode(drawn, kind, pictures, slow) for _ in range(EPISODES)))


def _episode(
    drawn: np.random.Generator, kind: str, pictures: dict[str, bytes], slow: Iterator[bool]
) -> bytes:
    named = ["slow" if one else "fast" for one in itertools.islice(slow, STEPS)]
    if kind == "mean":
        named = [kind] * STEPS
    return example_bytes({
        "steps/observation/image": [pictures[one] for one in named],
        "steps/observation/state": drawn.random(3 * STEPS, np.float32),
        "steps/action": drawn.random(7 * STEPS, np.float32),
        "steps/language_instruction": [b"wait for nobody"] * STEPS,
    })  # fmt: skip


def measured(place: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Batches a second, and waits in seconds; the loop sleeps ``given.step`` a step."""
    from autoloader import AutoLoader, PipelineSpec

    side = 256 if given.way == "decode" else 32
    spec = PipelineSpec.from_mapping({
        "datasets": [
            {"name": name, "path": str(place / name / "1.0.0"), "split": "train", "weight": weight,
             "images": {"top": "observation/image"}, "action": "action"}
            for name, weight in NAMES.items()
        ],
        "cameras": {"top": {"size": [side, side]}}, "batch": {"size": given.batch},
        "mixing": {"epoch": "forever"}, "reader": given.reader,
    })  # fmt: skip
    knobs: Any = {"cache_bytes": 0, "ring_slots": RING, "decode_threads": given.threads}
    if given.reader == "indexed":
        knobs |= {"decode_processes": given.processes, "io_threads": 4}
    waits: list[float] = []
    with AutoLoader(
        spec, output="numpy", ram_floor="64MiB", knobs=knobs, controller=given.controller
    ) as loader:
        batches = iter(loader)
        for _ in range(2 * RING):
            next(batches)
        if given.step:
            time.sleep(RING * given.step)
        began = time.perf_counter()
        for _ in range(given.rounds * ROUND // given.batch):
            asked = time.perf_counter()
            next(batches)
            waits.append(time.perf_counter() - asked)
            if given.step:
                time.sleep(given.step)
        taken = time.perf_counter() - began
        knobs = loader.knobs.flat()
    cuts = statistics.quantiles(waits, n=100)
    return {
        "rate": len(waits) / taken, "p50": cuts[49], "p99": cuts[98], "max": max(waits),
        "knobs": {name: knobs[name] for name in SHOWN},
    }  # fmt: skip


def _asked(place: Path, kind: str, way: str, words: Sequence[str]) -> dict[str, Any]:
    """``measured`` in a process of its own."""
    with contextlib.ExitStack() as held:
        shown = place / kind
        own = {}
        if way == "wait":
            own = {"PYTHONPATH": f"{place / 'sleeping'}{os.pathsep}{environment()['PYTHONPATH']}"}
        elif way == "read":
            shown = place / f"{kind}-shown"
            held.enter_context(shown_files.mounted("bench.slow", place / kind, shown, "--serve"))
        found: dict[str, Any] = answer(
            "bench.slow", "--one", str(shown), "--way", way, *words, own=own
        )
        return found


def serve(source: Path, target: Path) -> None:
    """Show a folder; a read sleeps as its pictures' marks say, except reads of whole shards."""

    def wait(path: str, offset: int, size: int) -> None:
        if size < 2 * _APART_BYTES and path.count("tfrecord"):
            with (source / path.lstrip("/")).open("rb") as file:
                file.seek(offset)
                data = file.read(size)
            at = data.find(_MARK)
            if at >= 0:
                time.sleep(*struct.unpack_from("<f", data, at + len(_MARK)))

    shown_files.serve(source, target, wait)


def main() -> None:
    """Measure each setting, and print a line for it."""
    words = argparse.ArgumentParser(description=__doc__)
    words.formatter_class = argparse.RawDescriptionHelpFormatter
    words.add_argument("--ways", nargs="*", default=["decode", "wait", "read"])
    words.add_argument("--readers", nargs="*", default=["indexed", "stream"])
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--processes", type=int, nargs="*", default=[1, 2])
    words.add_argument("--batch", type=int, default=32)
    words.add_argument("--rounds", type=int, default=3, help="of 4,800 samples: whole passes")
    words.add_argument("--controller", action="store_true")
    for hidden in ("--one", "--way", "--reader", "--step"):
        words.add_argument(hidden, help=argparse.SUPPRESS)
    if "--serve" in sys.argv:
        serve(*map(Path, sys.argv[1:3]))
        return
    given = words.parse_args()
    if given.one:
        given.processes, given.step = given.processes[0], float(given.step)
        print(json.dumps(measured(Path(given.one), given)))
        return
    for way in given.ways:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "sleeping").mkdir()
            (place / "sleeping" / "sitecustomize.py").write_text(_SLEEPING)
            for kind in ("slow", "mean"):
                write(place / kind, kind, way)
            for reader in given.readers:
                for processes in given.processes if reader == "indexed" else [1]:
                    _told(place, way, reader, processes, given)


def _told(place: Path, way: str, reader: str, processes: int, given: argparse.Namespace) -> None:
    """Measure one setting, and print it."""
    words = [
        f"--{name}={value}"
        for name, value in {
            "reader": reader, "threads": given.threads, "processes": processes,
            "batch": given.batch, "rounds": given.rounds,
        }.items()
    ] + ["--controller"] * given.controller  # fmt: skip
    free = {kind: _asked(place, kind, way, [*words, "--step=0"]) for kind in ("mean", "slow")}
    step = 1.1 / free["mean"]["rate"]
    told = {kind: _asked(place, kind, way, [*words, f"--step={step}"]) for kind in ("mean", "slow")}
    row = {
        "step_ms": 1e3 * step,
        "free": free["slow"]["rate"] / free["mean"]["rate"],
        "rate": told["slow"]["rate"] / told["mean"]["rate"],
        **{f"wait_{name}": told["slow"][name] / step for name in ("p50", "p99", "max")},
        "mean_p99": told["mean"]["p99"] / step,
    }
    plain = {name: round(value, 3) for name, value in row.items()}
    print(way, reader, f"{processes} processes", plain, told["slow"]["knobs"], flush=True)


if __name__ == "__main__":
    main()
