"""Draws the demo mixture's episodes, as TFDS takes them: every frame's features, images encoded.

Not here: which datasets there are (``demo.datasets``), how pictures are drawn (``demo.frames``),
how files are written (``demo.write``).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoloader.demo.datasets import CODE_POINTS, DemoDataset
from autoloader.demo.frames import draw_depth, draw_episode, encode_frame

_SPLIT_NUMBER = {"train": 0, "val": 1}
_IDLE, _THIRD = 1, 2
"""Streams of draws beside an episode's own, so that they leave it as it is."""
_VERBS = ("pick up", "push", "move", "turn", "lift", "slide", "put down", "hand over")
_COLOURS = ("red", "green", "blue", "yellow", "white", "wooden", "small", "large")
_THINGS = ("cup", "spoon", "block", "drawer", "towel", "café crème pot", "lid", "jalapeño")
_PLACES = ("on the table", "in the sink", "beside the bowl", "to the left", "into the box")


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


def value_at(tree: Any, path: str) -> Any:
    """What lies at ``a/b`` of a nested mapping."""
    for part in path.split("/"):
        tree = tree[part]
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
        key: the episode's.
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
