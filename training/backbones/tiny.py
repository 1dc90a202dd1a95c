"""The built-in backbone: a small convolutional net that an instruction modulates.

Theory of operation. Text is hashed: every run of three bytes picks a row of an embedding table, and
an instruction is the mean of its rows (Bojanowski et al. 2016, arXiv:1607.04606), so there is no
vocabulary and nothing to download. The mean scales and shifts the channels of each stage (FiLM,
Perez et al. 2017, arXiv:1709.07871). 0.6 million parameters; a step takes tens of milliseconds on
a CPU.

Not here: anything pretrained (``vlm``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from training.backbones.base import Backbone, Tokens
from training.images import resized

_BUCKETS = 4096
_GRAM = 3


def hashed_grams(language: Sequence[str]) -> Tokens:
    """Every run of three bytes as a bucket: ``grams [N]``, ``starts [B]``, both int64.

    An instruction is held between two marks, so that an empty one still has a gram.
    """
    marked = [b"\x02" + text.encode() + b"\x03\x03" for text in language]
    lengths = np.fromiter(map(len, marked), np.int64, len(marked))
    ends = np.cumsum(lengths)
    raw = np.frombuffer(b"".join(marked), np.uint8).astype(np.uint64)
    codes = (raw[:-2] << np.uint64(16)) | (raw[1:-1] << np.uint64(8)) | raw[2:]
    mixed = (codes * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(52)
    # Runs that would reach over an instruction's end.
    inside = np.ones(len(raw), bool)
    inside[ends - 1] = inside[ends - 2] = False
    grams = mixed[inside[: len(codes)]].astype(np.int64)
    starts = ends - lengths - (_GRAM - 1) * np.arange(len(marked))
    return {"grams": torch.from_numpy(grams), "starts": torch.from_numpy(starts)}


class _Stage(nn.Module):
    """Halves the picture; channels are scaled and shifted by the instruction."""

    def __init__(self, inside: int, outside: int, text: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(inside, outside, 3, 2, 1)
        self.norm = nn.GroupNorm(8, outside)
        self.film = nn.Linear(text, 2 * outside)
        self.mix = nn.Conv2d(outside, outside, 3, 1, 1)
        self.act = nn.GELU()

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        x = self.norm(self.reduce(x))
        gain, shift = self.film(text)[:, :, None, None].chunk(2, 1)
        x = self.act(x * (1 + gain) + shift)
        return x + torch.as_tensor(self.act(self.mix(x)))


class TinyBackbone(Backbone):
    """See the module.

    Args:
        side: pictures are resized to this square first.
        width: numbers in the feature.
    """

    def __init__(self, side: int = 64, width: int = 128) -> None:
        super().__init__()
        self.side = side
        self.width = width
        text = 64
        self.words = nn.EmbeddingBag(_BUCKETS, text, mode="mean")
        # Pixels to cells of 4 × 4 first: most of the arithmetic of a small net is at full size.
        self.stem = nn.Conv2d(3, 24, 4, 4)
        self.stages = nn.ModuleList(
            [_Stage(24, 48, text), _Stage(48, 64, text), _Stage(64, 96, text)]
        )
        cells = (side // 32) ** 2
        self.out = nn.Sequential(nn.Flatten(), nn.Linear(96 * cells, width), nn.LayerNorm(width))

    def tokens(self, language: Sequence[str]) -> Tokens:
        return hashed_grams(language)

    def forward(self, pictures: Tensor, tokens: Tokens) -> Tensor:
        text = self.words(tokens["grams"], tokens["starts"])
        x = self.stem(2 * resized(pictures, self.side) - 1)
        for stage in self.stages:
            x = stage(x, text)
        return torch.as_tensor(self.out(x))
