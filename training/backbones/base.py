"""The interface of backbones.

Not here: any of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

Tokens = dict[str, Tensor]
"""A batch of instructions as tensors; each backbone reads its own."""


class Backbone(nn.Module, ABC):
    """Looks at a frame, reads an instruction, and says one feature.

    Attributes:
        width: numbers in the feature.
    """

    width: int

    @abstractmethod
    def tokens(self, language: Sequence[str]) -> Tokens:
        """The batch's instructions as tensors, on the CPU; ``""`` where there is none."""

    @abstractmethod
    def forward(self, pictures: Tensor, tokens: Tokens) -> Tensor:
        """``[B, width]`` from pictures ``[B, 3, H, W]`` in 0 to 1 and the instructions."""
