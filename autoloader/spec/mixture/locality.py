"""``mixing.locality``: samples that follow each other come from few blocks of neighbours.

    mixing: {locality: {block: 8MiB, window: 64}}

Not here: the order that it gives (``order.local``).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ByteSize, Field

from autoloader.spec.block import Block

LEAST_BLOCK_BYTES = 2**16
MOST_BLOCK_BYTES = 2**30


class LocalitySpec(Block):
    """Blocks that are read as a whole, and how many of them samples are shuffled among."""

    block: Annotated[ByteSize, Field(ge=LEAST_BLOCK_BYTES, le=MOST_BLOCK_BYTES)] = Field(
        ByteSize(8 * 2**20), description="bytes of a block of a dataset, which is read at once"
    )
    window: int = Field(
        64,
        ge=1,
        le=65_536,
        description="blocks of a dataset, over all lanes, among which samples are shuffled",
    )
    lanes: int = Field(
        1,
        ge=1,
        le=256,
        description="parts of every dataset that batches take turns in; a multiple of the ranks: "
        "no node reads another one's blocks",
    )
