"""A profile as text: YAML in a stable order with sizes for people, and which fields differ.

Not here: reading it back (``model``).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML

from autoloader.errors import UsageError
from autoloader.units import GIB, parse_bytes

_SIZE_FIELDS = {
    "memory_bytes",
    "cgroup_limit_bytes",
    "storage_read_bytes_per_s",
    "ram_floor",
    "bytes",
}


def yaml_text(name: str, plain: Mapping[str, Any]) -> str:
    """A profile's file: a head for people, then ``plain`` in its order, sections apart."""
    head = (
        f"# Host profile {name!r} of autoloader. Sizes are exact: GiB is 2^30 bytes, "
        "GB is 10^9.\n"
        "# Every field is explained by `autoloader schema profile`.\n"
    )
    shown = {key: _with_sizes(value) for key, value in plain.items()}
    scalars = {k: v for k, v in shown.items() if not isinstance(v, (dict, list))}
    sections = [{k: v} for k, v in shown.items() if isinstance(v, (dict, list)) and v]
    return "\n".join([head + _dump(scalars), *map(_dump, sections)])


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Fields that differ, as ``(field, in a, in b)`` in a's order; ``None``: not there."""
    left, right = dict(_flat(a)), dict(_flat(b))
    keys = [*left, *(key for key in right if key not in left)]
    return [(k, left.get(k), right.get(k)) for k in keys if left.get(k) != right.get(k)]


def _with_sizes(section: Any) -> Any:
    if not isinstance(section, Mapping):
        return section
    return {
        key: _size_text(value) if key in _SIZE_FIELDS else value for key, value in section.items()
    }


def _size_text(count: int) -> str | int:
    """``count`` bytes exactly, as short as it goes: "62.5GiB", "5GB", else more digits of GiB."""
    short = [f"{count / GIB:.{digits}f}GiB" for digits in range(3)]
    decimal = [f"{count // 10**9}GB", f"{count // 10**6}MB"]
    long = [f"{count / GIB:.{digits}f}GiB" for digits in range(3, 13)]
    return next((text for text in (*short, *decimal, *long) if _exact(text, count)), count)


def _exact(text: str, count: int) -> bool:
    try:
        return parse_bytes(text) == count
    except UsageError:
        return False


def _dump(mapping: Mapping[str, Any]) -> str:
    yaml = YAML()
    yaml.width = 100
    yaml.allow_unicode = True
    stream = io.StringIO()
    yaml.dump(dict(mapping), stream)
    return stream.getvalue()


def _flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for place, one in enumerate(value):
                yield from _flat(one, f"{prefix}{key}[{place}].")
        else:
            yield f"{prefix}{key}", value
