"""``keep``: which episodes and steps of a dataset give samples.

Rules restrict t only: windows may reach what is not kept. All rules given must hold. They speak of
the episode as a transform leaves it, where there is one.

Not here: whether the features exist, and what the rules leave (``samples.transforms.keep``).
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import SchemaError, SchemaValidator, core_schema

from autoloader.errors import shown
from autoloader.spec.block import Block, is_number, wrong
from autoloader.spec.fields import Expression, FieldExpression

_EXAMPLE = 'such as "{episode_metadata/file_path}"'


@functools.cache
def matcher(pattern: str) -> Callable[[str], bool]:
    """Test for ``pattern`` in a text, in time that grows with the text's length alone.

    The engine is Rust's ``regex``, which pydantic brings: it never backtracks, so it knows no
    look-around and no backreferences.

    Raises:
        ValueError: it is no regular expression, or one of those; says why.
    """
    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        return SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        raise ValueError(str(error).strip().splitlines()[-1].strip()) from error


def key_parts(key: str) -> tuple[tuple[str, str | None], ...]:
    """(text, the feature behind it or ``None``) of a formatted key, in order.

    Raises:
        ValueError: it is no format of plain ``{feature}`` fields; says why.
    """
    parts = []
    for text, feature, spec, conversion in string.Formatter().parse(key):
        if feature is not None and (not feature.strip("/ ") or spec or conversion):
            raise ValueError(f"{{{feature}{spec and ':' + spec}}} is no feature")
        parts.append((text, None if feature is None else feature.strip("/ ")))
    return tuple(parts)


class RangesSpec(Block):
    """Ranges of steps from a JSON file: a mapping of keys to lists of [start, end)."""

    file: str = Field(
        description="JSON: key → [[start, end), …] in steps (before stride, after transform)"
    )
    key: str = Field(description="an episode's key in it, from {features} of the episode")

    @field_validator("key")
    @classmethod
    def _names_a_feature(cls, key: str) -> str:
        try:
            parts = key_parts(key)
        except ValueError as error:
            raise wrong(
                f"{shown(key)} is no key: {error}", f"put features in braces, {_EXAMPLE}"
            ) from error
        if all(feature is None for _, feature in parts):
            raise wrong(
                f"{shown(key)} is the same for every episode", f"name a feature, {_EXAMPLE}"
            )
        return key


class MovingSpec(Block):
    """Only steps where a number is further from zero than a bound."""

    path: Expression = Field(description="columns of one feature, before the stride")
    above: float | tuple[float, ...] = Field(
        description="one bound, or one for each column; a step moves where |x| of any is above its"
    )

    @field_validator("path")
    @classmethod
    def _is_one_feature(cls, path: FieldExpression) -> FieldExpression:
        if len(path.terms) > 1 or path.terms[0].ops:
            raise wrong("more than the columns of a feature", "name one, such as action[:6]")
        return path

    @field_validator("above")
    @classmethod
    def _bounds(cls, above: float | tuple[float, ...]) -> float | tuple[float, ...]:
        for bound in above if isinstance(above, tuple) else (above,):
            if not is_number(bound) or bound < 0:
                raise wrong(f"a bound of {bound}", "give numbers of at least 0")
        return above


class KeepSpec(Block):
    """Which t a dataset keeps; windows may leave what is kept."""

    language: Literal["required", "anywhere"] | None = Field(
        None,
        description="required: only steps whose language is not blank; anywhere: only episodes "
        "with such a step",
    )
    match: Mapping[Annotated[str, Field(min_length=1)], str] = Field(
        default_factory=dict, description="text feature → regular expression found in it"
    )
    ranges: RangesSpec | None = Field(None, description="only steps in ranges listed in a file")
    flags: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="booleans of the episode or of a step that must be true"
    )
    moving: MovingSpec | None = Field(None, description="only steps that move")

    @property
    def looks_at_texts(self) -> bool:
        """True if there are rules besides ``moving``, which a pass over each episode applies."""
        return bool(self.language or self.match or self.ranges or self.flags)

    @property
    def of_episodes(self) -> KeepSpec | None:
        """The rules that say which recordings are meant (``flags``, ``match``), if there are any.

        So do Octo's ``filter_functions``; the other rules choose among what was recorded.
        """
        if not self.match and not self.flags:
            return None
        return KeepSpec(match=self.match, flags=self.flags)

    @field_validator("match")
    @classmethod
    def _are_regular_expressions(cls, match: Mapping[str, str]) -> Mapping[str, str]:
        for path, pattern in match.items():
            try:
                matcher(pattern)
            except ValueError as error:
                raise wrong(
                    f"{shown(pattern)} of {shown(path)} is no regular expression: {error}",
                    "write one without look-around and backreferences, which can take for ever; "
                    "quote it in YAML with single quotes",
                ) from error
        return match

    @model_validator(mode="after")
    def _has_a_rule(self) -> KeepSpec:
        if not self.looks_at_texts and self.moving is None:
            raise wrong(
                "keep has no rule",
                "give language: required, match, ranges, flags or moving, or leave keep out",
            )
        return self
