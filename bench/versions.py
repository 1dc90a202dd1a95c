"""Writes what a mixture of the bench's own lies in: TFDS version directories and a ``mix.yaml``.

Not here: what is in the records (``bench.data``, ``bench.drawn``).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def write_version(
    place: Path,
    name: str,
    features: str,
    shards: Sequence[int],
    info: Mapping[str, Any] | None = None,
) -> list[Path]:
    """A version directory without its records; returns the shards' paths.

    Args:
        place: the mixture's folder.
        name: of the dataset.
        features: text of ``features.json``.
        shards: records of each shard.
        info: what ``dataset_info.json`` says beside name and splits.
    """
    directory = place / name / "1.0.0"
    directory.mkdir(parents=True)
    (directory / "features.json").write_text(features)
    split = {
        "filepathTemplate": TEMPLATE,
        "name": "train",
        "numBytes": "0",
        "shardLengths": [str(count) for count in shards],
    }
    own = {"version": "1.0.0", "fileFormat": "tfrecord", **(info or {})}
    document = {**own, "name": name, "splits": [split]}
    (directory / "dataset_info.json").write_text(json.dumps(document, indent=2))
    count = len(shards)
    return [directory / f"{name}-train.tfrecord-{n:05d}-of-{count:05d}" for n in range(count)]


def write_mix(
    path: Path,
    weights: Mapping[str, float],
    *,
    image: str = "image_0",
    size: int = 256,
    batch: int = 48,
    more: str = "",
) -> None:
    """A ``mix.yaml`` over version directories beside it: two frames, action, state, language."""
    lines = ["# Written by the bench.", "schema_version: 1", "seed: 0", more, "datasets:"]
    for name, weight in weights.items():
        lines += [
            f"  - {{name: {name}, path: {name}/1.0.0, split: train, weight: {weight},",
            f"     images: {{primary: observation/{image}}}, action: action,",
            "     state: observation/state, language: language_instruction}",
        ]
    lines += [
        "sample: {frame_offsets: [0, 5]}",
        f"cameras: {{primary: {{size: [{size}, {size}]}}}}",
        f"batch: {{size: {batch}}}",
    ]
    path.write_text("\n".join(lines) + "\n")


def build_whole(place: Path, build: Callable[[Path], None]) -> None:
    """Have ``build`` fill a folder that appears under its name when it is whole."""
    partial = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    build(partial)
    try:
        partial.rename(place)
    except OSError:
        # Another bench was faster; its files are the same.
        shutil.rmtree(partial, ignore_errors=True)
