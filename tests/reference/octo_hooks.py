"""Transforms in the style of Octo's: a trajectory of eager tensors in, one out."""

from typing import Any

import tensorflow as tf


def drop_first(trajectory: dict[str, Any]) -> dict[str, Any]:
    """The first step has no action that led to it."""
    for key in trajectory:
        if key == "traj_metadata":
            continue
        if key == "observation":
            for inner in trajectory[key]:
                trajectory[key][inner] = trajectory[key][inner][1:]
        else:
            trajectory[key] = trajectory[key][1:]
    return trajectory


def strided(trajectory: dict[str, Any], *, every: int) -> dict[str, Any]:
    metadata = trajectory.pop("traj_metadata")
    found = tf.nest.map_structure(lambda rows: rows[::every], trajectory)
    return {**found, "traj_metadata": metadata}


def renamed(trajectory: dict[str, Any]) -> dict[str, Any]:
    trajectory["observation"]["head"] = trajectory["observation"].pop("image")
    return trajectory


def rebuilt(trajectory: dict[str, Any]) -> dict[str, Any]:
    action = trajectory["action"]
    gripper = 1 - tf.clip_by_value(action[:, -1:], 0, 1)
    trajectory["action"] = tf.concat([action[:, :1] * 2, gripper, action[:, 1:]], axis=1)
    return trajectory


def named(trajectory: dict[str, Any]) -> dict[str, Any]:
    """The instruction from what the episode has once, repeated for every step."""
    trajectory["language_instruction"] = trajectory["traj_metadata"]["episode_metadata"][
        "file_path"
    ]
    return trajectory
