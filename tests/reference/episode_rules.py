"""Ops along an episode, step by step in plain Python, written from their rules."""

import numpy as np


def rel2abs(signal: np.ndarray) -> np.ndarray:
    """[T] relative gripper: +1 closes, -1 opens; 1 is open in what comes of it."""
    commands = []
    for value in signal.astype(np.float32):
        opens, closes = value < np.float32(-0.1), value > np.float32(0.1)
        commands.append(1 if opens else -1 if closes else 0)
    given = [one for one in commands if one]
    state = -given[0] if given else 1
    found = []
    for one in commands:
        state = one or state
        found.append(state / 2 + 0.5)
    return np.asarray(found, np.float32)


def binarise(signal: np.ndarray) -> np.ndarray:
    """[T] absolute gripper; a value between takes the state that is reached after it."""
    signal = signal.astype(np.float32)
    carry, found = signal[-1], []
    for value in signal[::-1]:
        if value > np.float32(0.95):
            carry = np.float32(1)
        elif value < np.float32(0.05):
            carry = np.float32(0)
        found.append(carry)
    return np.asarray(found[::-1], np.float32)


def rotation(roll: float, pitch: float, yaw: float) -> np.ndarray:
    """Rz Ry Rx in float64."""
    cos, sin = np.cos, np.sin
    x = np.array([[1, 0, 0], [0, cos(roll), -sin(roll)], [0, sin(roll), cos(roll)]])
    y = np.array([[cos(pitch), 0, sin(pitch)], [0, 1, 0], [-sin(pitch), 0, cos(pitch)]])
    z = np.array([[cos(yaw), -sin(yaw), 0], [sin(yaw), cos(yaw), 0], [0, 0, 1]])
    return z @ y @ x


def rotation_of(x: float, y: float, z: float, w: float) -> np.ndarray:
    """The matrix of a unit quaternion in float64."""
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
