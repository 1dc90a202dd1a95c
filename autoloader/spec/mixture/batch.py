"""``batch``: how many samples it has, and a function of the user's over each finished batch.

    batch:
      size: 48
      call: my_lab.text:tokens          # fn(batch, **kwargs) -> {name: values}, NumPy in and out
      kwargs: {length: 32}
      gives: {input_ids: {dtype: int32, shape: [32]}, prompt: {dtype: text}}

Not here: calling it (``pipeline.batch_call``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from autoloader.spec.block import Block, wrong
from autoloader.spec.transform import importable

_Rows = Annotated[int, Field(ge=1, le=1_000_000)]
OWN_KEYS = frozenset(
    ("images", "frame_mask", "frame_offset", "action", "action_mask", "state", "state_mask",
     "language", "features", "feature_mask", "dataset_index", "provenance")
)  # fmt: skip
"""What a batch holds by itself; a function adds to it."""


class GivesSpec(Block):
    """What a function gives for each sample of a batch under one name."""

    dtype: Literal["bool", "uint8", "int32", "int64", "float32", "text"] = Field(
        description="type of its numbers, or text: a list of B texts"
    )
    shape: tuple[_Rows, ...] = Field((), description="of a sample: [B, *shape]")

    @model_validator(mode="after")
    def _text_has_no_shape(self) -> GivesSpec:
        if self.dtype == "text" and self.shape:
            raise wrong("text with a shape", "leave shape out: a sample has one text")
        return self


class BatchSpec(Block):
    """Batches, per rank."""

    size: int = Field(48, ge=1, le=65_536, description="samples per batch and rank")
    drop_last: bool = Field(True, description="carry an epoch's remainder into the next one")
    call: str | None = Field(
        None, description="module:function over each finished batch: fn(batch, **kwargs) -> dict"
    )
    kwargs: Mapping[str, JsonValue] = Field(
        default_factory=dict, description="keyword arguments of the function"
    )
    gives: Mapping[str, GivesSpec] = Field(
        default_factory=dict, description="name in the batch → what the function gives"
    )

    @field_validator("call", mode="before")
    @classmethod
    def _can_be_imported_elsewhere(cls, call: Any) -> Any:
        return importable(call)

    @model_validator(mode="after")
    def _call_and_gives_belong_together(self) -> BatchSpec:
        if (self.call is None) != (not self.gives):
            raise wrong(
                f"call: {self.call!r} is given without gives"
                if self.call
                else f"gives: {', '.join(self.gives)} without a call",
                "name the function, and what it gives: {input_ids: {dtype: int32, shape: [32]}}",
            )
        for name in self.gives:
            if name in OWN_KEYS or not name.isidentifier():
                raise wrong(
                    f"gives names {name!r}, which is no name for it",
                    "take a name that the batch does not hold already: letters, digits and _",
                )
        return self
