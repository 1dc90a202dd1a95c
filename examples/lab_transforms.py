"""Functions for ``transforms.yaml`` that need no more than NumPy: an episode in, one out.

An episode is a nested dict of arrays with a leading axis of steps. A picture is one number a step:
it may be sliced, dropped and renamed, and the library finds the frame again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Episode = dict[str, Any]


def slowed(episode: Episode, *, every: int) -> Episode:
    """Every ``every``-th step, with the sum of the motions up to the next one; one arm of two."""
    motion = episode["action"][:, :7]
    starts = np.arange(0, len(motion), every)
    observation = {name: rows[starts] for name, rows in episode["observation"].items()}
    gripper = motion[starts, 6:]
    return {
        "observation": observation,
        "action": np.concatenate([np.add.reduceat(motion[:, :6], starts), gripper], axis=1),
        "language_instruction": episode["language_instruction"][starts],
        "episode_metadata": episode["episode_metadata"],
    }


def heading(episode: Episode, *, shortest: int, still: float) -> Episode | None:
    """The heading as a direction; too short episodes dropped, no t where the base stands still."""
    observation, action = episode["observation"], episode["action"]
    if len(action) < shortest:
        return None  # counted by `autoloader plan`
    yaw = observation.pop("yaw")
    observation["direction"] = np.stack([np.cos(yaw), np.sin(yaw)], axis=1)
    episode["valid"] = np.abs(action[:, :3]).max(axis=1) > still
    return episode


def renamed(episode: Episode) -> Episode:
    """Cameras and instruction under the names that the rest of the lab uses."""
    observation = episode["observation"]
    observation["image_primary"] = observation.pop("exterior_image_1_left")
    observation["image_wrist"] = observation.pop("wrist_image_left")
    episode["instruction"] = np.array(
        [words.decode().rstrip(".").lower() for words in episode.pop("language_instruction")]
    )
    return episode
