"""The mixtures that scenarios name: ``demo``, equal datasets made from its records, drawn ones.

``tiny`` is one dataset of 16×16 frames, where what is not decoding is all there is.
``even_29`` is 29 datasets of equally large frames (256×256, so that nothing is resized and what a
dataset costs shows most) and equal weights, ``even_15`` and ``even_5`` the first of them;
``even_1`` is one dataset of all their shards. Their files are the same ones (hard links), so bytes
and page cache are the same too. Records are copied from one dataset of the demo mixture, each
dataset drawing its own choice. What ``bench.drawn`` lists needs no demo mixture.

``demo_small`` has a quarter of its episodes: all frames, decoded, are less than 2 GB.

``octo`` is the demo mixture in the style of Octo's: two frames of history and a goal, chunks of
four actions, every gripper clipped and inverted, normalised actions, and a second camera that all
but one dataset lack (that one lacks the first): a sample has three frames to decode anywhere.

Not here: which scenario uses which (``bench/scenarios``).
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from ruamel.yaml import YAML

from autoloader.cli.demo import ensure_demo
from autoloader.storage.places import cache_root
from bench import drawn
from bench.records import example_bytes, parse_example, read_records, write_records
from bench.versions import build_whole, write_mix, write_version

FORMAT = 3
"""Raised when the same names begin to mean other data."""

DEMO_SCALES = {"demo": 1.0, "demo_small": 0.25}
DATASETS = 29
SOURCE = "demo_toy_sort"
ONLY_WRIST = "demo_peg_insert"
SHARDS, SHARD_EPISODES = 4, 3
EVEN = ("even_1", "even_5", "even_15", "even_29", "tiny")


def ensure_data(name: str) -> Path:
    """The ``mix.yaml`` of the named mixture, built in the cache directory on first use.

    Raises:
        ValueError: there is no mixture of that name.
    """
    if name in DEMO_SCALES:
        return ensure_demo(scale=DEMO_SCALES[name])
    root = cache_root() / "bench"
    if name in drawn.DRAWINGS:
        place = root / f"{name}-{drawn.FORMAT}"
        if not place.exists():
            build_whole(place, partial(drawn.draw, name))
        return place / "mix.yaml"
    if name == "octo":
        return _octo(ensure_demo(), root)
    if name not in EVEN:
        known = ", ".join((*DEMO_SCALES, "octo", *EVEN, *drawn.DRAWINGS))
        raise ValueError(f"there is no mixture {name!r}; there are {known}")
    place = root / f"even-{FORMAT}"
    if not place.exists():
        source = ensure_demo().parent / SOURCE / "1.0.0"
        build_whole(place, partial(_build_even, source))
    return place / f"{name}.yaml"


def _octo(demo: Path, root: Path) -> Path:
    """The demo mixture's files under another spec, which is written anew."""
    yaml = YAML(typ="safe")
    raw = yaml.load(demo)
    for dataset in raw["datasets"]:
        dataset["path"] = str(demo.parent / dataset["path"])
        if dataset["name"] == ONLY_WRIST:
            dataset["images"] = {"wrist": dataset["images"]["primary"]}
        if dataset["action"] == "action":
            gripper = {"path": "action[-1:]", "ops": [{"clip": [0, 1]}, "invert"]}
            dataset["action"] = ["action[:-1]", gripper]
    raw["sample"] = {"frame_offsets": [-1, 0], "goal": "uniform", "action_horizon": 4}
    raw["cameras"] = {**raw["cameras"], "wrist": {"size": [128, 128]}}
    raw["normalize"] = {"action": {"method": "mean_std", "dims": "[:-1]"}}
    place = root / f"octo-{demo.parent.name}.yaml"
    place.parent.mkdir(parents=True, exist_ok=True)
    partial_ = place.with_name(f".{place.name}.{os.getpid()}")
    with partial_.open("w") as file:
        yaml.dump(raw, file)
    partial_.replace(place)
    return place


def drop_from_cache(spec: Path) -> None:
    """Has the kernel forget the pages of all records beside a ``mix.yaml``.

    What lies below (a hypervisor's or a disk's own cache) is not asked.
    """
    for path in spec.parent.rglob("*.tfrecord*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _build_even(source: Path, place: Path) -> None:
    info = json.loads((source / "dataset_info.json").read_text())
    features = (source / "features.json").read_text()
    records = [
        record for path in sorted(source.glob("*-train.tfrecord*")) for record in read_records(path)
    ]
    rng = np.random.default_rng(0)
    names = [f"even_{number:02d}" for number in range(DATASETS)]
    shards: list[Path] = []
    for name in names:
        chosen = rng.choice(len(records), SHARDS * SHARD_EPISODES, replace=False)
        paths = write_version(place, name, features, [SHARD_EPISODES] * SHARDS, info)
        for number, path in enumerate(paths):
            own = chosen[number * SHARD_EPISODES :][:SHARD_EPISODES]
            write_records(path, (records[at] for at in own))
        shards += paths
    everything = [SHARD_EPISODES] * len(shards)
    linked = write_version(place, "even_all", features, everything, info)
    for path, link in zip(shards, linked, strict=True):
        os.link(path, link)
    (only,) = write_version(place, "tiny", features, [len(records)], info)
    write_records(only, map(_shrunk, records))
    for count in (29, 15, 5):
        write_mix(place / f"even_{count}.yaml", dict.fromkeys(names[:count], 1.0))
    write_mix(place / "even_1.yaml", {"even_all": 1.0})
    write_mix(place / "tiny.yaml", {"tiny": 1.0}, size=16, batch=512)


def _shrunk(record: bytes) -> bytes:
    """The same episode with frames of 16×16."""
    features = parse_example(record)
    frames = features["steps/observation/image_0"]
    assert isinstance(frames, list)
    for number, frame in enumerate(frames):
        small = cv2.resize(simplejpeg.decode_jpeg(frame), (16, 16), interpolation=cv2.INTER_AREA)
        frames[number] = bytes(simplejpeg.encode_jpeg(small))
    return example_bytes(features)
