"""The samples of an episode, one by one and row by row, in plain Python and NumPy.

Shares no code with the library: what a spec means, written down a second time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

_MASK = 2**64 - 1
ORDER, GOAL = 1, 11


def splitmix64(value: int) -> int:
    z = (value + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def fold(key: int, *parts: int) -> int:
    for part in parts:
        key = splitmix64(key ^ part)
    return key


@dataclass
class Episode:
    """One episode as plain TFDS gives it: T steps.

    Attributes:
        frames: camera → T encoded frames.
        action, state: [T, w] float32.
        language: T texts.
        texts: feature → T texts, of features that rules look at.
        metadata: of the whole episode.
    """

    frames: Mapping[str, Sequence[Any]]
    action: np.ndarray
    state: np.ndarray
    language: Sequence[str]
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Sample:
    """What the sample at t holds; ``None`` stands for a frame of zeros."""

    frames: dict[str, list[Any]]
    frame_mask: list[bool]
    frame_offset: list[int]
    action: np.ndarray
    action_mask: np.ndarray
    state: np.ndarray
    state_mask: np.ndarray
    language: str


def samples_of(
    episode: Episode,
    sample: Mapping[str, Any],
    place: tuple[int, int, int],
    *,
    key: int,
    stride: int = 1,
    keep: Mapping[str, Any] | None = None,
    ranges: Mapping[str, Sequence[tuple[int, int]]] | None = None,
    valid: Sequence[bool] | None = None,
) -> dict[int, Sample]:
    """Samples by t, in the order in which an episode gives them.

    Args:
        episode: what lies on disk.
        sample: every key of the spec's ``sample``.
        place: pass, shard and record.
        key: of the dataset.
        stride: every how many steps.
        keep: the spec's ``keep``.
        ranges: what its file holds.
        valid: which steps before the stride may be t.
    """
    strided = Episode(
        {camera: frames[::stride] for camera, frames in episode.frames.items()},
        episode.action[::stride],
        episode.state[::stride],
        episode.language[::stride],
    )
    steps = len(strided.action)
    key = fold(key, ORDER, *place)
    valid = [
        t
        for t in range(steps)
        if _fits(t, steps, sample)
        and kept(episode, t * stride, keep or {}, ranges or {})
        and (valid is None or valid[t * stride])
    ]
    valid.sort(key=lambda t: splitmix64(t ^ key))
    if sample["per_episode"] != "all":
        valid = valid[: sample["per_episode"]]
    return {t: _sample(strided, sample, t, key) for t in valid}


def kept(
    episode: Episode, step: int, keep: Mapping[str, Any], ranges: Mapping[str, Sequence[Any]]
) -> bool:
    """Whether a step before the stride may be t."""
    if keep.get("language") == "required" and not episode.language[step].strip():
        return False
    if keep.get("language") == "anywhere" and not any(one.strip() for one in episode.language):
        return False
    for path, pattern in keep.get("match", {}).items():
        text = episode.metadata[path] if path in episode.metadata else episode.texts[path][step]
        if re.search(pattern, text) is None:
            return False
    if keep.get("ranges"):
        name = re.sub(r"\{(.*?)\}", lambda m: episode.metadata[m[1]], keep["ranges"]["key"])
        return any(start <= step < stop for start, stop in ranges.get(name, ()))
    return True


def _window(sample: Mapping[str, Any]) -> tuple[list[int], list[int], list[int]]:
    horizon = [sample["action_start"] + h for h in range(sample["action_horizon"])]
    return list(sample["frame_offsets"]), list(sample["state_offsets"]), horizon


def _fits(t: int, steps: int, sample: Mapping[str, Any]) -> bool:
    frames, states, horizon = _window(sample)
    if sample.get("action_per") == "step":
        horizon = [start + row for start in [0, *frames] for row in horizon]
    for offset in chain(frames, states, horizon):
        if t + offset < 0 and sample["edges"]["start"] == "drop":
            return False
        if t + offset >= steps and sample["edges"]["end"] == "drop":
            return False
    return True


def _sample(episode: Episode, sample: Mapping[str, Any], t: int, key: int) -> Sample:
    steps = len(episode.action)
    frames, states, horizon = _window(sample)

    def row(offset: int, at: int = t) -> tuple[int | None, bool, int]:
        """(row of the episode or None for zeros, whether it lies inside, realised offset)."""
        wanted = at + offset
        if 0 <= wanted < steps:
            return wanted, True, offset
        edge = sample["edges"]["start" if wanted < 0 else "end"]
        if edge == "zero":
            return None, False, offset
        nearest = min(max(wanted, 0), steps - 1)
        return nearest, False, nearest - t

    rows = [row(offset) for offset in frames]
    if sample["goal"] == "uniform":
        left = steps - 1 - t
        goal = t + 1 + splitmix64(fold(key, GOAL, t)) % left if left else t
        rows.append((goal, True, goal - t))

    def numbers(
        values: np.ndarray, offsets: list[int], base: np.ndarray, at: int = t
    ) -> tuple[np.ndarray, np.ndarray]:
        found, mask = [], []
        for index, inside, _ in (row(offset, at) for offset in offsets):
            found.append(np.zeros_like(base) if index is None else values[index] - base)
            mask.append(np.full(len(base), inside))
        return np.stack(found), np.stack(mask)

    def chunk(at: int) -> tuple[np.ndarray, np.ndarray]:
        """The actions from a step on, and their mask."""
        base = np.zeros_like(episode.action[at])
        for dim in sample["action_relative_to_state"]:
            base[dim] = episode.state[at, dim]
        return numbers(episode.action, horizon, base, at)

    def reduced(action: np.ndarray, action_mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if sample["action_reduce"] != "sum":
            return action, action_mask
        total = np.zeros_like(action[0])
        for values, mask in zip(action, action_mask, strict=True):
            total = np.where(mask, total + values, total)
        return total[None], action_mask.any(axis=0)[None]

    if sample.get("action_per") == "step":
        chunks = []
        for index, inside, _ in map(row, frames):
            found, there = chunk(0 if index is None else index)
            found = np.zeros_like(found) if index is None else found
            chunks.append(reduced(found, there & inside))
        action, action_mask = (np.stack(part) for part in zip(*chunks, strict=True))
    else:
        action, action_mask = reduced(*chunk(t))
    state, state_mask = numbers(episode.state, states, np.zeros_like(episode.state[t]))
    return Sample(
        frames={
            camera: [None if index is None else pictures[index] for index, _, _ in rows]
            for camera, pictures in episode.frames.items()
        },
        frame_mask=[inside for _, inside, _ in rows],
        frame_offset=[offset for _, _, offset in rows],
        action=action,
        action_mask=action_mask,
        state=state,
        state_mask=state_mask,
        language=episode.language[t],
    )
