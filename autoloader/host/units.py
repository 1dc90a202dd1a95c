"""Sizes, durations and paths: how they are read and how they are shown.

Sizes parse with pydantic's ``ByteSize`` ("5GB" is 5·10⁹, "5GiB" is 5·2³⁰) and print in GiB or MiB.
Durations parse as "90s", "10m", "1h", "250ms" or a plain number of seconds.

Not here: which sizes and durations are allowed where (``spec``, ``spec.knobs``, ``cli``).
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from autoloader.errors import UsageError, shown

if TYPE_CHECKING:
    from pydantic import ByteSize, TypeAdapter

MIB = 2**20
GIB = 2**30
LEAST_FLOOR_BYTES = 64 * MIB
"""The smallest floor that protects anything; less is a unit left out, except 0."""

_DURATION = re.compile(r"^\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|min|h)?\s*$")
_FACTOR = {None: 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_bytes(text: str | int, *, name: str = "size") -> int:
    """Bytes from "5GB", "512MiB" or a plain count.

    Raises:
        UsageError: the text is no size.
    """
    try:
        if isinstance(text, bool):  # an int to Python
            raise ValueError  # noqa: TRY301, TRY004 told below, with all that is no size
        return size_of(text)
    except ValueError:
        raise UsageError(
            f"{name}: {shown(text)} is not a size",
            remedy='write a number with a unit, such as "5GB" (5·10⁹ bytes) or "5GiB" (5·2³⁰)',
        ) from None


def parse_floor(text: str | int, *, name: str) -> int:
    """Bytes that must stay free, of memory or of a disk: 0 switches the floor off.

    Raises:
        UsageError: the text is no size, or so small that its unit is missing.
    """
    if isinstance(text, str) and "%" in text:
        raise UsageError(
            f"{name}: {shown(text)} is a percentage, and a floor is a number of bytes",
            remedy='write a number with a unit, such as "5GB"',
        )
    floor_bytes = parse_bytes(text, name=name)
    number = re.match(r"[\s+]*([\d.]+)", str(text))
    written = 0.0 if number is None else float(number[1])
    if floor_bytes >= LEAST_FLOOR_BYTES or floor_bytes == written == 0:
        return floor_bytes
    meant = f"{written:g}GB" if 0 < written < 1024 else "5GB"
    raise UsageError(
        f"{name}: {shown(text)} is {floor_bytes} bytes, and a floor below "
        f"{format_bytes(LEAST_FLOOR_BYTES)} protects nothing",
        remedy=f"did you mean {meant}? 0 switches the floor off",
    )


def format_bytes(count: float) -> str:
    """``count`` bytes for people: GiB from half a GiB up, else MiB, else KiB."""
    if abs(count) >= GIB / 2:
        return f"{count / GIB:.2f} GiB"
    if abs(count) >= MIB / 2:
        return f"{count / MIB:.1f} MiB"
    return f"{count / 1024:.1f} KiB"


def format_seconds(seconds: float) -> str:
    """``seconds`` for people: seconds, minutes from 100 s up, hours from 100 min up."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else "1 s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def parse_seconds(text: str | float, *, name: str = "duration") -> float:
    """Seconds from "10m", "250ms", "1h" or a plain number of seconds.

    Raises:
        UsageError: the text is no duration, or negative.
    """
    match = _DURATION.match(str(text))
    if match is None:
        raise UsageError(
            f"{name}: {shown(text)} is not a duration",
            remedy='write a number with a unit, such as "90s", "10m" or "250ms"',
        )
    return float(match[1]) * _FACTOR[match[2]]


def size_of(value: str | int) -> int:
    """Bytes from "5GB" or a count, for a pydantic field.

    Raises:
        ValueError: pydantic's own, where it is no size.
    """
    return int(_size().validate_python(value))


@cache
def _size() -> TypeAdapter[ByteSize]:
    """Reader of sizes; pydantic is imported when the first size is read."""
    from pydantic import ByteSize, Field, TypeAdapter

    return TypeAdapter(Annotated[ByteSize, Field(le=2**60)])


def expanded(path: str | Path) -> Path:
    """``path`` with "~" as its user's home; that of an unknown user stays, and is not there."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  (Path.expanduser raises)
