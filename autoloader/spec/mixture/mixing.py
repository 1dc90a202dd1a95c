"""``mixing``: how the samples of all datasets are put in one order.

Not here: shares (``curriculum``, and ``weight`` of each dataset), the order itself (``order``).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from autoloader.spec.block import Block, wrong
from autoloader.spec.mixture.locality import LocalitySpec
from autoloader.spec.sample import Samples


class MixingSpec(Block):
    """How the datasets' samples are put in one order."""

    strategy: Literal["python", "sample", "choose"] = Field(
        "python",
        description="turns of the datasets. python, choose: evenly, by weight, and choose never "
        "owes one; sample: drawn by weight",
    )
    block_length: int = Field(1, ge=1, le=4096, description="samples in a row from one dataset")
    on_stall: Literal["auto", "wait", "owe"] = Field(
        "auto", description="a dataset that is not ready: wait for it, or owe it its share"
    )
    epoch: Literal["auto", "pass", "forever"] | Samples = Field(
        "auto",
        description="pass: until every dataset has done one pass; N samples; forever; auto: "
        "pass with natural weights, else all valid samples",
    )
    chain: bool = Field(
        False, description="samples of a block share frames, decoded once (indexed reader)"
    )
    locality: LocalitySpec | None = Field(
        None, description="{block, window, lanes}: read blocks, not frames (indexed reader)"
    )

    @property
    def waits(self) -> bool:
        """Whether a dataset that is not ready is waited for, so that no order hangs on timing."""
        return self.strategy == "choose" or self.on_stall == "wait"

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> MixingSpec:
        if self.strategy == "choose" and self.on_stall == "owe":
            raise wrong(
                "strategy: choose with on_stall: owe: choose waits for a dataset that is not ready",
                "set mixing.strategy: python, or leave on_stall out",
            )
        if self.chain and self.block_length == 1:
            raise wrong(
                "chain: true with blocks of one sample, which has nothing to share frames with",
                "set mixing.block_length: 4 (or another above 1), or leave chain out",
            )
        if self.chain and self.locality is not None and self.locality.lanes > 1:
            raise wrong(
                "chain: true with locality.lanes above 1, whose batches would cut runs apart",
                "leave locality.lanes out, or chain",
            )
        return self
