"""Rate of the tf.data front door: 29 datasets against one with the same bytes, in turn.

    python tests/tfdata/tfdata_rate.py [--pairs 6] [--samples 1500]

Prints each pair's ratio (29 datasets ÷ one), by wall time and by this process's processor time, and
their medians. Neither reads ahead of the other's turn: each turn iterates anew.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import rlds_files as files
import simplejpeg

from autoloader import PipelineSpec
from autoloader.tfdata import as_dataset

DATASETS = 29
EPISODES, STEPS = 4, 24
HEIGHT, WIDTH = 240, 320


def scene(number: int, step: int, *, height: int = HEIGHT, width: int = WIDTH) -> bytes:
    """About 25 kB, as a camera's frame of this size has."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    noise = np.random.default_rng([number, step]).normal(0, 6, (height, width, 3))
    smooth = [127 + 100 * np.sin((x + 7 * step) / (20 + number % 9 + c) + y / 31) for c in range(3)]
    picture = np.clip(np.stack(smooth, axis=-1) + noise, 0, 255).astype(np.uint8)
    return bytes(simplejpeg.encode_jpeg(picture, quality=85))


def spec_of(written: list[files.Written]) -> PipelineSpec:
    return PipelineSpec.from_mapping(
        {
            "datasets": [
                {
                    "name": one.name,
                    "path": str(one.path),
                    "images": {"primary": "observation/image"},
                    "action": "action",
                    "language": "language_instruction",
                }
                for one in written
            ],
            "cameras": {"primary": {"size": [224, 224]}},
            "sample": {"frame_offsets": [0, 5]},
            "batch": {"size": 16},
        }
    )


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=1500)
    asked = parser.parse_args()
    features = {**files.PLAIN, "observation/image": files.image(HEIGHT, WIDTH)}
    shards = [
        [files.episode(EPISODES * s + e, STEPS, encode=scene) for e in range(EPISODES)]
        for s in range(DATASETS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        one = files.write_dataset(root, shards, name="one", features=features)
        many = [
            files.write_dataset(root, [shard], name=f"part_{number}", features=features)
            for number, shard in enumerate(shards)
        ]
        sources = {
            name: as_dataset(spec_of(written), batched=True)
            for name, written in (("many", many), ("one", [one]))
        }
        found: list[tuple[float, float]] = []
        for pair in range(asked.pairs):
            taken: dict[str, tuple[float, float]] = {}
            for name in ("many", "one") if pair % 2 else ("one", "many"):
                batches = iter(sources[name])
                for _ in range(4):  # its streams are open, its buffers full
                    next(batches)
                wall, cpu = time.perf_counter(), time.process_time()
                for _ in range(asked.samples // 16):
                    next(batches)
                taken[name] = time.perf_counter() - wall, time.process_time() - cpu
                del batches
            ratios = taken["one"][0] / taken["many"][0], taken["one"][1] / taken["many"][1]
            found.append(ratios)
            rate = asked.samples / taken["many"][0]
            say(f"{rate:.0f} samples/s; wall {ratios[0]:.3f}, processor {ratios[1]:.3f}")
        say(
            f"median of {len(found)}: wall {median(r[0] for r in found):.3f}, "
            f"processor {median(r[1] for r in found):.3f}"
        )


if __name__ == "__main__":
    main()
