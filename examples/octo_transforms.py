"""Functions in the style of Octo's ``standardize``: a trajectory of eager tensors in, one out.

``transforms.yaml`` names them with ``framework: tensorflow``. This file imports TensorFlow, so it
is imported where TensorFlow runs only; what needs no more than NumPy lies in ``lab_transforms.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Trajectory = dict[str, Any]


def reached(trajectory: Trajectory) -> Trajectory:
    """The motion that was reached, not the one that was asked for; the last step has none."""
    state = trajectory["observation"]["state"]
    motion = state[1:, :6] - state[:-1, :6]
    gripper = tf.clip_by_value(trajectory["action"][:-1, -1:], 0, 1)
    metadata = trajectory.pop("traj_metadata")  # repeated for every step; left as it is
    trajectory = tf.nest.map_structure(lambda rows: rows[:-1], trajectory)
    trajectory["action"] = tf.concat([motion, gripper], axis=-1)
    trajectory["traj_metadata"] = metadata
    return trajectory


def absolute_gripper(trajectory: Trajectory) -> Trajectory:
    """One action of 7 from a dictionary; the gripper holds what it was last told, 1 is open.

    Before it is told anything, it has the state opposite to what it is told first: the rule of the
    op ``rel2abs``.
    """
    told = trajectory["action"]["gripper_closedness_action"]
    open_or_not = tf.where(told < -0.1, 1.0, tf.where(told > 0.1, 0.0, 0.5))  # 0.5: no command
    commands = tf.boolean_mask(open_or_not, open_or_not != 0.5)
    start = tf.cond(tf.size(commands) > 0, lambda: 1.0 - commands[0], lambda: 1.0)
    opened = tf.scan(
        lambda last, now: tf.where(now == 0.5, last, now), open_or_not, initializer=start
    )
    trajectory["action"] = tf.concat(
        [
            trajectory["action"]["world_vector"],
            trajectory["action"]["rotation_delta"],
            opened[:, None],
        ],
        axis=-1,
    )
    return trajectory
