"""Field expressions: how a spec names the numbers, words and pictures of a dataset.

A numeric field (``action``, ``state``) is a list of terms that are concatenated::

    action/world_vector                            a feature, flattened to columns
    action/open_gripper[-1:]                       some of its columns
    {path: action/open_gripper, ops: [{clip: [0, 1]}, invert]}
    {zeros: 1}, {ones: 1}                          a constant column

A camera is one feature, or ``{any_of: [a, b]}``: one of them is drawn for each
episode and pass. It may be ``{path: a, ops: [flip_channels]}``.

A language is such a choice as well. An integer has the texts that it stands for beside it:
``{path: task, names: {0: pick up}}``; of a tensor of several strings one is taken:
``{path: instructions, several: draw}``.

Ops: the arithmetic that a term of ``action`` or ``state`` may ask for.

Three kinds of ops::

    clip, invert, scale           each number by itself
    rel2abs, binarise, relabel    each column along the whole episode
    euler, quaternion, rotation6d the columns of a step together, as a rotation

Ops of the last two kinds are worked out once for a whole episode, before windows, stride and
``keep``; with them goes whatever else their term lists.

Not here: whether the features exist (``formats``), their values (``samples``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError, WithJsonSchema

from autoloader.errors import nearest, shown
from autoloader.host.frozen import frozen
from autoloader.spec.block import adapter, is_number, wrong

_PATH = re.compile(r"^(?P<path>[^\[\]]+?)(?:\[(?P<columns>[^\[\]]*)\])?$")
_TERM_KEYS = ("path", "ops", "zeros", "ones")
_MOST_CONSTANTS = 10_000
_MOST_NAMES = 10_000
_FLIPS: tuple[Any, ...] = ("flip_channels", {"flip_channels": "public"})


@frozen
class FieldTerm:
    """One piece of a numeric field.

    Attributes:
        path: the feature, or ``None`` for constant columns.
        columns: ``(start, stop, step)`` of the flattened feature; ``None`` takes all.
        ops: arithmetic operations, applied in order.
        constants: columns of ``value`` where ``path`` is ``None``.
        value: 0 or 1, what those columns hold.
    """

    path: str | None
    columns: tuple[int | None, int | None, int | None] | None = None
    ops: tuple[FieldOp, ...] = ()
    constants: int = 0
    value: float = 0.0

    @property
    def whole(self) -> bool:
        """True if it is worked out for a whole episode at once."""
        return any(op.whole for op in self.ops)

    def slice(self) -> slice:
        """The columns as a Python slice."""
        return slice(*(self.columns or (None, None, None)))

    def text(self) -> str:
        """The feature path with its columns, as a spec file writes it."""
        if self.columns is None or self.path is None:
            return self.path or ""
        start, stop, step = ("" if part is None else str(part) for part in self.columns)
        return f"{self.path}[{start}:{stop}{':' + step if step else ''}]"

    def plain(self) -> Any:
        """The term as a spec file writes it."""
        if self.path is None:
            return {"ones" if self.value else "zeros": self.constants}
        if not self.ops:
            return self.text()
        return {"path": self.text(), "ops": [op.plain() for op in self.ops]}


@dataclass(frozen=True, slots=True)
class FieldExpression:
    """A numeric field: its terms' columns side by side, as float32."""

    terms: tuple[FieldTerm, ...]

    def paths(self) -> tuple[str, ...]:
        """The features it reads, each once, in order."""
        return tuple(dict.fromkeys(term.path for term in self.terms if term.path is not None))

    def plain(self) -> Any:
        """The expression as a spec file writes it."""
        plain = [term.plain() for term in self.terms]
        return plain[0] if len(plain) == 1 else plain


@frozen
class AnyOf:
    """One feature, or several of which one is drawn per episode and pass (seeded).

    Attributes:
        paths: paths of the features that are named.
        flip: of a camera: whether its first and last channels change places ("always"), or only
            where the files are the public ones ("public").
        present: of a camera: the feature that says whether it is there, or "".
        names: of a language: (integer, the text that it stands for), where its features are
            integers.
        several: of a language of several strings: "first", the first that is not blank, or "draw",
            one of those that are not, drawn for each sample; "" where there is one.
    """

    paths: tuple[str, ...]
    flip: Literal["", "always", "public"] = ""
    present: str = ""
    names: tuple[tuple[int, str], ...] = ()
    several: Literal["", "first", "draw"] = ""

    def plain(self) -> Any:
        """The choice as a spec file writes it."""
        op = "flip_channels" if self.flip == "always" else {"flip_channels": self.flip}
        said = {"ops": self.flip and [op], "present": self.present, "names": dict(self.names),
                "several": self.several}  # fmt: skip
        more = {key: value for key, value in said.items() if value}
        if len(self.paths) > 1:
            return {"any_of": list(self.paths), **more}
        return {"path": self.paths[0], **more} if more else self.paths[0]


def parse_columns(text: str, whole: str) -> tuple[int | None, int | None, int | None]:
    """(start, stop, step) of what stands in brackets in ``whole``."""
    parts = [part.strip() for part in text.split(":")]
    try:
        numbers = [int(part) if part else None for part in parts]
    except ValueError:
        numbers = []
    if not numbers or len(numbers) > 3 or (len(numbers) == 1 and numbers[0] is None):
        raise wrong(
            f"{shown(whole)}: [{text}] selects no columns", "write [2], [:3], [-1:] or [::2]"
        )
    if len(numbers) == 1 and numbers[0] is not None:
        index = numbers[0]
        return (index, index + 1 if index != -1 else None, None)
    start, stop, step = (*numbers, None, None)[:3]
    if step is not None and step < 1:
        raise wrong(f"{shown(whole)}: the step is {step}", "write a step of at least 1")
    return (start, stop, step)


def _parse_path(text: str) -> tuple[str, tuple[int | None, int | None, int | None] | None]:
    match = _PATH.match(text.strip())
    if match is None:
        raise wrong(
            f"{shown(text)} is not a feature path",
            "write a feature such as action/world_vector[:3]",
        )
    columns = match["columns"]
    return match["path"].strip("/"), None if columns is None else parse_columns(columns, text)


def _refuse_unknown(raw: Mapping[Any, Any], known: Collection[str]) -> None:
    for key in raw:
        if key not in known:
            raise wrong(f"unknown key {shown(key)}", nearest(str(key), known))


def _parse_term(raw: Any) -> FieldTerm:
    if isinstance(raw, FieldTerm):
        return raw
    if isinstance(raw, str):
        return FieldTerm(*_parse_path(raw))
    if isinstance(raw, Mapping):
        _refuse_unknown(raw, _TERM_KEYS)
        for key, value in (("zeros", 0.0), ("ones", 1.0)):
            if key not in raw:
                continue
            count = raw[key]
            if len(raw) > 1 or type(count) is not int or not 1 <= count <= _MOST_CONSTANTS:
                raise wrong(
                    f"{shown(dict(raw))} is not allowed",
                    f"write {{{key}: N}}, with N from 1 to {_MOST_CONSTANTS}, and no other key",
                )
            return FieldTerm(None, constants=count, value=value)
        if isinstance(raw.get("path"), str):
            return FieldTerm(*_parse_path(raw["path"]), ops=parse_ops(raw.get("ops", [])))
    raise wrong(
        f"{shown(raw)} is not a feature",
        "write a path, a path with columns, {path: ..., ops: [...]}, {zeros: n} or {ones: n}",
    )


def parse_expression(raw: Any) -> FieldExpression:
    """A ``FieldExpression`` from what a spec file says: a term, or a list of terms."""
    if isinstance(raw, FieldExpression):
        return raw
    items = list(raw) if isinstance(raw, (list, tuple)) else [raw]
    if not items:
        raise wrong("the list is empty", "give at least one feature, or leave the field out")
    expression = FieldExpression(tuple(_parse_term(item) for item in items))
    if not expression.paths():
        raise wrong(
            "there are only constants, and no feature of the dataset",
            "leave the field out: it is then filled with zeros, and masked",
        )
    return expression


def _parse_choice(raw: Any, *words: str) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """(the features, the mapping) of a path, {path: …} or {any_of: […]} with ``words`` beside."""
    if isinstance(raw, str):
        raw = {"path": raw}
    remedy = (
        "write a feature's path, {path: …} or {any_of: [path, path]}; further keys: "
        f"{', '.join(words)}"
    )
    if not isinstance(raw, Mapping):
        raise wrong(f"{shown(raw)} names no feature", remedy)
    _refuse_unknown(raw, ("path", "any_of", *words))
    if "any_of" in raw and "path" in raw:
        raise wrong(f"{shown(dict(raw))} has path and any_of", "leave out one of the two")
    paths = raw.get("any_of", [raw.get("path")])
    named = isinstance(paths, (list, tuple)) and paths
    if not named or not all(isinstance(path, str) and path.strip("/ ") for path in paths):
        raise wrong(f"{shown(dict(raw))} names no feature", remedy)
    return tuple(path.strip().strip("/") for path in paths), raw


def _parse_camera(raw: Any) -> AnyOf:
    if isinstance(raw, AnyOf):
        return raw
    paths, raw = _parse_choice(raw, "ops", "present")
    present = raw.get("present", "")
    if "present" in raw and not (isinstance(present, str) and present.strip("/ ")):
        raise wrong(
            f"present: {shown(present)} names no feature",
            "write the path of the flag, such as episode_metadata/has_image_1",
        )
    present = present.strip().strip("/")
    if "ops" not in raw:
        return AnyOf(paths, present=present)
    ops = raw["ops"] if isinstance(raw["ops"], (list, tuple)) else [raw["ops"]]
    if len(ops) != 1 or ops[0] not in _FLIPS:
        raise wrong(
            f"{shown(ops)} is not an op of a camera",
            "write [flip_channels], which swaps red and blue, or [{flip_channels: public}] to swap "
            "them in public files alone, not in rewritten ones",
        )
    flip: Literal["always", "public"] = "always" if ops[0] == "flip_channels" else "public"
    return AnyOf(paths, flip, present)


_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1}
_COLUMNS = {"type": "integer", "minimum": 1, "maximum": _MOST_CONSTANTS}
_KEY_SCHEMAS: dict[str, dict[str, Any]] = {
    "path": _TEXT, "any_of": _TEXTS, "present": _TEXT,
    "ops": {"type": ["string", "object", "array"]}, "zeros": _COLUMNS, "ones": _COLUMNS,
    "names": {"anyOf": [{"type": "object", "additionalProperties": _TEXT}, _TEXTS]},
    "several": {"enum": ["first", "draw"]},
}  # fmt: skip


def _written_schema(*keys: str) -> dict[str, Any]:
    """JSON schema of what is written as a path, or as a mapping of ``keys``."""
    known = {"properties": {key: _KEY_SCHEMAS[key] for key in keys}, "additionalProperties": False}
    return {"anyOf": [_TEXT, {"type": "object", **known}]}


_TERM_SCHEMA = _written_schema("path", "ops", "zeros", "ones")

Expression = Annotated[
    FieldExpression,
    BeforeValidator(parse_expression),
    PlainSerializer(lambda value: value.plain()),
    WithJsonSchema({"anyOf": [_TERM_SCHEMA, {"type": "array", "items": _TERM_SCHEMA}]}),
]
"""The pydantic field type of ``action`` and ``state``."""

Camera = Annotated[
    AnyOf,
    BeforeValidator(_parse_camera),
    PlainSerializer(lambda value: value.plain()),
    WithJsonSchema(_written_schema("path", "any_of", "ops", "present")),
]
"""The pydantic field type of a camera."""


def _parse_language(raw: Any) -> AnyOf:
    if isinstance(raw, AnyOf):
        return raw
    paths, raw = _parse_choice(raw, "names", "several")
    several = raw.get("several", "")
    if "several" in raw and several not in ("first", "draw"):
        raise wrong(f"several: {shown(several)} is not allowed", "write first or draw")
    return AnyOf(paths, names=_parse_names(raw), several=several)


_Names = Annotated[dict[int, str], Field(min_length=1, max_length=_MOST_NAMES)]


def _parse_names(raw: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
    if "names" not in raw:
        return ()
    listed = isinstance(raw["names"], (list, tuple))
    names = dict(enumerate(raw["names"])) if listed else raw["names"]
    with contextlib.suppress(ValidationError):
        found = adapter(_Names).validate_python(names)
        if True not in {type(key) is bool for key in names}:
            return tuple(found.items())
    raise wrong(
        f"names: {shown(names)} does not map integers to texts",
        "write names: {0: pick up the block, 1: open it}, or a list of texts: at least 1, at most "
        f"{_MOST_NAMES}",
    )


Language = Annotated[
    AnyOf,
    BeforeValidator(_parse_language),
    PlainSerializer(lambda value: value.plain()),
    WithJsonSchema(_written_schema("path", "any_of", "names", "several")),
]
"""The pydantic field type of ``language``."""


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
ANGLES = tuple(f"euler_angles_{one}" for one in ("rpy", "ryp", "pry", "pyr", "yrp", "ypr"))
"""Angles in the order of their letters; R is the product of the turns in this order."""
ROTATIONS = {"wxyz": 4, "xyzw": 4, "axis_angle": 3, "matrix": 9, **dict.fromkeys(ANGLES, 3)}
"""Forms that ``rotation6d`` takes, and their columns; "": (θx, θy, θz), R = Rz Ry Rx."""
WIDTHS = {"euler": (4, 3), "quaternion": (3, 4), "rotation6d": (3, 6)}
"""Ops of a rotation: columns that they take, and columns that they give."""
_FORMS: dict[str, tuple[str, ...]] = {
    "euler": _ORDERS, "quaternion": _ORDERS, "rotation6d": tuple(ROTATIONS)
}  # fmt: skip
_ONCE = (("rel2abs", "binarise"), ("relabel",))
"""Ops of which a term has one, once: the others would find nothing to do, or undo it."""


@frozen
class FieldOp:
    """One arithmetic step on a term's columns, in the order listed.

    Attributes:
        name: which. ``clip`` bounds to ``values = (low, high)``; ``invert`` is 1 − x; ``scale``
            multiplies by ``values[0]``; the others are those of ``samples.transforms.fields``.
        values: numbers of ``clip`` and ``scale``.
        order: of a quaternion's columns, for ``euler`` and ``quaternion``; of ``rotation6d`` the
            form that it takes, one of ``ROTATIONS``.
    """

    name: OpName
    values: tuple[float, ...] = ()
    order: str = ""

    def widths(self, width: int) -> tuple[int, int]:
        """(columns that the op takes, columns that it gives), of ``width`` columns."""
        taken, given = WIDTHS.get(self.name, (width, width))
        return ROTATIONS.get(self.order, taken) if self.name == "rotation6d" else taken, given

    @property
    def whole(self) -> bool:
        """True if it needs all steps of an episode, or all columns of a step, at once."""
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
    for alike in _ONCE:
        named = [op.name for op in found if op.name in alike]
        if len(named) > 1:
            raise wrong(
                f"one feature has the ops {' and '.join(named)}",
                f"keep one of them: a feature takes {' or '.join(alike)} a single time",
            )
    return found


def _parse_op(raw: Any) -> FieldOp:
    if isinstance(raw, FieldOp):
        return raw
    if isinstance(raw, str):
        raw = {raw: None}
    if not isinstance(raw, Mapping) or len(raw) != 1:
        raise wrong(f"{shown(raw)} is not an op", f"write one of: {', '.join(map(_allowed, OPS))}")
    name, value = next(iter(raw.items()))
    if name not in OPS:
        remedy = f"{nearest(str(name), OPS)} ({{scale: -1}} flips the sign)"
        raise wrong(f"unknown op {shown(name)}", remedy)
    if name in _BARE and value is None:
        return FieldOp(name)
    if name == "clip" and isinstance(value, (list, tuple)) and len(value) == 2:
        if all(map(is_number, value)) and value[0] < value[1]:
            return FieldOp("clip", (float(value[0]), float(value[1])))
    elif name == "scale" and is_number(value):
        return FieldOp("scale", (float(value),))
    elif isinstance(value, str) and value in _FORMS.get(name, ()):
        return FieldOp(name, order=value)
    raise wrong(f"{name}: {shown(value)} is not allowed", f"write {_allowed(name)}")


def _allowed(name: str) -> str:
    told = {
        "clip": "{clip: [low, high]} (finite numbers, the smaller first)",
        "scale": "{scale: factor} (a finite number)",
        "euler": "{euler: xyzw} (or wxyz, the order of the quaternion's columns)",
        "quaternion": "{quaternion: xyzw} (or wxyz, the order of the quaternion's columns)",
        "rotation6d": f"rotation6d, or {{rotation6d: FORM}} of {', '.join(ROTATIONS)}",
    }
    return told.get(name, name)
