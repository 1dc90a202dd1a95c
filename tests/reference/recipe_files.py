"""Writes small datasets in public feature trees with TFDS's own encoders: random values."""

import functools
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from recipe_trees import TREES
from rlds_files import write_records

LENGTHS = (5, 1, 9, 7)
"""Steps of the episodes of each dataset."""


@dataclass(frozen=True)
class Leaf:
    """One feature of a tree: path, shape, type (of ``recipe_trees``)."""

    path: str
    shape: tuple[int, ...]
    kind: str

    @property
    def once(self) -> bool:
        return self.path.startswith("/")


def leaves_of(tree: str) -> list[Leaf]:
    """The features of a tree as it is written."""
    found = []
    for one in tree.split(";"):
        path, shape, *kind = one.split()
        sizes = () if shape == "-" else tuple(map(int, shape.split("x")))
        found.append(Leaf(path, sizes, kind[0] if kind else "f4"))
    return found


@functools.cache
def picture(kind: str, height: int, width: int, number: int) -> bytes:
    """An encoded picture of one colour, which tells the step."""
    pixels = np.full((height, width, 3), (30, 20 * (number % 12), 200), np.uint8)
    done, data = cv2.imencode(".jpg" if kind == "j" else ".png", pixels)
    assert done
    return bytes(data)


def values_of(leaf: Leaf, steps: int, random: np.random.Generator) -> Any:
    """[T, …] random values in the feature's domain; texts and pictures as lists."""
    if leaf.kind in ("j", "p"):
        height, width = leaf.shape
        return [picture(leaf.kind, height, width, t) for t in range(steps)]
    if leaf.kind == "s":
        if leaf.path == "/episode_metadata/file_path":
            return [str(random.choice(["/lab/success/1", "/lab/failure/2"]))]
        words = [str(random.choice(["Pick it up", "", "Größe 3"]))] * (steps - steps // 2)
        return words + [str(random.choice(["", "then put it down"]))] * (steps // 2)
    shape = (1 if leaf.once else steps, *leaf.shape)
    if leaf.kind == "?":
        return random.random(shape) < 0.6
    if leaf.path == "observation/instruction":
        text = str(random.choice(["push the Star", "", "übers Blau"]))
        points = np.zeros(shape, np.int32)
        points[:, : len(text)] = [ord(letter) for letter in text]
        return points
    if leaf.kind in ("i4", "i8"):
        return random.integers(0, 2, shape).astype(leaf.kind)
    numbers = random.normal(size=shape)
    if leaf.path.endswith("gripper_closedness_action"):
        numbers = random.choice([-1.0, -0.5, -0.1, 0.0, 0.0, 0.0, 0.1, 0.3, 1.0], shape)
    if leaf.path == "action" and leaf.shape == (8,):
        turned = numbers[:, 3:7]
        numbers[:, 3:7] = turned / np.linalg.norm(turned, axis=1, keepdims=True)
    if leaf.path == "action_dict/cartesian_velocity":
        numbers[random.random(steps) < 0.4] = 0
    return numbers.astype(np.float32).astype(leaf.kind.removeprefix("z"))


@dataclass(frozen=True)
class Files:
    """A dataset on disk, and its episodes as [T, w] arrays by feature."""

    path: Path
    episodes: list[dict[str, Any]]


def write(folder: Path, name: str, seed: int) -> Files:
    """A version directory of dataset ``name``: TFDS's features, one shard."""
    leaves = leaves_of(TREES[name])
    random = np.random.default_rng(seed)
    features = _features(leaves)
    payloads, episodes = [], []
    for steps in LENGTHS:
        values = {leaf.path: values_of(leaf, steps, random) for leaf in leaves}
        if name == "bridge_dataset":
            values["action"][:, 6] = random.choice([0, 0.03, 0.3, 0.7, 0.96, 1], steps)
        payloads.append(features.serialize_example(_example(leaves, values, steps)))
        episodes.append({leaf.path: _as_rows(leaf, values[leaf.path]) for leaf in leaves})
    path = folder / name / "1.0.0"
    path.mkdir(parents=True)
    write_records(path / f"{name}-train.tfrecord-00000-of-00001", payloads)
    split = {
        "name": "train",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "shardLengths": [str(len(payloads))],
        "numBytes": "1",
    }
    info = {"name": name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (path / "dataset_info.json").write_text(json.dumps(info))
    features.save_config(str(path))
    return Files(path, episodes)


def _features(leaves: list[Leaf]) -> Any:
    from tensorflow_datasets import features as tfds

    def made(leaf: Leaf) -> Any:
        if leaf.kind in ("j", "p"):
            form = "jpeg" if leaf.kind == "j" else "png"
            return tfds.Image(shape=(*leaf.shape, 3), encoding_format=form)
        if leaf.kind == "s":
            return tfds.Text()
        packed = tfds.Encoding.ZLIB if leaf.kind.startswith("z") else tfds.Encoding.NONE
        dtype = np.dtype(leaf.kind.removeprefix("z"))
        return tfds.Tensor(shape=leaf.shape, dtype=dtype, encoding=packed)

    def nested(listed: list[tuple[str, Leaf]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path, leaf in listed:
            holder = found
            *above, last = path.split("/")
            for part in above:
                holder = holder.setdefault(part, {})
            holder[last] = made(leaf)
        return found

    once = nested([(leaf.path[1:], leaf) for leaf in leaves if leaf.once])
    steps = nested([(leaf.path, leaf) for leaf in leaves if not leaf.once])
    return tfds.FeaturesDict({"steps": tfds.Dataset(steps), **once})


def _example(leaves: list[Leaf], values: Mapping[str, Any], steps: int) -> dict[str, Any]:
    def nested(path: str, value: Any, holder: dict[str, Any]) -> None:
        *above, last = path.split("/")
        for part in above:
            holder = holder.setdefault(part, {})
        holder[last] = value

    whole: dict[str, Any] = {"steps": [{} for _ in range(steps)]}
    for leaf in leaves:
        if leaf.once:
            nested(leaf.path[1:], values[leaf.path][0], whole)
            continue
        for t in range(steps):
            value = values[leaf.path][t]
            nested(
                leaf.path, io.BytesIO(value) if isinstance(value, bytes) else value,
                whole["steps"][t],
            )  # fmt: skip
    return whole


def _as_rows(leaf: Leaf, value: Any) -> Any:
    if isinstance(value, list):
        return value[0] if leaf.once else value
    if leaf.once:
        return value[0]
    return np.asarray(value).reshape(len(value), math.prod(leaf.shape)).astype(np.float32)
