"""``weights`` as a schedule: shares that move from one mixture to another while training goes on.

    weights:
      from: {bridge: 1, droid: 0}    # names left out have the weight that their dataset says
      to: {bridge: 1, droid: 3}
      over: 2000000                  # samples, over all ranks
      kind: explicit                 # or natural_scaled: weights are multiplied by sample counts

Not here: the shares at each position (``order.legs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, Tag, model_serializer

from autoloader.spec.block import Block
from autoloader.spec.sample import Samples

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CurriculumSpec(Block):
    """Shares that move evenly from one mixture to another."""

    from_: Mapping[str, Weight] = Field(
        default_factory=dict,
        alias="from",
        description="dataset → weight at the first sample; one left out has its own `weight`",
    )
    to: Mapping[str, Weight] = Field(
        min_length=1,
        description="dataset → weight at the end and ever after; one left out has its own `weight`",
    )
    over: Samples = Field(description="samples, over all ranks, in which the shares move")
    kind: Literal["explicit", "natural_scaled"] = Field(
        "explicit", description="shares from weight, or from weight × sample count"
    )

    @model_serializer(mode="wrap")
    def _by_its_word(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        return {"from" if key == "from_" else key: value for key, value in plain.items()}


def _form(raw: Any) -> str:
    return "[schedule]" if isinstance(raw, (Mapping, CurriculumSpec)) else "[name]"


Weights = Annotated[
    Annotated[Literal["explicit", "natural", "natural_scaled"], Tag("[name]")]
    | Annotated[CurriculumSpec, Tag("[schedule]")],
    Discriminator(_form),
]
