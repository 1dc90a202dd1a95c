"""The mixtures that scenarios name: ``demo``, and equal datasets made from its records.

``tiny`` is one dataset of 16×16 frames, where what is not decoding is all there is.
``even_29`` is 29 datasets of equally large frames (256×256, so that nothing is resized and what a
dataset costs shows most) and equal weights; ``even_1`` is one dataset of all their shards. Their
files are the same ones (hard links), so bytes and page cache are the same too. Records are copied
from one dataset of the demo mixture, each dataset drawing its own choice.

Not here: which scenario uses which (``bench/scenarios``).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import platformdirs
import simplejpeg

from autoloader.catalog.demo import ensure_demo
from bench.records import read_records, write_records

FORMAT = 2
"""Raised when the same names begin to mean other data."""

DATASETS = 29
SOURCE = "demo_toy_sort"
SHARDS, SHARD_EPISODES = 4, 3

Progress = Callable[[int, int], None]


def ensure_data(name: str, progress: Progress | None = None) -> Path:
    """The ``mix.yaml`` of the named mixture, built in the user's cache directory on first use.

    Raises:
        ValueError: there is no mixture of that name.
    """
    demo = ensure_demo(progress=progress)
    if name == "demo":
        return demo
    if name not in ("even_1", "even_29", "tiny"):
        raise ValueError(f"there is no mixture {name!r}; there are demo, even_1, even_29, tiny")
    place = platformdirs.user_cache_path("autoloader") / "bench" / f"even-{FORMAT}"
    if not place.exists():
        _build_even(demo.parent / SOURCE / "1.0.0", place)
    return place / f"{name}.yaml"


def _build_even(source: Path, place: Path) -> None:
    partial = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    info = json.loads((source / "dataset_info.json").read_text())
    records = [
        record for path in sorted(source.glob("*-train.tfrecord*")) for record in read_records(path)
    ]
    rng = np.random.default_rng(0)
    names = [f"even_{number:02d}" for number in range(DATASETS)]
    shards: list[Path] = []
    for name in names:
        chosen = rng.choice(len(records), SHARDS * SHARD_EPISODES, replace=False)
        directory = _version(partial, source, info, name, SHARDS)
        for number in range(SHARDS):
            path = directory / _shard(name, number, SHARDS)
            own = chosen[number * SHARD_EPISODES :][:SHARD_EPISODES]
            write_records(path, (records[at] for at in own))
            shards.append(path)
    directory = _version(partial, source, info, "even_all", len(shards))
    for number, path in enumerate(shards):
        os.link(path, directory / _shard("even_all", number, len(shards)))
    directory = _version(partial, source, info, "tiny", 1, len(records))
    write_records(directory / _shard("tiny", 0, 1), map(_shrunk, records))
    (partial / "even_29.yaml").write_text(_spec(names))
    (partial / "even_1.yaml").write_text(_spec(["even_all"]))
    (partial / "tiny.yaml").write_text(_spec(["tiny"], size=16, batch=512))
    try:
        partial.rename(place)
    except OSError:
        # Another bench was faster; its files are the same.
        shutil.rmtree(partial, ignore_errors=True)


def _shard(name: str, number: int, count: int) -> str:
    return f"{name}-train.tfrecord-{number:05d}-of-{count:05d}"


def _shrunk(record: bytes) -> bytes:
    """The same episode with frames of 16×16."""
    from tensorflow.train import Example

    example = Example.FromString(record)
    frames = example.features.feature["steps/observation/image_0"].bytes_list.value
    for number, frame in enumerate(frames):
        small = cv2.resize(simplejpeg.decode_jpeg(frame), (16, 16), interpolation=cv2.INTER_AREA)
        frames[number] = simplejpeg.encode_jpeg(small)
    return bytes(example.SerializeToString())


def _version(
    place: Path,
    source: Path,
    info: dict[str, object],
    name: str,
    shards: int,
    episodes: int = SHARD_EPISODES,
) -> Path:
    directory = place / name / "1.0.0"
    directory.mkdir(parents=True)
    shutil.copy(source / "features.json", directory)
    split = {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "name": "train",
        "numBytes": "0",
        "shardLengths": [str(episodes)] * shards,
    }
    own = {**info, "name": name, "splits": [split]}
    (directory / "dataset_info.json").write_text(json.dumps(own, indent=2))
    return directory


def _spec(names: list[str], *, size: int = 256, batch: int = 48) -> str:
    lines = ["# Written by the bench.", "schema_version: 1", "seed: 0", "datasets:"]
    for name in names:
        lines += [
            f"  - {{name: {name}, path: {name}/1.0.0, split: train, weight: 1.0,",
            "     images: {primary: observation/image_0}, action: action,",
            "     state: observation/state, language: language_instruction}",
        ]
    lines += [
        "sample: {frame_offsets: [0, 5]}",
        f"cameras: {{primary: {{size: [{size}, {size}]}}}}",
        f"batch: {{size: {batch}}}",
    ]
    return "\n".join(lines) + "\n"
