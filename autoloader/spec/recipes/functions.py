"""Recipes that no field expression can say: transforms that the table names.

Not here: how an episode reaches them (``samples.transforms.rlds``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

GNM_EVERY = 3
"""Steps of ``gnm_dataset`` of which one is taken."""


def gnm(episode: dict[str, Any]) -> dict[str, Any] | None:
    """``gnm_dataset`` as Octo takes it: every third step, and the way to the next in body frame.

    The way is scaled by the length of the first action over that of the first way, both before
    steps are left out. The last step has no way and is dropped; so is an episode of one step.
    """
    position = np.asarray(episode["observation"]["position"], np.float32)
    if len(position) <= GNM_EVERY:
        return None
    factor = np.linalg.norm(episode["action"][0]) / np.linalg.norm(position[1] - position[0])
    taken = _steps(episode, slice(None, None, GNM_EVERY))
    way = np.diff(position[::GNM_EVERY], axis=0)
    yaw = taken["observation"]["yaw"].reshape(-1)[:-1]
    cos, sin = np.cos(yaw), np.sin(yaw)
    ahead = way[:, 0] * cos + way[:, 1] * sin
    left = way[:, 1] * cos - way[:, 0] * sin
    found = _steps(taken, slice(0, -1))
    found["action"] = (np.stack([ahead, left], axis=1) * factor).astype(np.float32)
    return found


def _steps(episode: dict[str, Any], take: slice) -> dict[str, Any]:
    """The steps that a slice takes of every feature that has steps."""
    return {
        name: value
        if name == "episode_metadata"
        else _steps(value, take)
        if isinstance(value, dict)
        else value[take]
        for name, value in episode.items()
    }
