"""Helpers that the layouts share: arrays of NumPy and torch, Octo's and OpenVLA's window.

Theory of operation. A batch says which frame it really holds (``frame_offset``), not which was
asked for; where the two differ, the frame stands in for one before the episode. Both
projects call such rows padding and keep the picture's own mask: whether the dataset has one there.

Not here: actions and tasks (``integrations.layouts.octo``, ``integrations.layouts.openvla``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoloader.errors import UsageError


@dataclass(frozen=True, slots=True)
class Window:
    """Facts of a batch that both layouts need.

    Attributes:
        size: W, frames without the goal.
        samples: [B] int64, 0 … B − 1.
        t: [B] int32, where the samples stand in their episodes.
        real: [B, W] bool, false where a row stands for one before the episode.
        observation: images, proprio, timestep and their ``pad_mask_dict``.
        goal: [B] int32, the goal's place in the episode, or ``None``.
        task: the goal's pictures, the instruction, and their ``pad_mask_dict``.
        dataset_name: [B] bytes, or ``None`` where no names were given.
    """

    size: int
    samples: Any
    t: Any
    real: Any
    observation: dict[str, Any]
    goal: Any | None
    task: dict[str, Any]
    dataset_name: Any | None


def read_window(
    batch: dict[str, Any],
    dataset_names: Sequence[str],
    *,
    goal: bool,
    frame_offsets: Sequence[int] | None,
    layout: str,
) -> Window:
    """The window of a batch; arguments are those of ``octo``.

    Raises:
        UsageError: the batch lacks what the layout needs; ``layout`` is its name.
    """
    if "provenance" not in batch:
        raise UsageError(
            f"the {layout} layout tells each frame's place in its episode, and the batch has none",
            remedy="write metadata: full in the spec",
        )
    offsets = batch["frame_offset"]
    asked = _asked(offsets.shape[1] - goal, goal, frame_offsets, layout)
    size = len(asked)
    t = like(batch["provenance"][:, 4], offsets)
    held = offsets[:, :size]
    repeated = held != constant(asked, offsets)
    real = ~repeated & (t[:, None] + held >= 0)
    first = (~real).sum(-1).clip(0, size - 1)
    samples = constant(range(len(t)), first)
    always = filled((len(t), size), True, real)
    observation: dict[str, Any] = {}
    present: dict[str, Any] = {}
    task: dict[str, Any] = {}
    there: dict[str, Any] = {}
    for camera, frames in batch["images"].items():
        mask = batch["frame_mask"][camera]
        name = f"image_{camera}"
        if frames.shape[-1] == 1:  # theirs have no axis of channels
            name, frames = f"depth_{camera.removeprefix('depth_')}", frames[..., 0]
        observation[name] = frames[:, :size]
        present[name] = mask[:, :size] | (repeated & mask[samples, first][:, None])
        if goal:
            task[name] = frames[:, size]
            there[name] = mask[:, size]
    if batch["state"].shape[-1]:
        observation["proprio"] = _proprio(batch["state"], asked, layout)
        present["proprio"] = always
    observation["timestep"] = (t[:, None] + held).clip(0)
    present["timestep"] = always
    goal_at = None
    if goal:
        task["timestep"] = goal_at = t + offsets[:, size]
        there["timestep"] = always[:, 0]
    task["language_instruction"] = texts_as_bytes(batch["language"])
    there["language_instruction"] = constant([bool(text) for text in batch["language"]], real)
    names = None
    if dataset_names:
        names = texts_as_bytes([dataset_names[i] for i in batch["dataset_index"].tolist()])
    return Window(
        size=size,
        samples=samples,
        t=t,
        real=real,
        observation={**observation, "pad_mask_dict": present},
        goal=goal_at,
        task={**task, "pad_mask_dict": there},
        dataset_name=names,
    )


def _asked(size: int, goal: bool, frame_offsets: Sequence[int] | None, layout: str) -> list[int]:
    """The window's offsets, as many as the batch has frames beside the goal."""
    if not size:
        raise UsageError(
            f"the {layout} layout with goal=True: the batch has one frame a sample",
            remedy="write goal: uniform in the spec's sample, or leave goal out",
        )
    asked = list(range(1 - size, 1)) if frame_offsets is None else list(frame_offsets)
    if len(asked) != size:
        raise UsageError(
            f"frame_offsets {asked} for batches of {size} frames and {'a' if goal else 'no'} goal",
            remedy="give those of the spec's sample, and goal=True where it has goal: uniform",
        )
    return asked


def _proprio(states: Any, asked: Sequence[int], layout: str) -> Any:
    if states.shape[1] != len(asked):
        raise UsageError(
            f"{states.shape[1]} states for {len(asked)} frames: the {layout} layout has a proprio "
            "for each frame of the window",
            remedy=f"write state_offsets: {list(asked)} in the spec's sample",
        )
    return states


def is_torch(array: Any) -> bool:
    """True for a torch tensor."""
    return hasattr(array, "new_tensor")


def like(array: Any, other: Any) -> Any:
    """``array`` in the type, and on the device, of ``other``."""
    return array.to(other) if is_torch(array) else array.astype(other.dtype)


def constant(values: Sequence[Any], other: Any) -> Any:
    """An array of ``values`` in the type, and on the device, of ``other``."""
    return other.new_tensor(values) if is_torch(other) else np.asarray(values, other.dtype)


def filled(shape: Sequence[int], value: Any, other: Any) -> Any:
    """An array full of ``value`` in the type, and on the device, of ``other``."""
    if is_torch(other):
        return other.new_full(tuple(shape), value)
    return np.full(tuple(shape), value, other.dtype)


def blanked(array: Any, where: Any) -> Any:
    """A copy of ``array`` with zeros where ``where`` (of the same shape) is true."""
    if is_torch(array):
        return array.masked_fill(where, 0)
    return np.where(where, np.zeros((), array.dtype), array)


def widened(array: Any, width: int) -> Any:
    """``array`` with zero columns behind its own, ``width`` in all."""
    own = array.shape[-1]
    if own == width:
        return array
    made = filled((*array.shape[:-1], width), 0, array)
    made[..., :own] = array
    return made


def texts_as_bytes(texts: Sequence[str]) -> Any:
    """[B] NumPy objects: the texts in UTF-8, as TensorFlow gives them to NumPy."""
    made = np.empty(len(texts), object)
    made[:] = [text.encode("utf-8") for text in texts]
    return made
