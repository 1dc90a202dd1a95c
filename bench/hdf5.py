"""Processor time a sample and memory: HDF5 by index, against the usual dataset class and workers.

    .venv/bin/python -m bench.hdf5                      # all sets, four rounds A B B A
    .venv/bin/python -m bench.hdf5 libero --rounds 2

``usual`` is a map dataset: each worker opens the files on first use, slices the rows of a window by
h5py, and decodes JPEG by OpenCV; a shuffled DataLoader with two workers. ``ours`` is the loader
without a frame cache, ``near`` with ``mixing.locality``. A sample has two frames and eight actions.
Each measurement is a process of its own, over data in the page cache. Memory is the largest PSS of
the process tree; ``torch`` is that of two workers that do nothing, to be taken off ``usual``.

Not here: other loaders over RLDS (``bench.peers``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.child import answer
from bench.paired import in_turn
from bench.processes import tree_cpu_s, tree_pss_bytes

WINDOW, HORIZON, BATCH = 2, 8, 32
SETS: dict[str, dict[str, Any]] = {
    "libero": {"steps": [150] * 40, "size": (128, 128), "how": {}},
    "aloha": {"steps": [200] * 12, "size": (480, 640), "how": None},
    "gzip84": {"steps": [150] * 40, "size": (84, 84), "how": {"compression": "gzip"}},
    "gzip256": {"steps": [120] * 10, "size": (256, 256), "how": {"compression": "gzip"}},
}
"""Episodes' steps, size of pictures, arguments of ``create_dataset``; ``None``: padded JPEG."""


def write(folder: Path, name: str) -> Path:
    """A set, all its episodes in one file as robomimic has them."""
    import cv2
    import h5py

    made, path = np.random.default_rng(1), folder / name / "demos.hdf5"
    path.parent.mkdir()
    (height, width), how = SETS[name]["size"], SETS[name]["how"]
    with h5py.File(path, "w") as file:
        for number, steps in enumerate(SETS[name]["steps"]):
            small = made.integers(0, 256, (steps, height // 8, width // 8, 3), np.uint8)
            shown = [cv2.resize(one, (width, height)) for one in small]
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = steps
            demo.create_dataset("actions", data=made.normal(size=(steps, 7)))
            if how is None:
                rows = [cv2.imencode(".jpg", one, [1, 50])[1].tobytes() for one in shown]
                most = max(map(len, rows))
                padded = b"".join(row.ljust(most, b"\0") for row in rows)
                data = np.frombuffer(padded, np.uint8).reshape(steps, most)
                demo.create_dataset("obs/agentview_image", data=data, chunks=(1, most))
            else:
                demo.create_dataset("obs/agentview_image", data=np.stack(shown), **how)
    return path


class Usual:
    """The usual map dataset; a handle for each worker."""

    def __init__(self, path: Path) -> None:
        import cv2
        import h5py

        self.open, self.decode = h5py.File, partial(cv2.imdecode, flags=cv2.IMREAD_COLOR)
        self.path = path
        self.file: Any = None
        with self.open(path) as file:
            counts = {name: int(demo.attrs["num_samples"]) for name, demo in file["data"].items()}
        self.places = [(name, t, steps) for name, steps in counts.items() for t in range(steps)]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if self.file is None:
            self.file = self.open(self.path, "r")
        name, t, steps = self.places[number]
        demo: Any = self.file[f"data/{name}"]
        first, stop = max(0, t - WINDOW + 1), min(steps, t + HORIZON)
        frames: Any = demo["obs/agentview_image"][first : t + 1]
        if frames.ndim == 2:
            shown: list[Any] = [self.decode(row) for row in frames]
            frames = np.stack(shown)
        frames = np.concatenate([frames[:1]] * (WINDOW - len(frames)) + [frames])
        actions = demo["actions"][t:stop].astype(np.float32)
        return {
            "images": frames,
            "action": np.concatenate([actions, *[actions[-1:]] * (HORIZON - len(actions))]),
        }


def usual(path: Path | None) -> Iterator[int]:
    """Batches of the usual class, or of nothing, without end."""
    from torch.utils.data import DataLoader

    data: Any = [{"action": 0}] * 6400 if path is None else Usual(path)
    how: Any = {"shuffle": True, "drop_last": True, "persistent_workers": True}
    loader = DataLoader(data, BATCH, num_workers=2, **how)
    while True:
        for batch in loader:
            time.sleep(0.0 if path else 0.01)
            yield len(batch["action"])


def ours(path: Path, more: dict[str, Any]) -> Iterator[int]:
    """Batches of autoloader, without end."""
    from autoloader import AutoLoader, PipelineSpec

    size = SETS[path.parent.name]["size"]
    spec = PipelineSpec.from_mapping({
        "datasets": [{"name": "demos", "path": str(path), "action": "actions",
                      "images": {"top": "obs/agentview_image"}}],
        "sample": {"frame_offsets": [1 - WINDOW, 0], "action_horizon": HORIZON},
        "cameras": {"top": {"size": list(size)}}, "batch": {"size": BATCH},
        "mixing": {"epoch": "forever", **more},
    })  # fmt: skip
    knobs: Any = {"cache_bytes": 0}  # the usual class keeps no frames
    with AutoLoader(spec, output="numpy", ram_floor="64MiB", knobs=knobs) as loader:
        for batch in loader:
            yield len(batch["action"])


def measured(who: str, path: Path, seconds: float) -> dict[str, float]:
    """Processor µs a sample, samples a second and MB of this process and its children."""
    near = {"locality": {"block": "2MiB", "window": 16}}
    batches = {
        "usual": lambda: usual(path), "torch": lambda: usual(None),
        "ours": lambda: ours(path, {}), "near": lambda: ours(path, near),
    }[who]()  # fmt: skip
    for _ in range(20):
        next(batches)
    pid, count, most = os.getpid(), 0, 0
    began, spent = time.monotonic(), tree_cpu_s(os.getpid())
    looked = began
    while (now := time.monotonic()) - began < seconds:
        count += next(batches)
        if now - looked > 1.0:
            most, looked = max(most, tree_pss_bytes(pid)), now
    spent = tree_cpu_s(pid) - spent
    return {"us": 1e6 * spent / count, "rate": count / (now - began), "mb": most / 1e6}


def main() -> None:
    """Measure each set in turn, and print a line for each side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", default=[*SETS])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--one", nargs=2)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one[0], Path(given.one[1]), given.seconds)))
        return
    with tempfile.TemporaryDirectory() as place:
        for name in given.sets:
            path = write(Path(place), name)
            found: dict[str, list[dict[str, float]]] = {}
            for order in in_turn(["usual", "ours", "near", "torch"], given.rounds):
                for who in order:
                    words = ["--one", who, str(path), "--seconds", str(given.seconds)]
                    found.setdefault(who, []).append(answer("bench.hdf5", *words))
            for who, rows in found.items():
                row = {key: statistics.median(one[key] for one in rows) for key in rows[0]}
                print(name, who, {key: round(value, 1) for key, value in row.items()}, flush=True)


if __name__ == "__main__":
    main()
