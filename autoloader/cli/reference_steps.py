"""``steps``, ops along the episode and ``keep.moving``, applied to steps that plain TFDS has read.

``autoloader verify`` compares the loader with the result. So this module goes through the steps one
by one on purpose, and uses nothing of the loader's own arithmetic (``transforms``).

Not here: ops of each number by itself (``cli.reference_values``), user functions
(``cli.reference_transform``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.cli.reference_values import numbers
from autoloader.cli.tfds_reader import Step
from autoloader.spec import DatasetSpec, FieldExpression, FieldOp, FieldTerm

Rows = list[NDArray[np.float32]]


class DerivedEpisode:
    """An episode as a dataset's own words leave it.

    Args:
        steps: as the user's function leaves them, or as they lie in the file.
        valid: which of them may be t.
        declared: the dataset.

    Attributes:
        steps: those that are left, with what ops made of their terms.
        valid: which of these may be t.
        action, state: the fields, over these steps.
    """

    def __init__(self, steps: Sequence[Step], valid: Sequence[bool], declared: DatasetSpec) -> None:
        said = declared.steps
        taken = slice(said.drop_first, None, said.every)
        made = [dict(step) for step in steps[taken]]
        self.action = _derived(made, "action", declared.action)
        self.state = _derived(made, "state", declared.state)
        left = max(0, len(made) - said.drop_last)
        self.steps: list[Step] = list(made[:left])
        self.valid = list(valid[taken])[:left]
        moving = declared.keep.moving if declared.keep is not None else None
        if moving is not None:
            for number, step in enumerate(self.steps):
                moves = np.abs(numbers(step, moving.path)) > np.asarray(moving.above, np.float32)
                self.valid[number] = self.valid[number] and bool(moves.any())


def _derived(
    steps: list[dict[str, Any]], field: str, expression: FieldExpression | None
) -> FieldExpression | None:
    """The field with its ops along the episode worked out and put into the steps."""
    if expression is None or not steps:
        return expression
    terms = []
    for number, term in enumerate(expression.terms):
        if not term.whole:
            terms.append(term)
            continue
        plain = FieldExpression((FieldTerm(term.path, term.columns),))
        rows = [numbers(step, plain) for step in steps]
        for op in term.ops:
            rows = _OPS[op.name](rows, op) if op.whole else [_plain(row, op) for row in rows]
        key = f"worked out: {field} {number}"
        for step, row in zip(steps, rows, strict=True):
            step[key] = row
        terms.append(FieldTerm(key))
    return FieldExpression(tuple(terms))


def _plain(row: NDArray[np.float32], op: FieldOp) -> NDArray[np.float32]:
    return numbers({"x": row}, FieldExpression((FieldTerm("x", ops=(op,)),)))


def _column_by_column(rule: Callable[[list[np.float32]], list[float]]) -> Callable[..., Rows]:
    def apply(rows: Rows, op: FieldOp) -> Rows:
        del op
        columns = [rule(list(column)) for column in np.stack(rows).T]
        return list(np.asarray(columns, np.float32).T)

    return apply


def _rel2abs(signal: list[np.float32]) -> list[float]:
    is_open = None
    found: list[bool | None] = []
    for value in signal:
        if value < np.float32(-0.1):
            is_open = True
        elif value > np.float32(0.1):
            is_open = False
        found.append(is_open)
    known = [one for one in found if one is not None]
    before = not known[0] if known else True
    return [float(before if one is None else one) for one in found]


def _binarise(signal: list[np.float32]) -> list[float]:
    reached, found = float(signal[-1]), []
    for value in reversed(signal):
        if value > np.float32(0.95):
            reached = 1.0
        elif value < np.float32(0.05):
            reached = 0.0
        found.append(reached)
    return found[::-1]


def _relabel(signal: list[np.float32]) -> list[float]:
    moves = [float(after - now) for now, after in pairwise(signal)]
    return [*moves, 0.0]


def _euler(rows: Rows, op: FieldOp) -> Rows:
    found = []
    for row in rows:
        x, y, z, w = (float(row[op.order.index(one)]) for one in "xyzw")
        pitch = -np.arcsin(2 * (x * z - y * w))
        yaw = np.arctan2(2 * (x * y + z * w), 1 - 2 * (y * y + z * z))
        roll = np.arctan2(2 * (y * z + x * w), 1 - 2 * (x * x + y * y))
        found.append(np.asarray([roll, pitch, yaw], np.float32))
    return found


def _quaternion(rows: Rows, op: FieldOp) -> Rows:
    found = []
    for roll, pitch, yaw in rows:
        turned = np.array([0.0, 0.0, 0.0, 1.0])  # x, y, z, w
        for angle, axis in ((roll, 0), (pitch, 1), (yaw, 2)):
            one = np.zeros(4)
            one[axis], one[3] = np.sin(angle / 2), np.cos(angle / 2)
            turned = _product(one, turned)
        found.append(np.asarray([turned["xyzw".index(c)] for c in op.order], np.float32))
    return found


def _product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    vector = a[3] * b[:3] + b[3] * a[:3] + np.cross(a[:3], b[:3])
    return np.append(vector, a[3] * b[3] - a[:3] @ b[:3])


def _rotation6d(rows: Rows, op: FieldOp) -> Rows:
    del op
    found = []
    for roll, pitch, yaw in rows:
        matrix = np.eye(3)
        for angle, (a, b) in ((roll, (1, 2)), (pitch, (2, 0)), (yaw, (0, 1))):
            turn = np.eye(3)
            turn[a, a] = turn[b, b] = np.cos(angle)
            turn[b, a], turn[a, b] = np.sin(angle), -np.sin(angle)
            matrix = turn @ matrix
        found.append(matrix[:2].ravel().astype(np.float32))
    return found


_OPS: dict[str, Callable[[Rows, FieldOp], Rows]] = {
    "rel2abs": _column_by_column(_rel2abs),
    "binarise": _column_by_column(_binarise),
    "relabel": _column_by_column(_relabel),
    "euler": _euler,
    "quaternion": _quaternion,
    "rotation6d": _rotation6d,
}
