"""``augment``: what happens to a camera's frames on the device, in the order listed.

    augment:
      primary:
        random_resized_crop: {scale: [0.8, 1.0], ratio: [0.9, 1.1]}
        brightness: 0.1            # a shift in [-0.1, 0.1] of the full range
        contrast: [0.9, 1.1]       # a factor; 0.1 means the same
        saturation: 0.1
        hue: 0.05                  # a turn of the colour circle in [-0.05, 0.05]

Not here: drawing parameters and applying them (``autoloader.process.augmentation``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from autoloader.errors import nearest, shown
from autoloader.host.records import dataclass
from autoloader.spec.block import is_number, wrong

OpName = Literal["random_resized_crop", "brightness", "contrast", "saturation", "hue"]
_NAMES: tuple[OpName, ...] = get_args(OpName)
_CROP = {"scale": (0.8, 1.0), "ratio": (0.9, 1.1)}
_LIMITS = {"brightness": (-1.0, 1.0), "hue": (-0.5, 0.5)}


@dataclass(frozen=True, slots=True)
class AugmentOp:
    """One operation.

    Attributes:
        name: name of the operation.
        low, high: bounds of what is drawn: the shift of ``brightness`` and ``hue``, the factor of
            ``contrast`` and ``saturation``, the area of ``random_resized_crop`` as a share.
        ratio: ``random_resized_crop``: bounds of width / height, relative to the frame's own.
    """

    name: OpName
    low: float
    high: float
    ratio: tuple[float, float] = (1.0, 1.0)

    def plain(self) -> Any:
        """The operation's value as a spec file writes it."""
        if self.name == "random_resized_crop":
            return {"scale": [self.low, self.high], "ratio": list(self.ratio)}
        return [self.low, self.high]


Operations = tuple[AugmentOp, ...]


def _pair(raw: Any, what: str) -> tuple[float, float]:
    if isinstance(raw, (list, tuple)) and len(raw) == 2 and all(map(is_number, raw)):
        low, high = float(raw[0]), float(raw[1])
        if low <= high:
            return low, high
    raise wrong(f"{what}: {shown(raw)}", "write two numbers, the smaller first, such as [0.8, 1.0]")


def _crop(raw: Any) -> AugmentOp:
    name = "random_resized_crop"
    if not isinstance(raw, Mapping):
        raise wrong(f"{name}: {shown(raw)}", "write {scale: [0.8, 1.0], ratio: [0.9, 1.1]}")
    for key in raw:
        if key not in _CROP:
            raise wrong(f"{name}: unknown key {shown(key)}", nearest(str(key), _CROP))
    low, high = _pair(raw.get("scale", _CROP["scale"]), f"{name}.scale")
    narrow, wide = _pair(raw.get("ratio", _CROP["ratio"]), f"{name}.ratio")
    if low <= 0 or high > 1:
        raise wrong(f"{name}.scale: [{low}, {high}]", "an area share is above 0 and at most 1")
    if narrow <= 0:
        raise wrong(f"{name}.ratio: [{narrow}, {wide}]", "a ratio is above 0; 1 keeps the aspect")
    return AugmentOp("random_resized_crop", low, high, (narrow, wide))


def _strength(name: OpName, raw: Any) -> AugmentOp:
    """Brightness and hue are shifts around 0, contrast and saturation factors around 1."""
    shifts = name in _LIMITS
    if is_number(raw):
        if raw < 0 or (not shifts and raw > 1):
            raise wrong(f"{name}: {raw}", "a strength is 0 to 1, or give both bounds")
        low, high = (-float(raw), float(raw)) if shifts else (1 - float(raw), 1 + float(raw))
    else:
        low, high = _pair(raw, name)
    least, most = _LIMITS.get(name, (0.0, math.inf))
    if low < least or high > most:
        raise wrong(f"{name}: [{low}, {high}]", f"stay within {least} and {most}")
    return AugmentOp(name, low, high)


def parse_operations(raw: Any) -> Operations:
    """The operations of one camera, in the order listed."""
    if isinstance(raw, tuple) and all(isinstance(one, AugmentOp) for one in raw):
        return raw
    if not isinstance(raw, Mapping) or not raw:
        raise wrong(
            f"{shown(raw)} names no operation", "write {random_resized_crop: {}, brightness: 0.1}"
        )
    operations = []
    for name, value in raw.items():
        if name not in _NAMES:
            raise wrong(f"unknown operation {shown(name)}", nearest(str(name), _NAMES))
        known = cast("OpName", name)
        operations.append(_crop(value) if known == _NAMES[0] else _strength(known, value))
    return tuple(operations)


Augmentations = Annotated[
    Operations,
    BeforeValidator(parse_operations),
    PlainSerializer(lambda value: {op.name: op.plain() for op in value}),
    WithJsonSchema(
        {
            "type": "object",
            "description": "operations in the order they are applied",
            "properties": {
                name: {"type": "object"}
                if name == "random_resized_crop"
                else {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]}
                for name in _NAMES
            },
            "additionalProperties": False,
        }
    ),
]
"""The pydantic field type of one camera's augmentation."""
