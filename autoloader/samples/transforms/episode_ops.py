"""Ops that need a whole episode, or all columns of a rotation: their arithmetic in NumPy.

All of it is float32, as in the loaders that these rules come from (Octo, OpenVLA). ``x`` is [T, w]
float32, T ≥ 1; every function gives a new array.

Not here: how a spec names them (``spec.fields``), which episodes they see
(``samples.transforms.transform``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoloader.samples.draws import Floats
from autoloader.spec.fields import FieldOp

COMMAND = 0.1
"""``rel2abs``: what is further from zero is a command."""
OPEN, CLOSED = 0.95, 0.05
"""``binarise``: above is open, below is closed, what lies between is on its way."""
_SHRINK = np.float32(1 - 2 * np.finfo(np.float32).eps)
_NUDGE = np.float32(2 * np.finfo(np.float32).eps)
_GIMBAL = 1e-6


def apply_op(op: FieldOp, x: Floats) -> Floats:
    """One op of a term on all its values."""
    return _OPS[op.name](x, op)


def rel2abs(x: Floats) -> Floats:
    """A relative gripper (+1 closes, −1 opens, 0 holds) as an absolute one: 1 open, 0 closed.

    x < −0.1 is the command to open, x > 0.1 to close, anything else none. A step has the state of
    the last command up to and with it. Before the first command it has the opposite of that one;
    without any command it is open.
    """
    command = np.where(x < np.float32(-COMMAND), 1, np.where(x > np.float32(COMMAND), -1, 0))
    step = np.arange(len(x))[:, None]
    last = np.maximum.accumulate(np.where(command != 0, step, -1), axis=0)
    first = np.argmax(command != 0, axis=0)  # 0 where there is none, and so is its command
    told = np.take_along_axis(command, first[None], axis=0)
    start = np.where(told == 0, 1, -told)
    state = np.where(last >= 0, np.take_along_axis(command, np.maximum(last, 0), axis=0), start)
    return (state > 0).astype(np.float32)


def binarise(x: Floats) -> Floats:
    """An absolute gripper as 1 (open, x > 0.95) and 0 (closed, x < 0.05).

    A value between takes the state that comes next. A run of them at the end, which reaches none,
    takes the episode's last value as it is.
    """
    known = (x > np.float32(OPEN)) | (x < np.float32(CLOSED))
    steps = len(x)
    step = np.arange(steps)[:, None]
    following = np.minimum.accumulate(np.where(known, step, steps)[::-1], axis=0)[::-1]
    reached = np.take_along_axis(x, np.minimum(following, steps - 1), axis=0)
    state = (reached > np.float32(OPEN)).astype(np.float32)
    return np.where(following < steps, state, x[-1])


def relabel(x: Floats) -> Floats:
    """The motion that was reached: x_{t+1} − x_t, plain differences that wrap no angle.

    The last step has none: it holds 0, and ``steps.drop_last`` takes it away.
    """
    found = np.zeros_like(x)
    found[:-1] = x[1:] - x[:-1]
    return found


def euler(x: Floats, order: str) -> Floats:
    """Angles (θx, θy, θz) [T, 3] in radians, R = Rz Ry Rx, of quaternions [T, 4].

    As ``tensorflow_graphics`` computes them: r20 = 2(xz − yw) and so on; θy = −asin r20. Where
    |r20| is within 1e-6 of 1, θz is 0. Quaternions are not normalised first; one that is far from
    unit length gives other angles, or NaN.
    """
    qx, qy, qz, qw = (x[:, "wxyz".index(one) if order == "wxyz" else at]
                      for at, one in enumerate("xyzw"))  # fmt: skip
    two = np.float32(2)
    dx, dy, dz = (_SHRINK * (two * one) for one in (qx, qy, qz))
    twx, twy, twz = dx * qw, dy * qw, dz * qw
    txx, txy, txz = dx * qx, dy * qx, dz * qx
    tyy, tyz, tzz = dy * qy, dz * qy, dz * qz
    one_ = np.float32(1)
    r00, r01, r02, r10, r20, r21, r22 = (
        _SHRINK * r
        for r in (
            one_ - (tyy + tzz), txy - twz, txz + twy, txy + twz, txz - twy, tyz + twx,
            one_ - (txx + tyy),
        )
    )  # fmt: skip
    y = -np.arcsin(r20)
    sign = np.where(np.cos(y) >= 0, one_, -one_)
    z = np.arctan2(sign * r10, sign * _away_from_zero(r00))
    roll = np.arctan2(sign * r21, sign * _away_from_zero(r22))
    locked = np.abs(np.abs(r20) - one_) < np.float32(_GIMBAL)
    side = np.where(r20 >= 0, one_, -one_)
    return np.stack(
        [
            np.where(locked, np.arctan2(-side * r01, -side * _away_from_zero(r02)), roll),
            np.where(locked, -side * np.float32(np.pi / 2), y),
            np.where(locked, np.float32(0), z),
        ],
        axis=1,
    ).astype(np.float32)


def _away_from_zero(r: Floats) -> Floats:
    return r + np.where(r >= 0, _NUDGE, -_NUDGE)


def quaternion(x: Floats, order: str) -> Floats:
    """Quaternions [T, 4] of unit length, of angles (θx, θy, θz) [T, 3] with R = Rz Ry Rx."""
    half = x * np.float32(0.5)
    (cx, cy, cz), (sx, sy, sz) = np.cos(half).T, np.sin(half).T
    columns = {
        "x": sx * cy * cz - cx * sy * sz,
        "y": cx * sy * cz + sx * cy * sz,
        "z": cx * cy * sz - sx * sy * cz,
        "w": cx * cy * cz + sx * sy * sz,
    }
    return np.stack([columns[one] for one in order], axis=1).astype(np.float32)


def rotation6d(x: Floats) -> Floats:
    """The first two rows [T, 6] of R = Rz Ry Rx, of angles (θx, θy, θz) [T, 3]."""
    (cx, cy, cz), (sx, sy, sz) = np.cos(x).T, np.sin(x).T
    rows = [
        cz * cy, cz * sy * sx - sz * cx, cz * sy * cx + sz * sx,
        sz * cy, sz * sy * sx + cz * cx, sz * sy * cx - cz * sx,
    ]  # fmt: skip
    return np.stack(rows, axis=1).astype(np.float32)


_OPS: dict[str, Callable[[Floats, FieldOp], Floats]] = {
    "clip": lambda x, op: np.clip(x, np.float32(op.values[0]), np.float32(op.values[1])),
    "invert": lambda x, _: np.float32(1) - x,
    "scale": lambda x, op: x * np.float32(op.values[0]),
    "rel2abs": lambda x, _: rel2abs(x),
    "binarise": lambda x, _: binarise(x),
    "relabel": lambda x, _: relabel(x),
    "euler": lambda x, op: euler(x, op.order),
    "quaternion": lambda x, op: quaternion(x, op.order),
    "rotation6d": lambda x, _: rotation6d(x),
}
