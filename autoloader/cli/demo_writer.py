"""Writes datasets of the demo mixture with TFDS: the child process of ``cli.demo``.

Two processes of it take one dataset after the other. Each episode that is written is a line on
stdout.

Not here: who starts it, and which datasets there are (``cli.demo``).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TextIO

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

from autoloader.cli.demo import CODE_POINTS, DATASETS, RANGES_FILE, VERSION, DemoDataset, Look

_SPLIT_NUMBER = {"train": 0, "val": 1}
_IDLE, _THIRD = 1, 2
"""Streams of draws beside an episode's own, so that they leave it as it is."""
_VERBS = ("pick up", "push", "move", "turn", "lift", "slide", "put down", "hand over")
_COLOURS = ("red", "green", "blue", "yellow", "white", "wooden", "small", "large")
_THINGS = ("cup", "spoon", "block", "drawer", "towel", "café crème pot", "lid", "jalapeño")
_PLACES = ("on the table", "in the sink", "beside the bowl", "to the left", "into the box")
Pixels = npt.NDArray[np.uint8]
"""``[H, W, 3] uint8``, RGB."""
NOISE_MARGIN = 61
"""Pixels by which the noise field is larger than a frame; prime, so that shifts repeat late."""


def _features(dataset: DemoDataset) -> Any:
    import tensorflow_datasets as tfds

    kinds = tfds.features

    def numbers(width: int, dtype: str) -> Any:
        return kinds.Tensor(shape=(width,) if width else (), dtype=np.dtype(dtype).type)

    step: dict[str, Any] = {}
    for path, (height, width) in dataset.cameras:
        encoding = dataset.look.encoding if dataset.states_encoding else None
        step[path] = kinds.Image(shape=(height, width, 3), encoding_format=encoding)
    if dataset.depth:
        shape = (*dataset.size, 1)
        step[dataset.depth] = kinds.Image(shape=shape, dtype=np.uint16, encoding_format="png")
    if dataset.hz:
        step["observation/timestamp"] = numbers(0, "float64")
    for path, width in zip(dataset.action_paths, dataset.action.values(), strict=True):
        step[path] = numbers(width, dataset.action_dtype)
    for path, width in dataset.state.items():
        step[path] = numbers(width, "float32")
    metadata: dict[str, Any] = {"file_path": kinds.Text()}
    if dataset.idles:
        metadata["recording_folderpath"] = kinds.Text()
    for path in dataset.language:
        if path.startswith("episode_metadata/"):
            metadata[path.partition("/")[2]] = kinds.Text()
        elif dataset.language_kind == "codes":
            step[path] = kinds.Tensor(shape=(CODE_POINTS,), dtype=np.int32)
        else:
            step[path] = kinds.Text()
    step.update(dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_))
    step.update(dict.fromkeys(("reward", "discount"), np.float32))
    return kinds.FeaturesDict(
        {"steps": kinds.Dataset(nested(step)), "episode_metadata": kinds.FeaturesDict(metadata)}
    )


_reports = sys.stdout


def _write_dataset(directory: Path, scale: float, seed: int, dataset: DemoDataset) -> None:
    import tensorflow_datasets as tfds

    place = directory / dataset.name / VERSION
    place.mkdir(parents=True)
    info = tfds.core.DatasetInfo(
        builder=tfds.core.dataset_info.DatasetIdentity(
            name=dataset.name,
            version=tfds.core.Version(VERSION),
            data_dir=str(place),
            module_name=__name__,
            release_notes={VERSION: "drawn, not recorded"},
        ),
        description="Drawn robot episodes for trying out and measuring a data loader.",
        features=_features(dataset),
        disable_shuffling=True,
    )
    counts = {"train": dataset.train_episodes(scale), "val": dataset.val_episodes(scale)}
    train = counts["train"]
    shards = max(2, min(dataset.shards, train // 3))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=-(-train // shards))
    kept: dict[str, Any] = {}

    def episodes(split: str) -> Iterator[dict[str, Any]]:
        for number in range(counts[split]):
            episode = draw_demo_episode(dataset, split, number, seed)
            if dataset.idles:
                above, frames = episode["episode_metadata"], len(episode["steps"])
                key = f"{above['recording_folderpath']}--{above['file_path']}"
                kept[key] = kept_ranges(dataset, split, number, seed, frames)
            yield episode
            print(file=_reports)

    for split in [split for split, count in counts.items() if count]:
        writer.initialize_splits([split])
        writer.add_examples({split: episodes(split)})
    writer.close_all()
    if kept:
        (place.parent / RANGES_FILE).write_text(json.dumps(kept) + "\n", encoding="utf-8")
    if dataset.standard_names:
        _give_standard_names(info, place)


def _give_standard_names(info: Any, place: Path) -> None:
    """Renames shards to ``-00000-of-00008``, as TFDS's builders call them."""
    import tensorflow_datasets as tfds

    splits = []
    for name, split in info.splits.items():
        template = tfds.core.ShardedFileTemplate(
            dataset_name=info.name, data_dir=place, split=name, filetype_suffix="tfrecord"
        )
        for number in range(split.num_shards):
            old = place / f"{info.name}-{name}.tfrecord-{number:05d}"
            old.rename(template.sharded_filepath(shard_index=number, num_shards=split.num_shards))
        splits.append(split.replace(filename_template=template))
    info.set_splits(tfds.core.splits.SplitDict(splits))
    info.write_to_directory(place)


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


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a/b": x}`` as ``{"a": {"b": x}}``."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, leaf = path.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[leaf] = value
    return tree


def _motion(
    frames: int, dims: int, hz: int | None, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """``[frames, dims]`` float64: smooth, noisy, mostly within ±1."""
    t = np.arange(frames)[:, None] * 10 / (hz or 10)
    speed, phase = rng.uniform(0.03, 0.3, (2, dims)), rng.uniform(0, 2 * np.pi, (2, dims))
    waves = 0.7 * np.sin(speed[0] * t + phase[0]) + 0.25 * np.sin(3 * speed[1] * t + phase[1])
    noisy: np.ndarray[Any, Any] = waves + 0.02 * rng.standard_normal((frames, dims))
    return noisy


def _columns(values: np.ndarray[Any, Any], widths: Mapping[str, int], dtype: str) -> dict[str, Any]:
    """Cuts ``[frames, dims]`` into features; a width of 0 is a scalar per frame."""
    out, at = {}, 0
    for path, width in widths.items():
        part = values[:, at : at + max(1, width)].astype(dtype)
        out[path] = part if width else part[:, 0]
        at += max(1, width)
    return out


def _instruction(rng: np.random.Generator) -> str:
    verb, colour, thing, place = (
        words[rng.integers(len(words))] for words in (_VERBS, _COLOURS, _THINGS, _PLACES)
    )
    return f"{verb} the {colour} {thing} {place}"


def _code_points(text: str) -> np.ndarray[Any, Any]:
    codes = np.zeros(CODE_POINTS, np.int32)
    codes[: len(text)] = [ord(letter) for letter in text]
    return codes


def _key(dataset: DemoDataset, split: str, number: int, seed: int) -> list[int]:
    return [seed, zlib.crc32(dataset.name.encode()), _SPLIT_NUMBER[split], number]


def idle_stretches(key: list[int], frames: int) -> list[tuple[int, int]]:
    """[start, end) of the steps at which the robot stands still: at first, and once later.

    Args:
        key: key of the episode's draws.
        frames: its length, at least 40.
    """
    rng = np.random.default_rng(np.random.SeedSequence([*key, _IDLE]))
    before, pause = (int(length) for length in rng.integers((3, 6), (9, 16)))
    start = int(rng.integers(before + 5, frames - pause - 4))
    return [(0, before), (start, start + pause)]


def kept_ranges(
    dataset: DemoDataset, split: str, number: int, seed: int, frames: int
) -> list[tuple[int, int]]:
    """[start, end) of the steps between an episode's idle stretches."""
    idle = idle_stretches(_key(dataset, split, number, seed), frames)
    ends = [*(start for start, _ in idle[1:]), frames]
    return [(start, end) for (_, start), end in zip(idle, ends, strict=True)]


def draw_demo_episode(dataset: DemoDataset, split: str, number: int, seed: int) -> dict[str, Any]:
    """One episode as TFDS takes it: ``steps`` (a list) and ``episode_metadata``; images encoded.

    Deterministic in its arguments.
    """
    key = _key(dataset, split, number, seed)
    rng = np.random.default_rng(np.random.SeedSequence(key))
    frames = int(rng.integers(dataset.lengths[0], dataset.lengths[1] + 1))
    widths = dict(zip(dataset.action_paths, dataset.action.values(), strict=True))
    dims = sum(max(1, width) for width in widths.values())
    actions = _motion(frames, dims, dataset.hz, rng)
    dims = sum(max(1, width) for width in dataset.state.values())
    states = _motion(frames, dims, dataset.hz, rng)
    idle = idle_stretches(key, frames) if dataset.idles else []
    for start, end in idle:
        actions[start:end] = 0.0
        states[start:end] = states[start]
    per_frame = _columns(actions, widths, dataset.action_dtype)
    per_frame.update(_columns(states, dataset.state, "float32"))
    third = np.random.default_rng(np.random.SeedSequence([*key, _THIRD]))
    for camera in dataset.cameras:
        path, (height, width) = camera
        drawn_by = third if camera == dataset.third else rng
        pictures = draw_episode(height, width, frames, dataset.look, drawn_by)
        per_frame[path] = [encode_frame(picture, dataset.look) for picture in pictures]
    if dataset.depth:
        per_frame[dataset.depth] = list(draw_depth(*dataset.size, frames))
    if dataset.hz:
        per_frame["observation/timestamp"] = np.arange(frames) / dataset.hz
    metadata: dict[str, Any] = {
        "episode_metadata/file_path": f"/demo/{dataset.name}/{split}/episode_{number:05d}.npy"
    }
    if dataset.idles:
        metadata["episode_metadata/recording_folderpath"] = f"/demo/{dataset.name}/recordings"
    for path in dataset.language:
        text = _instruction(rng)
        if path.startswith("episode_metadata/"):
            metadata[path] = text
        else:
            words = _code_points(text) if dataset.language_kind == "codes" else text
            per_frame[path] = [words] * frames
    steps = []
    for t in range(frames):
        last = t == frames - 1
        step = {path: values[t] for path, values in per_frame.items()}
        step.update(
            is_first=t == 0,
            is_last=last,
            is_terminal=last,
            reward=np.float32(last),
            discount=np.float32(1.0),
        )
        steps.append(nested(step))
    return {"steps": steps, **nested(metadata)}


def _scene(height: int, width: int, look: Look, rng: np.random.Generator) -> Pixels:
    """``[height, width, 3]`` of layered random fields, busier in some episodes than in others."""
    clutter = rng.uniform(0.25, 1.35)
    scene = np.zeros((height, width, 3), np.float32)
    fields = ((3, 42.0), (9, 26.0), (26, 16.0 * clutter), (84, 9.0 * clutter * look.detail))
    for cells, strength in fields:
        if strength <= 0:
            continue
        grain = rng.standard_normal((cells + 2, cells * width // height + 2, 3), dtype=np.float32)
        grain += grain.mean(axis=2, keepdims=True)  # photographs are mostly luminance
        scene += strength * cv2.resize(grain, (width, height), interpolation=cv2.INTER_LINEAR)
    scene += rng.uniform(90, 160, 3).astype(np.float32)
    if look.bands < 256:
        step = 256 / look.bands
        scene = np.floor(scene / step) * step
    return np.clip(scene, 0, 255).astype(np.uint8)


def _bounce(start: float, pace: float, t: int, room: int) -> int:
    """Place after ``t`` frames of a point that runs to and fro over ``0 … room``."""
    place = (start + pace * t) % (2 * room)
    return int(place if place <= room else 2 * room - place)


def draw_episode(
    height: int, width: int, frames: int, look: Look, rng: np.random.Generator
) -> Iterator[Pixels]:
    """Yields the episode's ``frames`` pictures, ``[height, width, 3] uint8``, each a new array."""
    room = max(8, height // 4)
    scene = _scene(height + room, width + room, look, rng)
    noise = None
    if look.noise:
        peak = int(rng.integers(look.noise // 2, look.noise + 1))
        patch = rng.integers(0, peak + 1, (height, width + NOISE_MARGIN, 3), dtype=np.uint8)
        noise = np.concatenate((patch, patch[:NOISE_MARGIN]))
    start = rng.uniform(0, 2 * room, 2)
    pace = height / 128 * rng.uniform(1.6, 2.6, 2) * rng.choice((-1.0, 1.0), 2)
    colour = rng.integers(20, 236, 3)
    angle, turn = rng.uniform(0, 2 * np.pi), rng.uniform(0.06, 0.15)
    corners = np.array([[-1, -0.4], [1, -0.4], [1, 0.4], [-1, 0.4]]) * height * 0.14
    for t in range(frames):
        top = _bounce(start[0], pace[0], t, room)
        left = _bounce(start[1], pace[1], t, room)
        frame = scene[top : top + height, left : left + width].copy()
        phase = angle + turn * t
        reach = np.array([np.cos(phase), np.sin(phase)]) * (0.22 + 0.1 * np.sin(0.31 * t))
        centre = np.array([width, height]) * (0.5 + reach)
        spin = np.array([[np.cos(phase), np.sin(phase)], [-np.sin(phase), np.cos(phase)]])
        shade = [float((channel + 3 * t) % 256) for channel in colour]
        cv2.fillConvexPoly(frame, (corners @ spin + centre).astype(np.int32), shade)
        spot = (int(width * (0.5 - reach[0])), int(height * (0.5 - reach[1])))
        cv2.circle(frame, spot, max(4, height // 14), [float(255 - c) for c in colour], -1)
        if noise is not None:
            down, right = (17 * t) % NOISE_MARGIN, (29 * t + 7) % NOISE_MARGIN
            cv2.add(frame, noise[down : down + height, right : right + width], dst=frame)
        yield frame


def draw_depth(height: int, width: int, frames: int) -> Iterator[bytes]:
    """PNG files of uint16 millimetres, ``[height, width]``: a floor, and a thing that wanders."""
    down, across = np.mgrid[:height, :width].astype(np.float32)
    floor = 1800 - 900 * down / height
    for t in range(frames):
        centre = width * (0.5 + 0.3 * np.sin(0.2 * t))
        near = np.hypot(down - 0.6 * height, across - centre) < height / 7
        depth = np.where(near, 700 + 3 * t, floor).astype(np.uint16)
        done, data = cv2.imencode(".png", depth)
        assert done
        yield bytes(data)


def encode_frame(frame: Pixels, look: Look) -> bytes:
    """The picture as a JPEG (4:2:0) or PNG file's bytes."""
    if look.encoding == "png":
        bgr = cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
        done, data = cv2.imencode(".png", bgr, [cv2.IMWRITE_PNG_COMPRESSION, 2])
        assert done
        return bytes(data)
    return bytes(simplejpeg.encode_jpeg(frame, quality=look.quality, colorsubsampling="420"))


if __name__ == "__main__":
    main()
