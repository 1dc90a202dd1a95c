"""``normalize``: which numbers of a batch are brought to a common scale, and by which statistics.

    normalize:
      action: {method: q01_q99, dims: "[:-1]", clip: true}
      statistics_of: steps                 # every step once; samples: as often as windows show it
      group: {franka: [droid, taco_play]}  # these share one set of statistics

Not here: computing statistics (``autoloader.index.statistics``), applying them
(``samples.statistics``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from autoloader.errors import shown
from autoloader.spec.block import Block, wrong
from autoloader.spec.fields import parse_columns

Dims = tuple[int, ...] | str
GroupName = Annotated[str, Field(min_length=1, max_length=100)]


def _dims(raw: Any) -> Dims | None:
    if raw is None:
        return None
    if isinstance(raw, str) and raw.strip().startswith("[") and raw.strip().endswith("]"):
        text = raw.strip()
        parse_columns(text[1:-1], text)
        return text
    listed = isinstance(raw, (list, tuple)) and len(raw) > 0
    if listed and all(isinstance(one, int) and not isinstance(one, bool) for one in raw):
        return tuple(raw)
    raise wrong(f"{shown(raw)} names no dims", 'write "[:-1]", "[0:6]" or a list such as [0, 1, 2]')


NormalizedDims = Annotated[
    Dims | None,
    BeforeValidator(_dims),
    PlainSerializer(lambda value: list(value) if isinstance(value, tuple) else value),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "null"},
            ]
        }
    ),
]


class FieldNormalizeSpec(Block):
    """Normalisation of ``action`` or ``state``, each dataset by its own statistics."""

    method: Literal["q01_q99", "min_max", "mean_std"] = Field(
        description="q01_q99, min_max: that range to [-1, 1]; mean_std: (x − mean) / std"
    )
    dims: NormalizedDims = Field(
        None,
        description='columns such as "[:-1]" or [0, 1]; the others pass through; default: all, or '
        "the mask of a given statistics file",
    )
    clip: bool = Field(False, description="bound to [-1, 1] (q01_q99, min_max)")
    arithmetic: Literal["autoloader", "octo", "openvla", "openpi", "lerobot"] = Field(
        "autoloader",
        description="whose formula, where a column is constant or nearly so: autoloader gives 0",
    )

    @model_validator(mode="after")
    def _has_bounds_to_clip_to(self) -> FieldNormalizeSpec:
        if self.clip and self.method == "mean_std":
            raise wrong("clip: true with method: mean_std, which has no bounds", "leave clip out")
        return self

    def mask(self, width: int) -> tuple[bool, ...] | None:
        """Which of ``width`` columns are normalised; ``None`` where the spec does not say.

        Raises:
            IndexError: ``dims`` names a column that is not there, or takes none.
        """
        if self.dims is None:
            return None
        if isinstance(self.dims, str):
            taken = set(range(width)[slice(*parse_columns(self.dims[1:-1], self.dims))])
        else:
            taken = {range(width)[one] for one in self.dims}
        if not taken:
            raise IndexError(f"{self.dims} takes none of {width} columns")
        return tuple(column in taken for column in range(width))


class DimsSpec(Block):
    """A dataset's own columns of a field."""

    dims: NormalizedDims = Field(description="as in the mixture's normalize, of this dataset")


class NormalizeOverride(Block):
    """A dataset's own ``normalize``: which columns of fields that are laid out in another way."""

    action: DimsSpec | None = Field(None, description="columns of action that are normalised")
    state: DimsSpec | None = Field(None, description="columns of state that are normalised")


class NormalizeSpec(Block):
    """Normalisation of the batch's numbers, each dataset by its own statistics."""

    action: FieldNormalizeSpec | None = Field(None, description="absent passes through")
    state: FieldNormalizeSpec | None = Field(None, description="absent passes through")
    statistics: str | None = Field(
        None,
        description="a statistics file (or a folder of them), used as it is; null computes exact "
        "ones and caches them",
    )
    statistics_of: Literal["steps", "samples", "recorded"] = Field(
        "steps",
        description="steps: every step counts once; samples: a row counts as often as samples "
        "hold it; recorded: every step of all splits once, also those that keep.language, ranges "
        "and moving leave out",
    )
    group: Mapping[GroupName, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="group → datasets that share one set of statistics, of all their rows",
    )

    def members(self, dataset: str) -> tuple[str, ...]:
        """The datasets that this one shares its statistics with, itself among them."""
        return next((names for names in self.group.values() if dataset in names), (dataset,))

    def group_of(self, dataset: str) -> str | None:
        """The group that a dataset is in, or ``None``."""
        return next((name for name, members in self.group.items() if dataset in members), None)

    @field_validator("group")
    @classmethod
    def _name_each_dataset_once(
        cls, group: Mapping[str, tuple[str, ...]]
    ) -> Mapping[str, tuple[str, ...]]:
        seen: dict[str, str] = {}
        for name, members in group.items():
            for member in members:
                if member in seen:
                    raise wrong(
                        f"dataset {member!r} is named in {seen[member]!r} and in {name!r}"
                        if seen[member] != name
                        else f"dataset {member!r} is named twice in {name!r}",
                        "name each dataset once: it has one set of statistics",
                    )
                seen[member] = name
        return group

    @model_validator(mode="after")
    def _normalises_something(self) -> NormalizeSpec:
        if self.action is None and self.state is None:
            raise wrong("neither action nor state", "name one, such as action: {method: q01_q99}")
        return self
