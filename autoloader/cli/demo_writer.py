"""Datasets of the demo mixture: what each one is, and its files as TFDS writes them.

Not here: the mixture and its spec (``cli.demo``), pictures (``cli.demo_scene``).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from autoloader.cli.demo_scene import Camera, Numbers, Pixels, draw_depth, draw_pictures, draw_task
from autoloader.formats.records import masked_crc32c, write_example
from autoloader.host.frozen import frozen
from autoloader.spec.reading import packaged

VERSION = "1.0.0"
"""Version directory of every demo dataset."""
RANGES_FILE = "keep_ranges.json"
"""Beside the version directory of a dataset that idles: the steps at which it does not."""
CODE_POINTS = 96
"""Length of language that is stored as code points; what is left over is NUL."""
Columns = dict[str, Any]
"""A record: key → [T, …] array, or list of byte strings."""
_IDLE, _CAMERAS = 1, 2
"""Streams of draws beside an episode's own, so that they leave it as it is."""
_WRIST, _BACK = ("wrist", "hand_image", "gripper"), ("image_1", "image_2_left", "side")
_POSES = {2: [0, 1], 3: [0, 1, 5], 4: [0, 1, 2, 6], 5: [0, 1, 2, 5, 6], 6: [0, 1, 2, 3, 5, 6]}
"""Parts of a pose that so many numbers have; beyond seven there are joints."""
_OPENING, _GAIN = 6, 5.0
_JOINTS = np.random.default_rng(0).normal(0, 0.6, (7, 8))


@frozen
class Look:
    """Look of a dataset's frames, and their encoding.

    Attributes:
        encoding: file format of a frame, ``jpeg`` or ``png``.
        quality: JPEG quality, 1 to 100; unused for PNG.
        noise: peak of the sensor noise in grey levels; 0 is a rendered picture.
        grain: strength of the finest texture for each camera.
    """

    encoding: str = "jpeg"
    quality: int = 90
    noise: int = 6
    grain: tuple[float, ...] = (1.0, 1.0, 1.0)


@frozen
class DemoDataset:
    """One dataset of the demo mixture.

    Attributes:
        name: dataset and folder name.
        weight: relative share in ``mix.yaml``.
        frames: frames of the train split at scale 1 (in the mean; lengths are drawn).
        lengths: shortest and longest episode, in frames.
        size: height and width of the primary camera in pixels.
        look: the picture's texture and encoding.
        primary: feature of the primary camera.
        second, third: feature and size of another camera, or ``None``.
        depth: feature of depth pictures (uint16 millimetres, PNG, the primary's size), or ``None``.
        hz: control rate, where steps are timed: ``observation/timestamp`` in seconds; ``None`` is
            untimed.
        idles: whether the robot stands still at the start and once later (action 0, state held),
            and ``keep_ranges.json`` lists the steps between.
        action: feature below ``action`` → dims; ``""`` is a flat action. 0 dims is a scalar.
        action_fields: the spec's expression; default every feature in order.
        action_dtype: NumPy type of the action, as stored.
        state: feature → dims; 0 dims is a scalar.
        language: features that hold the instruction.
        language_kind: ``text``, or ``codes`` (int32 code points).
        has_val: whether there is a ``val`` split of about 5 % more episodes.
        states_encoding: whether ``features.json`` says how images are encoded.
        shards: at most so many train shards.
        episodes: a fixed number of train episodes, whatever the scale.
        tasks: tasks, keys of ``demo_scene``'s words; one is drawn for each episode.
        things: names of what it is done to, as ``demo_things.yaml`` has them.
        goals: names of what things are put in or on.
        standard_names: shards are called ``-00000-of-00008``; else as TFDS's sequential writer
            leaves them, ``-00000``.
    """

    name: str
    weight: float
    frames: int
    lengths: tuple[int, int]
    size: tuple[int, int]
    look: Look
    primary: str = "observation/image"
    second: tuple[str, tuple[int, int]] | None = None
    third: tuple[str, tuple[int, int]] | None = None
    depth: str | None = None
    hz: int | None = None
    idles: bool = False
    action: Mapping[str, int] = field(default_factory=lambda: {"": 7})
    action_fields: tuple[object, ...] = ()
    action_dtype: str = "float32"
    state: Mapping[str, int] = field(default_factory=lambda: {"observation/state": 8})
    language: tuple[str, ...] = ("language_instruction",)
    language_kind: str = "text"
    has_val: bool = True
    states_encoding: bool = True
    shards: int = 8
    episodes: int | None = None
    standard_names: bool = True
    tasks: tuple[str, ...] = ("put", "put", "lift", "push")
    things: tuple[str, ...] = ("block", "cup", "ball", "can", "apple", "café crème pot")
    goals: tuple[str, ...] = ("bowl", "plate", "tray")

    @property
    def action_paths(self) -> tuple[str, ...]:
        """The action's features, in order."""
        return tuple(f"action/{key}" if key else "action" for key in self.action)

    @property
    def arms(self) -> int:
        """Number of arms: two where an action has 12 numbers or more, else one."""
        return 2 if sum(self.action.values()) >= 12 else 1

    @property
    def cameras(self) -> tuple[tuple[str, tuple[int, int]], ...]:
        """Every camera's feature and size, the primary first."""
        return ((self.primary, self.size), *filter(None, (self.second, self.third)))

    def train_episodes(self, scale: float) -> int:
        """Episodes of the train split at ``scale``; never fewer than 2."""
        if self.episodes is not None:
            return self.episodes
        return max(2, round(scale * self.frames / (sum(self.lengths) / 2)))

    def val_episodes(self, scale: float) -> int:
        """Episodes of the val split at ``scale``; 0 where there is none."""
        return max(1, round(0.05 * self.train_episodes(scale))) if self.has_val else 0


DATASETS = packaged(__package__, "demo.yaml", tuple[DemoDataset, ...])
"""The whole mixture as ``demo.yaml`` beside this file has it, in the order of ``mix.yaml``."""


def _features(columns: Columns, images: Mapping[str, Any]) -> dict[str, Any]:
    """Content of ``features.json`` for these columns; ``images`` declares those of pictures."""

    def feature(kind: str, name: str, told: Mapping[str, Any]) -> dict[str, Any]:
        return {"pythonClassName": f"tensorflow_datasets.core.features.{kind}", name: told}

    def folder(tree: Mapping[str, Any]) -> dict[str, Any]:
        inner = {key: one if "pythonClassName" in one else folder(one) for key, one in tree.items()}
        return feature("features_dict.FeaturesDict", "featuresDict", {"features": inner})

    tree: dict[str, Any] = {}
    for key, values in columns.items():
        *folders, leaf = key.split("/")
        branch = tree
        for name in folders:
            branch = branch.setdefault(name, {})
        if key in images:
            branch[leaf] = feature("image_feature.Image", "image", images[key])
        elif isinstance(values, list):
            branch[leaf] = feature("text_feature.Text", "text", {})
        else:
            told = {
                "dtype": str(values.dtype),
                "encoding": "none",
                "shape": _shape(values.shape[1:]),
            }
            branch[leaf] = feature("tensor_feature.Tensor", "tensor", told)
    steps = {"feature": folder(tree["steps"]), "length": "-1"}
    return folder({**tree, "steps": feature("dataset_feature.Dataset", "sequence", steps)})


def _shape(sizes: Sequence[int]) -> dict[str, Any]:
    return {"dimensions": [str(size) for size in sizes]} if sizes else {}


def _images(dataset: DemoDataset) -> dict[str, Any]:
    """Features of the cameras' pictures, as ``features.json`` has them."""
    encoding = {"encodingFormat": dataset.look.encoding} if dataset.states_encoding else {}
    found: dict[str, Any] = {
        f"steps/{path}": {"dtype": "uint8", "shape": _shape((*size, 3)), **encoding}
        for path, size in dataset.cameras
    }
    if dataset.depth:
        told = {"dtype": "uint16", "shape": _shape((*dataset.size, 1)), "encodingFormat": "png"}
        found[f"steps/{dataset.depth}"] = told
    return found


def write_dataset(directory: Path, scale: float, seed: int, dataset: DemoDataset) -> Iterator[None]:
    """Write one dataset of the demo, with both splits; yield after each episode."""
    place = directory / dataset.name / VERSION
    place.mkdir(parents=True)
    counts = {"train": dataset.train_episodes(scale), "val": dataset.val_episodes(scale)}
    most = -(-counts["train"] // max(2, min(dataset.shards, counts["train"] // 3)))
    ending = "SHARD_X_OF_Y" if dataset.standard_names else "SHARD_INDEX"
    kept, splits, columns = dict[str, Any](), [], Columns()
    for split, count in counts.items():
        starts, size = range(0, count, most), 0
        for shard, start in enumerate(starts):
            of = f"-of-{len(starts):05d}" if dataset.standard_names else ""
            with (place / f"{dataset.name}-{split}.tfrecord-{shard:05d}{of}").open("wb") as file:
                for number in range(start, min(start + most, count)):
                    columns, moving = draw_demo_episode(dataset, split, number, seed)
                    record = write_example({key: _stored(of) for key, of in columns.items()})
                    head = struct.pack("<Q", len(record))
                    for part in (head, record):
                        file.write(part + struct.pack("<I", masked_crc32c(part)))
                    size += len(record)
                    if dataset.idles:
                        name, above = (
                            columns[f"episode_metadata/{key}"][0].decode()
                            for key in ("file_path", "recording_folderpath")
                        )
                        kept[f"{above}--{name}"] = moving
                    yield
        if count:
            lengths = [str(min(most, count - start)) for start in starts]
            template = f"{{DATASET}}-{{SPLIT}}.{{FILEFORMAT}}-{{{ending}}}"
            told = {"name": split, "numBytes": str(size), "shardLengths": lengths}
            splits.append({"filepathTemplate": template, **told})
    info = {
        "description": "Drawn robot episodes for trying out and measuring a data loader.",
        "disableShuffling": True, "fileFormat": "tfrecord", "moduleName": __name__,
        "name": dataset.name, "releaseNotes": {VERSION: "drawn, not recorded"}, "splits": splits,
        "version": VERSION,
    }  # fmt: skip
    features = _features(columns, _images(dataset))
    for name, document in (("dataset_info", info), ("features", features)):
        (place / f"{name}.json").write_text(json.dumps(document, indent=2), encoding="utf-8")
    if kept:
        (place.parent / RANGES_FILE).write_text(json.dumps(kept) + "\n", encoding="utf-8")


def _stored(values: Any) -> Any:
    """A column as a record holds it: flat float32 or int64, or byte strings."""
    if isinstance(values, list):
        return values
    return values.ravel().astype(np.float32 if values.dtype.kind == "f" else np.int64)


def _numbers(poses: Sequence[Numbers], width: int) -> Numbers:
    """Poses of all arms as ``width`` numbers a step."""
    each = width // len(poses)
    parts = [pose[:, _POSES.get(each, range(min(each, 7)))] for pose in poses]
    return np.concatenate([*parts, poses[0] @ _JOINTS[:, : max(0, each - 7)]], axis=1)


def _columns(values: Numbers, widths: Mapping[str, int], dtype: str) -> Columns:
    """Cut ``[T, dims]`` into features; a width of 0 is a scalar at each step."""
    found, at = Columns(), 0
    for path, width in widths.items():
        part = values[:, at : at + max(1, width)].astype(dtype)
        part = 1 - part if "closed" in path else part
        found[f"steps/{path}"] = part if width else part[:, 0]
        at += max(1, width)
    return found


def idle_stretches(key: list[int], frames: int) -> list[tuple[int, int]]:
    """[start, end) of the steps at which the robot stands still: at first, and once later.

    Args:
        key: key of the episode's draws.
        frames: number of frames of the episode, at least 40.
    """
    rng = np.random.default_rng(np.random.SeedSequence([*key, _IDLE]))
    before, pause = (int(length) for length in rng.integers((3, 6), (9, 16)))
    start = int(rng.integers(before + 5, frames - pause - 4))
    return [(0, before), (start, start + pause)]


def draw_demo_episode(
    dataset: DemoDataset, split: str, number: int, seed: int
) -> tuple[Columns, list[tuple[int, int]]]:
    """One episode, images encoded, and [start, end) of the steps between its idle stretches.

    Deterministic in its arguments.
    """
    place = zlib.crc32(dataset.name.encode())
    key = [seed, place, split == "val", number]
    rng = np.random.default_rng(np.random.SeedSequence(key))
    frames = int(rng.integers(dataset.lengths[0], dataset.lengths[1] + 1))
    moves = np.ones(frames)
    idle = idle_stretches(key, frames) if dataset.idles else []
    for start, end in idle:
        moves[start:end] = 0
    progress = np.append(0, moves[:-1].cumsum()) / moves[:-1].sum()
    task = str(rng.choice(dataset.tasks))
    episode = draw_task(task, dataset.things, dataset.goals, dataset.arms, progress, rng)
    deltas = []
    for pose in episode.poses:
        after = np.append(pose[1:], pose[-1:], axis=0)
        delta = _GAIN * (after - pose) + 0.01 * rng.standard_normal(pose.shape)
        delta[:, _OPENING] = after[:, _OPENING]
        deltas.append(delta * moves[:, None])
    widths = dict(zip(dataset.action_paths, dataset.action.values(), strict=True))
    found = Columns()
    for poses, of, dtype in (
        (deltas, widths, dataset.action_dtype), (episode.poses, dataset.state, "float32"),
    ):  # fmt: skip
        dims = sum(max(1, width) for width in of.values())
        found |= _columns(_numbers(poses, dims), of, dtype) if dims else {}
    look, first = dataset.look, None
    for at, (path, size) in enumerate(dataset.cameras):
        wrist, side = any(word in path for word in _WRIST), -1 if path.endswith(_BACK) else 1
        camera = Camera(size, wrist, side, look.grain[at], look.noise)
        light = np.random.default_rng(np.random.SeedSequence([*key, _CAMERAS + at]))
        pictures = draw_pictures(episode, camera, place, light)
        found[f"steps/{path}"] = [encode_frame(picture, look) for picture in pictures]
        first = first or camera
    if dataset.depth and first:
        found[f"steps/{dataset.depth}"] = list(draw_depth(episode, first))
    if dataset.hz:
        found["steps/observation/timestamp"] = np.arange(frames) / dataset.hz
    name = f"/demo/{dataset.name}/{split}/episode_{number:05d}.npy"
    found["episode_metadata/file_path"] = [name.encode()]
    if dataset.idles:
        found["episode_metadata/recording_folderpath"] = [
            f"/demo/{dataset.name}/recordings".encode()
        ]
    for form, path in enumerate(dataset.language):
        text = episode.said((number + form) % 3)
        if path.startswith("episode_metadata/"):
            found[path] = [text.encode()]
        elif dataset.language_kind == "codes":
            codes = np.array([*map(ord, text), *[0] * (CODE_POINTS - len(text))], np.int32)
            found[f"steps/{path}"] = np.tile(codes, (frames, 1))
        else:
            found[f"steps/{path}"] = [text.encode()] * frames
    last = np.arange(frames) == frames - 1
    found["steps/is_first"] = last[::-1]
    found["steps/is_last"] = found["steps/is_terminal"] = last
    found["steps/reward"] = last.astype(np.float32)
    found["steps/discount"] = np.ones(frames, np.float32)
    ends = [*(start for start, _ in idle[1:]), frames]
    return found, [(start, end) for (_, start), end in zip(idle, ends, strict=False)]


def encode_frame(frame: Pixels, look: Look) -> bytes:
    """The picture as a JPEG (4:2:0) or PNG file's bytes."""
    if look.encoding == "png":
        bgr = cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
        return bytes(cv2.imencode(".png", bgr, [cv2.IMWRITE_PNG_COMPRESSION, 2])[1])
    return bytes(simplejpeg.encode_jpeg(frame, quality=look.quality, colorsubsampling="420"))
