"""Whole loaders of video in turn: this one, lerobot's with torchcodec, and lerobot-lancedb's.

    python tools/lerobot/rivals.py --python ENVIRONMENT/bin/python [--row av1-2] [--rounds 3]

The other Python has lerobot 0.6 with torchcodec, and may have lerobot-lancedb. Each turn is a fresh
process with torch: shuffled batches of 16 samples at full size. Printed are processor time a sample
and rate of all its processes after a warm-up, and their memory at the end (proportional set size).

Not here: decoding alone and numbers of packets (``bench.video``), values (``witness``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.video import BATCH, CAMERA, FPS, ROWS, spec_of, write

_MEASURED = """
import contextlib, itertools, json, sys, time
import psutil, torch
told = json.loads(sys.argv[1])
def tree():
    me = psutil.Process()
    return [me, *me.children(recursive=True)]
def seconds():
    found = 0.0
    for one in tree():
        with contextlib.suppress(psutil.Error):
            times = one.cpu_times()
            found += times.user + times.system
    return found
def measured(batches):
    for _ in range(told["warmup"]):
        next(batches)
    cpu, wall = seconds(), time.perf_counter()
    for _ in range(told["batches"]):
        batch = next(batches)
    samples = told["batches"] * told["size"]
    found = {"cpu_ms": 1e3 * (seconds() - cpu) / samples,
             "samples_per_s": samples / (time.perf_counter() - wall)}
    print(json.dumps(found | {"mb": sum(one.memory_full_info().pss for one in tree()) / 1e6}))
def endless(loader):
    while True:
        yield from loader
"""
_OURS = """
from autoloader import AutoLoader
if __name__ == "__main__":
    with AutoLoader(told["spec"], ram_floor="500MB", controller=False) as loader:
        measured(endless(loader))
"""
_THEIRS = """
from torch.utils.data import DataLoader
more = {}
if told["lance"]:
    from lerobot_lancedb import LanceDBDataset, lance_mp_context
    dataset = LanceDBDataset(root=told["lance"], delta_timestamps=told["deltas"])
    if told["workers"]:
        more["multiprocessing_context"] = lance_mp_context()
else:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    dataset = LeRobotDataset("somebody/videos", root=told["folder"],
                             delta_timestamps=told["deltas"], video_backend="torchcodec")
if __name__ == "__main__":
    loader = DataLoader(dataset, told["size"], shuffle=True, num_workers=told["workers"],
                        drop_last=True, **more)
    measured(endless(loader))
"""


def turn(python: Path, script: str, told: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Figures of one process."""
    path = folder / "turn.py"
    path.write_text(_MEASURED + script)
    ran = subprocess.run(
        [python, path, json.dumps(told)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    if ran.returncode:
        sys.exit(f"{python}: {ran.stderr[-2000:]}")
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="it has lerobot and torchcodec")
    parser.add_argument("--row", choices=ROWS, default="av1-2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--folder", type=Path, help="where the dataset lies or is written")
    arguments = parser.parse_args()
    row = ROWS[arguments.row]
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.folder or Path(scratch) / arguments.row).absolute()
        if not folder.exists():
            write(folder, row)
        (spec := Path(scratch) / "spec.yaml").write_text(spec_of(folder, row, None).to_yaml())
        told = {
            "folder": str(folder), "spec": str(spec), "lance": "", "workers": 2, "size": BATCH,
            "warmup": 10, "batches": arguments.batches,
            "deltas": {CAMERA: [offset / FPS for offset in row.offsets]},
        }  # fmt: skip
        ways = {
            "ours": (Path(sys.executable), _OURS, told),
            "torchcodec, 2 workers": (arguments.python, _THEIRS, told),
        }
        lance = Path(scratch) / "lance"
        convert = arguments.python.with_name("lerobot-lance-convert")
        if convert.exists():
            command = [arguments.python, "-m", "lerobot_lancedb.convert"]
            command += ["--root", str(folder), "--out", str(lance)]
            subprocess.run(command, check=True, capture_output=True)
            for workers in (0, 2):
                asked = told | {"lance": str(lance), "workers": workers}
                ways[f"lancedb, {workers} workers"] = (arguments.python, _THEIRS, asked)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, (python, script, asked) in ways.items():
                found[name].append(turn(python, script, asked, Path(scratch)))
                say(f"{name} {found[name][-1]}")
        for name in ways:
            parts = []
            for measure in ("cpu_ms", "samples_per_s", "mb"):
                pairs = zip(found["ours"], found[name], strict=True)
                ratio = statistics.median(ours[measure] / one[measure] for ours, one in pairs)
                value = statistics.median(one[measure] for one in found[name])
                parts.append(f"{measure} {value:.2f} (ours / it: {ratio:.2f})")
            say(f"{name}: {', '.join(parts)}")


if __name__ == "__main__":
    main()
