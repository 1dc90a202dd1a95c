"""The mixtures that control scenarios name.

``demo_quarter`` is the demo mixture with a quarter of its episodes, so that a run goes through its
files several times; what is cached is read again.

``jump`` is a mixture whose frames become eight times larger in the middle of an epoch, by either
reader and in the same place. An epoch deals first the full blocks of every dataset, then what is
left over; so datasets of one block come first, and datasets one sample short of a block come last.
The early ones have frames of 181×181, the late ones of 512×512; batches have the same size all
along. The late datasets are one set of files under several names.

Not here: the bench's other mixtures (``bench.data``).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import platformdirs
import simplejpeg

from autoloader.cli.demo import ensure_demo
from bench.records import read_records, write_records

FORMAT = 1
"""Raised when the same name begins to mean other data."""
BLOCK = 1024
EARLY, LATE = 3, 8
BATCH = 48
_SOURCE = "demo_toy_sort"
_IMAGE = "steps/observation/image_0"
_SHARDS = 4


def ensure_data(name: str) -> Path:
    """The ``mix.yaml`` of the named mixture, built in the user's cache directory on first use.

    Raises:
        ValueError: there is no mixture of that name.
    """
    if name == "demo_quarter":
        return ensure_demo(scale=0.25)
    if name != "jump":
        raise ValueError(f"there is no mixture {name!r}; there are demo_quarter, jump")
    place = platformdirs.user_cache_path("autoloader") / "bench" / f"jump-{FORMAT}"
    if not place.exists():
        _build_jump(ensure_demo().parent / _SOURCE / "1.0.0", place)
    return place / "mix.yaml"


def _build_jump(source: Path, place: Path) -> None:
    partial = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    # 32 × 32 steps are one block, 33 × 31 one sample less.
    names = [f"early_{number}" for number in range(EARLY)]
    names += [f"late_{number}" for number in range(LATE)]
    first: dict[str, Path] = {}
    for name in names:
        kind = name.partition("_")[0]
        episodes, steps, size = (32, 32, 181) if kind == "early" else (33, 31, 512)
        directory = _version(partial, source, name, episodes)
        if kind in first:
            for path in first[kind].glob("*.tfrecord*"):
                os.link(path, directory / path.name.replace(first[kind].parent.name, name))
            continue
        first[kind] = directory
        made = list(_episodes(source, episodes, steps, size))
        for shard, count in enumerate(_lengths(episodes)):
            path = directory / f"{name}-train.tfrecord-{shard:05d}-of-{_SHARDS:05d}"
            write_records(path, made[:count])
            del made[:count]
    (partial / "mix.yaml").write_text(_spec(names))
    try:
        partial.rename(place)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)  # another bench was faster


def _episodes(source: Path, episodes: int, steps: int, size: int) -> Iterator[bytes]:
    """So many episodes of exactly so many steps, their frames of another size."""
    from tensorflow.train import Example

    paths = sorted(source.glob("*-train.tfrecord*"))
    records = [record for path in paths for record in read_records(path)]
    long = [one for one in map(Example.FromString, records) if _steps(one) >= steps]
    for number in range(episodes):
        example = Example.FromString(long[number % len(long)].SerializeToString())
        whole = _steps(example)
        for name, feature in example.features.feature.items():
            if not name.startswith("steps/"):
                continue
            values = getattr(feature, feature.WhichOneof("kind")).value
            del values[len(values) // whole * steps :]
        frames = example.features.feature[_IMAGE].bytes_list.value
        for at, frame in enumerate(frames):
            picture = simplejpeg.decode_jpeg(frame)
            scaled = cv2.resize(picture, (size, size), interpolation=cv2.INTER_CUBIC)
            frames[at] = simplejpeg.encode_jpeg(scaled)
        yield bytes(example.SerializeToString())


def _steps(example: Any) -> int:
    return len(example.features.feature[_IMAGE].bytes_list.value)


def _lengths(episodes: int) -> list[int]:
    return [(episodes + shard) // _SHARDS for shard in range(_SHARDS)]


def _version(place: Path, source: Path, name: str, episodes: int) -> Path:
    directory = place / name / "1.0.0"
    directory.mkdir(parents=True)
    shutil.copy(source / "features.json", directory)
    split = {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "name": "train",
        "numBytes": "0",
        "shardLengths": [str(count) for count in _lengths(episodes)],
    }
    info = json.loads((source / "dataset_info.json").read_text())
    text = json.dumps({**info, "name": name, "splits": [split]}, indent=2)
    (directory / "dataset_info.json").write_text(text)
    return directory


def _spec(names: list[str]) -> str:
    lines = ["# Written by the bench.", "schema_version: 1", "seed: 0", "weights: natural"]
    lines += [f"mixing: {{epoch: pass, block_length: {BLOCK}}}", "datasets:"]
    for name in names:
        lines += [
            f"  - {{name: {name}, path: {name}/1.0.0, split: train, weight: 1.0,",
            "     images: {primary: observation/image_0}, action: action,",
            "     state: observation/state, language: language_instruction}",
        ]
    lines += [
        "sample: {frame_offsets: [0, 5]}",
        "cameras: {primary: {size: [256, 256]}}",
        f"batch: {{size: {BATCH}}}",
    ]
    return "\n".join(lines) + "\n"
