"""``steps``: which steps of an episode a dataset has at all.

What is dropped here is gone: no window reaches it. (``keep`` restricts t alone, ``stride`` thins
out what these leave.)

Not here: how it is done (``transforms.derive``).
"""

from __future__ import annotations

from pydantic import Field

from autoloader.spec.block import Block


class StepsSpec(Block):
    """Steps that are taken away from every episode; the ops of fields run in between."""

    drop_first: int = Field(0, ge=0, le=1_000_000, description="steps taken away at the start")
    every: int = Field(
        1,
        ge=1,
        le=1_000_000,
        description="then 3 takes every third; ops see these",
    )
    drop_last: int = Field(
        0, ge=0, le=1_000_000, description="steps taken away at the end, once ops have seen them"
    )

    @property
    def takes_all(self) -> bool:
        """Whether no step is taken away."""
        return (self.drop_first, self.every, self.drop_last) == (0, 1, 0)
