"""Immutable values with named fields, whose classes cost a start little.

For each ``dataclass(frozen=True, slots=True)`` Python 3.11 compiles six functions, in 0.75 ms, and
a process of the loader has 200 such classes. For a ``frozen`` class it compiles one. The types
refuse to change such a value; at run time nothing does.

Not here: models of what people write, which refuse changes and unknown fields (``spec.block``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_T], *, slots: bool = True) -> type[_T]:
    """Make a class a dataclass, with slots or without, that is equal and hashed by its fields."""
    made: Any = dataclass(slots=slots, eq=False, repr=False)(cls)
    compared = [one.name for one in fields(made) if one.compare]
    values = attrgetter(*compared) if compared else type

    def equals(self: Any, other: Any) -> bool:
        return values(self) == values(other) if type(other) is made else NotImplemented

    shared = {"__eq__": equals, "__hash__": lambda self: hash(values(self)), "__repr__": _shown}
    for name, function in shared.items():
        if name not in vars(cls):
            setattr(made, name, function)
    return made  # type: ignore[no-any-return]


def _shown(one: Any) -> str:
    values = (f"{of.name}={getattr(one, of.name)!r}" for of in fields(one) if of.repr)
    return f"{type(one).__qualname__}({', '.join(values)})"
