"""Field expressions over real features: which columns they take, and their values in NumPy.

The ops' arithmetic is all float32, as in the loaders that these rules come from (Octo, OpenVLA).
``x`` is [T, w] float32, T ≥ 1; every function gives a new array.

Not here: the language (``spec.fields``); which episodes ops see (``transform``); the same
arithmetic in TensorFlow (``integrations.tfdata.samples``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SpecError, UnsupportedError, many, nearest
from autoloader.formats import Feature
from autoloader.formats.features import JOINED, RAGGED
from autoloader.formats.tables import Role, StoredFeature, numbered
from autoloader.samples.draws import Floats, Ints
from autoloader.spec import FieldExpression, FieldTerm, SampleSpec
from autoloader.spec.fields import FieldOp

FieldName = Literal["action", "state"]
FIELDS: tuple[FieldName, ...] = get_args(FieldName)
"""The numeric fields of a sample."""

BETWEEN = b"\0"
"""Between several strings of a step, where they are stored as one."""
_LANGUAGE_INTEGERS = ("int32", "int64", "uint32", "uint8", "uint16", "int8", "int16", "uint64")
SINGLE = ((), (1,))
"""Shapes of one number a step; LeRobot writes the second."""
NUMBERS = (*_LANGUAGE_INTEGERS, "float16", "bfloat16", "float32", "float64", "bool")

MOST_COLUMNS = 2**20
"""Of one numeric feature: far above any robot's."""
PACKED = ("zlib", "bytes")
"""How TFDS may store a tensor as one byte string a step."""


@dataclass(frozen=True)
class NumericField(FieldExpression):
    """``action`` or ``state`` of one dataset.

    Attributes:
        widths: number of columns of each term.
    """

    widths: tuple[int, ...]

    @cached_property
    def width(self) -> int:
        """Number of columns in all."""
        return sum(self.widths)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """``paths``, which is asked for in every run."""
        return self.paths()

    @cached_property
    def _slices(self) -> tuple[slice, ...]:
        assert not any(term.whole for term in self.terms), "worked out by transforms.transform"
        return tuple(term.slice() for term in self.terms)

    def evaluate(self, columns: Mapping[str, Floats], steps: int) -> Floats:
        """The field's values [steps, width] float32.

        Args:
            columns: feature path → [steps, feature width] float32.
            steps: frames of the (strided) episode.
        """
        values = np.empty((steps, self.width), dtype=np.float32)
        at = 0
        for term, taken, width in zip(self.terms, self._slices, self.widths, strict=True):
            if term.path is None:
                values[:, at : at + width] = term.value
            else:
                part = columns[term.path][:, taken]
                for op in term.ops:
                    part = apply_op(op, part)
                values[:, at : at + width] = part
            at += width
        return values


def find_feature(features: Mapping[str, Feature], path: str, *, field: str) -> Feature:
    """The feature called ``path``.

    Raises:
        SpecError: there is none; lists those that exist.
    """
    if path in features:
        return features[path]
    wanted = path.removeprefix("steps/")
    if wanted in features:
        return features[wanted]
    raise SpecError(
        f"{field}: {path!r} is not a feature of the dataset", remedy=_closest(path, features)
    )


_LISTED, _CLOSE = 20, 5
"""Features that an error lists; of a dataset with more, those of the closest names."""


def _closest(path: str, features: Collection[str]) -> str:
    """Remedy: the feature of the nearest name, and others that the dataset has."""
    import difflib  # in the failing case only

    close, listed, more = nearest(path, features), sorted(features), ""
    if len(listed) > _LISTED:
        listed = difflib.get_close_matches(path, listed, n=_CLOSE, cutoff=0)
        more = f" and more; `autoloader inspect PATH` lists all {len(features)}"
    told = f"the dataset has {', '.join(listed)}{more}; `autoloader init PATH` writes a spec"
    return f"{close} {told}" if close.startswith("did you mean") else told


def numeric_field(
    expression: FieldExpression, features: Mapping[str, Feature], *, field: str
) -> NumericField:
    """Bind an expression to a dataset's features.

    Raises:
        SpecError: a feature is missing, not numeric, of unknown width, or a slice takes nothing.
    """
    widths = []
    for term in expression.terms:
        if term.path is None:
            widths.append(term.constants)
            continue
        feature = find_feature(features, term.path, field=field)
        width = feature_width(feature, field=field)
        part = term.slice()
        taken = len(range(width)[part])
        beyond = any(abs(end) > width for end in (part.start, part.stop) if end is not None)
        if beyond or not taken:
            raise SpecError(
                f"{field}: {term.text()!r} {'goes beyond' if taken else 'takes no column of'} "
                f"{term.path!r}, which has {many(width, 'column')}",
                remedy=f"take columns within [0:{width}]",
            )
        widths.append(_width_after(term, taken, field))
    return NumericField(expression.terms, tuple(widths))


def _width_after(term: FieldTerm, taken: int, field: str) -> int:
    """Columns that a term gives, of the ``taken`` columns of its feature."""
    width = taken
    for op in term.ops:
        wanted, given = op.widths(width)
        if width != wanted:
            raise SpecError(
                f"{field}: {op.name} takes {wanted} columns, and {term.text()!r} gives {width}",
                remedy=f"take the {wanted} columns of the rotation alone, such as "
                f"{term.path}[3:{3 + wanted}], and list the other columns beside it"
                if width > wanted
                else f"name a feature with the {wanted} columns, or remove {op.name}",
            )
        width = given
    return width


def feature_width(feature: Feature, *, field: str) -> int:
    """Columns of one step of a numeric feature.

    Raises:
        SpecError: the feature is no number, not per step, or of varying shape.
    """
    if feature.kind != "tensor" or feature.dtype not in NUMBERS or not feature.per_step:
        remedy = "name a numeric feature of the steps: `autoloader inspect PATH` lists all"
        raise unfit(feature, field, "is not a number for every step", remedy)
    if None in feature.shape:
        why, remedy = "has a varying shape: not supported yet", "name a feature of fixed shape"
        raise unfit(feature, field, why, remedy, UnsupportedError)
    check_encoding(feature, (None, "none", *PACKED), field=field)
    width = math.prod(size for size in feature.shape if size is not None)
    if width > MOST_COLUMNS:
        remedy = "name a smaller feature; features.json may be damaged"
        raise unfit(feature, field, f"has more than {MOST_COLUMNS} columns", remedy)
    return width


def check_encoding(
    feature: Feature, encodings: Collection[str | None] = (None,), *, field: str
) -> None:
    """Refuse numbers that are stored in another way than ``encodings`` name.

    Raises:
        UnsupportedError: the feature is stored in another way.
    """
    if feature.encoding not in encodings:
        why = f"is stored as {feature.encoding}: not supported yet"
        remedy = "name a feature stored as plain numbers"
        raise unfit(feature, field, why, remedy, UnsupportedError)


def check_camera(feature: Feature, *, field: str, features: Mapping[str, Feature]) -> None:
    """Refuse what is no colour picture.

    Args:
        feature: feature that a camera shows.
        field: field of the spec that names it.
        features: features of the dataset, of which the error names the images.

    Raises:
        SpecError: not an image per step; a depth or float image, for a camera of colours.
    """
    if feature.kind == "other" and feature.dtype == "uint8" and feature.per_step:
        remedy = "name another image, or write the dataset again with a feature for each picture"
        why = "has several pictures in every step, and a camera has one"
        raise unfit(feature, field, why, remedy)
    if feature.kind != "image" or not feature.per_step:
        images = sorted(name for name, one in features.items() if one.kind == "image")
        remedy = f"name an image feature of the dataset: {', '.join(images[:8])}"
        remedy = remedy if images else "leave images out: the dataset has no image features"
        raise unfit(feature, field, "is not an image of the steps", remedy)
    channels = feature.shape[-1] if feature.shape else None
    remedy = "name a uint8 image with 3 channels (or 1); "
    if feature.dtype == "uint8" and channels not in (1, 3, None):
        remedy += "if its files have them, correct the shape that the metadata gives"
        raise unfit(feature, field, f"has pictures of {channels} channels", remedy)
    if feature.dtype != "uint8":
        remedy += "or, for depth, give this camera depth: uint16 (or float32) in cameras"
        raise unfit(
            feature, field, "is a depth or float image, and the camera is one of colours", remedy
        )


def check_language(feature: Feature, *, field: str) -> None:
    """Refuse what holds neither text nor code points.

    Raises:
        SpecError: the feature holds neither.
    """
    is_points = feature.kind == "tensor" and feature.dtype in _LANGUAGE_INTEGERS
    if not is_text(feature) and not (is_points and len(feature.shape) == 1):
        remedy = "name a text feature, or a vector of Unicode code points"
        raise unfit(feature, field, "is neither text nor code points", remedy)
    if None in feature.shape:
        why = "has a varying number of code points: not supported yet"
        raise unfit(feature, field, why, "name a feature of fixed length", UnsupportedError)


def is_text(feature: Feature) -> bool:
    """True if the feature is one text for each step or episode, stored as bytes."""
    return feature.kind == "text" and not feature.shape


def is_several(feature: Feature) -> bool:
    """True if the feature is several strings for each step, or for the episode."""
    if feature.kind != "tensor" or feature.dtype != "string" or len(feature.shape) != 1:
        return False
    fixed = feature.shape[0] is not None or not feature.per_step
    return fixed or feature.encoding in (RAGGED, JOINED)


def is_code(feature: Feature) -> bool:
    """True if the feature is one integer, which may stand for a text."""
    plain = feature.kind == "tensor" and feature.encoding is None
    return plain and feature.shape in SINGLE and feature.dtype in _LANGUAGE_INTEGERS


def check_same_kind(features: Sequence[Feature], *, field: str) -> None:
    """Refuse a language drawn from text here and code points, or integers, there.

    Raises:
        SpecError: the features hold several of these.
    """
    kinds = {
        (is_text(feature), is_code(feature), feature.shape if is_several(feature) else ())
        for feature in features
    }
    if len(kinds) > 1:
        raise SpecError(
            f"{field}: any_of lists features of different kinds: "
            + ", ".join(f"{feature.path} ({described(feature)})" for feature in features),
            remedy="list texts only, or code points, or integers, or tensors of strings",
        )


def text_of_points(points: Ints) -> bytes:
    """UTF-8 of a vector of code points; trailing NULs are padding."""
    kept = np.trim_zeros(points, "b")
    valid = kept[(kept > 0) & (kept < 0x110000) & ((kept < 0xD800) | (kept > 0xDFFF))]
    return "".join(map(chr, valid.tolist())).encode("utf-8")


def texts_a_step(feature: Feature) -> int:
    """Strings of a step, or of the episode; 0 of an episode that has any number of them.

    Where steps have any number, an episode that was unpacked has one string a step: the stored one.
    """
    return feature.step_numbers if feature.per_step or None not in feature.shape else 0


def text_role(feature: Feature) -> Role:
    """Role of a text feature: how its texts are stored."""
    if is_text(feature):
        return "text"
    if is_several(feature):
        return "texts"
    return "number" if feature.shape in SINGLE else "points"


def stored_as(feature: Feature, role: Role) -> StoredFeature:
    """A feature of numbers or texts in its role, as the index stores it."""
    if role == "text":
        return StoredFeature(role, feature.key, feature.path, "bytes", 1, feature.per_step)
    width = texts_a_step(feature) if role == "texts" else feature.step_numbers
    kind: Literal["bytes", "float", "int64"] = "float" if "float" in feature.dtype else "int64"
    kind = "bytes" if role == "texts" else kind
    return StoredFeature(role, feature.key, feature.path, kind, width, feature.per_step)


def stored_texts(values: Any, feature: StoredFeature) -> tuple[NDArray[np.int32], list[bytes]]:
    """Id of every step's text, and the texts; of the episode's one text, one id.

    Args:
        values: byte strings, several a step in a row where there are several, or integers, flat.
        feature: feature that the values are of.
    """
    if feature.role == "points":
        rows = values.astype(np.int64, copy=False).reshape(-1, feature.width)
        ids, different = numbered(row.tobytes() for row in rows)
        return ids, [text_of_points(np.frombuffer(row, np.int64)) for row in different]
    if feature.role == "number":
        return numbered(str(int(one)).encode() for one in values.tolist())
    if not feature.per_step and not values:
        return np.zeros(1, np.int32), [b""]
    if feature.role == "texts":
        width = feature.width or len(values)
        values = [BETWEEN.join(values[at : at + width]) for at in range(0, len(values), width)]
    return numbered(values)


def described(feature: Feature) -> str:
    """Describe a feature in a few words: "tensor float32, 7"."""
    shape = "×".join("?" if size is None else str(size) for size in feature.shape) or "scalar"
    kind = "data" if feature.kind == "other" else feature.kind
    return f"{kind} {feature.dtype}, {shape}"


def unfit(
    feature: Feature, field: str, why: str, remedy: str, kind: type[SpecError] = SpecError
) -> SpecError:
    """The error of a field that names a feature of another form than it takes."""
    return kind(f"{field}: {feature.path!r} ({described(feature)}) {why}", remedy=remedy)


def bind_numbers(
    expressions: Mapping[FieldName, FieldExpression],
    sample: SampleSpec,
    features: Mapping[str, Feature],
    *,
    where: str,
) -> dict[FieldName, NumericField]:
    """The numeric fields of a dataset; those that it does not have are absent.

    Args:
        expressions: expression of each field, over ``features``.
        sample: the spec's description of a sample of the dataset.
        features: features of the dataset's episodes, by path.
        where: path of the dataset in the spec.

    Raises:
        SpecError: a field cannot be had of these features, or a difference of columns that are
            not there is asked for.
    """
    fields = {
        name: numeric_field(expression, features, field=f"{where}.{name}")
        for name, expression in expressions.items()
    }
    _check_relative(sample, fields, where)
    return fields


def _check_relative(
    sample: SampleSpec, fields: Mapping[FieldName, NumericField], where: str
) -> None:
    """Refuse differences between columns that are not there."""
    width = fields["action"].width if "action" in fields else math.inf
    beyond = [dim for dim in sample.action_zero_outside if dim >= width]
    if beyond:
        raise SpecError(
            f"{where}.sample.action_zero_outside: {beyond[0]}, but action has "
            f"{many(int(width), 'column')}",
            remedy=f"use columns that action has: 0 to {width - 1}",
        )
    place = f"{where}.sample.action_relative_to_state"
    for dim in sample.action_relative_to_state if "action" in fields else ():
        if "state" not in fields:
            raise SpecError(
                f"{place}: the dataset has an action, and no state to subtract from it",
                remedy=f"set {where}.state to a feature, or {place} to []",
            )
        for name, bound in fields.items():
            if dim >= bound.width:
                raise SpecError(
                    f"{place}: {dim}, but {name} has {many(bound.width, 'column')}",
                    remedy="use columns that action and state have: 0 to "
                    f"{min(one.width for one in fields.values()) - 1}",
                )


COMMAND = 0.1
"""``rel2abs``: what is further from zero is a command."""
OPEN, CLOSED = 0.95, 0.05
"""``binarise``: above is open, below is closed, what lies between is on its way."""
_SHRINK = np.float32(1 - 2 * np.finfo(np.float32).eps)
_NUDGE = np.float32(2 * np.finfo(np.float32).eps)
_GIMBAL = 1e-6


def apply_op(op: FieldOp, x: Floats) -> Floats:
    """``x`` [T, width] after one op of a term."""
    return _OPS[op.name](x, op)


def rel2abs(x: Floats) -> Floats:
    """A relative gripper (+1 closes, −1 opens, 0 holds) as an absolute one: 1 open, 0 closed.

    x < −0.1 is the command to open, x > 0.1 to close, anything else none. A step has the state of
    the last command up to and with it. Before the first command it has the opposite of that one;
    without any command it is open. NaN stays NaN.
    """
    command = np.where(x < np.float32(-COMMAND), 1, np.where(x > np.float32(COMMAND), -1, 0))
    step = np.arange(len(x))[:, None]
    last = np.maximum.accumulate(np.where(command != 0, step, -1), axis=0)
    first = np.argmax(command != 0, axis=0)  # 0 where there is none, and so is its command
    told = np.take_along_axis(command, first[None], axis=0)
    start = np.where(told == 0, 1, -told)
    state = np.where(last >= 0, np.take_along_axis(command, np.maximum(last, 0), axis=0), start)
    return np.where(np.isnan(x), x, (state > 0).astype(np.float32))


def binarise(x: Floats) -> Floats:
    """An absolute gripper as 1 (open, x > 0.95) and 0 (closed, x < 0.05).

    A value between takes the state that comes next. A run of them at the end, which reaches none,
    takes the episode's last value as it is. NaN stays NaN.
    """
    known = (x > np.float32(OPEN)) | (x < np.float32(CLOSED))
    steps = len(x)
    step = np.arange(steps)[:, None]
    following = np.minimum.accumulate(np.where(known, step, steps)[::-1], axis=0)[::-1]
    reached = np.take_along_axis(x, np.minimum(following, steps - 1), axis=0)
    state = (reached > np.float32(OPEN)).astype(np.float32)
    return np.where(np.isnan(x), x, np.where(following < steps, state, x[-1]))


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


def rotation6d(x: Floats, form: str = "") -> Floats:
    """The first two rows [T, 6] of a rotation's matrix R.

    Args:
        x: [T, w] rotations; quaternions need no unit length.
        form: one of ``spec.fields.ROTATIONS``; "": angles (θx, θy, θz) with R = Rz Ry Rx.
    """
    if form == "matrix":
        return x[:, :6].copy()
    if form.startswith("euler_angles"):
        whole = np.broadcast_to(np.eye(3, dtype=np.float32), (len(x), 3, 3))
        for angle, letter in zip(x.T, form[-3:], strict=True):
            whole = whole @ _turns(angle, "rpy".index(letter))
        return whole[:, :2].reshape(-1, 6)
    if form:
        quaternions = _of_axes(x) if form == "axis_angle" else x
        if form == "xyzw":
            quaternions = x[:, [3, 0, 1, 2]]
        return _rows_of_quaternions(quaternions)
    (cx, cy, cz), (sx, sy, sz) = np.cos(x).T, np.sin(x).T
    rows = [
        cz * cy, cz * sy * sx - sz * cx, cz * sy * cx + sz * sx,
        sz * cy, sz * sy * sx + cz * cx, sz * sy * cx - cz * sx,
    ]  # fmt: skip
    return np.stack(rows, axis=1).astype(np.float32)


def _turns(angle: Floats, axis: int) -> Floats:
    """[T, 3, 3] turns around an axis, by angles [T]."""
    found = np.zeros((len(angle), 3, 3), np.float32)
    one, two = (axis + 1) % 3, (axis + 2) % 3
    found[:, axis, axis] = 1
    found[:, one, one] = found[:, two, two] = np.cos(angle)
    found[:, two, one], found[:, one, two] = np.sin(angle), -np.sin(angle)
    return found


def _of_axes(x: Floats) -> Floats:
    """Quaternions [T, 4], w first, of axes [T, 3] whose lengths are the angles."""
    angle = np.linalg.norm(x, axis=1, keepdims=True)
    scale = np.sinc(angle / np.float32(2 * np.pi)) / 2  # sin(angle / 2) / angle, also of 0
    return np.concatenate([np.cos(angle / 2), x * scale], axis=1).astype(np.float32)


def _rows_of_quaternions(x: Floats) -> Floats:
    """The first two rows [T, 6] of the matrices of quaternions [T, 4], w first, of any length."""
    w, i, j, k = x.T
    two = np.float32(2) / (x * x).sum(axis=1)
    rows = [
        1 - two * (j * j + k * k), two * (i * j - k * w), two * (i * k + j * w),
        two * (i * j + k * w), 1 - two * (i * i + k * k), two * (j * k - i * w),
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
    "rotation6d": lambda x, op: rotation6d(x, op.order),
}
