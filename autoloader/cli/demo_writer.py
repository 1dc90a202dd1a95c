"""Writes datasets of the demo mixture as TFDS does: the child process of ``cli.demo``.

Processes of it take one dataset after the other. Each episode that is written is a line on stdout.

Not here: who starts it, and which datasets there are (``cli.demo``), pictures (``cli.demo_scene``).
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TextIO

import cv2
import numpy as np
import simplejpeg

from autoloader.cli.demo import CODE_POINTS, DATASETS, RANGES_FILE, VERSION, DemoDataset, Look
from autoloader.cli.demo_scene import Camera, Numbers, Pixels, draw_depth, draw_pictures, draw_task
from autoloader.formats.records import masked_crc32c, write_example

Columns = dict[str, Any]
"""A record: key → [T, …] array, or list of byte strings."""
_IDLE, _CAMERAS = 1, 2
"""Streams of draws beside an episode's own, so that they leave it as it is."""
_WRIST, _BACK = ("wrist", "hand_image", "gripper"), ("image_1", "image_2_left", "side")
_POSES = {2: [0, 1], 3: [0, 1, 5], 4: [0, 1, 2, 6], 5: [0, 1, 2, 5, 6], 6: [0, 1, 2, 3, 5, 6]}
"""Parts of a pose that so many numbers have; beyond seven there are joints."""
_OPENING, _GAIN = 6, 5.0
_JOINTS = np.random.default_rng(0).normal(0, 0.6, (7, 8))


_reports = sys.stdout


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


def _write_dataset(directory: Path, scale: float, seed: int, dataset: DemoDataset) -> None:
    """Write one dataset of the demo, with both splits."""
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
                    print(file=_reports)
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


def main() -> None:
    """Entry of the child process; people use ``autoloader demo``."""
    asked = json.loads(sys.argv[1])
    chosen = [one for one in DATASETS if one.name in asked["names"]]
    chosen.sort(key=lambda one: -one.frames * (one.size[0] * one.size[1] + 60_000))  # dearest first
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not be taken for a report
    count = min(2, os.cpu_count() or 1, len(chosen))
    write = partial(_write_dataset, Path(asked["into"]), asked["scale"], asked["seed"])
    with ProcessPoolExecutor(count, get_context("fork"), _begin, (reports,)) as pool:
        list(pool.map(write, chosen))


def _begin(reports: TextIO) -> None:
    """Begin a process that writes; it ends with the caller, whose end closes stdin."""
    global _reports
    _reports = reports
    cv2.setNumThreads(1)
    threading.Thread(target=_end_with_caller, name="demo-caller", daemon=True).start()


def _end_with_caller() -> None:
    os.read(0, 1)  # nothing is ever written: it returns when the caller is gone
    os._exit(1)


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


if __name__ == "__main__":
    main()
