"""Ops: the arithmetic that a term of ``action`` or ``state`` may ask for.

Three kinds of ops::

    clip, invert, scale           each number by itself
    rel2abs, binarise, relabel    each column along the whole episode
    euler, quaternion, rotation6d the columns of a step together, as a rotation

Ops of the last two kinds are worked out once for a whole episode, before windows, stride and
``keep``; with them goes whatever else their term lists.

Not here: their values (``transforms.episode_ops``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from autoloader.errors import nearest, shown
from autoloader.spec.block import is_number, wrong

OpName = Literal[
    "clip", "invert", "scale",
    "rel2abs", "binarise", "relabel",
    "euler", "quaternion", "rotation6d",
]  # fmt: skip
OPS: tuple[str, ...] = get_args(OpName)
PLAIN_OPS = ("clip", "invert", "scale")
"""Ops of each number by itself: exact on any rows."""
_BARE = ("invert", "rel2abs", "binarise", "relabel", "rotation6d")
_ORDERS = ("xyzw", "wxyz")
WIDTHS = {"euler": (4, 3), "quaternion": (3, 4), "rotation6d": (3, 6)}
"""Ops of a rotation: columns that they take, and columns that they give."""
_LAST = {
    ("rel2abs", "rel2abs"): "the gripper is absolute after the first",
    ("rel2abs", "binarise"): "after rel2abs every value is 0 or 1 already",
    ("binarise", "rel2abs"): "binarise takes an absolute gripper, rel2abs a relative one",
    ("binarise", "binarise"): "the second finds nothing to do",
}


@dataclass(frozen=True, slots=True)
class FieldOp:
    """One arithmetic step on a term's columns, in the order listed.

    Attributes:
        name: which. ``clip`` bounds to ``values = (low, high)``; ``invert`` is 1 − x; ``scale``
            multiplies by ``values[0]``; the others are those of ``transforms.episode_ops``.
        values: numbers of ``clip`` and ``scale``.
        order: of a quaternion's columns, for ``euler`` and ``quaternion``.
    """

    name: OpName
    values: tuple[float, ...] = ()
    order: Literal["", "xyzw", "wxyz"] = ""

    @property
    def whole(self) -> bool:
        """Whether it needs all steps of an episode, or all columns of a step, at once."""
        return self.name not in PLAIN_OPS

    def plain(self) -> Any:
        """The op as a spec file writes it."""
        if self.order:
            return {self.name: self.order}
        if not self.values:
            return self.name
        return {self.name: list(self.values) if self.name == "clip" else self.values[0]}


def parse_ops(raw: Any) -> tuple[FieldOp, ...]:
    """The ops of a term, from what a spec file says: one, or a list of them."""
    listed = raw if isinstance(raw, (list, tuple)) else [raw]
    found = tuple(_parse_op(one) for one in listed)
    grippers = [op.name for op in found if op.name in ("rel2abs", "binarise")]
    for pair in pairwise(grippers):
        raise wrong(f"{pair[0]} and then {pair[1]}: {_LAST[pair]}", "leave one of them out")
    if sum(op.name == "relabel" for op in found) > 1:
        raise wrong("relabel twice, which is a difference of differences", "name it once in a term")
    return found


def _parse_op(raw: Any) -> FieldOp:
    if isinstance(raw, FieldOp):
        return raw
    if isinstance(raw, str) and raw in _BARE:
        return FieldOp(raw)  # type: ignore[arg-type]
    if isinstance(raw, str) and raw in OPS:
        raise wrong(f"{raw} without its value", _allowed(raw))
    if isinstance(raw, str):
        raise wrong(f"unknown op {shown(raw)}", nearest(raw, OPS))
    if isinstance(raw, Mapping) and len(raw) == 1:
        name, value = next(iter(raw.items()))
        if name not in OPS:
            raise wrong(f"unknown op {shown(name)}", nearest(str(name), OPS))
        return _parse_with_value(str(name), value)
    raise wrong(f"{shown(raw)} is no op", "allowed: " + ", ".join(_allowed(name) for name in OPS))


def _parse_with_value(name: str, value: Any) -> FieldOp:
    if name == "clip" and isinstance(value, (list, tuple)) and len(value) == 2:
        if all(map(is_number, value)):
            low, high = float(value[0]), float(value[1])
            if low < high:
                return FieldOp("clip", (low, high))
            raise wrong(f"clip: [{low}, {high}] is empty", "the first bound is the smaller one")
    elif name == "scale" and is_number(value):
        return FieldOp("scale", (float(value),))
    elif name in ("euler", "quaternion") and value in _ORDERS:
        return FieldOp(name, order=value)  # type: ignore[arg-type]
    raise wrong(f"{name}: {shown(value)} is not its value", f"allowed: {_allowed(name)}")


def _allowed(name: str) -> str:
    told = {
        "clip": "{clip: [low, high]}",
        "scale": "{scale: factor}",
        "euler": "{euler: xyzw} (or wxyz, the order of the quaternion's columns)",
        "quaternion": "{quaternion: xyzw} (or wxyz, the order of the quaternion's columns)",
    }
    return told.get(name, name)
