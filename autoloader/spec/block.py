"""Base class of the spec's blocks: frozen, and strict about its keys.

Not here: the blocks themselves (``model`` and its neighbours), how a fault is told (``reading``).
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import Self

from autoloader.errors import nearest, shown


def wrong(what: str, remedy: str) -> PydanticCustomError:
    """A validation error that carries its remedy to ``reading``."""
    return PydanticCustomError("spec", "{what}", {"what": what, "remedy": remedy})


def is_number(value: Any) -> bool:
    """True for a finite number; a bool is none."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and abs(value) <= sys.float_info.max


adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)
"""The adapter of a type, from plain values and back: made at its first use, and once."""


def plain_of(value: Any) -> Any:
    """A value as values of JSON, by the adapter of its type."""
    return adapter(type(value)).dump_python(value, mode="json")


_DESCRIBED = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""Name and words of a field, in the section ``Attributes``."""
_KNOB = "this is a knob, not a field of a spec: give it in AutoLoader(…, knobs={…}), or by --set"


class Block(BaseModel):
    """A block of the spec: frozen; an unknown key is refused with the nearest known one.

    The section ``Attributes`` of its docstring describes its fields, in the JSON schema too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        """The schema with the descriptions of the docstring; pydantic calls this."""
        told: dict[str, Any] = handler(core)
        schema = handler.resolve_ref_schema(told)
        about, _, fields = inspect.cleandoc(cls.__doc__ or "").partition("\n\nAttributes:\n")
        schema["description"] = about
        words = {name: " ".join(text.split()) for name, text in _DESCRIBED.findall(fields)}
        for name, field in cls.model_fields.items():
            if name in words:
                schema["properties"][field.alias or name]["description"] = words[name]
        return told

    def having(self, **values: Any) -> Self:
        """A copy with other values, which are not checked; a mapping changes fields of a block."""
        for name, value in values.items():
            if isinstance(before := getattr(self, name), Block) and isinstance(value, Mapping):
                values[name] = before.having(**value)
        return self.model_copy(update=values)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, raw: Any) -> Any:
        """Refuse unknown keys, and true and false for numbers: pydantic takes them for 1 and 0."""
        if not isinstance(raw, Mapping):
            return raw
        fields = {field.alias or name: field for name, field in cls.model_fields.items()}
        for key, value in raw.items():
            if key not in fields:
                from autoloader.spec.knobs import OTHER_WORDS, Knobs  # for this error alone

                words = OTHER_WORDS | dict.fromkeys(Knobs.model_fields, _KNOB)
                remedy = words.get(str(key)) or nearest(str(key), fields)
                raise wrong(f"unknown key {shown(key)}", remedy)
            if isinstance(value, bool) and (allowed := _numbers(fields[key].annotation)):
                fault = wrong(f"{shown(value)} is not allowed", f"it should be {allowed}")
                found = InitErrorDetails(type=fault, loc=(key,), input=value)
                raise ValidationError.from_exception_data(cls.__name__, [found])
        return raw


def _numbers(kind: Any) -> str:
    """Words for a field's values, if they are numbers and neither true nor false; else ""."""
    kinds = [get_args(one)[0] if get_origin(one) is Annotated else one
             for one in (kind, *get_args(kind))]  # fmt: skip
    if bool in kinds or (int not in kinds and float not in kinds):
        return ""
    words = [repr(word) for one in kinds if get_origin(one) is Literal for word in get_args(one)]
    return ", or ".join(["a number", *words])
